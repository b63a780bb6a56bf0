// Many rows, a query and a head each, that share tiles: rows lie side by side, so that a vector holds one
// number of sixteen queries, or their scores with one key, and no vector is ever added up within itself.
//
// Results have the same bits as those of `tile.h` and `softmax.h`: the products of numbers a vector's length
// apart are added one after the other, and what `sums` and `sum` add across lanes is added here in the same
// order, vector by vector.

#pragma once

#include <float.h>

#include "kvchat/engine/kernels/native/turn.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/rows.h"
#include "kvchat/engine/kernels/paged_attention/softmax.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"

namespace {

constexpr bool CAN_TURN = W >= 8;
constexpr int64_t ROWS_WORTH_TURNING = 16;
constexpr int SIDE = 2 * W;         // rows that lie side by side
constexpr int KEYS_TOGETHER = 4;    // keys that are multiplied at one time
constexpr int VALUE_ROWS = 6;       // rows that share a read of values

// Numbers of memory for queries that lie side by side, and for keys or values of a part.
INLINE int64_t turned_size(int64_t rows, int64_t dim) { return (rows + SIDE - 1) / SIDE * SIDE * dim; }
INLINE int64_t widened_size(int64_t count, int64_t dim) { return (count + KEYS_TOGETHER) * dim; }

#if defined(__AVX512F__)
INLINE void turn(Vec* rows) {
  __m512i bits[W];
  UNROLL
  for (int i = 0; i < W; i++) bits[i] = _mm512_castps_si512(rows[i]);
  turn(bits);
  UNROLL
  for (int i = 0; i < W; i++) rows[i] = _mm512_castsi512_ps(bits[i]);
}
#else
INLINE void turn(Vec* rows) {
  float lanes[W][W], turned[W];
  for (int i = 0; i < W; i++) store(lanes[i], rows[i]);
  for (int i = 0; i < W; i++) {
    for (int j = 0; j < W; j++) turned[j] = lanes[j][i];
    rows[i] = load(turned);
  }
}
#endif

// Queries [rows, dim] → [rows / SIDE, W, dim / W, SIDE], in the order in which products read them; zeros
// stand behind the last one. `dim` is a multiple of W.
INLINE void turn_queries(float* to, const float* queries, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; r += W)
    for (int64_t d = 0; d < dim; d += W) {
      Vec numbers[W];
      for (int i = 0; i < W; i++) numbers[i] = r + i < rows ? load(queries + (r + i) * dim + d) : zero();
      turn(numbers);
      for (int i = 0; i < W; i++)
        store(to + (r / SIDE * dim + i * (dim / W) + d / W) * SIDE + r % SIDE, numbers[i]);
    }
}

// Keys or values as float32, `stride` apart, zero behind their numbers.
template <typename T>
void widen_rows(float* to, int64_t stride, const T* from, int64_t from_stride, int64_t dim, int64_t count) {
  for (int64_t k = 0; k < count; k++, to += stride, from += from_stride) {
    int64_t d = 0;
    for (; d + W <= dim; d += W) store(to + d, load(from + d));
    if (d < dim) store(to + d, load_part(from + d, (int)(dim - d)));
  }
}

// Products of KEYS keys with VECS vectors of queries, over the numbers c, c + STEP, c + 2 STEP, ... of every
// W: the sum of two such sums, STEP apart, as lanes are added. STEPS: vectors of a key, or 0: as `dim` says.
template <int STEP, int STEPS, int KEYS, int VECS>
INLINE void add_lanes(Vec (*to)[VECS], const float* queries, const float* keys, int64_t dim, int c) {
  const int64_t steps = STEPS ? STEPS : dim / W, stride = steps * W;
  if constexpr (STEP < W) {
    Vec other[KEYS][VECS];
    add_lanes<2 * STEP, STEPS, KEYS, VECS>(to, queries, keys, dim, c);
    add_lanes<2 * STEP, STEPS, KEYS, VECS>(other, queries, keys, dim, c + STEP);
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      UNROLL
      for (int i = 0; i < VECS; i++) to[j][i] = add(to[j][i], other[j][i]);
    }
  } else {
    queries += c * steps * SIDE;
    keys += c;
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      UNROLL
      for (int i = 0; i < VECS; i++) to[j][i] = mul(fill(keys[j * stride]), load(queries + i * W));
    }
    UNROLL
    for (int64_t step = 1; step < steps; step++) {
      queries += SIDE;
      keys += W;
      Vec x[VECS];
      UNROLL
      for (int i = 0; i < VECS; i++) x[i] = load(queries + i * W);
      UNROLL
      for (int j = 0; j < KEYS; j++) {
        const Vec number = fill(keys[j * stride]);
        UNROLL
        for (int i = 0; i < VECS; i++) to[j][i] = fma(number, x[i], to[j][i]);
      }
    }
  }
}

