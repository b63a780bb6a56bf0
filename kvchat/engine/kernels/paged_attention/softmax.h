// An online softmax: what some keys have given to rows, a query and a head each, and how more keys are added.
//
// A score that is NaN has the weight NaN, so that it cannot pass for one that is not there.

#pragma once

#include <math.h>

#include "kvchat/engine/kernels/native/vector.h"

namespace {

INLINE Vec cap(Vec scores, float softcap) {
  return mul(tangent(div(max(fill(-1e30f), scores), fill(softcap))), fill(softcap));
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
      x = cap(x, softcap);
      store(scores + i, x);
    }
    best = max(best, x);
  }
  if (softcap != 0.0f) {
    for (int64_t i = start; i < begin; i++) scores[i] = -INFINITY;
    for (int64_t i = end; i < padded; i++) scores[i] = -INFINITY;
  }
  const float new_top = fmaxf(*top, largest(best));
  // Below a score of -inf there is none: what has no weight must not become NaN.
  const float base = new_top == -INFINITY ? 0.0f : new_top;
  Vec sums_here = zero();
  for (int64_t i = start; i < padded; i += W) {
    const Vec weights = exponential(sub(load(scores + i), fill(base)));
    store(scores + i, weights);
    sums_here = add(sums_here, weights);
  }
  const float decay = exponential(*top - base);
  *total = *total * decay + sum(sums_here);
  *top = new_top;
  return decay;
}

// What a softmax over some keys has found, for some rows: the largest score, the sum of weights, and the
// weighted sum of values, of `stride` numbers each.
struct State {
  float* top;
  float* total;
  float* acc;
  int64_t num_rows, stride;

  // Whole lines of the cache, so that no vector lies across two.
  static int64_t padded(int64_t num_rows) { return (num_rows + 15) / 16 * 16; }
  static int64_t size(int64_t num_rows, int64_t stride) {
    return padded(num_rows) * 2 + padded(num_rows * stride);
  }

  State(float* memory, int64_t num_rows, int64_t stride)
      : top(memory),
        total(memory + padded(num_rows)),
        acc(memory + 2 * padded(num_rows)),
        num_rows(num_rows),
        stride(stride) {}

  void clear() const {
    for (int64_t i = 0; i < num_rows; i++) top[i] = -INFINITY;
    memset(total, 0, num_rows * sizeof(float));
    memset(acc, 0, num_rows * stride * sizeof(float));
  }

  // Adds what was found over later keys.
  void fold(const State& later) const {
    for (int64_t row = 0; row < num_rows; row++) {
      if (later.top[row] == -INFINITY && later.total[row] == 0.0f) continue;
      const float new_top = later.top[row] > top[row] ? later.top[row] : top[row];
      const float a = exponential(top[row] - new_top), b = exponential(later.top[row] - new_top);
      top[row] = new_top;
      total[row] = total[row] * a + later.total[row] * b;
      float* to = acc + row * stride;
      const float* from = later.acc + row * stride;
      for (int64_t i = 0; i < stride; i += W)
        store(to + i, add(mul(load(to + i), fill(a)), mul(load(from + i), fill(b))));
    }
  }
};

}  // namespace
