// Products of a few rows with a weight, which is read once, in the order in which it lies.
//
// A row and an output are summed over the inputs in one fixed order: how many rows share a weight changes no
// bit. Dimensions: T rows, K inputs, N outputs.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/quantized_linear/byte_panels.h"
#include "kvchat/engine/kernels/quantized_linear/panels.h"
#include "kvchat/engine/kernels/quantized_linear/rows.h"

namespace {

enum Layout : int64_t { ROWS = 0, COLUMNS = 1, QUANTISED = 2 };

constexpr int64_t PIECE_LEN = 512;  // inputs of one task, where there are few outputs
constexpr int64_t MANY = 8192;      // outputs that are enough tasks without cutting the inputs
constexpr int UNIT = 64;            // most outputs of one task
constexpr int PAIRED_BLOCK = 48;    // outputs that lie together in weights of our own order
constexpr int64_t NEAR_BYTES = 4096;  // how far ahead a weight is asked for that comes from memory

// The fields of native.py's `_Product`, in order: one linear layer.
struct Product {
  const void* weight;  // ROWS: [N, K]; COLUMNS: [N / block, padded / V, block, V] with V * sizeof(type) >= 2
  const void* bias;    // [N], or null
  const fp16* scales;  // QUANTISED, with `minima`, `bits` and `group`: see rows.h
  const fp16* minima;
  int64_t layout, type, bias_type;  // types: 0 float, 1 bf16, 2 fp16
  int64_t num_inputs, num_outputs;
  int64_t block, padded;  // COLUMNS: outputs that lie together, and inputs with padding
  int64_t bits, group;

  // Outputs of one task. `is_rounded`: as rounded_rows.h and byte_panels.h compute it.
  int64_t unit(bool is_rounded = false) const {
    if (layout == COLUMNS) return block;
    return is_rounded ? UNIT : num_inputs > 2048 ? 16 : 32;
  }
  int64_t num_units(bool is_rounded = false) const {
    return (num_outputs + unit(is_rounded) - 1) / unit(is_rounded);
  }
  // Parts into which the inputs are cut: this follows from the weight alone.
  int64_t num_parts() const {
    return layout == COLUMNS && num_outputs < MANY ? (num_inputs + PIECE_LEN - 1) / PIECE_LEN : 1;
  }
};

// Sixteen bits each: the first and the second of every two.
INLINE void load_pairs(const bf16* p, Vec* first, Vec* second) {
#if defined(__AVX512F__)
  const __m512i both = _mm512_loadu_si512(p);
  *first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  *second = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
#elif defined(__AVX2__)
  const __m256i both = _mm256_loadu_si256((const __m256i*)p);
  *first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  *second = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(0xFFFF0000)));
#else
  const uint32x4_t both = vld1q_u32((const uint32_t*)p);
  *first = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
  *second = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xFFFF0000)));
#endif
}

// Asks for VECS vectors that lie `ahead` bytes behind `p`.
template <int VECS>
INLINE void fetch_line(const void* p, int64_t ahead) {
  UNROLL
  for (int i = 0; i < VECS * W * 4; i += 64) __builtin_prefetch((const char*)p + ahead + i);
}

// Adds inputs [0, count) of NUM rows to VECS vectors of outputs, one input after the other. Asks for what lies
// `ahead` bytes behind, if that is not 0.
template <int NUM, int VECS>
INLINE void add_columns(Vec (*acc)[VECS], const float* x, int64_t x_stride, const float* weight, int64_t block,
                        int64_t count, int64_t ahead) {
  for (int64_t k = 0; k < count; k++) {
    if (ahead) fetch_line<VECS>(weight + k * block, ahead);
    Vec w[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++) w[i] = load(weight + k * block + i * W);
    UNROLL
    for (int r = 0; r < NUM; r++) {
      const Vec number = fill(x[r * x_stride + k]);
      UNROLL
      for (int i = 0; i < VECS; i++) acc[r][i] = fma(number, w[i], acc[r][i]);
    }
  }
}

