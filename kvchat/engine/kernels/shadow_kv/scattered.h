// What rows, a query and a head each, do together with keys and values that lie anywhere.
//
// Every row is computed as if it were alone: how many rows share a read changes no bit of any.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"

namespace {

template <int N>
struct Together {
  static constexpr int ROWS = N;
};

// Calls `take(Together<n>, first)` for n rows that share what they read, until all are done.
template <typename Take>
INLINE void by_rows(int64_t num_rows, Take take) {
  for (int64_t row = 0; row < num_rows;) {
    const int64_t left = num_rows - row;
    const int64_t rows = left >= 8 ? 8 : left == 6 ? 3 : left >= 4 ? 4 : left;
    if (rows == 8)
      take(Together<8>{}, row);
    else if (rows == 4)
      take(Together<4>{}, row);
    else if (rows == 3)
      take(Together<3>{}, row);
    else if (rows == 2)
      take(Together<2>{}, row);
    else
      take(Together<1>{}, row);
    row += rows;
  }
}

// How many keys ROWS rows are multiplied with at one time: as many as give a vector of sums.
template <int ROWS>
constexpr int keys_at_once() {
  const int fit = W / ROWS;
  return fit >= 16 ? 16 : fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Sums that these products need, whole vectors: row after row.
template <int ROWS>
constexpr int num_sums() {
  return ROWS * keys_at_once<ROWS>() > W ? ROWS * keys_at_once<ROWS>() : W;
}

// Calls `take(first, sums)` with vectors of the products of ROWS queries [ROWS, stride] with some keys.
template <int ROWS, typename T, typename Take>
INLINE void multiply(const float* query, int64_t stride, const T* const* keys, int64_t dim, Take take) {
  constexpr int KEYS = keys_at_once<ROWS>(), SUMS = num_sums<ROWS>();
  const int64_t whole = dim / W * W;
  Vec acc[SUMS];
  UNROLL
  for (int i = 0; i < SUMS; i++) acc[i] = zero();
  for (int64_t d = 0; d < whole; d += W) {
    Vec q[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) q[r] = load(query + r * stride + d);
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      const Vec x = load(keys[j] + d);
      UNROLL
      for (int r = 0; r < ROWS; r++) acc[r * KEYS + j] = fma(q[r], x, acc[r * KEYS + j]);
    }
  }
  if (whole < dim) {
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      const Vec x = load_part(keys[j] + whole, (int)(dim - whole));
      UNROLL
      for (int r = 0; r < ROWS; r++)
        acc[r * KEYS + j] = fma(load(query + r * stride + whole), x, acc[r * KEYS + j]);
    }
  }
  UNROLL
  for (int i = 0; i < SUMS; i += W) take(i, sums(acc + i));
}

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
    float found[num_sums<ROWS>()];
    multiply<ROWS>(query, stride, keys, dim, [&](int first, Vec sums) { store(found + first, sums); });
    // What is written behind `end` is overwritten, or hidden.
    UNROLL
    for (int r = 0; r < ROWS; r++) memcpy(scores[r] + k, found + r * KEYS, KEYS * sizeof(float));
  }
}

// acc[r] = acc[r] * decay[r] + sum of weights[r][k] * values[k], for columns [at, at + VECS * W); the first
// `num_next` of `next` are read after them.
template <int ROWS, int VECS, typename T>
INLINE void add_scattered_columns(float* acc, int64_t stride, const float* decay,
                                  const float (*weights)[MOST_KEYS + W], const T* const* values, int64_t at,
                                  int64_t end, const T* const* next, int64_t num_next, int64_t dim_k) {
  Vec total[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) total[r][i] = mul(load(acc + r * stride + at + i * W), fill(decay[r]));
  }
  for (int64_t k = 0; k < end; k++) {
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
                   const Scattered<T>& tile, int64_t dim, int64_t end, const Scattered<T>* later,
                   int64_t dim_k) {
  constexpr int FIT = (W == 16 ? 24 : W == 8 ? 12 : 24) / ROWS;  // what stays in registers
  constexpr int VECS = FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  const T* const* next = later ? later->keys : nullptr;
  int64_t num_next = later ? later->count : 0, d = 0;
  for (; d + VECS * W <= dim; d += VECS * W, num_next = 0)
    add_scattered_columns<ROWS, VECS>(acc, stride, decay, weights, tile.values, d, end, next, num_next,
                                      dim_k);
  for (; d + W <= dim; d += W, num_next = 0)
    add_scattered_columns<ROWS, 1>(acc, stride, decay, weights, tile.values, d, end, next, num_next, dim_k);
  if (d == dim) return;
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    Vec total = mul(load(acc + r * stride + d), fill(decay[r]));
    for (int64_t k = 0; k < end; k++)
      total = fma(fill(weights[r][k]), load_part(tile.values[k] + d, (int)(dim - d)), total);
    store(acc + r * stride + d, total);
  }
}

}  // namespace
