// Products of whole numbers for each level of instructions: codes of 16 outputs with inputs of a row.
//
// A row's inputs are whole numbers of 15 bits, or of 23 where they are to be as fine as float32. Products
// read them in PARTS of as many bits as the instructions multiply; sums of parts are put together exactly, so
// that a sum is the same on every level.
//
//   Codes    16 outputs, four inputs of each, as they are multiplied
//   Sums     of 16 outputs, still in the form in which products are added
//   Lanes    of 16 outputs, float32

#pragma once

#include "kvchat/engine/kernels/native/vector.h"

namespace {
namespace quantised {

constexpr int TILE = 16;  // outputs whose codes lie together
constexpr int BLOCK = 32;  // inputs of a row that share a scale
constexpr int QUAD = 4;   // inputs of one output that lie side by side in a tile

struct Lanes {
  Vec v[TILE / W];
};

#define EACH(i) UNROLL for (int i = 0; i < TILE / W; i++)

INLINE Lanes load_lanes(const fp16* p) {
  Lanes out;
  EACH(i) out.v[i] = load(p + i * W);
  return out;
}
INLINE void store_lanes(float* p, const Lanes& a) { EACH(i) store(p + i * W, a.v[i]); }
INLINE void multiply_by(Lanes& a, const Lanes& b) { EACH(i) a.v[i] = mul(a.v[i], b.v[i]); }
// a * x + y
INLINE Lanes multiple(const Lanes& a, float x, const Lanes& y) {
  Lanes out;
  EACH(i) out.v[i] = fma(a.v[i], fill(x), y.v[i]);
  return out;
}

#if defined(__AVX512F__)

// Unsigned codes with signed parts of 8 bits. Signed codes get their highest bit turned: OFFSET is added.
typedef int8_t Part;
constexpr int AT_ONCE = 8;       // most rows of one read
constexpr int OFFSET_SHIFT = 7;  // 2 ** 7 is added to codes of 8 bits

struct Codes {
  __m512i v;
};
struct Sums {
  __m512i v;
};

INLINE void clear(Sums& sums) { sums.v = _mm512_setzero_si512(); }
INLINE Codes load_codes(const uint8_t* p) {
  return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80))};
}
INLINE void load_halves(const uint8_t* p, Codes& low, Codes& high) {
  const __m512i bytes = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
  low.v = _mm512_and_si512(bytes, mask);
  high.v = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
}
INLINE void add_products(Sums& sums, const Codes& codes, const Part* x) {
  int32_t quad;
  memcpy(&quad, x, sizeof quad);
  sums.v = _mm512_dpbusd_epi32(sums.v, codes.v, _mm512_set1_epi32(quad));
}
// low += high * 2 ** 8
INLINE void add_high(Sums& low, const Sums& high) {
  low.v = _mm512_add_epi32(low.v, _mm512_slli_epi32(high.v, 8));
}
template <int SHIFT>
INLINE Lanes without(const Sums& sums, int32_t x) {
  const __m512i excess = _mm512_slli_epi32(_mm512_set1_epi32(x), SHIFT);
  return {{_mm512_cvtepi32_ps(_mm512_sub_epi32(sums.v, excess))}};
}
INLINE Lanes lanes_of(const Sums& sums) { return {{_mm512_cvtepi32_ps(sums.v)}}; }

INLINE void store_whole(int32_t* p, Vec a) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(a)); }

#elif defined(__AVXVNNI__)

typedef int8_t Part;
constexpr int AT_ONCE = 2;
constexpr int OFFSET_SHIFT = 7;

struct Codes {
  __m256i v[2];
};
struct Sums {
  __m256i v[2];
};

