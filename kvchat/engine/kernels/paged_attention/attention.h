// Paged attention on a processor, cut into tasks: single queries, and prompts in pieces of queries.
//
// A query's context is cut at multiples of PART positions. Each part is computed by an online softmax over
// tiles of keys that end where blocks and parts end, and parts are folded in order. All of that follows from
// positions alone: a query's result has the same bits whatever stands beside it, however its prompt was cut,
// and however many threads compute it. Keys and values are read in the order in which they lie in a block,
// all heads in turn, each number once; where many rows share a head, they lie side by side, as turned.h says,
// and heads are tasks of their own.
//
// Source: FlashAttention-2, arXiv 2307.08691, for the softmax; FlashDecoding for the parts. Dimensions: H
// query heads, H_kv key-value heads, G = H / H_kv, D head size, P block size.

#pragma once

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/call.h"
#include "kvchat/engine/kernels/paged_attention/queries.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"
#include "kvchat/engine/kernels/paged_attention/softmax.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"
#include "kvchat/engine/kernels/paged_attention/turned.h"

namespace {

constexpr int64_t PART = 256;  // positions
constexpr int PIECE = 64;      // most queries of one task
constexpr int SHORT = 16;      // the same where that would make too few tasks
constexpr int ENOUGH = 4;      // tasks for each that is wanted: long ones end at different times

// What stands beside the pools where queries read older blocks in another form: here nothing.
struct NothingOlder {
  // The first position that reads the block of position p in the other form.
  int64_t first_reader(int64_t) const { return INT64_MAX; }
  // Numbers of memory that a task of so many rows needs to read such blocks.
  int64_t scratch(int64_t, int64_t, int64_t) const { return 0; }
  // Makes a task's queries ready for them.
  void begin(float*, const float*, int64_t, int64_t, int64_t) const {}
  // Calls `take(tile)` with a tile in the other form.
  template <typename Take>
  void open(float*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Take) const {}
};

template <typename T, typename Older = NothingOlder>
struct Attention {
  const AttentionCall& call;
  const Older older;
  const Span* spans;
  Task* tasks = nullptr;
  float* partials = nullptr;
  int64_t heads = 0, piece = SHORT, num_tasks = 0, num_pieces = 0;
  bool failed = false;                // for lack of memory
  int64_t group, stride_k, stride_v;  // strides of queries and sums as float32, whole vectors

  explicit Attention(const AttentionCall& call, Older older = {})
      : call(call),
        older(older),
        spans(call.spans),
        group(call.num_heads / call.num_kv_heads),
        stride_k((call.dim_k + W - 1) / W * W),
        stride_v((call.dim_v + W - 1) / W * W) {}

  int64_t num_rows(const Task& task) const { return task.num_queries * task.num_heads * group; }

  // Numbers of memory for a task's queries and sums.
  int64_t scratch_of(int64_t rows) const {
    return State::padded(rows * stride_k) + 2 * State::size(rows, stride_v);
  }

  // Whether the rows of so many queries lie side by side.
  bool can_turn(int64_t num) const { return CAN_TURN && num * group >= ROWS_WORTH_TURNING; }

  // Numbers of memory for such queries, and for the keys and values of a part.
  int64_t turned_queries(const Task& task) const { return turned_size(task.num_queries * group, stride_k); }
  int64_t turned_scratch(const Task& task) const {
    if (!can_turn(task.num_queries)) return 0;
    const int64_t part = widened_size(PART, stride_k) + widened_size(PART, stride_v);
    return task.num_heads * turned_queries(task) + part;
  }
  float* turned_memory(const Task& task, const float* query) const {
    const int64_t rows = num_rows(task);
    return (float*)query + scratch_of(rows) + older.scratch(rows, stride_k, stride_v);
  }

  // Rows of a task.
  RowRange rows_of(const Task& task) const {
    return {spans[task.span].row + task.query, task.num_queries, task.head, task.num_heads, group};
  }

