// What rows, a query and a head each, do together with keys and values that lie anywhere.
//
// Every row is computed as if it were alone: how many rows share a read changes no bit of any.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"

namespace {

// Keys and values of up to MOST_KEYS tokens, wherever they lie. A query at position p sees those up to
// p - position.
template <typename T>
struct Scattered {
  const T* keys[MOST_KEYS];
  const T* values[MOST_KEYS];
  int64_t count, position;
};

// Scores of ROWS queries [ROWS, stride] with the first `end` keys of a tile.
template <int ROWS, typename T>
void dot_scattered(float (*scores)[MOST_KEYS + W], const float* query, int64_t stride,
                   const Scattered<T>& tile, int64_t dim, int64_t dim_v, int64_t end) {
  constexpr int KEYS = keys_at_once<ROWS>();
  for (int64_t k = 0; k < end; k += KEYS) {
    const T* keys[KEYS];
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      keys[j] = tile.keys[least(k + j, end - 1)];
      fetch(tile.values[least(k + j, end - 1)], dim_v);
    }
    score<ROWS>(scores, k, query, stride, keys, dim);
  }
}

// acc[r] = acc[r] * decay[r] + sum of weights[r][k] * values[k], keys [begin, end), for columns
// [at, at + VECS * W); the first `num_next` of `next` are read after them.
template <int ROWS, int VECS, typename T>
INLINE void add_scattered_columns(float* acc, int64_t stride, const float* decay,
                                  const float (*weights)[MOST_KEYS + W], const T* const* values, int64_t at,
                                  int64_t begin, int64_t end, const T* const* next, int64_t num_next,
                                  int64_t dim_k) {
  Vec total[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) total[r][i] = mul(load(acc + r * stride + at + i * W), fill(decay[r]));
  }
  for (int64_t k = begin; k < end; k++) {
    if (k < num_next) fetch(next[k], dim_k);
    Vec x[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++) x[i] = load(values[k] + at + i * W);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) total[r][i] = fma(fill(weights[r][k]), x[i], total[r][i]);
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) store(acc + r * stride + at + i * W, total[r][i]);
  }
}

template <int ROWS, typename T>
void add_scattered(float* acc, int64_t stride, const float* decay, const float (*weights)[MOST_KEYS + W],
                   const Scattered<T>& tile, int64_t dim, int64_t begin, int64_t end,
                   const Scattered<T>* later, int64_t dim_k) {
  constexpr int FIT = (W == 16 ? 24 : W == 8 ? 12 : 24) / ROWS;  // what stays in registers
  constexpr int VECS = FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  const T* const* next = later ? later->keys : nullptr;
  int64_t num_next = later ? later->count : 0, d = 0;
  for (; d + VECS * W <= dim; d += VECS * W, num_next = 0)
    add_scattered_columns<ROWS, VECS>(acc, stride, decay, weights, tile.values, d, begin, end, next,
                                      num_next, dim_k);
  for (; d + W <= dim; d += W, num_next = 0)
    add_scattered_columns<ROWS, 1>(acc, stride, decay, weights, tile.values, d, begin, end, next, num_next,
                                   dim_k);
  if (d == dim) return;
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    Vec total = mul(load(acc + r * stride + d), fill(decay[r]));
    for (int64_t k = begin; k < end; k++)
      total = fma(fill(weights[r][k]), load_part(tile.values[k] + d, (int)(dim - d)), total);
    store(acc + r * stride + d, total);
  }
}

}  // namespace
