// A linear layer over quantised weights, for the few rows of a decoding step.
//
// Each weight is read once, and every row and output is summed by itself, over inputs in order: how many rows
// share a step, and how many threads compute it, changes no bit of any.
//
// Dimensions: T rows, K inputs, N outputs, G inputs of one group.

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"

namespace {

constexpr int64_t OUTPUTS = 32;        // of one task
constexpr int OUTS = 8;                // read at one time
constexpr int SUMS = W < 16 ? 8 : 16;  // that stay in registers beside weights

// The fields of native.py's `_Call`, in order.
struct Call {
  const void* x;         // [T, K]
  const uint8_t* codes;  // [N, K] bytes, or [N, K / 2]
  const fp16* scales;    // [N, K / G]
  const fp16* minima;    // [N, K / G], or null
  const void* bias;      // [N] of the type of `x`, or null
  void* out;             // [T, N] of the type of `x`
  Parallel parallel;     // null: compute alone
  int64_t num_threads, type, bits, group;
  int64_t num_rows, num_inputs, num_outputs, x_t;
};

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

// Products of ROWS rows [ROWS, num_inputs] and NUM outputs, without minima: found [ROWS, NUM].
template <int NUM, int ROWS, int BITS>
void multiply(float* found, const float* x, const uint8_t* codes, const float* scales, const Halves& table,
              int64_t num_inputs, int64_t group) {
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
      __builtin_prefetch(code + (OUTS + i) * row_bytes);
    }
    if (BITS == 8) {
      for (int64_t k = 0; k < group; k += W) {
        Vec weight[NUM];
        UNROLL
        for (int i = 0; i < NUM; i++)
          weight[i] = mul(load_codes((const int8_t*)code + i * row_bytes + k), scale[i]);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const Vec number = load(at + r * num_inputs + k);
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
          const Vec first = load(at + r * num_inputs + k), second = load(at + r * num_inputs + half + k);
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

template <typename X>
struct Linear {
  const Call& call;
  float* x;           // [T, K]
  float* input_sums;  // [T, K / G]: of the inputs of each group
  Halves halves;
  bool failed = false;  // for lack of memory

  explicit Linear(const Call& call) : call(call), halves(call.minima ? 0.0f : 8.0f) {}

  int64_t num_groups() const { return call.num_inputs / call.group; }

  int compute() {
    x = allocate(call.num_rows * (call.num_inputs + num_groups()));
    if (!x) return 1;
    input_sums = x + call.num_rows * call.num_inputs;
    for (int64_t t = 0; t < call.num_rows; t++) read_row(t);
    run_tasks(*this, (call.num_outputs + OUTPUTS - 1) / OUTPUTS, call.parallel, call.num_threads);
    free(x);
    return failed;
  }

  void read_row(int64_t t) const {
    const X* from = (const X*)call.x + t * call.x_t;
    float* to = x + t * call.num_inputs;
    for (int64_t k = 0; k < call.num_inputs; k += W) store(to + k, load(from + k));
    if (!call.minima) return;
    for (int64_t g = 0; g < num_groups(); g++) {
      Vec total = zero();
      for (int64_t k = 0; k < call.group; k += W) total = add(total, load(to + g * call.group + k));
      input_sums[t * num_groups() + g] = sum(total);
    }
  }

  void run(int64_t task) {
    // Scales of the outputs that are computed together, group by group.
    float* scales = allocate(2 * OUTS * num_groups());
    if (!scales) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      return;
    }
    const int64_t end = least((task + 1) * OUTPUTS, call.num_outputs);
    for (int64_t n = task * OUTPUTS; n < end; n += OUTS) add_outputs(n, least(OUTS, end - n), scales);
    free(scales);
  }

  // Outputs [n, n + num): read once, and again from the cache where there are many rows.
  void add_outputs(int64_t n, int64_t num, float* scales) const {
    const int64_t count = num_groups();
    float* minima = scales + OUTS * count;
    widen_all(call.scales + n * count, scales, num * count);
    if (call.minima) widen_all(call.minima + n * count, minima, num * count);
    for (int64_t t = 0; t < call.num_rows;) {
      const int64_t left = call.num_rows - t, rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
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
    const float* from = x + t * call.num_inputs;
    const uint8_t* codes = call.codes + n * call.num_inputs * call.bits / 8;
    if (call.bits == 8)
      multiply<NUM, ROWS, 8>(found, from, codes, scales, halves, call.num_inputs, call.group);
    else
      multiply<NUM, ROWS, 4>(found, from, codes, scales, halves, call.num_inputs, call.group);
    for (int i = 0; i < NUM; i++)
      for (int r = 0; r < ROWS; r++) {
        float y = found[r * NUM + i];
        if (call.minima)
          y += dot(minima + i * num_groups(), input_sums + (t + r) * num_groups(), num_groups());
        if (call.bias) y += to_float(((const X*)call.bias)[n + i]);
        round_to((X*)call.out + (t + r) * call.num_outputs + n + i, y);
      }
  }

  static float dot(const float* a, const float* b, int64_t count) {
    Vec total = zero();
    int64_t i = 0;
    for (; i + W <= count; i += W) total = fma(load(a + i), load(b + i), total);
    if (i < count) total = fma(load_part(a + i, (int)(count - i)), load_part(b + i, (int)(count - i)), total);
    return sum(total);
  }
};

// The weight itself [N, K] in the type of `out`: what longer prompts are multiplied with.
template <typename X>
struct Expansion {
  const Call& call;
  Halves halves;

  explicit Expansion(const Call& call) : call(call), halves(call.minima ? 0.0f : 8.0f) {}

  void run(int64_t task) {
    const int64_t end = least((task + 1) * OUTPUTS, call.num_outputs);
    for (int64_t n = task * OUTPUTS; n < end; n++) write_row(n);
  }

  void write_row(int64_t n) const {
    const int64_t num_groups = call.num_inputs / call.group, half = call.group / 2;
    const uint8_t* codes = call.codes + n * call.num_inputs * call.bits / 8;
    for (int64_t g = 0; g < num_groups; g++) {
      const Vec scale = fill(to_float(call.scales[n * num_groups + g]));
      const Vec minimum = call.minima ? fill(to_float(call.minima[n * num_groups + g])) : zero();
      X* to = (X*)call.out + n * call.num_inputs + g * call.group;
      if (call.bits == 8) {
        for (int64_t k = 0; k < call.group; k += W)
          write(to + k, add(mul(load_codes((const int8_t*)codes + g * call.group + k), scale), minimum));
      } else {
        for (int64_t j = 0; j < half; j += W) {
          Vec low, high;
          load_halves(halves, codes + g * half + j, &low, &high);
          write(to + j, add(mul(low, scale), minimum));
          write(to + half + j, add(mul(high, scale), minimum));
        }
      }
    }
  }

  static void write(X* to, Vec numbers) {
    float lanes[W];
    store(lanes, numbers);
    for (int i = 0; i < W; i++) round_to(to + i, lanes[i]);
  }
};

template <typename X>
int expand(const Call& call) {
  Expansion<X> expansion(call);
  run_tasks(expansion, (call.num_outputs + OUTPUTS - 1) / OUTPUTS, call.parallel, call.num_threads);
  return 0;
}

}  // namespace

// Returns 0, or 1 where there is not enough memory.
EXPORT(quantised_linear)(const Call* call) {
  if (call->type == 0) return Linear<float>(*call).compute();
  if (call->type == 1) return Linear<bf16>(*call).compute();
  return Linear<fp16>(*call).compute();
}

EXPORT(expand_quantised)(const Call* call) {
  if (call->type == 0) return expand<float>(*call);
  if (call->type == 1) return expand<bf16>(*call);
  return expand<fp16>(*call);
}