  void run(int64_t number) {
    const Task& task = tasks[number];
    const int64_t rows = num_rows(task), size = State::size(rows, stride_v);
    float* memory =
        allocate(scratch_of(rows) + older.scratch(rows, stride_k, stride_v) + turned_scratch(task));
    if (!memory) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      return;
    }
    read_queries(call, rows_of(task), stride_k, memory);
    older.begin(memory + scratch_of(rows), memory, rows, stride_k, stride_v);
    if (can_turn(task.num_queries)) turn(task, memory);
    const State part(task.partial ? task.partial : memory + State::padded(rows * stride_k), rows, stride_v);
    const State all(memory + State::padded(rows * stride_k) + size, rows, stride_v);
    if (task.partial) {
      add_part(task, memory, part, task.part);
      if (__atomic_sub_fetch(task.num_left, 1, __ATOMIC_ACQ_REL) == 0) fold_partials(task, all);
    } else {
      all.clear();
      for (int64_t i = 0; i < task.num_parts; i++) {
        add_part(task, memory, part, task.part + i);
        all.fold(part);
      }
      write(task, all);
    }
    free(memory);
  }

  // The last task of some queries and heads puts all of their parts together, in order.
  void fold_partials(const Task& task, const State& all) const {
    const Task* first = &task;
    while (first > tasks && first[-1].num_left == task.num_left) first--;
    all.clear();
    for (int64_t i = 0; i < task.num_parts; i++) all.fold(State(first[i].partial, num_rows(task), stride_v));
    write(task, all);
  }

  void add_part(const Task& task, const float* query, const State& state, int64_t part) const {
    const Span& span = spans[task.span];
    const int64_t position = span.position + task.query, last = position + task.num_queries;
    const int64_t begin = most(part * PART, first_visible(call, position)),
                  end = least((part + 1) * PART, last);
    const bool together = can_turn(task.num_queries);
    state.clear();
    for (int64_t p = part * PART; p < end; p += tile_len(p)) {
      const int64_t length = tile_len(p), exact = num_exact(task, p);
      if (p + length <= begin) continue;
      if (exact && !together) add_exact(task, query, state, exact, p, length, end);
      if (exact < task.num_queries) add_older(task, query, state, exact, p, length);
    }
    if (together) add_together(task, query, state, part * PART, begin, end);
  }

  // How many queries of a task, its first ones, read the block at p as it is.
  int64_t num_exact(const Task& task, int64_t p) const {
    const int64_t position = spans[task.span].position + task.query;
    return least(most(older.first_reader(p) - position, 0), task.num_queries);
  }

  // The tile at p of all heads, for the first `num` queries of a task; later ones, up to `end`, follow.
  void add_exact(const Task& task, const float* query, const State& state, int64_t num, int64_t p,
                 int64_t length, int64_t end) const {
    const Span& span = spans[task.span];
    const T* keys = at(call.k_pool, call.k_n, call.k_p, span, p);
    const T* values = at(call.v_pool, call.v_n, call.v_p, span, p);
    const T* later = p + length < end ? at(call.k_pool, call.k_n, call.k_p, span, p + length) : nullptr;
    for (int64_t h = task.head; h < task.head + task.num_heads; h++) {
      const T* next = h + 1 < task.head + task.num_heads ? keys + (h + 1) * call.k_h : later;
      const Tile<T> tile = {keys + h * call.k_h, values + h * call.v_h, next, call.k_p, call.v_p, p, length};
      add_tile(task, query, state, h - task.head, 0, num, tile);
    }
  }

  // Makes the queries of a task lie side by side.
  void turn(const Task& task, const float* query) const {
    const int64_t rows = task.num_queries * group;
    float* to = turned_memory(task, query);
    for (int64_t h = 0; h < task.num_heads; h++)
      turn_queries(to + h * turned_queries(task), query + h * rows * stride_k, rows, stride_k);
  }

