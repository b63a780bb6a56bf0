// Products of a few rows with a quantised weight, for every kernel that multiplies with one.
//
// A caller sets up `Activations` in memory of its own, prepares each row once, and then computes outputs of as
// many weights as it likes, in any pieces and on any threads: every number is summed by itself, over inputs
// in order, so that neither pieces nor the rows beside it change a bit of it.
//
// Dimensions: T rows, K inputs, N outputs, G inputs of one group.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"

namespace {

// Pieces of outputs begin at multiples of TILE.
constexpr int64_t TILE = 16;

// The tensors of a weight, as weight.py describes them.
struct QuantisedRows {
  const uint8_t* codes;
  const fp16* scales;
  const fp16* minima;  // or null
  int64_t bits, group, num_inputs, num_outputs;
};

// Rows as products read them.
struct Activations {
  uint8_t* memory;  // num_rows * row_bytes(num_inputs, is_fine) bytes, at the beginning of a line of the cache
  int64_t num_inputs;
  bool is_fine;  // as fine as float32; else as fine as 16-bit types

  static int64_t row_bytes(int64_t num_inputs, bool is_fine) {
    return (num_inputs + (num_inputs + 15) / 16 + 16) / 16 * 16 * (int64_t)sizeof(float);
  }
  float* row(int64_t t) const { return (float*)(memory + t * row_bytes(num_inputs, is_fine)); }
  float* sums(int64_t t) const { return row(t) + num_inputs; }

  // Reads row t from `x`, num_inputs numbers.
  template <typename X>
  void prepare(int64_t t, const X* x) const {
    float* to = row(t);
    for (int64_t k = 0; k < num_inputs; k += W) store(to + k, load(x + k));
    for (int64_t k = 0; k < num_inputs; k += 16) {
      Vec total = zero();
      for (int64_t i = k; i < k + 16; i += W) total = add(total, load(to + i));
      sums(t)[k / 16] = sum(total);
    }
  }
};

constexpr int OUTS = 8;                // read at one time
constexpr int SUMS = W < 16 ? 8 : 16;  // that stay in registers beside weights

#if defined(__AVX512F__)

INLINE Vec load_codes(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}

// What the halves of a byte stand for.
struct Halves {
  __m512 numbers;
  explicit Halves(float zero) {
    float all[16];
    for (int i = 0; i < 16; i++) all[i] = (float)i - zero;
    numbers = _mm512_loadu_ps(all);
  }
};

INLINE void load_halves(const Halves& halves, const uint8_t* p, Vec* low, Vec* high) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  *low = _mm512_permutexvar_ps(bytes, halves.numbers);
  *high = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), halves.numbers);
}

#elif defined(__AVX2__)

INLINE Vec load_codes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}

struct Halves {
  __m256 zero;
  explicit Halves(float z) : zero(_mm256_set1_ps(z)) {}
};

INLINE void load_halves(const Halves& halves, const uint8_t* p, Vec* low, Vec* high) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  *low = sub(_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15))), halves.zero);
  *high = sub(_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)), halves.zero);
}

#else

INLINE Vec load_codes(const int8_t* p) {
  int8_t bytes[8] = {p[0], p[1], p[2], p[3]};
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(bytes)))));
}

struct Halves {
  Vec zero;
  explicit Halves(float z) : zero(vdupq_n_f32(z)) {}
};

INLINE void load_halves(const Halves& halves, const uint8_t* p, Vec* low, Vec* high) {
  uint8_t bytes[8] = {p[0], p[1], p[2], p[3]};
  const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(bytes))));
  *low = sub(vcvtq_f32_u32(vandq_u32(wide, vdupq_n_u32(15))), halves.zero);
  *high = sub(vcvtq_f32_u32(vshrq_n_u32(wide, 4)), halves.zero);
}

#endif

INLINE void widen_all(const fp16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; i++) to[i] = to_float(from[i]);
}

