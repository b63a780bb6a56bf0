// What a decoder layer does with single rows between its products: norms, rotary embedding, activation.
//
// Rows are float32 and begin with a line of the cache.

#pragma once

#include <math.h>

#include "kvchat/engine/kernels/native/vector.h"

namespace {

// The fields of native.py's `_Norm`, in order: the root mean square of a row is divided out.
struct Norm {
  const void* weight;  // null: there is no norm
  int64_t type;        // of the weight: 0 float, 1 bf16, 2 fp16
  int64_t adds_one;    // whether the factor is 1 + weight
  double epsilon;
};

INLINE float number_at(const void* numbers, int64_t type, int64_t i) {
  if (type == 0) return ((const float*)numbers)[i];
  return type == 1 ? to_float(((const bf16*)numbers)[i]) : to_float(((const fp16*)numbers)[i]);
}

INLINE Vec vector_at(const void* numbers, int64_t type, int64_t i) {
  if (type == 0) return load((const float*)numbers + i);
  return type == 1 ? load((const bf16*)numbers + i) : load((const fp16*)numbers + i);
}

INLINE void apply_norm(const Norm& norm, float* to, const float* from, int64_t count) {
  const int64_t whole = count / W * W;
  Vec squares = zero();
  for (int64_t i = 0; i < whole; i += W) squares = fma(load(from + i), load(from + i), squares);
  float total = sum(squares);
  for (int64_t i = whole; i < count; i++) total += from[i] * from[i];
  const float factor = 1.0f / sqrtf(total / (float)count + (float)norm.epsilon);
  const float one = norm.adds_one ? 1.0f : 0.0f;
  for (int64_t i = 0; i < whole; i += W) {
    const Vec weight = add(vector_at(norm.weight, norm.type, i), fill(one));
    store(to + i, mul(mul(load(from + i), fill(factor)), weight));
  }
  for (int64_t i = whole; i < count; i++)
    to[i] = from[i] * factor * (number_at(norm.weight, norm.type, i) + one);
}

INLINE void add_row(float* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, add(load(to + i), load(from + i)));
  for (; i < count; i++) to[i] += from[i];
}

INLINE void add_scaled_row(float* to, const float* from, float factor, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, fma(load(from + i), fill(factor), load(to + i)));
  for (; i < count; i++) to[i] += from[i] * factor;
}

// Whole vectors.
INLINE void scale_row(float* row, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i += W) store(row + i, mul(load(row + i), fill(factor)));
}

// Of few numbers: a call of memcpy takes longer.
INLINE void copy_row(float* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; i++) to[i] = from[i];
}

// Turns the numbers i and i + dim / 2 of a head by their angle, in place.
INLINE void rotate(float* head, const float* cosines, const float* sines, int64_t dim) {
  const int64_t half = dim / 2;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const Vec a = load(head + i), b = load(head + half + i);
    store(head + i, sub(mul(a, load(cosines + i)), mul(b, load(sines + i))));
    store(head + half + i, add(mul(b, load(cosines + half + i)), mul(a, load(sines + half + i))));
  }
  for (; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[half + i] + a * sines[half + i];
  }
}

INLINE void write_numbers(float* to, const float* from, int64_t count) { memcpy(to, from, count * 4); }

template <typename T>
INLINE void write_numbers(T* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; i++) round_to(to + i, from[i]);
}

// A row as float32, with zeros up to a whole vector behind it.
template <typename T>
INLINE void widen_row(float* to, const T* from, int64_t count) {
  const int64_t whole = count / W * W;
  for (int64_t i = 0; i < whole; i += W) store(to + i, load(from + i));
  if (whole < count) store(to + whole, load_part(from + whole, (int)(count - whole)));
}

enum Activation : int64_t { SILU = 0, GELU_TANH = 1, RELU_SQUARED = 2 };

INLINE Vec silu(Vec x) {
  // exponential() takes at most 88: below -88 the result is 0 to all digits, as x / (1 + e ** 88) is.
  const Vec e = exponential(max(fill(-88.0f), sub(zero(), max(x, fill(-88.0f)))));
  return div(x, add(fill(1.0f), e));
}

INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(mul(mul(x, x), x), fill(0.044715f), x);
  return mul(mul(x, fill(0.5f)), add(fill(1.0f), tangent(mul(cubic, fill(0.7978845608f)))));
}

INLINE Vec relu_squared(Vec x) {
  const Vec positive = max(x, zero());
  return mul(positive, positive);
}

// gates[i] = activation(gates[i]) * ups[i], for whole vectors; no ups: they are all 1.
INLINE void activate(float* gates, const float* ups, int64_t count, int64_t activation) {
  for (int64_t i = 0; i < count; i += W) {
    const Vec x = load(gates + i);
    const Vec y = activation == SILU ? silu(x) : activation == GELU_TANH ? gelu_tanh(x) : relu_squared(x);
    store(gates + i, ups ? mul(y, load(ups + i)) : y);
  }
}

}  // namespace