INLINE void clear(Sums& sums) { sums.v[0] = sums.v[1] = _mm256_setzero_si256(); }
INLINE Codes load_codes(const uint8_t* p) {
  Codes codes;
  EACH(i)
  codes.v[i] =
      _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)p + i), _mm256_set1_epi8((char)0x80));
  return codes;
}
INLINE void load_halves(const uint8_t* p, Codes& low, Codes& high) {
  const __m256i mask = _mm256_set1_epi8(15);
  EACH(i) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i*)p + i);
    low.v[i] = _mm256_and_si256(bytes, mask);
    high.v[i] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  }
}
INLINE void add_products(Sums& sums, const Codes& codes, const Part* x) {
  int32_t quad;
  memcpy(&quad, x, sizeof quad);
  EACH(i) sums.v[i] = _mm256_dpbusd_avx_epi32(sums.v[i], codes.v[i], _mm256_set1_epi32(quad));
}
INLINE void add_high(Sums& low, const Sums& high) {
  EACH(i) low.v[i] = _mm256_add_epi32(low.v[i], _mm256_slli_epi32(high.v[i], 8));
}
template <int SHIFT>
INLINE Lanes without(const Sums& sums, int32_t x) {
  const __m256i excess = _mm256_slli_epi32(_mm256_set1_epi32(x), SHIFT);
  Lanes out;
  EACH(i) out.v[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums.v[i], excess));
  return out;
}
INLINE Lanes lanes_of(const Sums& sums) {
  Lanes out;
  EACH(i) out.v[i] = _mm256_cvtepi32_ps(sums.v[i]);
  return out;
}

INLINE void store_whole(int32_t* p, Vec a) { _mm256_storeu_si256((__m256i*)p, _mm256_cvtps_epi32(a)); }

#elif defined(__AVX2__)

// Codes widened to 16 bits, with parts of 16 bits: products of 8 bits would be cut off at 16.
typedef int16_t Part;
constexpr int AT_ONCE = 2;
constexpr int OFFSET_SHIFT = -1;

struct Codes {
  __m256i v[4];  // of four outputs each
};
struct Sums {
  __m256i v[4];  // two of each output
};

INLINE void clear(Sums& sums) {
  UNROLL
  for (int i = 0; i < 4; i++) sums.v[i] = _mm256_setzero_si256();
}
INLINE Codes load_codes(const uint8_t* p) {
  Codes codes;
  UNROLL
  for (int i = 0; i < 4; i++) codes.v[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p + i));
  return codes;
}
INLINE void load_halves(const uint8_t* p, Codes& low, Codes& high) {
  UNROLL
  for (int i = 0; i < 4; i++) {
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p + i));
    low.v[i] = _mm256_and_si256(bytes, _mm256_set1_epi16(15));
    high.v[i] = _mm256_srli_epi16(bytes, 4);
  }
}
INLINE void add_products(Sums& sums, const Codes& codes, const Part* x) {
  int64_t quad;
  memcpy(&quad, x, sizeof quad);
  UNROLL
  for (int i = 0; i < 4; i++)
    sums.v[i] = _mm256_add_epi32(sums.v[i], _mm256_madd_epi16(codes.v[i], _mm256_set1_epi64x(quad)));
}
template <int SHIFT>
INLINE Lanes without(const Sums& sums, int32_t x) {
  const __m256i excess = _mm256_slli_epi32(_mm256_set1_epi32(x), SHIFT);
  Lanes out;
  EACH(i) {
    const __m256i both = _mm256_hadd_epi32(sums.v[2 * i], sums.v[2 * i + 1]);
    out.v[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_permute4x64_epi64(both, 0xD8), excess));
  }
  return out;
}
INLINE Lanes lanes_of(const Sums& sums) { return without<0>(sums, 0); }
INLINE void add_high(Sums&, const Sums&) {}  // parts are sums by themselves
INLINE void store_whole(int32_t* p, Vec a) { _mm256_storeu_si256((__m256i*)p, _mm256_cvtps_epi32(a)); }

#else

typedef int8_t Part;
constexpr int AT_ONCE = 2;
constexpr int OFFSET_SHIFT = -1;

struct Codes {
  int8x16_t v[4];  // of four outputs each
};
struct Sums {
  int32x4_t v[4];
};

