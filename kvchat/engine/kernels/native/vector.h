// Vectors of float32 for each level of instructions, and what kernels do with them.
//
// Every source is compiled once for each level, with LEVEL as suffix of what it exports; all else has
// internal linkage, so that no function compiled for one processor is ever called on another. Products are
// added by explicit fused operations, and the build forbids the compiler to fuse others: a function gives the
// same bits wherever it is inlined.
//
// W lanes of a vector. `part` functions take fewer numbers than W and treat the others as zero.

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#else
#error "no level of instructions for this processor"
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPORT(name) extern "C" __attribute__((visibility("default"))) int JOIN(name, LEVEL)
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

namespace {

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Memory for so many numbers, at the beginning of a line of the cache; null where there is none.
INLINE float* allocate(int64_t count) {
  void* memory;
  return posix_memalign(&memory, 64, (count + 1) * sizeof(float)) ? nullptr : (float*)memory;
}

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};
// Of 8 bits, 4 of them of the exponent. Vectors of them are loaded as 2 ** -8 of what they are.
struct e4m3 {
  uint8_t bits;
};

#if defined(__AVX512F__)

constexpr int W = 16;
typedef __m512 Vec;

INLINE Vec zero() { return _mm512_setzero_ps(); }
INLINE Vec fill(float x) { return _mm512_set1_ps(x); }
INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
INLINE Vec widen(__m256i half, bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INLINE Vec widen(__m256i half, fp16) { return _mm512_cvtph_ps(half); }
template <typename T>
INLINE Vec load(const T* p) {
  return widen(_mm256_loadu_si256((const __m256i*)p), T{});
}
INLINE Vec load(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
// The bits of a float16 with the same exponent: signs are doubled on the way, and one is taken off.
INLINE Vec load(const e4m3* p) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((int16_t)0xBF80)));
}
INLINE void load_two(const e4m3* p, Vec* to) {
  const __m512i wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)), 7);
  const __m512i half = _mm512_and_si512(wide, _mm512_set1_epi16((int16_t)0xBF80));
  to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
  to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}
INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
// b where one of them is NaN; some processors give NaN.
INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
INLINE Vec round_even(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2 ** n for whole numbers n in [-126, 127].
INLINE Vec power_of_two(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
// `a` where x >= bound, 0 elsewhere.
INLINE Vec where_at_least(Vec x, Vec bound, Vec a) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), a);
}
// 0 where x < bound, `a` elsewhere: where x is NaN, too.
INLINE Vec zero_below(Vec x, Vec bound, Vec a) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), a);
}
// `a` where |x| < bound, b elsewhere.
INLINE Vec where_small(Vec x, Vec bound, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(_mm512_abs_ps(x), bound, _CMP_LT_OQ), a);
}

INLINE Vec fold4(Vec a, Vec b) {
  return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
INLINE Vec fold3(Vec a, Vec b) {
  return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
INLINE Vec fold2(Vec a, Vec b) { return add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE)); }
INLINE Vec fold1(Vec a, Vec b) { return add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD)); }

// Lane i of the result is the sum of v[i]'s lanes: lanes 8, 4, 2 and 1 apart are added in turn, for all
// alike.
INLINE Vec sums(const Vec* v) {
  // Where each fold puts its second half decides which vector ends in which lane.
  const Vec t0 = fold4(v[0], v[4]), t1 = fold4(v[2], v[6]), t2 = fold4(v[1], v[5]), t3 = fold4(v[3], v[7]);
  const Vec t4 = fold4(v[8], v[12]), t5 = fold4(v[10], v[14]), t6 = fold4(v[9], v[13]),
            t7 = fold4(v[11], v[15]);
  const Vec x0 = fold3(t0, t4), x1 = fold3(t1, t5), x2 = fold3(t2, t6), x3 = fold3(t3, t7);
  return fold1(fold2(x0, x2), fold2(x1, x3));
}

#elif defined(__AVX2__)

constexpr int W = 8;
typedef __m256 Vec;

INLINE Vec zero() { return _mm256_setzero_ps(); }
INLINE Vec fill(float x) { return _mm256_set1_ps(x); }
INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
INLINE Vec widen(__m128i half, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
INLINE Vec widen(__m128i half, fp16) { return _mm256_cvtph_ps(half); }
template <typename T>
INLINE Vec load(const T* p) {
  return widen(_mm_loadu_si128((const __m128i*)p), T{});
}
INLINE Vec load(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
INLINE Vec load(const e4m3* p) {
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((int16_t)0xBF80)));
}
INLINE void load_two(const e4m3* p, Vec* to) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  const __m256i half = _mm256_and_si256(wide, _mm256_set1_epi16((int16_t)0xBF80));
  to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
  to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}
INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
INLINE Vec round_even(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Vec power_of_two(Vec n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
INLINE Vec where_at_least(Vec x, Vec bound, Vec a) {
  return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ), a);
}
INLINE Vec zero_below(Vec x, Vec bound, Vec a) {
  return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_NLT_UQ), a);
}
INLINE Vec where_small(Vec x, Vec bound, Vec a, Vec b) {
  const Vec absolute = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(absolute, bound, _CMP_LT_OQ));
}

INLINE Vec fold3(Vec a, Vec b) {
  return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
INLINE Vec fold2(Vec a, Vec b) { return add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE)); }
INLINE Vec fold1(Vec a, Vec b) { return add(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD)); }

INLINE Vec sums(const Vec* v) {
  const Vec x0 = fold3(v[0], v[4]), x1 = fold3(v[2], v[6]), x2 = fold3(v[1], v[5]), x3 = fold3(v[3], v[7]);
  return fold1(fold2(x0, x2), fold2(x1, x3));
}

#else

constexpr int W = 4;
typedef float32x4_t Vec;

INLINE Vec zero() { return vdupq_n_f32(0.0f); }
INLINE Vec fill(float x) { return vdupq_n_f32(x); }
INLINE Vec load(const float* p) { return vld1q_f32(p); }
INLINE Vec widen(uint16x4_t half, bf16) { return vreinterpretq_f32_u32(vshll_n_u16(half, 16)); }
INLINE Vec widen(uint16x4_t half, fp16) { return vcvt_f32_f16(vreinterpret_f16_u16(half)); }
template <typename T>
INLINE Vec load(const T* p) {
  return widen(vld1_u16((const uint16_t*)p), T{});
}
INLINE Vec load(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
INLINE float16x8_t as_float16(int8x8_t codes) {
  const int16x8_t wide = vshlq_n_s16(vmovl_s8(codes), 7);
  return vreinterpretq_f16_s16(vandq_s16(wide, vdupq_n_s16((int16_t)0xBF80)));
}
INLINE Vec load(const e4m3* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return vcvt_f32_f16(vget_low_f16(as_float16(vreinterpret_s8_s32(vdup_n_s32(four)))));
}
INLINE void load_two(const e4m3* p, Vec* to) {
  const float16x8_t half = as_float16(vld1_s8((const int8_t*)p));
  to[0] = vcvt_f32_f16(vget_low_f16(half));
  to[1] = vcvt_f32_f16(vget_high_f16(half));
}
INLINE void store(float* p, Vec a) { vst1q_f32(p, a); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
INLINE Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
INLINE Vec round_even(Vec a) { return vrndnq_f32(a); }
INLINE Vec power_of_two(Vec n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
INLINE Vec where_at_least(Vec x, Vec bound, Vec a) { return vbslq_f32(vcgeq_f32(x, bound), a, zero()); }
INLINE Vec zero_below(Vec x, Vec bound, Vec a) { return vbslq_f32(vcltq_f32(x, bound), zero(), a); }
INLINE Vec where_small(Vec x, Vec bound, Vec a, Vec b) { return vbslq_f32(vcaltq_f32(x, bound), a, b); }

INLINE Vec sums(const Vec* v) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }

#endif

// Lanes W / 2, then W / 4 and so on apart are put together.
#if defined(__AVX512F__)

INLINE float sum(Vec a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// NaN counts only in the lane that the others are compared with.
INLINE float largest(Vec a) {
  const __m256 half = _mm256_max_ps(_mm512_extractf32x8_ps(a, 1), _mm512_castps512_ps256(a));
  const __m128 quarter = _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
  const __m128 pair = _mm_max_ps(_mm_movehl_ps(quarter, quarter), quarter);
  return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(pair), pair));
}

#else

INLINE float sum(Vec a) {
  float lanes[W];
  store(lanes, a);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

INLINE float largest(Vec a) {
  float lanes[W];
  store(lanes, a);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++)
      if (lanes[i + half] > lanes[i]) lanes[i] = lanes[i + half];
  return lanes[0];
}

#endif

template <typename T>
INLINE Vec load_part(const T* p, int n) {
  T numbers[W] = {};
  memcpy(numbers, p, n * sizeof(T));
  return load(numbers);
}

// What is loaded with less work two vectors at a time.
template <typename T>
constexpr bool COMES_IN_TWOS = false;
template <>
constexpr bool COMES_IN_TWOS<e4m3> = true;

// N vectors that lie side by side.
template <int N, typename T>
INLINE void load_row(const T* p, Vec* to) {
  if constexpr (COMES_IN_TWOS<T> && N > 1) {
    UNROLL
    for (int i = 0; i + 2 <= N; i += 2) load_two(p + i * W, to + i);
    if constexpr (N % 2) to[N - 1] = load(p + (N - 1) * W);
  } else {
    UNROLL
    for (int i = 0; i < N; i++) to[i] = load(p + i * W);
  }
}

INLINE float to_float(float x) { return x; }
INLINE float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}
INLINE float to_float(fp16 x) {
#if defined(__ARM_NEON)
  __fp16 half;
  memcpy(&half, &x, 2);
  return (float)half;
#else
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits)));
#endif
}

