// Products of many rows with the outputs of one unit of a dense weight, on processors that multiply numbers of
// bfloat16.
//
// Rows are rounded to bfloat16, their products are added in float32: inputs in pairs, one pair after the other.
// Dimensions: T rows, K inputs.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/product.h"

namespace {

constexpr int64_t ROUNDED_ROWS = 24;  // rows come in multiples of it, so that any number at once leaves sums in
                                      // registers

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
  if (product.layout == QUANTISED) return quantised::BytePanels::take(weight_of(product));
  return product.layout == COLUMNS && product.type == 1;
}

// Rounds a row of `stride` numbers, a multiple of 32.
MULTIPLIES_BF16 inline void round_row(bf16* to, const float* from, int64_t stride) {
  for (int64_t i = 0; i < stride; i += 2 * W)
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(load(from + i + W), load(from + i)));
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
  for (int64_t begin = 0; begin < product.num_inputs; begin += NEAR_LEN) {
    const int64_t count = least(NEAR_LEN, product.num_inputs - begin);
    const bf16* weight = (const bf16*)product.weight + (unit * product.padded + begin) * product.block;
    add_rounded(out, x + begin, x_stride, whole_rounded_rows(num_rows), weight, product.block, (count + 1) / 2,
                begin == 0);
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