  // What a task whose rows lie side by side reads as it is of positions [begin, end) of a part, behind all
  // that the same rows read in another form.
  void add_together(const Task& task, const float* query, const State& state, int64_t start, int64_t begin,
                    int64_t end) const {
    const int64_t rows = task.num_queries * group;
    const float* queries = turned_memory(task, query);
    float* keys = (float*)queries + task.num_heads * turned_queries(task);
    const WidePart part = {keys, keys + widened_size(PART, stride_k), start, begin, end};
    for (int64_t h = 0; h < task.num_heads; h++, queries += turned_queries(task)) {
      widen(task, task.head + h, part);
      for (int64_t row = 0; row < rows; row += SIDE)
        add_rows_together(task, queries + row * stride_k, part, state, h * rows, row);
    }
  }

  void widen(const Task& task, int64_t h, const WidePart& part) const {
    const Span& span = spans[task.span];
    for (int64_t p = part.start; p < part.end; p += tile_len(p)) {
      const int64_t length = least(tile_len(p), part.end - p);
      if (p + length <= part.begin || num_exact(task, p) == 0) continue;
      const T* keys = at(call.k_pool, call.k_n, call.k_p, span, p) + h * call.k_h;
      const T* values = at(call.v_pool, call.v_n, call.v_p, span, p) + h * call.v_h;
      widen_rows(part.keys_at(p, stride_k), stride_k, keys, call.k_p, call.dim_k, length);
      widen_rows(part.values_at(p, stride_v), stride_v, values, call.v_p, call.dim_v, length);
    }
  }

  // Rows from `row` of a head on, whose first state is `first`.
  void add_rows_together(const Task& task, const float* queries, const WidePart& part, const State& state,
                         int64_t first, int64_t row) const {
    SideRows rows;
    rows.num = least(SIDE, task.num_queries * group - row);
    alignas(64) float top[SIDE], total[SIDE];
    for (int64_t r = 0; r < SIDE; r++) {
      top[r] = r < rows.num ? state.top[first + row + r] : -INFINITY;
      total[r] = r < rows.num ? state.total[first + row + r] : 0.0f;
    }
    for (int64_t p = part.start; p < part.end; p += tile_len(p)) {
      const int64_t length = least(tile_len(p), part.end - p);
      if (p + length <= part.begin || !find_seen(task, row, p, length, &rows)) continue;
      const auto add = rows.num > W ? add_side<2> : add_side<1>;
      add(rows, queries, part.keys_at(p, stride_k), part.values_at(p, stride_v), stride_k, stride_v,
          call.softcap, top, total, state.acc + (first + row) * stride_v);
    }
    memcpy(state.top + first + row, top, rows.num * sizeof(float));
    memcpy(state.total + first + row, total, rows.num * sizeof(float));
  }

  // Which keys of a tile rows see as they are; false: none.
  bool find_seen(const Task& task, int64_t row, int64_t p, int64_t length, SideRows* rows) const {
    const int64_t exact = num_exact(task, p), last = (row + rows->num - 1) / group;
    const int64_t position = spans[task.span].position + task.query;
    rows->is_whole = last < exact && p + length <= position + row / group + 1 &&
                     first_visible(call, position + last) <= p;
    rows->begin = rows->is_whole ? 0 : length;
    rows->end = rows->is_whole ? length : 0;
    if (rows->is_whole) return true;
    int64_t query = row / group, of_group = row % group;
    for (int64_t r = 0; r < rows->num; r++) {
      rows->begins[r] = query < exact ? most(first_visible(call, position + query) - p, 0) : length;
      rows->ends[r] = query < exact ? least(position + query + 1 - p, length) : 0;
      if (rows->begins[r] < rows->ends[r]) {
        rows->begin = least(rows->begin, rows->begins[r]);
        rows->end = most(rows->end, rows->ends[r]);
      }
      if (++of_group == group) query++, of_group = 0;
    }
    return rows->begin < rows->end;
  }

