// Keys and values of whole blocks as codes: to the last bit what quantised_kv/reference.py says, one head of a
// block at a time, in memory that stays in the cache.
//
// Dimensions: P block size, D head size. Records are laid out as `quantized_record.py` says.

#include <math.h>

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"

namespace {

enum Code { FP8, INT8, INT4, INT2 };

constexpr float LARGEST_E4M3 = 448.0f, LARGEST_INT8 = 127.0f, LEAST_SCALE = 0x1p-14f;
constexpr int HEADROOM = 15, LEAST_EXPONENT = -100;

// The fields of native.py's `_Call`, in order. Strides of pools in numbers, of records in bytes.
struct QuantiseCall {
  const void* pool;
  uint8_t* records;
  const int64_t* sources;
  const int64_t* targets;
  uint8_t* failed;  // [num_blocks, num_heads]: 1 where a number is not finite, and nothing was written
  Parallel parallel;
  int64_t num_blocks, num_threads, pool_type, num_heads, block_size, dim;
  int64_t n, h, p, record_n, record_h;  // strides
  int64_t code, token_bytes, token_group, channel_group, num_columns, scales_at, minima_at, factor_at;
  int64_t num_bytes;
};

INLINE Vec least_of(Vec a, Vec b) { return sub(zero(), max(sub(zero(), a), sub(zero(), b))); }
INLINE Vec size_of(Vec a) { return max(a, sub(zero(), a)); }

// Codes of W numbers, which lie between 0 and 255 or are the bytes of signed ones.
INLINE void store_bytes(uint8_t* to, Vec a) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
#else
  float lanes[W];
  store(lanes, a);
  for (int i = 0; i < W; i++) to[i] = (uint8_t)(int32_t)lanes[i];
#endif
}

// E4M3 of a number, rounded to nearest, ties to even; larger ones become the largest, zeros keep their sign.
INLINE uint8_t e4m3(float x) {
  uint32_t bits, magic;
  x = x > LARGEST_E4M3 ? LARGEST_E4M3 : x < -LARGEST_E4M3 ? -LARGEST_E4M3 : x;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7FFFFFFF;
  if (size >= 0x3C800000) {  // from 2 ** -6 on
    const uint32_t rounded = size + 0x7FFFF + (size >> 20 & 1);
    return (uint8_t)(sign | ((rounded >> 20) - (120 << 3)));
  }
  float shifted;
  memcpy(&shifted, &size, 4);
  shifted += 0x1p14f;  // whose last bit is 2 ** -9, the least number of E4M3
  memcpy(&magic, &shifted, 4);
  return (uint8_t)(sign | (magic & 0xF));
}

template <typename T>
struct Quantiser {
  const QuantiseCall& call;
  const int64_t stride;  // of tokens as float32, whole vectors
  bool failed = false;   // for lack of memory

  explicit Quantiser(const QuantiseCall& call) : call(call), stride((call.dim + W - 1) / W * W) {}