// Scores [keys, SIDE] of queries that lie side by side with keys [begin, end) of a tile, and what comes of up
// to three keys behind them.
template <int STEPS, int VECS>
void dot_turned(float* scores, const float* queries, const float* keys, int64_t dim, int64_t begin,
                int64_t end) {
  constexpr int KEYS = KEYS_TOGETHER;
  for (int64_t k = begin; k < end; k += KEYS) {
    Vec quarters[4][KEYS][VECS];
    for (int c = 0; c < 4; c++)
      add_lanes<4, STEPS, KEYS, VECS>(quarters[c], queries, keys + k * dim, dim, c);
    UNROLL
    for (int j = 0; j < KEYS; j++) {
      UNROLL
      for (int i = 0; i < VECS; i++)
        store(scores + (k + j) * SIDE + i * W, add(add(quarters[0][j][i], quarters[2][j][i]),
                                                   add(quarters[1][j][i], quarters[3][j][i])));
    }
  }
}

// Weights of keys c, c + 4, c + 8, ... of a tile in place of their scores, and the sum of these weights.
// Those of keys W apart are added first, and these sums as lanes are added.
INLINE Vec weigh(float* scores, int64_t begin, int64_t end, Vec base, int c) {
  Vec sums[W / 4];
  UNROLL
  for (int i = 0; i < W / 4; i++) sums[i] = zero();
  for (int64_t k = begin + c; k < end; k += W) {
    Vec weights[W / 4];
    UNROLL
    for (int i = 0; i < W / 4; i++) weights[i] = sub(load(scores + (k + i * 4) * SIDE), base);
    exponentials_below<W / 4>(weights);
    UNROLL
    for (int i = 0; i < W / 4; i++) {
      store(scores + (k + i * 4) * SIDE, weights[i]);
      sums[i] = add(sums[i], weights[i]);
    }
  }
  UNROLL
  for (int half = W / 8; half; half /= 2) {
    UNROLL
    for (int i = 0; i < half; i++) sums[i] = add(sums[i], sums[i + half]);
  }
  return sums[0];
}

// `soften` for a vector of rows and keys [begin, end), whole vectors of them; the scores of keys that a row
// does not see are -inf.
INLINE void soften_turned(float* scores, int64_t begin, int64_t end, float* top, float* total,
                          float* decay) {
  Vec found[4];
  UNROLL
  for (int i = 0; i < 4; i++) found[i] = load(top);
  for (int64_t k = begin; k < end; k += 4) {
    UNROLL
    for (int i = 0; i < 4; i++) found[i] = max(load(scores + (k + i) * SIDE), found[i]);
  }
  const Vec best = max(max(found[0], found[1]), max(found[2], found[3]));
  // Below a score of -inf there is none: what has no weight must not become NaN.
  const Vec base = max(best, fill(-FLT_MAX));
  const Vec by = exponential(sub(load(top), base));
  Vec sums[4];
  for (int c = 0; c < 4; c++) sums[c] = weigh(scores, begin, end, base, c);
  const Vec sum = add(add(sums[0], sums[2]), add(sums[1], sums[3]));
  store(total, add(mul(load(total), by), sum));
  store(top, best);
  store(decay, by);
}

// acc[r] = acc[r] * decay[r] + sum of weights[k][r] * values[k] for whole rows of `stride` numbers, so many
// vectors at a time that all sums stay in registers.
template <int ROWS>
void add_turned_values(float* acc, int64_t stride, const float* decay, const float* weights,
                       const float* values, int64_t begin, int64_t end) {
  for (int64_t d = 0; d < stride;) {
    const int64_t left = (stride - d) / W;
    const auto add = [&](auto vecs) {
      constexpr int VECS = decltype(vecs)::ROWS;
      add_columns<ROWS, VECS, 1, SIDE>(acc + d, stride, decay, weights, values + d, stride, begin, end,
                                       (const float*)nullptr, 0, 0);
      d += VECS * W;
    };
    if (W == 16 && (left == 4 || left > 6))
      add(Together<4>{});
    else if (W == 16 && left >= 3)
      add(Together<3>{});
    else if (left >= 2)
      add(Together<2>{});
    else
      add(Together<1>{});
  }
}