// The same of pairs of inputs, the second of which may be padding, where rows are zero.
template <int NUM, int VECS>
INLINE void add_columns(Vec (*acc)[VECS], const float* x, int64_t x_stride, const bf16* weight, int64_t block,
                        int64_t count, int64_t ahead) {
  for (int64_t k = 0; k < count; k += 2) {
    if (ahead) fetch_line<VECS>(weight + k * block, ahead);
    Vec first[VECS], second[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++) load_pairs(weight + k * block + i * 2 * W, &first[i], &second[i]);
    UNROLL
    for (int r = 0; r < NUM; r++) {
      const Vec a = fill(x[r * x_stride + k]), b = fill(x[r * x_stride + k + 1]);
      UNROLL
      for (int i = 0; i < VECS; i++) acc[r][i] = fma(b, second[i], fma(a, first[i], acc[r][i]));
    }
  }
}

template <int NUM, int VECS, typename T>
void multiply_columns(float* out, const float* x, int64_t x_stride, const T* weight, int64_t block,
                      int64_t count, int64_t ahead) {
  Vec acc[NUM][VECS];
  UNROLL
  for (int r = 0; r < NUM; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) acc[r][i] = zero();
  }
  add_columns<NUM, VECS>(acc, x, x_stride, weight, block, count, ahead);
  UNROLL
  for (int r = 0; r < NUM; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) store(out + r * UNIT + i * W, acc[r][i]);
  }
}

// Eight rows, half of the outputs at one time: their sums stay in registers, and each vector of a weight is
// widened once. A strip of inputs is read for both halves while the next one comes from memory.
template <int VECS, typename T>
void multiply_eight(float* out, const float* x, int64_t x_stride, const T* weight, int64_t block, int64_t count) {
  constexpr int HALF = VECS / 2, V = 4 / sizeof(T);
  constexpr int64_t STRIP = 64;
  for (int64_t k = 0; k < count; k += STRIP) {
    for (int half = 0; half < VECS; half += HALF) {
      Vec acc[8][HALF];
      UNROLL
      for (int r = 0; r < 8; r++) {
        UNROLL
        for (int i = 0; i < HALF; i++) acc[r][i] = k ? load(out + r * UNIT + (half + i) * W) : zero();
      }
      add_columns<8, HALF>(acc, x + k, x_stride, weight + k * block + half * W * V, block, least(STRIP, count - k),
                           STRIP * block * (int64_t)sizeof(T));
      UNROLL
      for (int r = 0; r < 8; r++) {
        UNROLL
        for (int i = 0; i < HALF; i++) store(out + r * UNIT + (half + i) * W, acc[r][i]);
      }
    }
  }
}

// As many rows at one time as leave all sums in registers.
template <int VECS, typename T>
void multiply_columns(float* out, const float* x, int64_t x_stride, int64_t num_rows, const T* weight,
                      int64_t block, int64_t count) {
  constexpr int MOST = W == 8 ? 2 : 4;
  constexpr bool HAS_EIGHT = W == 16 && VECS == 4;
  for (int64_t t = 0; t < num_rows;) {
    const int64_t left = num_rows - t;
    const int64_t rows = HAS_EIGHT && left >= 8 ? 8 : left >= MOST ? MOST : left >= 2 ? 2 : 1;
    float* to = out + t * UNIT;
    const float* from = x + t * x_stride;
    // The first rows bring the weight from memory; meanwhile the last ones ask for the next one.
    const int64_t ahead = !t ? NEAR_BYTES : rows == left ? block * count * (int64_t)sizeof(T) : 0;
    if constexpr (HAS_EIGHT)
      if (rows == 8) multiply_eight<VECS>(to, from, x_stride, weight, block, count);
    if (rows == 4)
      multiply_columns<4, VECS>(to, from, x_stride, weight, block, count, ahead);
    else if (rows == 2)
      multiply_columns<2, VECS>(to, from, x_stride, weight, block, count, ahead);
    else if (rows == 1)
      multiply_columns<1, VECS>(to, from, x_stride, weight, block, count, ahead);
    t += rows;
  }
}

// All outputs of a block, VECS vectors at one time.
template <int NUM, int VECS, typename T>
void multiply_across(float* out, const float* x, int64_t x_stride, const T* weight, int64_t count,
                     int64_t ahead) {
  constexpr int V = 4 / sizeof(T);
  for (int64_t column = 0; column < PAIRED_BLOCK; column += VECS * W)
    multiply_columns<NUM, VECS>(out + column, x, x_stride, weight + column * V, PAIRED_BLOCK, count, ahead);
}

