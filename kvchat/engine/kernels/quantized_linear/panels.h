// Products of many rows with a quantised weight: the same bits as in rows.h, in less time.
//
// Rows lie in panels, side by side: a product reads one stream of memory. Whole numbers of 15 bits are not cut
// into parts but multiplied two at a time, so their sums need not be put together. Only of types of 16 bits,
// and of groups of 32 inputs and more.
//
// A panel is [K / 32, block_bytes()], a block that of 32 inputs: [rows, 16] pairs of inputs, [rows] scales,
// [rows] what codes without a sign add too much, [rows] sums of what the numbers stand for, and padding. Inputs
// 0 and 2, 1 and 3, 4 and 6, 5 and 7 are pairs, and so on: so they lie in the bytes of a tile.

#pragma once

#include "kvchat/engine/kernels/quantized_linear/rows.h"

namespace {
namespace quantised {

constexpr int PAIRS = BLOCK / 2;
constexpr int MOST_IN_PANEL = 12;

// Writes the pairs of a block; returns the sum of its numbers.
#if defined(__AVX512F__)
INLINE int32_t put_pairs(int32_t* to, const int32_t* whole) {
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < 2; i++) {
    const __m512i first = _mm512_loadu_si512(whole + i * 16);
    const __m512i second = _mm512_slli_epi32(_mm512_shuffle_epi32(first, _MM_PERM_DCDC), 16);
    const __m512i pairs = _mm512_or_si512(_mm512_and_si512(first, _mm512_set1_epi32(0xFFFF)), second);
    _mm256_storeu_si256((__m256i*)to + i, _mm512_castsi512_si256(_mm512_maskz_compress_epi32(0x3333, pairs)));
    sum = _mm512_add_epi32(sum, first);
  }
  return _mm512_reduce_add_epi32(sum);
}
#else
INLINE int32_t put_pairs(int32_t* to, const int32_t* whole) {
  int32_t sum = 0;
  for (int i = 0; i < BLOCK; i++) sum += whole[i];
  for (int i = 0; i < PAIRS; i++) {
    const int32_t* first = whole + i / 2 * 4 + i % 2;
    to[i] = (int32_t)(((uint32_t)first[0] & 0xFFFF) | (uint32_t)first[2] << 16);
  }
  return sum;
}
#endif

struct Panels {
  uint8_t* memory;  // num_bytes() bytes, at the beginning of a line of the cache
  int64_t num_inputs, num_rows;

#if defined(__AVX512F__)
  static constexpr int64_t LEAST_ROWS = 5;
#else
  static constexpr int64_t LEAST_ROWS = INT64_MAX;
#endif
  // Whether products of so many rows, no finer than 16 bits, are computed from panels.
  static bool take(const Weight& weight, int64_t num_rows) {
    return num_rows >= LEAST_ROWS && weight.group >= BLOCK;
  }

  // Of a panel: as many as leave all sums in registers, and few that are computed in vain.
  int64_t rows() const { return num_rows <= 8 || (num_rows > 12 && num_rows <= 16) ? 8 : MOST_IN_PANEL; }
  int64_t num_panels() const { return (num_rows + rows() - 1) / rows(); }
  static constexpr int64_t block_bytes(int64_t rows) { return (rows * (4 * PAIRS + 12) + 63) / 64 * 64; }
  int64_t panel_bytes() const { return (num_inputs + BLOCK - 1) / BLOCK * block_bytes(rows()); }
  int64_t num_bytes() const { return num_panels() * panel_bytes(); }
  const uint8_t* panel(int64_t number) const { return memory + number * panel_bytes(); }

  // Reads row t from `x`, num_inputs numbers, a multiple of 32.
  template <typename X>
  void prepare(int64_t t, const X* x) const {
    const int64_t width = rows(), r = t % width;
    uint8_t* block = memory + t / width * panel_bytes();
    for (int64_t k = 0; k < num_inputs; k += BLOCK, block += block_bytes(width)) {
      float numbers[BLOCK];
      for (int i = 0; i < BLOCK; i += W) store(numbers + i, load(x + k + i));
      int32_t whole[BLOCK];
      const float scale = Activations::to_whole(whole, numbers, 13);
      const int32_t sum = put_pairs((int32_t*)block + r * PAIRS, whole);
      float* scales = (float*)block + width * PAIRS;
      const int32_t excess = -8 * sum;
      scales[r] = scale;
      memcpy(scales + width + r, &excess, sizeof excess);
      scales[2 * width + r] = Activations::total(sum, 0, scale);
    }
  }
};

#if defined(__AVX512F__)

// The codes of pairs of eight inputs, 16 outputs each.
template <int BITS>
INLINE void load_pairs(const uint8_t* p, __m512i* codes) {
  if constexpr (BITS == 8) {
    UNROLL
    for (int i = 0; i < 2; i++) {
      const __m512i bytes = _mm512_loadu_si512(p + i * TILE * QUAD);
      codes[2 * i] = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
      codes[2 * i + 1] = _mm512_srai_epi16(bytes, 8);
    }
  } else {
    const __m512i bytes = _mm512_loadu_si512(p), mask = _mm512_set1_epi16(15);
    codes[0] = _mm512_and_si512(bytes, mask);
    codes[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 8), mask);
    codes[2] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    codes[3] = _mm512_srli_epi16(bytes, 12);
  }
}