// Rounded to nearest, ties to even; what is too large becomes infinite, and NaN stays NaN.
INLINE void round_to(float* out, float x) { *out = x; }
INLINE void round_to(bf16* out, float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  out->bits = is_nan ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
INLINE void round_to(fp16* out, float x) {
#if defined(__ARM_NEON)
  const __fp16 half = (__fp16)x;
  memcpy(out, &half, 2);
#else
  out->bits = (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0);
#endif
}

// The same for W numbers.
INLINE void store(bf16* out, Vec a) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  __m512i round = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  round = _mm512_mask_mov_epi32(round, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_epi32(0x7FC00000));
  _mm256_storeu_si256((__m256i*)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(round, 16)));
#else
  float lanes[W];
  store(lanes, a);
  for (int i = 0; i < W; i++) round_to(out + i, lanes[i]);
#endif
}
INLINE void store(fp16* out, Vec a) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)out, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i*)out, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
#else
  const float16x4_t half = vcvt_f16_f32(a);
  memcpy(out, &half, sizeof half);
#endif
}

// p = e ** (x - n ln 2), at most half of ln 2 from 0, which is in two parts of which the first has few bits.
template <int N>
INLINE void near_one(const Vec* x, const Vec* n, Vec* p) {
  constexpr float FACTORS[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                               5.0000001201e-1f};
  Vec r[N];
  UNROLL
  for (int i = 0; i < N; i++) r[i] = fma(n[i], fill(-0.693359375f), x[i]);
  UNROLL
  for (int i = 0; i < N; i++) r[i] = fma(n[i], fill(2.12194440e-4f), r[i]);
  UNROLL
  for (int i = 0; i < N; i++) p[i] = fill(1.9875691500e-4f);
  UNROLL
  for (int step = 0; step < 5; step++) {
    UNROLL
    for (int i = 0; i < N; i++) p[i] = fma(p[i], r[i], fill(FACTORS[step]));
  }
  UNROLL
  for (int i = 0; i < N; i++) p[i] = add(fma(mul(r[i], r[i]), p[i], r[i]), fill(1.0f));
}

// e ** x to 2 units in the last place; 0 below -87, where float32 runs out of normal numbers. x <= 88, or NaN,
// which stays NaN.
INLINE Vec exponential(Vec x) {
  const Vec bounded = max(fill(-87.0f), x);
  const Vec n = round_even(mul(bounded, fill(1.44269504f)));
  Vec p;
  near_one<1>(&bounded, &n, &p);
  return zero_below(x, fill(-87.0f), mul(p, power_of_two(n)));
}

// The same numbers, in place, for N vectors of x <= 0, or NaN. There is less to do where nothing overflows,
// and side by side no step waits for the one before it.
template <int N>
INLINE void exponentials_below(Vec* x) {
#if defined(__AVX512F__)
  __m512i whole[N];
  Vec n[N], p[N];
  UNROLL
  for (int i = 0; i < N; i++) whole[i] = _mm512_cvtps_epi32(mul(x[i], fill(1.44269504f)));
  UNROLL
  for (int i = 0; i < N; i++) n[i] = _mm512_cvtepi32_ps(whole[i]);
  near_one<N>(x, n, p);
  UNROLL
  for (int i = 0; i < N; i++) {
    const __mmask16 is_there = _mm512_cmp_ps_mask(x[i], fill(-87.0f), _CMP_NLT_UQ);
    const __m512i exponent = _mm512_slli_epi32(whole[i], 23);
    x[i] = _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_there, _mm512_castps_si512(p[i]), exponent));
  }
#else
  UNROLL
  for (int i = 0; i < N; i++) x[i] = exponential(x[i]);
#endif
}

INLINE float exponential(float x) {
  float lanes[W];
  store(lanes, exponential(fill(x)));
  return lanes[0];
}

// tanh by e ** -2|x|, which never overflows; near 0, where that cancels, by its series.
INLINE Vec tangent(Vec x) {
  const Vec square = mul(x, x);
  Vec series = fill(-0.0088632355f);
  series = fma(series, square, fill(0.021869488f));
  series = fma(series, square, fill(-0.053968254f));
  series = fma(series, square, fill(0.13333333f));
  series = fma(series, square, fill(-0.33333333f));
  series = fma(mul(series, square), x, x);
  const Vec sign_free = max(x, sub(zero(), x));
  const Vec e = exponential(mul(sign_free, fill(-2.0f)));
  const Vec size = div(sub(fill(1.0f), e), add(fill(1.0f), e));
  const Vec far = sub(where_at_least(x, zero(), add(size, size)), size);  // with the sign of x
  return where_small(x, fill(0.35f), series, far);
}

}  // namespace
