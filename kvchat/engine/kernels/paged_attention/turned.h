// A tile of keys and values made ready for many rows: keys turned, so that a vector holds one number of sixteen
// keys, and both widened once.
//
// Scores have the same bits as those of `tile.h`: the products of numbers a vector's length apart are added one
// after the other, and what `sums` adds across lanes is added here in the same order, vector by vector.

#pragma once

#include "kvchat/engine/kernels/native/turn.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"

namespace {

constexpr bool CAN_TURN = W == 16;
constexpr int64_t ROWS_WORTH_TURNING = 16;
constexpr int SIDE = 2 * W;  // keys that lie side by side

#if defined(__AVX512F__)

INLINE void turn(Vec* rows) {
  __m512i bits[W];
  UNROLL
  for (int i = 0; i < W; i++) bits[i] = _mm512_castps_si512(rows[i]);
  turn(bits);
  UNROLL
  for (int i = 0; i < W; i++) rows[i] = _mm512_castsi512_ps(bits[i]);
}

// Else compilers read a vector once for each row.
INLINE Vec in_register(Vec a) {
  asm("" : "+v"(a));
  return a;
}

#else

INLINE void turn(Vec*) {}
INLINE Vec in_register(Vec a) { return a; }

#endif

// Numbers of memory for a tile.
INLINE int64_t turned_size(int64_t dim_k, int64_t dim_v) { return MOST_KEYS * (dim_k + dim_v); }

// `to` [MOST_KEYS / SIDE, W, dim / W, SIDE], in the order in which products read it; the last key stands for those
// behind it too. `dim` is a multiple of W.
template <typename T>
void turn_keys(float* to, const T* keys, int64_t k_p, int64_t dim, int64_t length) {
  const int64_t end = (length + SIDE - 1) / SIDE * SIDE;
  for (int64_t k = 0; k < end; k += W)
    for (int64_t d = 0; d < dim; d += W) {
      Vec rows[W];
      UNROLL
      for (int i = 0; i < W; i++) rows[i] = load(keys + least(k + i, length - 1) * k_p + d);
      turn(rows);
      UNROLL
      for (int i = 0; i < W; i++)
        store(to + (k / SIDE * dim + i * (dim / W) + d / W) * SIDE + k % SIDE, rows[i]);
    }
}

template <typename T>
void widen_values(float* to, const T* values, int64_t v_p, int64_t dim, int64_t length) {
  for (int64_t k = 0; k < length; k++) {
    int64_t d = 0;
    for (; d + W <= dim; d += W) store(to + k * dim + d, load(values + k * v_p + d));
    for (; d < dim; d++) to[k * dim + d] = to_float(values[k * v_p + d]);
  }
}

// Products of ROWS queries with VECS vectors of turned keys, over the numbers c, c + STEP, c + 2 STEP, ... of
// every W: the sum of two such sums, STEP apart, as lanes are added.
template <int STEP, int ROWS, int VECS>
INLINE void add_lanes(Vec (*to)[VECS], const float* query, int64_t stride, const float* keys, int64_t dim,
                      int64_t c) {
  if constexpr (STEP < W) {
    Vec other[ROWS][VECS];
    add_lanes<2 * STEP, ROWS, VECS>(to, query, stride, keys, dim, c);
    add_lanes<2 * STEP, ROWS, VECS>(other, query, stride, keys, dim, c + STEP);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) to[r][i] = add(to[r][i], other[r][i]);
    }
  } else {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) to[r][i] = zero();
    }
    keys += c * (dim / W) * SIDE;
    for (int64_t d = c; d < dim; d += W, keys += SIDE) {
      Vec x[VECS];
      UNROLL
      for (int i = 0; i < VECS; i++) x[i] = in_register(load(keys + i * W));
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        const Vec number = fill(query[r * stride + d]);
        UNROLL
        for (int i = 0; i < VECS; i++) to[r][i] = fma(number, x[i], to[r][i]);
      }
    }
  }
}

// Scores of a few rows with keys [begin, end), at their places in `scores`; what is written beside is not read.
template <int ROWS>
void dot_turned(float (*scores)[MOST_KEYS + W], const float* query, int64_t stride, const float* keys,
                int64_t dim, int64_t begin, int64_t end) {
  constexpr int VECS = SIDE / W;
  for (int64_t k = begin / SIDE * SIDE; k < end; k += SIDE) {
    Vec found[ROWS][VECS];
    add_lanes<1, ROWS, VECS>(found, query, stride, keys + k * dim, dim, 0);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++) store(scores[r] + k + i * W, found[r][i]);
    }
  }
}

}  // namespace
