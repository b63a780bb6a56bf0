// Attention of a few queries to what they choose of a long context, read where it lies in its blocks.
//
// What stands for the chunks is multiplied with the queries first, in the order in which it lies in memory: a
// landmark of each, or its keys, of which the highest product counts. Then each key-value head weighs the
// chunks by itself, takes the best, and attends to these, to those that are seen anyway and to the tail, by
// ascending positions. No result depends on how many threads compute it.
//
// Definition: reference.py. Dimensions: Q queries, H query heads, H_kv key-value heads, G = H / H_kv, D head
// size, C compressed chunks; a row is a query and a head.

#pragma once

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/queries.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"
#include "kvchat/engine/kernels/paged_attention/softmax.h"
#include "kvchat/engine/kernels/shadow_kv/choosing.h"
#include "kvchat/engine/kernels/shadow_kv/scattered.h"

namespace {

constexpr int64_t RANGE = 256;  // most chunks of one task
constexpr int64_t NEAR = 32;    // chunks of which every head reads its part before the next ones are read

enum { DONE, NO_MEMORY, NOT_FINITE };

// What stands for some chunks: a row of native.py's table.
struct Piece {
  const void* rows;     // [num_chunks, num_keys, H_kv, D]
  const float* scales;  // of codes [num_chunks, H_kv], or null: they are numbers
  int64_t first_chunk, num_chunks, num_keys;
};

// The fields of native.py's `_Call`, in order.
struct ChoiceCall {
  const void* query;
  const void* k_pool;
  const void* v_pool;
  void* out;
  const int64_t* blocks;
  const Piece* pieces;
  const int64_t* always;  // [H_kv, num_always], ascending
  const int64_t* before;  // [H_kv, num_before], ascending: what was chosen the last time
  int64_t* chosen;        // [H_kv, num_chosen], ascending
  Parallel parallel;      // null: compute alone
  int64_t num_pieces, num_threads, query_type, pool_type;
  int64_t num_queries, num_heads, num_kv_heads, dim_k, dim_v, block_size;
  int64_t query_t, query_h, k_n, k_h, k_p, v_n, v_h, v_p, out_t, out_h;  // strides
  int64_t chunk_size, num_compressed, num_tokens, num_always, num_before, num_chosen;
  int64_t num_new;  // set: what is chosen and was not before, over all heads
  float scale;
};

// What one head sees, in tiles: chunks, and behind them the tail.
template <typename T>
struct Walk {
  const ChoiceCall& call;
  const int64_t head;
  const int64_t* chunk;
  const int64_t* const end;
  int64_t position;

  // Fills a tile; none: all was seen.
  void next(Scattered<T>* tile) {
    tile->count = tile->position = 0;
    for (; chunk < end && tile->count + call.chunk_size <= MOST_KEYS; chunk++)
      add(tile, *chunk * call.chunk_size, call.chunk_size);
    if (tile->count) return;
    tile->position = position;
    while (position < call.num_tokens && tile->count < MOST_KEYS) {
      const int64_t left = least(call.num_tokens - position, MOST_KEYS - tile->count);
      const int64_t count = least(left, call.block_size - position % call.block_size);
      add(tile, position, count);
      position += count;
    }
  }

  // Adds tokens of one block.
  void add(Scattered<T>* tile, int64_t position, int64_t count) const {
    const int64_t block = call.blocks[position / call.block_size], slot = position % call.block_size;
    const T* key = (const T*)call.k_pool + block * call.k_n + head * call.k_h + slot * call.k_p;
    const T* value = (const T*)call.v_pool + block * call.v_n + head * call.v_h + slot * call.v_p;
    for (int64_t i = 0; i < count; i++, tile->count++) {
      tile->keys[tile->count] = key + i * call.k_p;
      tile->values[tile->count] = value + i * call.v_p;
    }
  }
};

template <typename T>
struct Choice {
  ChoiceCall& call;
  const int64_t group, num_rows, num_seen;
  const int64_t stride_k, stride_v, stride_c;  // whole vectors, of chunks whole lines of them
  float* memory = nullptr;
  float* queries = nullptr;   // [H_kv, rows, stride_k]
  float* products = nullptr;  // [H_kv, rows, stride_c]
  float* weights = nullptr;   // [H_kv, stride_c]
  float* states = nullptr;    // [H_kv, rows, stride_v + 2]
  int64_t* seen = nullptr;    // [H_kv, num_seen]
  bool is_odd = false;