// As many rows at one time as leave all sums of VECS vectors in registers. `is_near`: the weight is in the cache.
template <typename T>
void multiply_blocks(float* out, const float* x, int64_t x_stride, int64_t num_rows, const T* weight,
                     int64_t count, bool is_near) {
  constexpr int MOST = W == 8 ? 4 : 8, VECS = W == 8 ? 2 : 3;
  for (int64_t t = 0; t < num_rows;) {
    const int64_t left = num_rows - t, rows = left >= MOST ? MOST : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    float* to = out + t * UNIT;
    const float* from = x + t * x_stride;
    // The first rows bring the weight from memory; meanwhile the last ones ask for the next one.
    const int64_t next = rows == left ? PAIRED_BLOCK * count * (int64_t)sizeof(T) : 0;
    const int64_t ahead = is_near ? 0 : t ? next : NEAR_BYTES;
    if (rows == MOST)
      multiply_across<MOST, VECS>(to, from, x_stride, weight, count, ahead);
    else if (rows == 4)
      multiply_across<4, VECS>(to, from, x_stride, weight, count, ahead);
    else if (rows == 2)
      multiply_across<2, 3>(to, from, x_stride, weight, count, ahead);
    else
      multiply_across<1, W == 4 ? 4 : PAIRED_BLOCK / W>(to, from, x_stride, weight, count, ahead);
    t += rows;
  }
}

// Products of rows [T, x_stride] with the outputs of one unit, over the inputs of one part: out [T, UNIT].
template <typename T, int V>
void multiply_columns(const Product& product, float* out, const float* x, int64_t x_stride, int64_t num_rows,
                      int64_t unit, int64_t part) {
  const int64_t parts = product.num_parts(), begin = parts > 1 ? part * PIECE_LEN : 0;
  const int64_t end = parts > 1 ? least(begin + PIECE_LEN, product.num_inputs) : product.num_inputs;
  const T* weight = (const T*)product.weight + (unit * product.padded + begin) * product.block;
  if (product.block == PAIRED_BLOCK) {
    multiply_blocks(out, x + begin, x_stride, num_rows, weight, end - begin, false);
    return;
  }
  int64_t column = 0;
  for (; column + 4 * W <= product.block; column += 4 * W)
    multiply_columns<4>(out + column, x + begin, x_stride, num_rows, weight + column * V, product.block,
                        end - begin);
  // What is left of a block goes together: lines that are read in turn come faster than every second one.
  const T* last = weight + column * V;
  const int64_t left = (product.block - column) / W;
  if (left == 3)
    multiply_columns<3>(out + column, x + begin, x_stride, num_rows, last, product.block, end - begin);
  else if (left == 2)
    multiply_columns<2>(out + column, x + begin, x_stride, num_rows, last, product.block, end - begin);
  else if (left == 1)
    multiply_columns<1>(out + column, x + begin, x_stride, num_rows, last, product.block, end - begin);
}

// Products of NUM rows and OUTS outputs, each summed lane by lane.
template <int NUM, int OUTS, typename T>
void multiply_rows(float* out, const float* x, int64_t x_stride, const T* weight, int64_t num_inputs) {
  constexpr int PADDED = (NUM * OUTS + W - 1) / W * W;
  const int64_t whole = num_inputs / W * W;
  Vec acc[PADDED];
  UNROLL
  for (int i = 0; i < PADDED; i++) acc[i] = zero();
  for (int64_t k = 0; k < whole; k += W) {
    Vec w[OUTS];
    UNROLL
    for (int i = 0; i < OUTS; i++) {
      w[i] = load(weight + i * num_inputs + k);
      // Rows are too short for the processor to see where it will read next.
      if (k % (64 / (int64_t)sizeof(T)) == 0) __builtin_prefetch(weight + (OUTS + i) * num_inputs + k);
    }
    UNROLL
    for (int r = 0; r < NUM; r++) {
      const Vec number = load(x + r * x_stride + k);
      UNROLL
      for (int i = 0; i < OUTS; i++) acc[r * OUTS + i] = fma(number, w[i], acc[r * OUTS + i]);
    }
  }
  if (whole < num_inputs) {
    UNROLL
    for (int i = 0; i < OUTS; i++) {
      const Vec w = load_part(weight + i * num_inputs + whole, (int)(num_inputs - whole));
      UNROLL
      for (int r = 0; r < NUM; r++)
        acc[r * OUTS + i] = fma(load_part(x + r * x_stride + whole, (int)(num_inputs - whole)), w,
                                acc[r * OUTS + i]);
    }
  }
  float found[PADDED];
  UNROLL
  for (int i = 0; i < PADDED; i += W) store(found + i, sums(acc + i));
  UNROLL
  for (int r = 0; r < NUM; r++) memcpy(out + r * UNIT, found + r * OUTS, OUTS * sizeof(float));
}