INLINE void clear(Sums& sums) { EACH(i) sums.v[i] = vdupq_n_s32(0); }
INLINE Codes load_codes(const uint8_t* p) {
  Codes codes;
  EACH(i) codes.v[i] = vld1q_s8((const int8_t*)p + 16 * i);
  return codes;
}
INLINE void load_halves(const uint8_t* p, Codes& low, Codes& high) {
  EACH(i) {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    low.v[i] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
    high.v[i] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
  }
}
INLINE int32x4_t add_dot(int32x4_t sum, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, a, b);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
  const int16x8_t high = vmull_s8(vget_high_s8(a), vget_high_s8(b));
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
INLINE void add_products(Sums& sums, const Codes& codes, const Part* x) {
  int32_t quad;
  memcpy(&quad, x, sizeof quad);
  EACH(i) sums.v[i] = add_dot(sums.v[i], codes.v[i], vreinterpretq_s8_s32(vdupq_n_s32(quad)));
}
INLINE void add_high(Sums& low, const Sums& high) {
  EACH(i) low.v[i] = vaddq_s32(low.v[i], vshlq_n_s32(high.v[i], 8));
}
template <int SHIFT>
INLINE Lanes without(const Sums& sums, int32_t x) {
  const int32x4_t excess = vdupq_n_s32(x * (1 << SHIFT));
  Lanes out;
  EACH(i) out.v[i] = vcvtq_f32_s32(vsubq_s32(sums.v[i], excess));
  return out;
}
INLINE Lanes lanes_of(const Sums& sums) {
  Lanes out;
  EACH(i) out.v[i] = vcvtq_f32_s32(sums.v[i]);
  return out;
}
INLINE void store_whole(int32_t* p, Vec a) { vst1q_s32(p, vcvtnq_s32_f32(a)); }

#endif

#if defined(__AVX512F__)

// The largest of a block's numbers without their signs, by their bits, of which those of NaN are the largest.
INLINE uint32_t largest_size(const float* numbers) {
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i first = _mm512_and_si512(_mm512_loadu_si512(numbers), mask);
  const __m512i second = _mm512_and_si512(_mm512_loadu_si512(numbers + 16), mask);
  return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(first, second));
}

// Writes 16 numbers' parts, the lowest first; and their sums: `high` of what is above 16 bits, `low` of the
// rest.
template <int PARTS>
INLINE void split(Part* to, const int32_t* whole, int32_t* low, int32_t* high) {
  __m512i rest = _mm512_loadu_si512(whole);
  const int32_t sum = _mm512_reduce_add_epi32(rest);
  UNROLL
  for (int part = 0; part < PARTS; part++) {
    _mm_storeu_si128((__m128i*)(to + part * BLOCK), _mm512_cvtepi32_epi8(rest));
    if (part < PARTS - 1) rest = _mm512_srai_epi32(_mm512_add_epi32(rest, _mm512_set1_epi32(128)), 8);
  }
  *high = PARTS == 3 ? _mm512_reduce_add_epi32(rest) : 0;
  *low = sum - *high * 65536;
}

#else

INLINE uint32_t largest_size(const float* numbers) {
  uint32_t bits[BLOCK], most = 0;
  memcpy(bits, numbers, sizeof bits);
  for (int i = 0; i < BLOCK; i++) {
    const uint32_t size = bits[i] & 0x7FFFFFFF;
    most = size > most ? size : most;
  }
  return most;
}

template <int PARTS>
INLINE void split(Part* to, const int32_t* whole, int32_t* low, int32_t* high) {
  constexpr int BITS = 8 * sizeof(Part);
  int32_t rest[16], sum = 0, sum_high = 0;
  for (int i = 0; i < 16; i++) sum += rest[i] = whole[i];
  for (int part = 0; part < PARTS; part++)
    for (int i = 0; i < 16; i++) {
      const Part digit = (Part)rest[i];
      to[part * BLOCK + i] = digit;
      rest[i] = (rest[i] - digit) >> BITS;
      if (part == 16 / BITS - 1) sum_high += rest[i];
    }
  *low = sum - sum_high * 65536;
  *high = sum_high;
}

#endif

}  // namespace quantised
}  // namespace