// Products of ROWS rows and NUM outputs, without minima: found [ROWS, NUM].
template <int NUM, int ROWS, int BITS>
void multiply(float* found, const float* x, const uint8_t* codes, const float* scales, const Halves& table,
              int64_t num_inputs, int64_t group, int64_t x_t) {
  constexpr int PADDED = (NUM * ROWS + W - 1) / W * W;
  const int64_t num_groups = num_inputs / group, row_bytes = num_inputs * BITS / 8, half = group / 2;
  const Halves halves = table;
  Vec total[PADDED];
  UNROLL
  for (int i = 0; i < PADDED; i++) total[i] = zero();
  for (int64_t g = 0; g < num_groups; g++) {
    const float* at = x + g * group;
    const uint8_t* code = codes + g * group * BITS / 8;
    Vec scale[NUM];
    UNROLL
    for (int i = 0; i < NUM; i++) {
      scale[i] = fill(scales[i * num_groups + g]);
      // Rows are too short for the processor to see where it will read next.
      __builtin_prefetch(code + (32 + i) * row_bytes);
    }
    if (BITS == 8) {
      for (int64_t k = 0; k < group; k += W) {
        Vec weight[NUM];
        UNROLL
        for (int i = 0; i < NUM; i++)
          weight[i] = mul(load_codes((const int8_t*)code + i * row_bytes + k), scale[i]);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const Vec number = load(at + r * x_t + k);
          UNROLL
          for (int i = 0; i < NUM; i++) total[r * NUM + i] = fma(number, weight[i], total[r * NUM + i]);
        }
      }
    } else {
      for (int64_t k = 0; k < half; k += W) {
        Vec low[NUM], high[NUM];
        UNROLL
        for (int i = 0; i < NUM; i++) {
          load_halves(halves, code + i * row_bytes + k, &low[i], &high[i]);
          low[i] = mul(low[i], scale[i]);
          high[i] = mul(high[i], scale[i]);
        }
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const Vec first = load(at + r * x_t + k), second = load(at + r * x_t + half + k);
          UNROLL
          for (int i = 0; i < NUM; i++)
            total[r * NUM + i] = fma(second, high[i], fma(first, low[i], total[r * NUM + i]));
        }
      }
    }
  }
  UNROLL
  for (int i = 0; i < PADDED; i += W) store(found + i, sums(total + i));
}


struct FewRows {
  const QuantisedRows& weight;
  const Activations& x;
  float* out;
  int64_t out_t;
  Halves halves;

  int64_t num_groups() const { return weight.num_inputs / weight.group; }

  // Outputs [n, n + num): read once, and again from the cache where there are many rows.
  void add_outputs(int64_t n, int64_t num, int64_t t, int64_t end, float* scales) const {
    const int64_t count = num_groups();
    float* minima = scales + OUTS * count;
    widen_all(weight.scales + n * count, scales, num * count);
    if (weight.minima) widen_all(weight.minima + n * count, minima, num * count);
    while (t < end) {
      const int64_t left = end - t, rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      if (rows == 8)
        add_rows<8>(n, num, t, scales, minima);
      else if (rows == 4)
        add_rows<4>(n, num, t, scales, minima);
      else if (rows == 2)
        add_rows<2>(n, num, t, scales, minima);
      else
        add_rows<1>(n, num, t, scales, minima);
      t += rows;
    }
  }

  // As many outputs at one time as leave all sums in registers.
  template <int ROWS>
  void add_rows(int64_t n, int64_t num, int64_t t, const float* scales, const float* minima) const {
    constexpr int NUM = SUMS / ROWS < OUTS ? SUMS / ROWS : OUTS;
    int64_t i = 0;
    for (; i + NUM <= num; i += NUM)
      add_tile<NUM, ROWS>(n + i, t, scales + i * num_groups(), minima + i * num_groups());
    for (; i < num; i++) add_tile<1, ROWS>(n + i, t, scales + i * num_groups(), minima + i * num_groups());
  }

  template <int NUM, int ROWS>
  void add_tile(int64_t n, int64_t t, const float* scales, const float* minima) const {
    float found[(NUM * ROWS + W - 1) / W * W];
    const int64_t x_t = Activations::row_bytes(x.num_inputs, x.is_fine) / (int64_t)sizeof(float);
    const uint8_t* codes = weight.codes + n * weight.num_inputs * weight.bits / 8;
    if (weight.bits == 8)
      multiply<NUM, ROWS, 8>(found, x.row(t), codes, scales, halves, weight.num_inputs, weight.group, x_t);
    else
      multiply<NUM, ROWS, 4>(found, x.row(t), codes, scales, halves, weight.num_inputs, weight.group, x_t);
    for (int i = 0; i < NUM; i++)
      for (int r = 0; r < ROWS; r++) {
        float y = found[r * NUM + i];
        if (weight.minima) y += add_minima(minima + i * num_groups(), x.sums(t + r));
        out[(t + r) * out_t + n + i] = y;
      }
  }

  float add_minima(const float* minima, const float* sums) const {
    const int64_t per_group = weight.group / 16;
    float total = 0;
    for (int64_t g = 0; g < num_groups(); g++)
      for (int64_t j = 0; j < per_group; j++) total += minima[g] * sums[g * per_group + j];
    return total;
  }
};

// Computes rows [start, stop) and outputs [begin, end), without a bias: row t and output n go to
// out[(t - start) * out_t + n - begin]. `begin` is a multiple of TILE; `end` is one too, or the number of
// outputs.
INLINE void multiply_rows(const QuantisedRows& weight, const Activations& x, int64_t start, int64_t stop,
                          int64_t begin, int64_t end, float* out, int64_t out_t) {
  const FewRows rows = {weight, x, out - start * out_t - begin, out_t, Halves(weight.minima ? 0.0f : 8.0f)};
  // Scales of the outputs that are computed together, group by group.
  float* scales = (float*)__builtin_alloca(2 * OUTS * rows.num_groups() * sizeof(float));
  for (int64_t n = begin; n < end; n += OUTS) rows.add_outputs(n, least(OUTS, end - n), start, stop, scales);
}

}  // namespace
