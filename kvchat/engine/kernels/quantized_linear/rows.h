// Products of a few rows with a quantised weight, for every kernel that multiplies with one.
//
// A caller sets up `Activations` in memory of its own, prepares each row once, and then computes outputs of
// as many weights as it likes, in any pieces and on any threads. A row becomes whole numbers, with a power of
// two as scale for every 32 inputs; products within a group are summed exactly, groups in order. So neither
// pieces, nor threads, nor the rows beside it change a bit of a number.
//
// Dimensions: T rows, K inputs, N outputs, G inputs of one group.

#pragma once

#include "kvchat/engine/kernels/quantized_linear/dots.h"

namespace {
namespace quantised {

constexpr int64_t AHEAD = 6144;  // bytes of codes that are asked for in advance, and of scales
constexpr int64_t SCALES_AHEAD = AHEAD / 8;
constexpr uint32_t LEAST_EXPONENT = 32;  // blocks of smaller numbers are rounded as if one were 2 ** -95

// The tensors of a weight, as weight.py describes them.
struct Weight {
  const uint8_t* codes;
  const fp16* scales;
  const fp16* minima;  // or null
  int64_t bits, group, num_inputs, num_outputs;
};

// Rows as products read them. A number of a row is rounded by at most 2 ** -14 of the largest of its block,
// or 2 ** -22 where it is to be as fine as float32; a block with a number that is not finite becomes NaN.
//
// Of a row: parts of all inputs, [K / 32, parts, 32]; a scale for every block; and for units of 32 and of 16
// inputs the sums of the whole numbers, in two words, and of what they stand for.
struct Activations {
  uint8_t* memory;  // num_rows * row_bytes() bytes, at the beginning of a line of the cache
  int64_t num_inputs;
  bool is_fine;  // as fine as float32; else as fine as 16-bit types

  struct Sums {
    int32_t* low;
    int32_t* high;
    float* total;
  };

  int64_t num_blocks() const { return (num_inputs + BLOCK - 1) / BLOCK; }
  int64_t num_parts() const { return parts_of(is_fine); }
  static constexpr int parts_of(bool is_fine) {
    return is_fine ? (sizeof(Part) == 1 ? 3 : 2) : (int)(2 / sizeof(Part));
  }
  int64_t part_bytes() const { return num_blocks() * BLOCK * num_parts() * (int64_t)sizeof(Part); }
  int64_t row_bytes() const { return (part_bytes() + num_blocks() * 40 + 63) / 64 * 64; }

  Part* parts(int64_t t) const { return (Part*)(memory + t * row_bytes()); }
  float* scales(int64_t t) const { return (float*)(memory + t * row_bytes() + part_bytes()); }
  Sums sums(int64_t t, int unit) const {
    const int64_t count = num_blocks() * (BLOCK / unit);
    float* first = scales(t) + num_blocks() * (unit == BLOCK ? 1 : 4);
    return {(int32_t*)first, (int32_t*)first + count, first + 2 * count};
  }

  // Reads row t from `x`, num_inputs numbers.
  template <typename X>
  void prepare(int64_t t, const X* x) const {
    is_fine ? prepare<true>(t, x) : prepare<false>(t, x);
  }

  template <bool FINE, typename X>
  void prepare(int64_t t, const X* x) const {
    const int64_t count = num_blocks();
    Part* to = parts(t);
    float* scale = scales(t);
    const Sums by_32 = sums(t, 32), by_16 = sums(t, 16);
    for (int64_t block = 0; block < count; block++, to += BLOCK * parts_of(FINE)) {
      const int num = (int)least(BLOCK, num_inputs - block * BLOCK);  // 32, or 16
      float numbers[BLOCK] = {};
      for (int i = 0; i < num; i += W) store(numbers + i, load(x + block * BLOCK + i));
      int32_t whole[BLOCK], low = 0, high = 0;
      scale[block] = to_whole(whole, numbers, FINE ? 21 : 13);
      for (int half = 0; half < 2; half++) {
        const int64_t unit = block * 2 + half;
        split<parts_of(FINE)>(to + half * 16, whole + half * 16, by_16.low + unit, by_16.high + unit);
        by_16.total[unit] = total(by_16.low[unit], by_16.high[unit], scale[block]);
        low += by_16.low[unit];
        high += by_16.high[unit];
      }
      by_32.low[block] = low;
      by_32.high[block] = high;
      by_32.total[block] = total(low, high, scale[block]);
    }
  }

