// What attention does with one tile of keys and values, and a few rows, a query and a head each, that share it.
//
// Every row is computed as if it were alone: how many rows share a read changes no bit of any.

#pragma once

#include <math.h>

#include "kvchat/engine/kernels/native/vector.h"

namespace {

constexpr int MOST_KEYS = 64;  // most keys whose scores exist at one time

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
  // As many keys at one time as give a vector of sums.
  constexpr int FIT = W / ROWS ? W / ROWS : 1;
  constexpr int KEYS = FIT >= 16 ? 16 : FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  constexpr int SUMS = ROWS * KEYS > W ? ROWS * KEYS : W;
  const int64_t whole = dim / W * W;
  for (int64_t k = begin; k < end; k += KEYS) {
    for (int j = 0; j < KEYS; j++) fetch(values + (k + j) * v_p, dim_v);
    const T* key[KEYS];
    UNROLL
    for (int j = 0; j < KEYS; j++) key[j] = keys + least(k + j, end - 1) * k_p;
    Vec acc[SUMS];
    UNROLL
    for (int i = 0; i < SUMS; i++) acc[i] = zero();
    for (int64_t d = 0; d < whole; d += W) {
      Vec q[ROWS];
      UNROLL
      for (int r = 0; r < ROWS; r++) q[r] = load(query + r * stride + d);
      UNROLL
      for (int j = 0; j < KEYS; j++) {
        const Vec x = load(key[j] + d);
        UNROLL
        for (int r = 0; r < ROWS; r++) acc[r * KEYS + j] = fma(q[r], x, acc[r * KEYS + j]);
      }
    }
    if (whole < dim) {
      UNROLL
      for (int j = 0; j < KEYS; j++) {
        const Vec x = load_part(key[j] + whole, (int)(dim - whole));
        UNROLL
        for (int r = 0; r < ROWS; r++)
          acc[r * KEYS + j] = fma(load(query + r * stride + whole), x, acc[r * KEYS + j]);
      }
    }
    float found[SUMS];
    UNROLL
    for (int i = 0; i < SUMS; i += W) store(found + i, sums(acc + i));
    // What is written behind `end` is overwritten, or hidden.
    UNROLL
    for (int r = 0; r < ROWS; r++) memcpy(scores[r] + k, found + r * KEYS, KEYS * sizeof(float));
  }
}

// acc[r] = acc[r] * decay[r] + sum of weights[r][k] * values[k], for columns [column, column + VECS * W).
template <int ROWS, int VECS, typename T>
INLINE void add_columns(float* acc, int64_t stride, const float* decay, const float (*weights)[MOST_KEYS + W],
                        const T* values, int64_t v_p, int64_t begin, int64_t end, const T* next, int64_t k_p,
                        int64_t count) {
  Vec sum[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) sum[r][i] = mul(load(acc + r * stride + i * W), fill(decay[r]));
  }
  for (int64_t k = begin; k < end; k++) {
    if (next) fetch(next + k * k_p, count);
    Vec x[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++) x[i] = load(values + k * v_p + i * W);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) sum[r][i] = fma(fill(weights[r][k]), x[i], sum[r][i]);
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
  constexpr int VECS = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  int64_t d = 0;
  for (; d + VECS * W <= dim; d += VECS * W)
    add_columns<ROWS, VECS>(acc + d, stride, decay, weights, values + d, v_p, begin, end, d ? nullptr : next,
                            k_p, dim_k);
  if (VECS > 4 && d + 4 * W <= dim) {
    add_columns<ROWS, 4>(acc + d, stride, decay, weights, values + d, v_p, begin, end, d ? nullptr : next,
                         k_p, dim_k);
    d += 4 * W;
  }
  for (; d + W <= dim; d += W)
    add_columns<ROWS, 1>(acc + d, stride, decay, weights, values + d, v_p, begin, end, d ? nullptr : next,
                         k_p, dim_k);
  if (d == dim) return;
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    Vec sum = mul(load(acc + r * stride + d), fill(decay[r]));
    for (int64_t k = begin; k < end; k++)
      sum = fma(fill(weights[r][k]), load_part(values + k * v_p + d, (int)(dim - d)), sum);
    store(acc + r * stride + d, sum);
  }
}

// Scores → weights, in place, of a row that sees keys [begin, end) of a tile; returns by what earlier sums
// decay.
INLINE float soften(float* scores, int64_t begin, int64_t end, float softcap, float* top, float* total) {
  const int64_t padded = (end + W - 1) / W * W, start = begin / W * W;
  for (int64_t i = start; i < begin; i++) scores[i] = -INFINITY;
  for (int64_t i = end; i < padded; i++) scores[i] = -INFINITY;
  Vec best = fill(-INFINITY);
  for (int64_t i = start; i < padded; i += W) {
    Vec x = load(scores + i);
    if (softcap != 0.0f) {
      x = mul(tangent(div(max(x, fill(-1e30f)), fill(softcap))), fill(softcap));
      store(scores + i, x);
    }
    best = max(best, x);
  }
  if (softcap != 0.0f) {
    for (int64_t i = start; i < begin; i++) scores[i] = -INFINITY;
    for (int64_t i = end; i < padded; i++) scores[i] = -INFINITY;
  }
  const float new_top = fmaxf(*top, largest(best));
  Vec sums_here = zero();
  for (int64_t i = start; i < padded; i += W) {
    const Vec weights = exponential(sub(load(scores + i), fill(new_top)));
    store(scores + i, weights);
    sums_here = add(sums_here, weights);
  }
  const float decay = exponential(*top - new_top);
  *total = *total * decay + sum(sums_here);
  *top = new_top;
  return decay;
}

}  // namespace
