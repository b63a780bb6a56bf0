// What attention does with one tile of keys and values, and a few rows, a query and a head each, that share it.
//
// Every row is computed as if it were alone: how many rows share a read changes no bit of any.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/call.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"

namespace {

// Asks for `count` numbers to be in the cache when they are needed. Tiles are too short for the processor to
// see by itself where it will read next: without this, more than half of the time is spent waiting.
template <typename T>
INLINE void fetch(const T* p, int64_t count) {
  for (const char *line = (const char*)p, *end = (const char*)(p + count); line < end; line += 64)
    __builtin_prefetch(line);
}

// Scores of ROWS queries [ROWS, stride] with keys [begin, end) of a tile, at the same places of `scores`.
template <int ROWS, typename T, typename V>
void dot_keys(float (*scores)[MOST_KEYS + W], const float* query, int64_t stride, const T* keys, int64_t k_p,
              int64_t dim, int64_t begin, int64_t end, const V* values, int64_t v_p, int64_t dim_v) {
  constexpr int KEYS = keys_at_once<ROWS>();
  for (int64_t k = begin; k < end; k += KEYS) {
    for (int j = 0; j < KEYS; j++) fetch(values + (k + j) * v_p, dim_v);
    const T* key[KEYS];
    UNROLL
    for (int j = 0; j < KEYS; j++) key[j] = keys + least(k + j, end - 1) * k_p;
    score<ROWS>(scores, k, query, stride, key, dim);
  }
}

// acc[r] = acc[r] * decay[r] + sum of weights * values[k], for VECS vectors of columns. The weights of a row
// stand OF_ROW numbers behind those of the row before, those of a key OF_KEY numbers.
template <int ROWS, int VECS, int OF_ROW, int OF_KEY, typename T>
INLINE void add_columns(float* acc, int64_t stride, const float* decay, const float* weights, const T* values,
                        int64_t v_p, int64_t begin, int64_t end, const T* next, int64_t k_p, int64_t count) {
  Vec sum[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) sum[r][i] = mul(load(acc + r * stride + i * W), fill(decay[r]));
  }
  for (int64_t k = begin; k < end; k++) {
    if (next) fetch(next + k * k_p, count);
    Vec x[VECS];
    load_row<VECS>(values + k * v_p, x);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) sum[r][i] = fma(fill(weights[r * OF_ROW + k * OF_KEY]), x[i], sum[r][i]);
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) store(acc + r * stride + i * W, sum[r][i]);
  }
}

template <int ROWS, typename T>
void add_values(float* acc, int64_t stride, const float* decay, const float (*weights)[MOST_KEYS + W],
                const T* values, int64_t v_p, int64_t dim, int64_t begin, int64_t end, const T* next,
                int64_t k_p, int64_t dim_k) {
  // What stays in registers.
  constexpr int FIT = (W == 16 ? 24 : W == 8 ? 12 : 24) / ROWS;
  constexpr int VECS = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1, OF_ROW = MOST_KEYS + W;
  int64_t d = 0;
  for (; d + VECS * W <= dim; d += VECS * W)
    add_columns<ROWS, VECS, OF_ROW, 1>(acc + d, stride, decay, *weights, values + d, v_p, begin, end,
                                       d ? nullptr : next, k_p, dim_k);
  if (VECS > 4 && d + 4 * W <= dim) {
    add_columns<ROWS, 4, OF_ROW, 1>(acc + d, stride, decay, *weights, values + d, v_p, begin, end,
                                    d ? nullptr : next, k_p, dim_k);
    d += 4 * W;
  }
  for (; d + W <= dim; d += W)
    add_columns<ROWS, 1, OF_ROW, 1>(acc + d, stride, decay, *weights, values + d, v_p, begin, end,
                                    d ? nullptr : next, k_p, dim_k);
  if (d == dim) return;
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    Vec sum = mul(load(acc + r * stride + d), fill(decay[r]));
    for (int64_t k = begin; k < end; k++)
      sum = fma(fill(weights[r][k]), load_part(values + k * v_p + d, (int)(dim - d)), sum);
    store(acc + r * stride + d, sum);
  }
}

// Keys and values of one head at positions [p, p + length), `k_p` and `v_p` numbers apart; `next`: keys that
// are read after them, or null. Numbers that share a scale with the others of their token are multiplied by
// none: scores and weights are.
template <typename K, typename V = K>
struct Tile {
  const K* keys;
  const V* values;
  const K* next;
  int64_t k_p, v_p, p, length;
  const float* key_scales = nullptr;  // of each token, or null: 1
  const float* value_scales = nullptr;
};

template <int ROWS, typename K, typename V>
INLINE void dot_keys(float (*scores)[MOST_KEYS + W], const Tile<K, V>& tile, const float* query,
                     int64_t stride, int64_t, const AttentionCall& call, int64_t begin, int64_t end) {
  dot_keys<ROWS>(scores, query, stride, tile.keys, tile.k_p, call.dim_k, begin, end, tile.values, tile.v_p,
                 call.dim_v);
}
template <int ROWS, typename K, typename V>
INLINE void add_values(float* acc, int64_t stride, const float* decay, float (*weights)[MOST_KEYS + W],
                       const Tile<K, V>& tile, const AttentionCall& call, int64_t begin, int64_t end) {
  add_values<ROWS>(acc, stride, decay, weights, tile.values, tile.v_p, call.dim_v, begin, end, tile.next,
                   tile.k_p, call.dim_k);
}

}  // namespace