  explicit Choice(ChoiceCall& call)
      : call(call),
        group(call.num_heads / call.num_kv_heads),
        num_rows(call.num_queries * group),
        num_seen(call.num_always + call.num_chosen),
        stride_k((call.dim_k + W - 1) / W * W),
        stride_v((call.dim_v + W - 1) / W * W),
        stride_c((call.num_compressed + 63) / 64 * 64) {}

  bool prepare() {
    const int64_t rows = call.num_kv_heads * num_rows;
    const int64_t sizes[] = {rows * stride_k, rows * stride_c, call.num_kv_heads * stride_c,
                             (rows * (stride_v + 2) + 15) / 16 * 16, call.num_kv_heads * num_seen * 2};
    memory = allocate(sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4]);
    if (!memory) return false;
    queries = memory;
    products = queries + sizes[0];
    weights = products + sizes[1];
    states = weights + sizes[2];
    seen = (int64_t*)(states + sizes[3]);
    read_queries(call, rows_of(0, call.num_kv_heads), stride_k, queries);
    return true;
  }

  void release() { free(memory); }

  // Rows of all queries in some key-value heads.
  RowRange rows_of(int64_t head, int64_t num_heads) const {
    return {0, call.num_queries, head, num_heads, group};
  }
};

inline int64_t num_ranges(const Piece& piece) { return (piece.num_chunks + RANGE - 1) / RANGE; }

// First all products, in tasks of some chunks and all heads.
template <typename T>
struct Products {
  Choice<T>& choice;

  int64_t num_tasks() const {
    int64_t num = 0;
    for (int64_t i = 0; i < choice.call.num_pieces; i++) num += num_ranges(choice.call.pieces[i]);
    return num;
  }

  void run(int64_t task) {
    const Piece* piece = choice.call.pieces;
    for (; task >= num_ranges(*piece); piece++) task -= num_ranges(*piece);
    const int64_t begin = task * RANGE, end = least(begin + RANGE, piece->num_chunks);
    Vec odd = zero();
    if (piece->scales)
      multiply(*piece, (const int8_t*)piece->rows, begin, end, &odd);
    else
      multiply(*piece, (const T*)piece->rows, begin, end, &odd);
    if (!(sum(odd) == 0.0f)) __atomic_store_n(&choice.is_odd, true, __ATOMIC_RELAXED);
  }

  // Chunks [begin, end) of a piece.
  template <typename K>
  void multiply(const Piece& piece, const K* rows, int64_t begin, int64_t end, Vec* odd) const {
    const ChoiceCall& call = choice.call;
    const int64_t heads = call.num_kv_heads, dim = call.dim_k, step = heads * dim;
    for (int64_t c = begin; c < end; c += NEAR) {
      const K* keys = rows + c * piece.num_keys * step;
      const K* later = c + 2 * NEAR <= piece.num_chunks ? keys + NEAR * piece.num_keys * step : nullptr;
      for (int64_t h = 0; h < heads; h++) {
        const K* next = h + 1 < heads ? keys + (h + 1) * dim : later;
        const float* scales = piece.scales ? piece.scales + c * heads + h : nullptr;
        const int64_t num = least(NEAR, end - c);
        multiply_head<K>(h, piece.first_chunk + c,
                         {keys + h * dim, next, scales, step, num, piece.num_keys, dim, heads}, odd);
      }
    }
  }

  template <typename K>
  void multiply_head(int64_t head, int64_t first_chunk, Stretch<K> stretch, Vec* odd) const {
    const int64_t stride_k = choice.stride_k, stride_c = choice.stride_c;
    const float* queries = choice.queries + head * choice.num_rows * stride_k;
    float* out = choice.products + head * choice.num_rows * stride_c + first_chunk;
    by_rows(0, choice.num_rows, [&](auto together, int64_t row) {
      best_products<decltype(together)::ROWS>(out + row * stride_c, stride_c, queries + row * stride_k,
                                              stride_k, stretch, odd);
      stretch.next = nullptr;
    });
  }
};

// Then each head.
template <typename T>
struct Heads {
  Choice<T>& choice;

  void run(int64_t head) {
    ChoiceCall& call = choice.call;
    int64_t* chosen = call.chosen + head * call.num_chosen;
    if (call.num_chosen) {
      float* weights = choice.weights + head * choice.stride_c;
      weigh(head, weights);
      take_largest(weights, choice.stride_c, call.num_chosen, chosen);
    }
    __atomic_fetch_add(&call.num_new, num_new(head, chosen), __ATOMIC_RELAXED);
    int64_t* seen = choice.seen + head * choice.num_seen;
    merge(call.always + head * call.num_always, chosen, seen);
    attend(head, seen);
  }

