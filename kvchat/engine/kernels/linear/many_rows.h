// Products of many rows with the outputs of one unit of a dense weight.
//
// A row and an output are summed over the inputs in the order in which a few rows are: `product.h`.
// Dimensions: T rows, K inputs, N outputs.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/decoder_layers/product.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 8;    // whose outputs of one unit are found at one time
constexpr int64_t ROWS_OF_TASK = 240;  // most that find a unit in the cache, but for the first
constexpr int64_t MANY_ROWS = 32;      // for which a unit is widened once, not again for every eight of them

// Rows are cut into chunks of one task each, as equal as whole panels (of 8 or 12 rows) allow.
INLINE int64_t num_chunks(int64_t num_rows) { return (num_rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK; }
INLINE int64_t chunk_len(int64_t num_rows) {
  const int64_t equal = (num_rows + num_chunks(num_rows) - 1) / num_chunks(num_rows);
  return (equal + 23) / 24 * 24;
}

// Whether the parts of a weight's inputs are so short that a unit of one is widened as a whole.
INLINE bool can_widen(const Product& product) {
  return product.layout == COLUMNS && product.block == PAIRED_BLOCK && product.type == 1 &&
         product.padded <= PIECE_LEN * product.num_parts();
}

// One part of the inputs, from a unit that is widened once for all rows: out [T, UNIT].
inline void multiply_widened(const Product& product, float* out, const float* x, int64_t x_stride,
                             int64_t num_rows, int64_t unit, int64_t part) {
  alignas(64) float wide[PIECE_LEN * PAIRED_BLOCK];
  const int64_t begin = part * PIECE_LEN, count = least(PIECE_LEN, product.padded - begin);
  const bf16* weight = (const bf16*)product.weight + (unit * product.padded + begin) * PAIRED_BLOCK;
  for (int64_t k = 0; k < count; k += 2) {
    float* to = wide + k * PAIRED_BLOCK;
    UNROLL
    for (int i = 0; i < PAIRED_BLOCK; i += W) {
      Vec first, second;
      load_pairs(weight + k * PAIRED_BLOCK + 2 * i, &first, &second);
      store(to + i, first);
      store(to + PAIRED_BLOCK + i, second);
    }
  }
  for (int64_t t = 0; t < num_rows; t += ROWS_AT_ONCE)
    multiply_blocks(out + t * UNIT, x + t * x_stride + begin, x_stride, least(ROWS_AT_ONCE, num_rows - t),
                    (const float*)wide, count, true);
}

// All inputs of a dense weight, the parts in order: out [T, UNIT]. `further` has room for as many numbers.
inline void multiply_unit(const Product& product, float* out, float* further, const float* x, int64_t x_stride,
                          int64_t num_rows, int64_t unit) {
  const bool is_widened = num_rows >= MANY_ROWS && can_widen(product);
  for (int64_t part = 0; part < product.num_parts(); part++) {
    float* to = part ? further : out;
    if (is_widened) {
      multiply_widened(product, to, x, x_stride, num_rows, unit, part);
    } else {
      for (int64_t t = 0; t < num_rows; t += ROWS_AT_ONCE)
        multiply_dense(product, to + t * UNIT, x + t * x_stride, x_stride, least(ROWS_AT_ONCE, num_rows - t),
                       unit, part);
    }
    for (int64_t t = 0; part && t < num_rows; t++)
      add_row(out + t * UNIT, further + t * UNIT, product.unit());
  }
}

}  // namespace