  void run(int64_t number) {
    const int64_t block = number / call.num_heads, head = number % call.num_heads;
    const T* from = (const T*)call.pool + call.sources[block] * call.n + head * call.h;
    uint8_t* to = call.records + call.targets[block] * call.record_n + head * call.record_h;
    // Numbers of all tokens, then a few rows more.
    float* numbers = allocate((call.block_size + 4) * stride);
    if (!numbers) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      return;
    }
    const float largest_size = read(from, numbers);
    if (largest_size <= 3.4028234e38f) {
      int exponent = 0;
      if (largest_size > 0) frexpf(largest_size, &exponent);
      if (exponent < LEAST_EXPONENT) exponent = LEAST_EXPONENT;
      const float factor = ldexpf(1.0f, exponent - HEADROOM);
      memset(to, 0, call.num_bytes);
      memcpy(to + call.factor_at, &factor, 4);
      write(numbers, fill(ldexpf(1.0f, HEADROOM - exponent)), to);
    } else {
      call.failed[number] = 1;
    }
    free(numbers);
  }

  // Reads one head's part of a block and returns the size of its largest number; not finite where one is not.
  float read(const T* from, float* to) const {
    Vec most = zero(), wrong = zero();
    for (int64_t t = 0; t < call.block_size; t++, from += call.p, to += stride)
      for (int64_t d = 0; d < call.dim; d += W) {
        const Vec x = d + W <= call.dim ? load(from + d) : load_part(from + d, (int)(call.dim - d));
        store(to + d, x);
        most = max(most, size_of(x));
        wrong = fma(x, zero(), wrong);  // NaN from infinities and NaN on
      }
    const float bad = sum(wrong);
    return bad == 0.0f ? largest(most) : INFINITY;
  }

  void write(float* numbers, Vec inverse, uint8_t* to) const {
    for (int64_t i = 0; i < call.block_size * stride; i += W)
      store(numbers + i, mul(load(numbers + i), inverse));
    if (call.code == FP8 || call.code == INT8)
      write_tokens(numbers, to);
    else if (call.channel_group == 1)
      write_channels(numbers, to);
    else
      write_groups(numbers, to);
  }

  fp16* scales(uint8_t* to, int64_t row) const {
    return (fp16*)(to + call.scales_at) + row * call.num_columns;
  }
  fp16* minima(uint8_t* to, int64_t row) const {
    return (fp16*)(to + call.minima_at) + row * call.num_columns;
  }

  // A scale for each token.
  void write_tokens(const float* numbers, uint8_t* to) const {
    const float most_code = call.code == FP8 ? LARGEST_E4M3 : LARGEST_INT8;
    for (int64_t t = 0; t < call.block_size; t++) {
      const float* row = numbers + t * stride;
      Vec most = zero();
      for (int64_t d = 0; d < stride; d += W) most = max(most, size_of(load(row + d)));
      fp16 half;
      round_to(&half, fmaxf(largest(most) / most_code, LEAST_SCALE));
      *scales(to, t) = half;
      const Vec step = fill(to_float(half));
      uint8_t* codes = to + t * call.token_bytes;
      for (int64_t d = 0; d < call.dim; d += W) {
        const Vec steps = div(load(row + d), step);
        uint8_t bytes[W];
        if (call.code == FP8)
          to_e4m3(bytes, steps);
        else
          store_bytes(bytes, round_even(max(least_of(steps, fill(most_code)), fill(-most_code))));
        memcpy(codes + d, bytes, least(W, call.dim - d));
      }
    }
  }

  static void to_e4m3(uint8_t* to, Vec a) {
    float lanes[W];
    store(lanes, a);
    for (int i = 0; i < W; i++) to[i] = e4m3(lanes[i]);
  }

  // A scale and a minimum for each channel of some tokens.
  void write_channels(float* numbers, uint8_t* to) const {
    float* scale = numbers + call.block_size * stride;
    float* minimum = scale + stride;
    for (int64_t t = 0, row = 0; t < call.block_size; t += call.token_group, row++) {
      const int64_t count = least(call.token_group, call.block_size - t);
      const float* first = numbers + t * stride;
      for (int64_t d = 0; d < call.dim; d += W) {
        Vec low = load(first + d), high = low;
        for (int64_t i = 1; i < count; i++) {
          const Vec x = load(first + i * stride + d);
          low = least_of(low, x);
          high = max(high, x);
        }
        put_group(low, high, scale + d, minimum + d, scales(to, row) + d, minima(to, row) + d, call.dim - d);
      }
      for (int64_t i = 0; i < count; i++)
        put_codes(first + i * stride, scale, minimum, to + (t + i) * call.token_bytes);
    }
  }

  // A scale and a minimum for some channels of each token.
  void write_groups(float* numbers, uint8_t* to) const {
    float* scale = numbers + call.block_size * stride;
    float* minimum = scale + stride;
    for (int64_t t = 0; t < call.block_size; t++) {
      const float* row = numbers + t * stride;
      for (int64_t d = 0, column = 0; d < call.dim; d += call.channel_group, column++) {
        const int64_t end = least(d + call.channel_group, call.dim);
        Vec low = fill(INFINITY), high = fill(-INFINITY);
        int64_t i = d;
        for (; i + W <= end; i += W) {
          low = least_of(low, load(row + i));
          high = max(high, load(row + i));
        }
        float bottom = -largest(sub(zero(), low)), top = largest(high);
        for (; i < end; i++) {
          bottom = fminf(bottom, row[i]);
          top = fmaxf(top, row[i]);
        }
        fp16 halves[2];
        put_one(bottom, top, halves);
        scales(to, t)[column] = halves[0];
        minima(to, t)[column] = halves[1];
        for (int64_t j = d; j < (end + W - 1) / W * W; j += W) {
          store(scale + j, fill(to_float(halves[0])));
          store(minimum + j, fill(to_float(halves[1])));
        }
      }
      put_codes(row, scale, minimum, to + t * call.token_bytes);
    }
  }

  float most_code() const { return call.code == INT4 ? 15.0f : 3.0f; }

  void put_one(float low, float high, fp16* halves) const {
    round_to(halves, fmaxf((high - low) / most_code(), LEAST_SCALE));
    round_to(halves + 1, low + 0.0f);
  }

  // Scale and minimum of W groups, or of the `count` that are left: rounded, and as they are divided by.
  void put_group(Vec low, Vec high, float* scale, float* minimum, fp16* scales, fp16* minima,
                 int64_t count) const {
    fp16 halves[2][W];
    store(halves[0], max(div(sub(high, low), fill(most_code())), fill(LEAST_SCALE)));
    store(halves[1], add(low, zero()));  // never a zero with a sign
    store(scale, load(halves[0]));
    store(minimum, load(halves[1]));
    memcpy(scales, halves[0], least(W, count) * sizeof(fp16));
    memcpy(minima, halves[1], least(W, count) * sizeof(fp16));
  }

  // Codes of one token, packed.
  void put_codes(const float* row, const float* scale, const float* minimum, uint8_t* to) const {
    const Vec most = fill(most_code());
    uint8_t codes[1024 + 8] = {};
    for (int64_t start = 0; start < call.dim; start += 1024) {
      const int64_t count = least(1024, call.dim - start);
      for (int64_t d = 0; d < count; d += W) {
        const int64_t at = start + d;
        const Vec steps = div(sub(load(row + at), load(minimum + at)), load(scale + at));
        store_bytes(codes + d, max(least_of(round_even(steps), most), zero()));
      }
      memset(codes + count, 0, 8);
      uint8_t* packed = to + start * (call.code == INT4 ? 4 : 2) / 8;
      for (int64_t d = 0; d < count; d += 8) put_eight(codes + d, packed, d, count);
    }
  }

  // Eight codes, the lowest bits first, as far as there are so many.
  void put_eight(const uint8_t* codes, uint8_t* to, int64_t d, int64_t count) const {
    uint64_t x;
    memcpy(&x, codes, 8);
    const int64_t left = least(8, count - d);
    if (call.code == INT4) {
      x = (x | x >> 4) & 0x00FF00FF00FF00FFull;
      x = (x | x >> 8) & 0x0000FFFF0000FFFFull;
      x = x | x >> 16;
      memcpy(to + d / 2, &x, (left + 1) / 2);
    } else {
      x = (x | x >> 6) & 0x000F000F000F000Full;
      x = (x | x >> 12) & 0x000000FF000000FFull;
      x = x | x >> 24;
      memcpy(to + d / 4, &x, (left + 3) / 4);
    }
  }
};

template <typename T>
int quantise(const QuantiseCall& call) {
  Quantiser<T> quantiser(call);
  run_tasks(quantiser, call.num_blocks * call.num_heads, call.parallel, call.num_threads);
  return quantiser.failed;
}

}  // namespace

// Returns 0, or 1 where there is not enough memory.
EXPORT(quantise_kv)(const QuantiseCall* call) {
  if (call->pool_type == 0) return quantise<float>(*call);
  if (call->pool_type == 1) return quantise<bf16>(*call);
  return quantise<fp16>(*call);
}