  // The highest weight that a row gives to each chunk that is not seen anyway; below 0: it cannot be taken.
  void weigh(int64_t head, float* weights) const {
    const ChoiceCall& call = choice.call;
    const int64_t* always = call.always + head * call.num_always;
    for (int64_t i = 0; i < choice.stride_c; i++) weights[i] = 0.0f;
    for (int64_t row = 0; row < choice.num_rows; row++) {
      float* x = choice.products + (head * choice.num_rows + row) * choice.stride_c;
      for (int64_t i = 0; i < call.num_always; i++) x[always[i]] = -INFINITY;
      for (int64_t i = call.num_compressed; i < choice.stride_c; i++) x[i] = -INFINITY;
      raise_to_softmax(weights, x, choice.stride_c);
    }
    for (int64_t i = 0; i < call.num_always; i++) weights[always[i]] = -1.0f;
    for (int64_t i = call.num_compressed; i < choice.stride_c; i++) weights[i] = -1.0f;
  }

  int64_t num_new(int64_t head, const int64_t* chosen) const {
    const int64_t* before = choice.call.before + head * choice.call.num_before;
    const int64_t* const end = before + choice.call.num_before;
    int64_t num = 0;
    for (int64_t i = 0; i < choice.call.num_chosen; i++) {
      while (before < end && *before < chosen[i]) before++;
      num += before == end || *before != chosen[i];
    }
    return num;
  }

  void merge(const int64_t* always, const int64_t* chosen, int64_t* to) const {
    const int64_t* const end = always + choice.call.num_always;
    for (int64_t i = 0; i < choice.call.num_chosen; i++) {
      while (always < end && *always < chosen[i]) *to++ = *always++;
      *to++ = chosen[i];
    }
    while (always < end) *to++ = *always++;
  }

  void attend(int64_t head, const int64_t* seen) const {
    const ChoiceCall& call = choice.call;
    float* top = choice.states + head * choice.num_rows * (choice.stride_v + 2);
    float *total = top + choice.num_rows, *acc = total + choice.num_rows;
    for (int64_t row = 0; row < choice.num_rows; row++) top[row] = -INFINITY;
    memset(total, 0, choice.num_rows * (choice.stride_v + 1) * sizeof(float));
    Walk<T> walk = {call, head, seen, seen + choice.num_seen, call.num_compressed * call.chunk_size};
    Scattered<T> tiles[2];
    walk.next(&tiles[0]);
    for (int now = 0; tiles[now].count; now ^= 1) {
      walk.next(&tiles[now ^ 1]);
      by_rows(0, choice.num_rows, [&](auto together, int64_t row) {
        add_rows<decltype(together)::ROWS>(head, row, tiles[now], row ? nullptr : &tiles[now ^ 1], top + row,
                                           total + row, acc + row * choice.stride_v);
      });
    }
    write(head, total, acc);
  }

  template <int ROWS>
  void add_rows(int64_t head, int64_t first, const Scattered<T>& tile, const Scattered<T>* later, float* top,
                float* total, float* acc) const {
    const ChoiceCall& call = choice.call;
    alignas(64) float scores[ROWS][MOST_KEYS + W];
    float decay[ROWS];
    int64_t begins[ROWS], ends[ROWS], end = 0;
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = call.num_tokens - call.num_queries + (first + r) / choice.group;
      begins[r] = 0;
      ends[r] = most(0, least(tile.count, at + 1 - tile.position));
      end = most(end, ends[r]);
    }
    if (!end) return;
    const float* query = choice.queries + (head * choice.num_rows + first) * choice.stride_k;
    dot_scattered<ROWS>(scores, query, choice.stride_k, tile, call.dim_k, call.dim_v, end);
    for (int r = 0; r < ROWS; r++)
      decay[r] = ends[r] ? soften(scores[r], 0, ends[r], 0.0f, top + r, total + r) : 1.0f;
    add_seen<ROWS>(begins, ends, decay, [&](auto together, int64_t r, int64_t from, int64_t to) {
      add_scattered<decltype(together)::ROWS>(acc + r * choice.stride_v, choice.stride_v, decay + r,
                                              scores + r, tile, call.dim_v, from, to, later, call.dim_k);
    });
  }

  void write(int64_t head, const float* total, const float* acc) const {
    int64_t row = 0;
    each_row(choice.rows_of(head, 1), [&](int64_t token, int64_t query_head) {
      write_row(choice.call, token, query_head, acc + row * choice.stride_v, 1.0f, total[row]);
      row++;
    });
  }
};

}  // namespace