// The products of one tile of outputs with a panel: row r goes to out[r * out_t].
template <int ROWS, int BITS, bool HAS_MINIMA>
void multiply_panel(float* out, int64_t out_t, const Weight& weight, const uint8_t* panel, int64_t n) {
  const int64_t num_groups = weight.num_inputs / weight.group, per_group = weight.group / BLOCK;
  const uint8_t* code = weight.codes + n * weight.num_inputs * BITS / 8;
  __m512 total[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) total[r] = zero();
  for (int64_t g = 0; g < num_groups; g++) {
    const int64_t first = n * num_groups + g * TILE;
    const __m512 scale = load(weight.scales + first);
    __builtin_prefetch((const uint8_t*)(weight.scales + first) + SCALES_AHEAD);
    __m512 minimum = zero();
    if (HAS_MINIMA) {
      minimum = load(weight.minima + first);
      __builtin_prefetch((const uint8_t*)(weight.minima + first) + SCALES_AHEAD);
    }
    for (int64_t block = 0; block < per_group; block++, panel += Panels::block_bytes(ROWS)) {
      const int32_t* pairs = (const int32_t*)panel;
      const int32_t* excess = pairs + ROWS * PAIRS + ROWS;
      const float* scales = (const float*)panel + ROWS * PAIRS;
      __m512i sums[ROWS];
      UNROLL
      for (int r = 0; r < ROWS; r++)
        sums[r] = BITS == 4 && !HAS_MINIMA ? _mm512_set1_epi32(excess[r]) : _mm512_setzero_si512();
      UNROLL
      for (int k = 0; k < PAIRS; k += 4, code += TILE * BITS) {
        __m512i codes[4];
        load_pairs<BITS>(code, codes);
        UNROLL
        for (int i = 0; i < TILE * BITS; i += 64) __builtin_prefetch(code + i + AHEAD);
        UNROLL
        for (int i = 0; i < 4; i++) {
          UNROLL
          for (int r = 0; r < ROWS; r++)
            sums[r] = _mm512_dpwssd_epi32(sums[r], codes[i], _mm512_set1_epi32(pairs[r * PAIRS + k + i]));
        }
      }
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        total[r] = fma(mul(_mm512_cvtepi32_ps(sums[r]), scale), fill(scales[r]), total[r]);
        if (HAS_MINIMA) total[r] = fma(minimum, fill(scales[2 * ROWS + r]), total[r]);
      }
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) store(out + r * out_t, total[r]);
}

template <int ROWS>
void multiply_panel(float* out, int64_t out_t, const Weight& weight, const uint8_t* panel, int64_t n) {
  if (weight.bits == 8 && weight.minima)
    multiply_panel<ROWS, 8, true>(out, out_t, weight, panel, n);
  else if (weight.bits == 8)
    multiply_panel<ROWS, 8, false>(out, out_t, weight, panel, n);
  else if (weight.minima)
    multiply_panel<ROWS, 4, true>(out, out_t, weight, panel, n);
  else
    multiply_panel<ROWS, 4, false>(out, out_t, weight, panel, n);
}

#endif

// One output that belongs to no whole tile, in the same order.
INLINE float multiply_one(const Weight& weight, const Panels& x, int64_t n, int64_t t) {
  const int64_t num_groups = weight.num_inputs / weight.group, width = x.rows(), r = t % width;
  const uint8_t* codes = weight.codes + n * weight.num_inputs * weight.bits / 8;
  const uint8_t* block = x.panel(t / width);
  float total = 0.0f;
  for (int64_t k = 0; k < weight.num_inputs; k += BLOCK, block += Panels::block_bytes(width)) {
    int16_t pairs[BLOCK];
    memcpy(pairs, block + r * sizeof pairs, sizeof pairs);
    const float* scales = (const float*)block + width * PAIRS;
    const int64_t group = n * num_groups + k / weight.group;
    int32_t found = 0;
    for (int64_t i = 0; i < BLOCK; i++) {
      const uint8_t byte = weight.bits == 8 ? codes[k + i] : codes[(k + i) / 8 * 4 + i % 4];
      const int code = weight.bits == 8 ? (int8_t)byte : i % 8 < 4 ? byte & 15 : byte >> 4;
      found += (code - (weight.bits == 8 || weight.minima ? 0 : 8)) * pairs[i / 4 * 4 + i % 2 * 2 + i % 4 / 2];
    }
    total = __builtin_fmaf((float)found * to_float(weight.scales[group]), scales[r], total);
    if (weight.minima) total = __builtin_fmaf(to_float(weight.minima[group]), scales[2 * width + r], total);
  }
  return total;
}

// Computes rows of a panel, `num_rows` of them wanted, and outputs [begin, end), without a bias: row t and
// output n go to out[t * out_t + n - begin], where there is room for all rows of the panel. `begin` is a multiple
// of TILE; `end` is one too, or the number of outputs.
INLINE void multiply_panel(const Weight& weight, const Panels& x, int64_t number, int64_t begin, int64_t end,
                           float* out, int64_t out_t) {
  int64_t n = begin;
#if defined(__AVX512F__)
  for (; n + TILE <= end; n += TILE) {
    if (x.rows() == 8)
      multiply_panel<8>(out + n - begin, out_t, weight, x.panel(number), n);
    else
      multiply_panel<MOST_IN_PANEL>(out + n - begin, out_t, weight, x.panel(number), n);
  }
#endif
  const int64_t start = number * x.rows(), stop = least(start + x.rows(), x.num_rows);
  for (; n < end; n++)
    for (int64_t t = start; t < stop; t++) out[(t - start) * out_t + n - begin] = multiply_one(weight, x, n, t);
}

}  // namespace quantised
}  // namespace
