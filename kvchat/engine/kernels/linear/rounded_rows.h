// Products of many rows with the outputs of one unit, on processors that multiply numbers of bfloat16.
//
// Rows and weights are rounded to bfloat16, their products are added in float32: inputs in pairs, one pair after
// the other. Dimensions: T rows, K inputs.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/product.h"

namespace {

constexpr int64_t ROUNDED_ROWS = 24;  // rows come in multiples of it, so that any of them leave sums in registers

INLINE int64_t whole_rounded_rows(int64_t num_rows) {
  return (num_rows + ROUNDED_ROWS - 1) / ROUNDED_ROWS * ROUNDED_ROWS;
}

// Compilers from 2019 on know the instructions.
#if defined(__AVX512F__) && __has_include(<avx512bf16intrin.h>)

constexpr int ROUNDS_PRODUCTS = 1;
#define MULTIPLIES_BF16 __attribute__((target("avx512bf16")))
constexpr int64_t NEAR_LEN = 256;  // inputs of one unit that lie in the nearest cache

// Whether the products of a weight are computed so, where the processor can.
INLINE bool can_round(const Product& product) {
  if (product.layout == QUANTISED) return product.num_outputs % quantised::TILE == 0;
  return product.layout == COLUMNS && product.type == 1;
}

// Rounds a row of `stride` numbers, a multiple of 32.
MULTIPLIES_BF16 inline void round_row(bf16* to, const float* from, int64_t stride) {
  for (int64_t i = 0; i < stride; i += 2 * W)
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(load(from + i + W), load(from + i)));
}

// Writes inputs [begin, begin + count) of a tile as pairs: [count / 2, width, 2].
template <int BITS, bool HAS_MINIMA>
MULTIPLIES_BF16 void write_pairs(bf16* to, int64_t width, const quantised::Weight& weight, int64_t n,
                                 int64_t begin, int64_t count) {
  constexpr int STEP = 32 / BITS, TILE = quantised::TILE;  // inputs whose codes lie in one vector
  alignas(64) static const uint16_t ORDER[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(ORDER);
  const int64_t num_groups = weight.num_inputs / weight.group;
  for (int64_t k = 0; k < count; k += STEP) {
    const int64_t at = n * num_groups + (begin + k) / weight.group * TILE;
    const Vec scale = load(weight.scales + at);
    Vec offset = zero();
    if (HAS_MINIMA)
      offset = load(weight.minima + at);
    else if (BITS == 4)
      offset = mul(scale, fill(-8.0f));
    const int64_t first = n * weight.num_inputs + (begin + k) * TILE;
    const __m512i bytes = _mm512_loadu_si512(weight.codes + first * BITS / 8);
    Vec numbers[STEP];
    UNROLL
    for (int i = 0; i < STEP; i++) {
      __m512i code;
      if (BITS == 8)
        code = _mm512_srai_epi32(_mm512_slli_epi32(bytes, 24 - 8 * i), 24);
      else
        code = _mm512_and_si512(_mm512_srli_epi32(bytes, i % 4 * 8 + i / 4 * 4), _mm512_set1_epi32(15));
      const Vec number = _mm512_cvtepi32_ps(code);
      numbers[i] = BITS == 8 && !HAS_MINIMA ? mul(number, scale) : fma(number, scale, offset);
    }
    UNROLL
    for (int i = 0; i < STEP; i += 2) {
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(numbers[i + 1], numbers[i]);
      _mm512_storeu_si512(to + (k + i) * width, _mm512_permutexvar_epi16(order, both));
    }
  }
}

MULTIPLIES_BF16 inline void write_pairs(bf16* to, int64_t width, const quantised::Weight& weight, int64_t n,
                                        int64_t begin, int64_t count) {
  if (weight.bits == 8 && weight.minima)
    write_pairs<8, true>(to, width, weight, n, begin, count);
  else if (weight.bits == 8)
    write_pairs<8, false>(to, width, weight, n, begin, count);
  else if (weight.minima)
    write_pairs<4, true>(to, width, weight, n, begin, count);
  else
    write_pairs<4, false>(to, width, weight, n, begin, count);
}

// Adds the products of `num_pairs` pairs of inputs to VECS vectors of outputs of NUM rows, or begins with them.
template <int NUM, int VECS>
MULTIPLIES_BF16 void add_pairs(float* out, const bf16* x, int64_t x_stride, const bf16* weight, int64_t num_pairs,
                               bool is_first) {
  Vec sums[NUM][VECS];
  UNROLL
  for (int r = 0; r < NUM; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) sums[r][i] = is_first ? zero() : load(out + r * UNIT + i * W);
  }
  for (int64_t pair = 0; pair < num_pairs; pair++) {
    __m512bh columns[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++)
      columns[i] = (__m512bh)_mm512_loadu_si512(weight + (pair * VECS + i) * 2 * W);
    UNROLL
    for (int r = 0; r < NUM; r++) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(*(const int32_t*)(x + r * x_stride + 2 * pair));
      UNROLL
      for (int i = 0; i < VECS; i++) sums[r][i] = _mm512_dpbf16_ps(sums[r][i], columns[i], both);
    }
  }
  UNROLL
  for (int r = 0; r < NUM; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) store(out + r * UNIT + i * W, sums[r][i]);
  }
}