  // Writes the whole numbers of a block, the largest of `bits` bits; returns their scale.
  static float to_whole(int32_t* whole, const float* numbers, uint32_t bits) {
    const uint32_t exponent = largest_size(numbers) >> 23;
    if (exponent == 255) {
      memset(whole, 0, BLOCK * sizeof(int32_t));
      return __builtin_nanf("");
    }
    const uint32_t bounded = exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent;
    const Vec inverse = fill(power(254 + bits - bounded));
    UNROLL
    for (int i = 0; i < BLOCK; i += W) store_whole(whole + i, mul(load(numbers + i), inverse));
    return power(bounded - bits);
  }

  // The whole number for input k.
  int32_t whole(int64_t t, int64_t k) const {
    const Part* part = parts(t) + k / BLOCK * BLOCK * num_parts() + k % BLOCK;
    int32_t out = 0;
    for (int64_t i = num_parts(); i-- > 0;) out = out * (1 << 8 * sizeof(Part)) + part[i * BLOCK];
    return out;
  }

  static float total(int32_t low, int32_t high, float scale) {
    return ((float)high * 65536.0f + (float)low) * scale;
  }

  // 2 ** (exponent - 127)
  static float power(uint32_t exponent) { return number_of(exponent << 23); }
  static float number_of(uint32_t bits) {
    float out;
    memcpy(&out, &bits, 4);
    return out;
  }
};

// A sum of codes' products, from its parts: less what was added to the codes, if anything was.
template <int SHIFT, int PARTS>
INLINE Lanes found_in(Sums* sums, int32_t x) {
  UNROLL
  for (int part = PARTS - 1; part > 0; part--) add_high(sums[part - 1], sums[part]);
  if constexpr (SHIFT < 0)
    return lanes_of(sums[0]);
  else
    return without<SHIFT>(sums[0], x);
}

// The products of one tile of outputs with ROWS rows from t on: found [ROWS, TILE].
template <int ROWS, int BITS, int UNIT, bool FINE>
void multiply_tile(float* found, const Weight& weight, const Activations& x, int64_t n, int64_t t) {
  constexpr int PARTS = Activations::parts_of(FINE), LOW_PARTS = Activations::parts_of(false);
  constexpr int SHIFT = BITS == 8 ? OFFSET_SHIFT : 3;
  constexpr int QUADS = UNIT / QUAD;
  const int64_t num_groups = weight.num_inputs / weight.group, per_group = weight.group / UNIT;
  const int32_t excess = BITS == 4 && weight.minima ? 0 : -1;  // of what is taken off
  const uint8_t* code = weight.codes + n * weight.num_inputs * BITS / 8;
  const Part* parts[ROWS];
  const float* x_scales[ROWS];
  Activations::Sums x_sums[ROWS];
  Lanes total[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    parts[r] = x.parts(t + r);
    x_scales[r] = x.scales(t + r);
    x_sums[r] = x.sums(t + r, UNIT);
    EACH(i) total[r].v[i] = zero();
  }
  for (int64_t g = 0; g < num_groups; g++) {
    const int64_t first = n * num_groups + g * TILE;
    const Lanes scale = load_lanes(weight.scales + first);
    __builtin_prefetch((const uint8_t*)(weight.scales + first) + SCALES_AHEAD);
    Lanes minimum = {};
    if (weight.minima) {
      minimum = load_lanes(weight.minima + first);
      __builtin_prefetch((const uint8_t*)(weight.minima + first) + SCALES_AHEAD);
    }
    for (int64_t unit = g * per_group; unit < (g + 1) * per_group; unit++) {
      const int64_t block = unit * UNIT / BLOCK;
      const int64_t at = block * BLOCK * PARTS + unit * UNIT % BLOCK;
      Sums sums[ROWS][PARTS];
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int part = 0; part < PARTS; part++) clear(sums[r][part]);
      }
      UNROLL
      for (int q = 0; q < QUADS; q += 8 / BITS) {
        Codes codes[2];
        if (BITS == 8)
          codes[0] = load_codes(code);
        else
          load_halves(code, codes[0], codes[1]);
        __builtin_prefetch(code + AHEAD);
        code += TILE * QUAD;
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          UNROLL
          for (int part = 0; part < PARTS; part++) {
            const Part* quad = parts[r] + at + part * BLOCK + q * QUAD;
            add_products(sums[r][part], codes[0], quad);
            if (BITS == 4) add_products(sums[r][part], codes[1], quad + QUAD);
          }
        }
      }
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        Lanes y = found_in<SHIFT, LOW_PARTS>(sums[r], x_sums[r].low[unit] & excess);
        if (FINE) {
          const Lanes high = found_in<SHIFT, 1>(sums[r] + LOW_PARTS, x_sums[r].high[unit] & excess);
          y = multiple(high, 65536.0f, y);
        }
        multiply_by(y, scale);
        total[r] = multiple(y, x_scales[r][block], total[r]);
        if (weight.minima) total[r] = multiple(minimum, x_sums[r].total[unit], total[r]);
      }
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) store_lanes(found + r * TILE, total[r]);
}