// Positions [begin, end) of a part that begins at `start`: keys and values as float32, in whole vectors.
struct WidePart {
  float* keys;
  float* values;
  int64_t start, begin, end;

  float* keys_at(int64_t p, int64_t stride) const { return keys + (p - start) * stride; }
  float* values_at(int64_t p, int64_t stride) const { return values + (p - start) * stride; }
};

// Rows that lie side by side, and which keys of a tile each of them sees.
struct SideRows {
  int64_t num;
  int64_t begins[SIDE], ends[SIDE];
  int64_t begin, end;  // of all of them
  bool is_whole;       // whether every row sees all of these
};

// Hides the scores of keys of [begin, end) that a row does not see, and those up to whole vectors of keys.
INLINE void hide_unseen(float* scores, const SideRows& rows) {
  const int64_t begin = rows.begin, end = rows.end;
  const int64_t start = begin / W * W, stop = (end + W - 1) / W * W;
  for (int64_t i = start * SIDE; i < begin * SIDE; i += W) store(scores + i, fill(-INFINITY));
  for (int64_t i = end * SIDE; i < stop * SIDE; i += W) store(scores + i, fill(-INFINITY));
  if (rows.is_whole) return;
  for (int64_t r = 0; r < rows.num; r++) {
    for (int64_t k = begin; k < least(rows.begins[r], end); k++) scores[k * SIDE + r] = -INFINITY;
    for (int64_t k = most(rows.ends[r], begin); k < end; k++) scores[k * SIDE + r] = -INFINITY;
  }
}

// acc = acc * decay + weights * values for all rows. A row adds no value that it does not see.
INLINE void add_side_values(const SideRows& rows, float* acc, int64_t stride, float* decay,
                            const float* weights, const float* values) {
  for (int64_t first = 0; first < rows.num;) {
    const auto add = [&](auto together) {
      constexpr int ROWS = decltype(together)::ROWS;
      const auto add_some = [&](auto some, int64_t r, int64_t begin, int64_t end) {
        add_turned_values<decltype(some)::ROWS>(acc + (first + r) * stride, stride, decay + first + r,
                                                weights + first + r, values, begin, end);
      };
      if (rows.is_whole)
        add_some(together, 0, rows.begin, rows.end);
      else
        add_seen<ROWS>(rows.begins + first, rows.ends + first, decay + first, add_some);
      first += ROWS;
    };
    const int64_t left = rows.num - first;
    if (left >= VALUE_ROWS && left != 8)
      add(Together<VALUE_ROWS>{});
    else if (left >= 4)
      add(Together<4>{});
    else if (left >= 2)
      add(Together<2>{});
    else
      add(Together<1>{});
  }
}

// Adds a tile, keys [count, dim_k] and values [count, dim_v] in whole vectors, to what rows have found. `top`
// and `total` have room for SIDE rows; `acc` [rows, dim_v].
template <int VECS>
void add_side(const SideRows& rows, const float* queries, const float* keys, const float* values,
              int64_t dim_k, int64_t dim_v, float softcap, float* top, float* total, float* acc) {
  alignas(64) float scores[(MOST_KEYS + KEYS_TOGETHER) * SIDE], decay[SIDE];
  const int64_t begin = rows.begin, end = rows.end;
  const auto dot = dim_k == 4 * W   ? dot_turned<4, VECS>
                   : dim_k == 8 * W ? dot_turned<8, VECS>
                                    : dot_turned<0, VECS>;
  dot(scores, queries, keys, dim_k, begin, end);
  if (softcap != 0.0f)
    for (int64_t i = begin * SIDE; i < end * SIDE; i += W) store(scores + i, cap(load(scores + i), softcap));
  hide_unseen(scores, rows);
  for (int i = 0; i < VECS; i++)
    soften_turned(scores + i * W, begin / W * W, (end + W - 1) / W * W, top + i * W, total + i * W,
                  decay + i * W);
  add_side_values(rows, acc, dim_v, decay, scores, values);
}

}  // namespace