template <int NUM, typename T>
void multiply_rows(float* out, const float* x, int64_t x_stride, const T* weight, int64_t num_inputs,
                   int64_t count) {
  constexpr int SUMS = W == 8 ? 8 : 16, OUTS = SUMS / NUM < 8 ? SUMS / NUM : 8;
  int64_t n = 0;
  for (; n + OUTS <= count; n += OUTS)
    multiply_rows<NUM, OUTS>(out + n, x, x_stride, weight + n * num_inputs, num_inputs);
  for (; n < count; n++) multiply_rows<NUM, 1>(out + n, x, x_stride, weight + n * num_inputs, num_inputs);
}

template <typename T>
void multiply_rows(const Product& product, float* out, const float* x, int64_t x_stride, int64_t num_rows,
                   int64_t unit) {
  const int64_t num_inputs = product.num_inputs, begin = unit * product.unit();
  const int64_t count = least(product.unit(), product.num_outputs - begin);
  const T* weight = (const T*)product.weight + begin * num_inputs;
  for (int64_t t = 0; t < num_rows;) {
    const int64_t left = num_rows - t, rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    float* to = out + t * UNIT;
    const float* from = x + t * x_stride;
    if (rows == 4)
      multiply_rows<4>(to, from, x_stride, weight, num_inputs, count);
    else if (rows == 2)
      multiply_rows<2>(to, from, x_stride, weight, num_inputs, count);
    else
      multiply_rows<1>(to, from, x_stride, weight, num_inputs, count);
    t += rows;
  }
}

// Products of rows [T, x_stride] with the outputs of one unit, over the inputs of one part: out [T, UNIT].
INLINE void multiply_dense(const Product& product, float* out, const float* x, int64_t x_stride,
                           int64_t num_rows, int64_t unit, int64_t part) {
  if (product.layout == COLUMNS && product.type == 0)
    multiply_columns<float, 1>(product, out, x, x_stride, num_rows, unit, part);
  else if (product.layout == COLUMNS)
    multiply_columns<bf16, 2>(product, out, x, x_stride, num_rows, unit, part);
  else if (product.type == 0)
    multiply_rows<float>(product, out, x, x_stride, num_rows, unit);
  else if (product.type == 1)
    multiply_rows<bf16>(product, out, x, x_stride, num_rows, unit);
  else
    multiply_rows<fp16>(product, out, x, x_stride, num_rows, unit);
}

INLINE quantised::Weight weight_of(const Product& product) {
  return {(const uint8_t*)product.weight, product.scales, product.minima, product.bits,
          product.group, product.num_inputs, product.num_outputs};
}

// The same with a quantised weight, for rows from `first` on that are prepared for it.
INLINE void multiply_quantised(const Product& product, float* out, const quantised::Activations& x,
                               int64_t first, int64_t num_rows, int64_t unit) {
  const int64_t begin = unit * product.unit(), end = least(begin + product.unit(), product.num_outputs);
  quantised::multiply_rows(weight_of(product), x, first, first + num_rows, begin, end, out, UNIT);
}

// The same with rows in panels, the first of a panel: `out` has room for whole ones.
INLINE void multiply_quantised(const Product& product, float* out, const quantised::Panels& x, int64_t first,
                               int64_t num_rows, int64_t unit) {
  const int64_t begin = unit * product.unit(), end = least(begin + product.unit(), product.num_outputs);
  for (int64_t t = 0; t < num_rows; t += x.rows())
    quantised::multiply_panel(weight_of(product), x, (first + t) / x.rows(), begin, end, out + t * UNIT, UNIT);
}

// The same with rows of 8 bits, for units of rounded products.
INLINE void multiply_quantised(const Product& product, float* out, const quantised::BytePanels& x, int64_t first,
                               int64_t num_rows, int64_t unit) {
  const int64_t begin = unit * product.unit(true), end = least(begin + product.unit(true), product.num_outputs);
  quantised::multiply_bytes(weight_of(product), x, first, first + num_rows, begin, end, out, UNIT);
}

}  // namespace