// The same for one output that belongs to no whole tile: its codes and scales lie in order.
INLINE float multiply_one(const Weight& weight, const Activations& x, int64_t n, int64_t t) {
  const int64_t num_groups = weight.num_inputs / weight.group;
  const int unit_len = weight.group < BLOCK ? 16 : BLOCK;
  const uint8_t* codes = weight.codes + n * weight.num_inputs * weight.bits / 8;
  const Activations::Sums x_sums = x.sums(t, unit_len);
  float total = 0.0f;
  for (int64_t unit = 0; unit * unit_len < weight.num_inputs; unit++) {
    const int64_t block = unit * unit_len / BLOCK, group = n * num_groups + unit * unit_len / weight.group;
    int64_t found = 0;
    for (int64_t k = unit * unit_len; k < (unit + 1) * unit_len; k++) {
      const uint8_t byte = weight.bits == 8 ? codes[k] : codes[k / 8 * 4 + k % 4];
      const int code = weight.bits == 8 ? (int8_t)byte : k % 8 < 4 ? byte & 15 : byte >> 4;
      found += (code - (weight.bits == 8 || weight.minima ? 0 : 8)) * (int64_t)x.whole(t, k);
    }
    const float y = (float)found * to_float(weight.scales[group]);
    total = __builtin_fmaf(y, x.scales(t)[block], total);
    if (weight.minima)
      total = __builtin_fmaf(to_float(weight.minima[group]), x_sums.total[unit], total);
  }
  return total;
}

template <int ROWS, bool FINE>
int multiply_tile(float* found, const Weight& weight, const Activations& x, int64_t n, int64_t t) {
  const bool is_short = weight.group < BLOCK;
  if (weight.bits == 8 && is_short)
    multiply_tile<ROWS, 8, 16, FINE>(found, weight, x, n, t);
  else if (weight.bits == 8)
    multiply_tile<ROWS, 8, 32, FINE>(found, weight, x, n, t);
  else if (is_short)
    multiply_tile<ROWS, 4, 16, FINE>(found, weight, x, n, t);
  else
    multiply_tile<ROWS, 4, 32, FINE>(found, weight, x, n, t);
  return ROWS;
}

// Computes as many rows as leave all sums in registers; returns how many.
INLINE int multiply_tile(float* found, const Weight& weight, const Activations& x, int64_t n, int64_t t,
                         int64_t num_rows) {
  constexpr int HALF = AT_ONCE / 2;
  if (x.is_fine && num_rows >= HALF) return multiply_tile<HALF, true>(found, weight, x, n, t);
  if (x.is_fine) return multiply_tile<1, true>(found, weight, x, n, t);
  if (num_rows >= AT_ONCE) return multiply_tile<AT_ONCE, false>(found, weight, x, n, t);
  if (num_rows >= HALF) return multiply_tile<HALF, false>(found, weight, x, n, t);
  if (num_rows >= 2) return multiply_tile<2, false>(found, weight, x, n, t);
  return multiply_tile<1, false>(found, weight, x, n, t);
}

// Computes rows [start, stop) and outputs [begin, end), without a bias: row t and output n go to
// out[(t - start) * out_t + n - begin]. `begin` is a multiple of TILE; `end` is one too, or the number of
// outputs.
INLINE void multiply_rows(const Weight& weight, const Activations& x, int64_t start, int64_t stop,
                          int64_t begin, int64_t end, float* out, int64_t out_t) {
  float found[AT_ONCE * TILE];
  int64_t n = begin;
  for (; n + TILE <= end; n += TILE)
    for (int64_t t = start; t < stop;) {
      const int rows = multiply_tile(found, weight, x, n, t, stop - t);
      for (int r = 0; r < rows; r++)
        memcpy(out + (t + r - start) * out_t + n - begin, found + r * TILE, TILE * sizeof(float));
      t += rows;
    }
  for (; n < end; n++)
    for (int64_t t = start; t < stop; t++)
      out[(t - start) * out_t + n - begin] = multiply_one(weight, x, n, t);
}

}  // namespace quantised
}  // namespace