  // The same in its other form, for the queries from the `first` one on.
  void add_older(const Task& task, const float* query, const State& state, int64_t first, int64_t p,
                 int64_t length) const {
    const int64_t rows = num_rows(task);
    float* scratch = (float*)query + scratch_of(rows);
    for (int64_t h = 0; h < task.num_heads; h++)
      older.open(
          scratch, stride_k, stride_v, task.span, task.head + h, p, length,
          [&](const auto& tile) { add_tile(task, query, state, h, first, task.num_queries, tile); });
  }

  // Keys of a tile that begins at position p: up to where its block or its part ends.
  int64_t tile_len(int64_t p) const {
    return least(least(call.block_size - p % call.block_size, MOST_KEYS), PART - p % PART);
  }

  // Where the key or the value of the first head at position p lies.
  const T* at(const void* pool, int64_t stride_n, int64_t stride_p, const Span& span, int64_t p) const {
    return (const T*)pool + span.blocks[p / call.block_size - span.first_block] * stride_n +
           p % call.block_size * stride_p;
  }

  // One tile of keys, and the rows of queries [first, last) of one key-value head.
  template <typename AnyTile>
  void add_tile(const Task& task, const float* query, const State& state, int64_t h, int64_t first,
                int64_t last, const AnyTile& tile) const {
    const int64_t start = h * task.num_queries * group;
    by_rows(first * group, last * group, [&](auto together, int64_t row) {
      add_rows<decltype(together)::ROWS>(task, query, state, start + row, row, tile);
    });
  }

