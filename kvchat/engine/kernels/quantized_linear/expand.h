// Quantised weights as they stand for, [N, K], in any type: what longer prompts are multiplied with.
//
// In a tile the inputs of an output lie apart: four quads of four outputs become the 16 bytes of each.

#pragma once

#include "kvchat/engine/kernels/quantized_linear/rows.h"

namespace {
namespace quantised {

constexpr int UNIT = 16;  // inputs that are converted at one time

#if defined(__ARM_NEON)

typedef int8x16_t Bytes;

INLINE Bytes load_bytes(const void* p) { return vld1q_s8((const int8_t*)p); }
INLINE Bytes low_halves(Bytes a) { return vandq_s8(a, vdupq_n_s8(15)); }
INLINE Bytes high_halves(Bytes a) {
  return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(a), 4));
}
// Groups of four bytes of both, in turn: of the first half, or the second.
INLINE Bytes zip_low(Bytes a, Bytes b) {
  return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
INLINE Bytes zip_high(Bytes a, Bytes b) {
  return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
INLINE Lanes widen(Bytes a) {
  const int16x8_t low = vmovl_s8(vget_low_s8(a)), high = vmovl_s8(vget_high_s8(a));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

#else

typedef __m128i Bytes;

INLINE Bytes load_bytes(const void* p) { return _mm_loadu_si128((const __m128i*)p); }
INLINE Bytes low_halves(Bytes a) { return _mm_and_si128(a, _mm_set1_epi8(15)); }
INLINE Bytes high_halves(Bytes a) { return _mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15)); }
// Groups of four bytes of both, in turn: of the first half, or the second.
INLINE Bytes zip_low(Bytes a, Bytes b) { return _mm_unpacklo_epi32(a, b); }
INLINE Bytes zip_high(Bytes a, Bytes b) { return _mm_unpackhi_epi32(a, b); }
#if defined(__AVX512F__)
INLINE Lanes widen(Bytes a) { return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a))}}; }
#else
INLINE Lanes widen(Bytes a) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)))}};
}
#endif

#endif

// Four outputs' 16 bytes each, from `p` on in a tile.
INLINE void turn(Bytes out[4], const uint8_t* p) {
  const Bytes a = load_bytes(p), b = load_bytes(p + 64), c = load_bytes(p + 128), d = load_bytes(p + 192);
  const Bytes first = zip_low(a, c), second = zip_low(b, d), third = zip_high(a, c), fourth = zip_high(b, d);
  out[0] = zip_low(first, second);
  out[1] = zip_high(first, second);
  out[2] = zip_low(third, fourth);
  out[3] = zip_high(third, fourth);
}

template <typename X>
struct Expansion {
  const Weight& weight;
  X* out;  // [N, K]

  // Outputs [begin, end): `begin` is a multiple of TILE, `end` too or the number of outputs.
  void expand(int64_t begin, int64_t end) const {
    int64_t n = begin;
    for (; n + TILE <= end; n += TILE) write_tile(n);
    for (; n < end; n++) write_one(n);
  }

  void write_tile(int64_t n) const {
    const int64_t num_groups = weight.num_inputs / weight.group, step = 8 / weight.bits * UNIT;
    const uint8_t* codes = weight.codes + n * weight.num_inputs * weight.bits / 8;
    int64_t k = 0;
    for (; k + step <= weight.num_inputs; k += step, codes += 16 * TILE) {
      const int64_t group = n * num_groups + k / weight.group * TILE;
      const int64_t next = n * num_groups + (k + step - UNIT) / weight.group * TILE;
      for (int i = 0; i < TILE; i += 4) {
        Bytes bytes[4];
        turn(bytes, codes + i * QUAD);
        UNROLL
        for (int j = 0; j < 4; j++) {
          X* to = out + (n + i + j) * weight.num_inputs + k;
          if (weight.bits == 8) {
            write(to, bytes[j], group + i + j);
            continue;
          }
          const Bytes low = low_halves(bytes[j]), high = high_halves(bytes[j]);
          write(to, zip_low(low, high), group + i + j);
          write(to + UNIT, zip_high(low, high), next + i + j);
        }
      }
    }
    if (k == weight.num_inputs) return;
    for (int i = 0; i < TILE; i++) {  // 16 inputs of 4 bits are left
      uint32_t quads[4] = {};
      for (int q = 0; q < 2; q++) memcpy(quads + q, codes + (q * TILE + i) * QUAD, QUAD);
      const Bytes bytes = load_bytes(quads);
      write(out + (n + i) * weight.num_inputs + k, zip_low(low_halves(bytes), high_halves(bytes)),
            n * num_groups + k / weight.group * TILE + i);
    }
  }

  // An output of no whole tile.
  void write_one(int64_t n) const {
    const int64_t num_groups = weight.num_inputs / weight.group;
    const uint8_t* codes = weight.codes + n * weight.num_inputs * weight.bits / 8;
    for (int64_t k = 0; k < weight.num_inputs; k += UNIT) {
      uint8_t unit[UNIT] = {};
      memcpy(unit, codes + k * weight.bits / 8, UNIT * weight.bits / 8);
      Bytes bytes = load_bytes(unit);
      if (weight.bits == 4) bytes = zip_low(low_halves(bytes), high_halves(bytes));
      write(out + n * weight.num_inputs + k, bytes, n * num_groups + k / weight.group);
    }
  }

  void write(X* to, Bytes codes, int64_t group) const {
    const Vec scale = fill(to_float(weight.scales[group]));
    const Vec minimum = fill(weight.minima ? to_float(weight.minima[group]) : 0.0f);
    const Vec zero_code = fill(weight.bits == 8 || weight.minima ? 0.0f : 8.0f);
    const Lanes lanes = widen(codes);
    EACH(i) store(to + i * W, add(mul(sub(lanes.v[i], zero_code), scale), minimum));
  }
};

}  // namespace quantised
}  // namespace
