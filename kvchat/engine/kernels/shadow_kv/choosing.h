// What chunks are worth to queries, and the best of them.

#pragma once

#include "kvchat/engine/kernels/shadow_kv/scattered.h"

namespace {

// Keys of one head that stand for some chunks, `step` numbers apart; `next`: keys that are read after them,
// or null; `scales`: what those of each chunk are multiplied with, `apart` from one to the next, or null: 1.
template <typename T>
struct Stretch {
  const T* keys;
  const T* next;
  const float* scales;
  int64_t step, num_chunks, num_keys, dim, apart;
};

// For each of ROWS queries [ROWS, stride] the highest product with the keys of each chunk, to
// out[row * out_stride + chunk]. `odd` becomes NaN where a product is not finite, be it before it is scaled or
// only then.
template <int ROWS, typename T>
void best_products(float* out, int64_t out_stride, const float* query, int64_t stride,
                   const Stretch<T>& stretch, Vec* odd) {
  constexpr int CHUNKS = keys_at_once<ROWS>(), SUMS = num_sums<ROWS>();
  const int64_t apart = stretch.num_keys * stretch.step;
  const int64_t ahead = stretch.next ? stretch.next - stretch.keys : 0;
  Vec strange = *odd;
  for (int64_t c = 0; c < stretch.num_chunks; c += CHUNKS) {
    Vec best[SUMS / W];
    UNROLL
    for (int i = 0; i < SUMS / W; i++) best[i] = fill(-INFINITY);
    const T* keys[CHUNKS];
    UNROLL
    for (int j = 0; j < CHUNKS; j++) keys[j] = stretch.keys + least(c + j, stretch.num_chunks - 1) * apart;
    for (int64_t number = 0; number < stretch.num_keys; number++) {
      UNROLL
      for (int j = 0; j < CHUNKS && stretch.next; j++) fetch(keys[j] + ahead, stretch.dim);
      multiply<ROWS>(query, stride, keys, stretch.dim, [&](int first, Vec sums) {
        strange = add(strange, sub(sums, sums));
        best[first / W] = max(best[first / W], sums);
      });
      UNROLL
      for (int j = 0; j < CHUNKS; j++) keys[j] += stretch.step;
    }
    float found[SUMS];
    UNROLL
    for (int i = 0; i < SUMS; i += W) store(found + i, best[i / W]);
    const int64_t num = least(CHUNKS, stretch.num_chunks - c);
    for (int64_t j = 0; stretch.scales && j < num; j++) {
      const float scale = stretch.scales[(c + j) * stretch.apart];
      for (int r = 0; r < ROWS; r++) found[r * CHUNKS + j] *= scale;
    }
    UNROLL
    for (int i = 0; i < SUMS && stretch.scales; i += W)
      strange = add(strange, sub(load(found + i), load(found + i)));
    for (int r = 0; r < ROWS; r++) memcpy(out + r * out_stride + c, found + r * CHUNKS, num * sizeof(float));
  }
  *odd = strange;
}

// A row of scores → weights, in place; `weights` are raised to them. There are whole vectors of both.
INLINE void raise_to_softmax(float* weights, float* scores, int64_t count) {
  Vec best = fill(-INFINITY), total = zero();
  for (int64_t i = 0; i < count; i += W) best = max(best, load(scores + i));
  const Vec top = fill(largest(best));
  for (int64_t i = 0; i < count; i += W) {
    const Vec weight = exponential(sub(load(scores + i), top));
    store(scores + i, weight);
    total = add(total, weight);
  }
  const Vec share = fill(1.0f / sum(total));
  for (int64_t i = 0; i < count; i += W)
    store(weights + i, max(load(weights + i), mul(load(scores + i), share)));
}

// How many of `count` numbers are at least `bound`; they are whole lines of vectors.
INLINE int64_t num_at_least(const float* x, int64_t count, float bound) {
  Vec found[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i < count; i += 4 * W) {
    UNROLL
    for (int j = 0; j < 4; j++)
      found[j] = add(found[j], where_at_least(load(x + i + j * W), fill(bound), fill(1.0f)));
  }
  return (int64_t)sum(add(add(found[0], found[1]), add(found[2], found[3])));
}

// The number with these bits. Numbers that are not negative have the order of their bits.
INLINE float with_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Writes where the `wanted` largest of `count` numbers stand, ascending; of those that are alike the first.
// They are at most 1, those below 0 are not taken, and enough are not.
INLINE void take_largest(const float* x, int64_t count, int64_t wanted, int64_t* places) {
  uint32_t low = 0, high = 0x40000000;  // enough numbers reach `low`, and too few `high`
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t found = num_at_least(x, count, with_bits(middle));
    (found >= wanted ? low : high) = middle;
    if (found == wanted) break;
  }
  const float bound = with_bits(low);
  int64_t num_alike = wanted - num_at_least(x, count, with_bits(low + 1)), num = 0;
  for (int64_t i = 0; num < wanted; i++) {
    if (x[i] < bound) continue;
    if (x[i] == bound && num_alike-- <= 0) continue;
    places[num++] = i;
  }
}

}  // namespace