// The same for all rows, a multiple of ROUNDED_ROWS, and `width` outputs that lie together.
inline void add_rounded(float* out, const bf16* x, int64_t x_stride, int64_t num_rows, const bf16* weight,
                        int64_t width, int64_t num_pairs, bool is_first) {
  const int64_t step = width == 4 * W ? 6 : width == 3 * W ? 8 : width == 2 * W ? 12 : 24;
  for (int64_t t = 0; t < num_rows; t += step) {
    float* to = out + t * UNIT;
    const bf16* from = x + t * x_stride;
    if (width == 4 * W)
      add_pairs<6, 4>(to, from, x_stride, weight, num_pairs, is_first);
    else if (width == 3 * W)
      add_pairs<8, 3>(to, from, x_stride, weight, num_pairs, is_first);
    else if (width == 2 * W)
      add_pairs<12, 2>(to, from, x_stride, weight, num_pairs, is_first);
    else
      add_pairs<24, 1>(to, from, x_stride, weight, num_pairs, is_first);
  }
}

// All inputs of one unit: out [T, UNIT]. `x` and `out` have room for a multiple of ROUNDED_ROWS rows.
inline void multiply_rounded(const Product& product, float* out, const bf16* x, int64_t x_stride, int64_t num_rows,
                             int64_t unit) {
  alignas(64) bf16 pairs[NEAR_LEN * UNIT];
  const int64_t first = unit * product.unit(true), num = least(product.unit(true), product.num_outputs - first);
  for (int64_t begin = 0; begin < product.num_inputs; begin += NEAR_LEN) {
    const int64_t count = least(NEAR_LEN, product.num_inputs - begin);
    const bf16* weight = (const bf16*)product.weight + (unit * product.padded + begin) * product.block;
    if (product.layout == QUANTISED) {
      for (int64_t n = 0; n < num; n += quantised::TILE)
        write_pairs(pairs + 2 * n, num, weight_of(product), first + n, begin, count);
      weight = pairs;
    }
    add_rounded(out, x + begin, x_stride, whole_rounded_rows(num_rows), weight,
                product.layout == QUANTISED ? num : product.block, (count + 1) / 2, begin == 0);
  }
}

#undef MULTIPLIES_BF16

#else

constexpr int ROUNDS_PRODUCTS = 0;
INLINE bool can_round(const Product&) { return false; }
INLINE void round_row(bf16*, const float*, int64_t) {}
INLINE void multiply_rounded(const Product&, float*, const bf16*, int64_t, int64_t, int64_t) {}

#endif

}  // namespace