  template <int ROWS, typename AnyTile>
  void add_rows(const Task& task, const float* query, const State& state, int64_t row, int64_t number,
                const AnyTile& tile) const {
    const int64_t p = tile.p, length = tile.length;
    alignas(64) float scores[ROWS][MOST_KEYS + W];
    float decay[ROWS];
    int64_t begins[ROWS], ends[ROWS], begin = length, end = 0;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = spans[task.span].position + task.query + (number + r) / group;
      begins[r] = most(first_visible(call, at) - p, 0);
      ends[r] = least(at + 1 - p, length);
      if (begins[r] >= ends[r]) continue;
      begin = least(begin, begins[r]);
      end = most(end, ends[r]);
    }
    if (begin >= end) return;
    dot_keys<ROWS>(scores, tile, query + row * stride_k, stride_k, row, call, begin, end);
    if (tile.key_scales) scale<ROWS>(scores, tile.key_scales, begin, end);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      decay[r] = 1.0f;
      if (begins[r] < ends[r])
        decay[r] =
            soften(scores[r], begins[r], ends[r], call.softcap, &state.top[row + r], &state.total[row + r]);
    }
    if (tile.value_scales) scale<ROWS>(scores, tile.value_scales, begin, end);
    add_seen<ROWS>(begins, ends, decay, [&](auto together, int64_t r, int64_t from, int64_t to) {
      add_values<decltype(together)::ROWS>(state.acc + (row + r) * stride_v, stride_v, decay + r, scores + r,
                                           tile, call, from, to);
    });
  }

  template <int ROWS>
  static void scale(float (*scores)[MOST_KEYS + W], const float* scales, int64_t begin, int64_t end) {
    UNROLL
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = begin / W * W; i < end; i += W)
        store(scores[r] + i, mul(load(scores[r] + i), load(scales + i)));
  }

  void write(const Task& task, const State& all) const {
    int64_t row = 0;
    each_row(rows_of(task), [&](int64_t token, int64_t head) {
      float total = all.total[row], factor = 1.0f;
      if (call.sinks) {
        const float top = fmaxf(all.top[row], call.sinks[head]);
        factor = exponential(all.top[row] - top);
        total = total * factor + exponential(call.sinks[head] - top);
      }
      write_row(call, token, head, all.acc + row * stride_v, factor, total);
      row++;
    });
  }

  // Cuts the spans into tasks, `wanted` or more where there are heads to divide; false: for lack of memory.
  // No result depends on how many there are, nor on whether one task or several compute the parts of a query.
  bool prepare(int64_t wanted) {
    int64_t scratch = 0;
    heads = heads_per_task(wanted);
    for (piece = CAN_TURN ? PIECE : SHORT;; piece /= 2) {
      num_tasks = num_pieces = scratch = 0;
      count(heads, &num_tasks, &num_pieces, &scratch);
      if (piece == SHORT || num_tasks >= ENOUGH * wanted) break;
    }
    tasks = (Task*)malloc(num_tasks * sizeof(Task) + num_pieces * sizeof(int32_t));
    partials = allocate(scratch);
    if (!tasks || !partials) {
      release();
      return false;
    }
    reset();
    return true;
  }

  // Makes the tasks ready to be run again.
  void reset() const { fill_tasks(heads, (int32_t*)(tasks + num_tasks), partials); }

  // Takes over the tasks of another layer that keeps the same, and is not computed at the same time.
  void share(const Attention& other) {
    tasks = other.tasks;
    partials = other.partials;
    heads = other.heads;
    piece = other.piece;
    num_tasks = other.num_tasks;
    num_pieces = other.num_pieces;
  }

  void release() {
    free(tasks);
    free(partials);
    tasks = nullptr;
    partials = nullptr;
  }

  int64_t heads_per_task(int64_t wanted) const {
    int64_t num_tasks = 0, num_pieces = 0, scratch = 0;
    count(call.num_kv_heads, &num_tasks, &num_pieces, &scratch);
    int64_t heads = call.num_kv_heads;
    while (heads > 1 && num_tasks * ((call.num_kv_heads + heads - 1) / heads) < wanted)
      heads = (heads + 1) / 2;
    return heads;
  }

  // Calls `take(span, query, queries, head, heads, first part, parts)` for every piece: queries and heads
  // that are put together by one task.
  template <typename Take>
  void each_piece(int64_t heads, Take take) const {
    for (int64_t s = 0; s < call.num_spans; s++)
      for (int64_t q = 0; q < spans[s].num_rows; q += piece) {
        const int64_t num = least(piece, spans[s].num_rows - q), position = spans[s].position + q;
        const int64_t part = first_visible(call, position) / PART;
        const int64_t num_parts = (position + num - 1) / PART + 1 - part;
        const int64_t step = can_turn(num) ? 1 : heads;
        for (int64_t h = 0; h < call.num_kv_heads; h += step)
          take(s, q, num, h, least(step, call.num_kv_heads - h), part, num_parts);
      }
  }

  // Parts are tasks of their own where a sequence has few queries and so few pieces.
  bool is_split(int64_t span, int64_t num_parts) const {
    return num_parts > 1 && spans[span].num_rows <= SHORT;
  }

  void count(int64_t heads, int64_t* num_tasks, int64_t* num_pieces, int64_t* scratch) const {
    each_piece(heads,
               [&](int64_t s, int64_t, int64_t num, int64_t, int64_t num_heads, int64_t, int64_t parts) {
                 *num_pieces += 1;
                 *num_tasks += is_split(s, parts) ? parts : 1;
                 if (is_split(s, parts)) *scratch += parts * State::size(num * num_heads * group, stride_v);
               });
  }

  void fill_tasks(int64_t heads, int32_t* num_left, float* partials) const {
    Task* task = tasks;
    each_piece(heads, [&](int64_t s, int64_t q, int64_t num, int64_t h, int64_t num_heads, int64_t part,
                          int64_t parts) {
      *task = {(int32_t)s, (int32_t)q, (int32_t)num, (int32_t)h, (int32_t)num_heads,
               part,       parts,      nullptr,      num_left};
      if (is_split(s, parts)) {
        *num_left = (int32_t)parts;
        for (int64_t i = 0; i < parts; i++, task++) {
          *task = {(int32_t)s, (int32_t)q, (int32_t)num, (int32_t)h, (int32_t)num_heads,
                   part + i,   parts,      partials,     num_left};
          partials += State::size(num_rows(*task), stride_v);
        }
      } else {
        task++;
      }
      num_left++;
    });
  }
};

}  // namespace
