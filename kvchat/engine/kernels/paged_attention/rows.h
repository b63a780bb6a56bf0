// What rows, a query and a head each, do together with keys and values that they share.
//
// Every row is computed as if it were alone: how many rows share a read changes no bit of any.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"

namespace {

constexpr int MOST_KEYS = 64;  // most keys whose scores exist at one time

template <int N>
struct Together {
  static constexpr int ROWS = N;
};

// Calls `take(Together<n>, first)` for n rows that share what they read, until all of [first, end) are done.
template <typename Take>
INLINE void by_rows(int64_t first, int64_t end, Take take) {
  for (int64_t row = first; row < end;) {
    const int64_t left = end - row;
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

// Adds the products of ROWS queries [ROWS, stride] with VECS vectors of some keys, from number d on.
template <int ROWS, int VECS, typename T>
INLINE void add_products(Vec* acc, const float* query, int64_t stride, const T* const* keys, int64_t d) {
  constexpr int KEYS = keys_at_once<ROWS>();
  Vec q[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) load_row<VECS>(query + r * stride, q[r]);
  UNROLL
  for (int j = 0; j < KEYS; j++) {
    Vec x[VECS];
    load_row<VECS>(keys[j] + d, x);
    UNROLL
    for (int i = 0; i < VECS; i++) {
      UNROLL
      for (int r = 0; r < ROWS; r++) acc[r * KEYS + j] = fma(q[r][i], x[i], acc[r * KEYS + j]);
    }
  }
}

// Calls `take(first, sums)` with vectors of the products of ROWS queries [ROWS, stride] with some keys.
template <int ROWS, typename T, typename Take>
INLINE void multiply(const float* query, int64_t stride, const T* const* keys, int64_t dim, Take take) {
  constexpr int KEYS = keys_at_once<ROWS>(), SUMS = num_sums<ROWS>();
  constexpr int VECS = COMES_IN_TWOS<T> && ROWS <= 4 ? 2 : 1;  // so that all stays in registers
  Vec acc[SUMS];
  UNROLL
  for (int i = 0; i < SUMS; i++) acc[i] = zero();
  int64_t d = 0;
  for (; d + VECS * W <= dim; d += VECS * W) add_products<ROWS, VECS>(acc, query + d, stride, keys, d);
  if (VECS > 1 && d + W <= dim) {
    add_products<ROWS, 1>(acc, query + d, stride, keys, d);
    d += W;
  }
  if (d < dim) {
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      const Vec x = load_part(keys[j] + d, (int)(dim - d));
      UNROLL
      for (int r = 0; r < ROWS; r++)
        acc[r * KEYS + j] = fma(load(query + r * stride + d), x, acc[r * KEYS + j]);
    }
  }
  UNROLL
  for (int i = 0; i < SUMS; i += W) take(i, sums(acc + i));
}

// The same as scores of keys from the k-th on, at the same places of `scores`. What is written behind the
// last key is overwritten, or hidden.
template <int ROWS, typename T>
INLINE void score(float (*scores)[MOST_KEYS + W], int64_t k, const float* query, int64_t stride,
                  const T* const* keys, int64_t dim) {
  constexpr int KEYS = keys_at_once<ROWS>();
  float found[num_sums<ROWS>()];
  multiply<ROWS>(query, stride, keys, dim, [&](int first, Vec sums) { store(found + first, sums); });
  UNROLL
  for (int r = 0; r < ROWS; r++) memcpy(scores[r] + k, found + r * KEYS, KEYS * sizeof(float));
}

// Calls `add(Together<n>, row, begin, end)` so that each of ROWS rows adds values [begins[row], ends[row]) and
// no other: a weight of 0 would make NaN of a value that is NaN. `decay` is 1 for what has decayed already.
template <int ROWS, typename Add>
INLINE void add_seen(const int64_t* begins, const int64_t* ends, float* decay, Add add) {
  int64_t begin = 0, end = MOST_KEYS;
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    begin = most(begin, begins[r]);
    end = least(end, ends[r]);
  }
  const bool have_common = begin < end;
  for (int r = 0; r < ROWS; r++) {
    const int64_t stop = have_common ? begin : ends[r];
    if (begins[r] >= stop) continue;
    add(Together<1>{}, r, begins[r], stop);
    decay[r] = 1.0f;
  }
  if (!have_common) return;
  add(Together<ROWS>{}, 0, begin, end);
  for (int r = 0; r < ROWS; r++) {
    if (end >= ends[r]) continue;
    decay[r] = 1.0f;
    add(Together<1>{}, r, end, ends[r]);
  }
}

}  // namespace
