// Keys and values of one byte, multiplied as whole numbers: nothing becomes a float32 on the way.
//
// A query, and the weights that a row has in a tile, become whole numbers of 15 bits, or of 23 where they are
// to be as fine as float32, with one power of two as scale. Codes are turned once for all rows of a head, so
// that four that are multiplied by the same numbers lie side by side for 16 keys, or for 16 channels. Products
// are summed exactly, all dimensions of a key and all keys of a tile, so a row's result follows from the row
// alone. What is turned after a tile is asked for bit by bit while the tile is turned and multiplied.

#pragma once

#include "kvchat/engine/kernels/native/turn.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"
#include "kvchat/engine/kernels/quantized_linear/rows.h"

namespace {
namespace whole {

using quantised::Activations;
using quantised::BLOCK;
using quantised::Lanes;
using quantised::OFFSET_SHIFT;
using quantised::Part;
using quantised::QUAD;
using quantised::Sums;
using quantised::TILE;

constexpr int LINE = TILE * QUAD;     // bytes that are multiplied at one time
constexpr int64_t MOST_DIM = 512;     // of a key: sums of its products still have 32 bits
constexpr int64_t ASKED_BYTES = 256;  // of codes that are needed later, at one time

INLINE int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Bytes of a tile's keys as they are turned: of whole 16 keys, whole 32 dimensions.
INLINE int64_t key_bytes(int64_t dim) { return MOST_KEYS * padded(dim, BLOCK); }
// Of its values: of whole 32 keys, whole 16 channels.
INLINE int64_t value_bytes(int64_t dim) { return padded(MOST_KEYS, BLOCK) * padded(dim, TILE); }

#if defined(__AVX512F__)

// The first `count` bytes of a line, zeros behind them.
INLINE __m512i load_line(const uint8_t* from, int64_t count) {
  if (count >= LINE) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi8((1ull << count) - 1, from);
}

// Four quads of each of 16 rows of 64 bytes: line n gets quad n of every row.
INLINE void turn_quads(const uint8_t* from, int64_t stride, int64_t num_rows, int64_t count, uint8_t* to) {
  __m512i a[16];
  if (num_rows >= 16 && count >= LINE) {
    UNROLL
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(from + i * stride);
  } else {
    for (int i = 0; i < 16; i++)
      a[i] = i < num_rows ? load_line(from + i * stride, count) : _mm512_setzero_si512();
  }
  turn(a);
  UNROLL
  for (int i = 0; i < 16; i++) _mm512_store_si512(to + i * LINE, a[i]);
}

// 64 channels of four rows: line n gets channels [16 * n, 16 * n + 16), a quad of rows each.
INLINE void turn_rows(const uint8_t* from, int64_t stride, int64_t num_rows, int64_t count, uint8_t* to) {
  __m512i a[4];
  if (num_rows >= 4 && count >= LINE) {
    UNROLL
    for (int i = 0; i < 4; i++) a[i] = _mm512_loadu_si512(from + i * stride);
  } else {
    for (int i = 0; i < 4; i++)
      a[i] = i < num_rows ? load_line(from + i * stride, count) : _mm512_setzero_si512();
  }
  const __m512i ab_low = _mm512_unpacklo_epi8(a[0], a[1]), ab_high = _mm512_unpackhi_epi8(a[0], a[1]);
  const __m512i cd_low = _mm512_unpacklo_epi8(a[2], a[3]), cd_high = _mm512_unpackhi_epi8(a[2], a[3]);
  const __m512i q0 = _mm512_unpacklo_epi16(ab_low, cd_low), q1 = _mm512_unpackhi_epi16(ab_low, cd_low);
  const __m512i q2 = _mm512_unpacklo_epi16(ab_high, cd_high), q3 = _mm512_unpackhi_epi16(ab_high, cd_high);
  // Lane L of q_i: channels 16 * L + 4 * i.
  const __m512i l01 = _mm512_shuffle_i32x4(q0, q1, 0x44), h01 = _mm512_shuffle_i32x4(q0, q1, 0xEE);
  const __m512i l23 = _mm512_shuffle_i32x4(q2, q3, 0x44), h23 = _mm512_shuffle_i32x4(q2, q3, 0xEE);
  const int64_t lines = (least(count, LINE) + TILE - 1) / TILE;
  _mm512_store_si512(to, _mm512_shuffle_i32x4(l01, l23, 0x88));
  if (lines > 1) _mm512_store_si512(to + LINE, _mm512_shuffle_i32x4(l01, l23, 0xDD));
  if (lines > 2) _mm512_store_si512(to + 2 * LINE, _mm512_shuffle_i32x4(h01, h23, 0x88));
  if (lines > 3) _mm512_store_si512(to + 3 * LINE, _mm512_shuffle_i32x4(h01, h23, 0xDD));
}

#else

INLINE void turn_quads(const uint8_t* from, int64_t stride, int64_t num_rows, int64_t count, uint8_t* to) {
  for (int n = 0; n < TILE; n++)
    for (int i = 0; i < TILE; i++) {
      const int64_t left = i < num_rows ? count - n * QUAD : 0;
      uint8_t quad[QUAD] = {};
      if (left > 0) memcpy(quad, from + i * stride + n * QUAD, least(left, QUAD));
      memcpy(to + n * LINE + i * QUAD, quad, QUAD);
    }
}

INLINE void turn_rows(const uint8_t* from, int64_t stride, int64_t num_rows, int64_t count, uint8_t* to) {
  for (int64_t d = 0; d < padded(least(count, LINE), TILE); d++)
    for (int i = 0; i < QUAD; i++)
      to[d * QUAD + i] = d < count && i < num_rows ? from[i * stride + d] : 0;
}

#endif

// Codes of `length` keys, `stride` bytes apart → [keys / 16, dimensions / 4, 16, 4]; others are zero, and so
// are the keys behind the last. `next`: of as many keys that are turned after them the first half is asked for.
INLINE void turn_keys(const uint8_t* from, const uint8_t* next, int64_t stride, int64_t dim, int64_t length,
                      uint8_t* to) {
  const int64_t row_bytes = padded(dim, BLOCK) * TILE;
  for (int64_t k = 0; k < length; k += TILE, to += row_bytes) {
    fetch(next + k * stride / 2, TILE * stride / 2);
    for (int64_t d = 0; d < dim; d += LINE) {
      const uint8_t* first = from + k * stride + d;
      if (dim - d > LINE / 2) {
        turn_quads(first, stride, length - k, dim - d, to + d * TILE);
      } else {
        alignas(64) uint8_t lines[TILE * LINE];
        turn_quads(first, stride, length - k, dim - d, lines);
        memcpy(to + d * TILE, lines, TILE / 2 * LINE);
      }
    }
  }
}

// Codes of `length` values → [keys / 4, channels / 16, 16, 4], of whole 32 keys; others are zero. `next`: as
// for keys.
INLINE void turn_values(const uint8_t* from, const uint8_t* next, int64_t stride, int64_t dim,
                        int64_t length, uint8_t* to) {
  const int64_t row_bytes = padded(dim, TILE) * QUAD;
  for (int64_t k = 0; k < length; k += QUAD, to += row_bytes) {
    fetch(next + k * stride / 2, QUAD * stride / 2);
    for (int64_t d = 0; d < dim; d += LINE)
      turn_rows(from + k * stride + d, stride, length - k, dim - d, to + d * QUAD);
  }
  memset(to, 0, (padded(length, BLOCK) - padded(length, QUAD)) / QUAD * row_bytes);
}

// Rows of `num_blocks` * 32 numbers as products read them. A number is rounded by at most 2 ** -14 of the
// largest of its row, or 2 ** -22 where it is to be as fine as float32; a row with a number that is not finite
// becomes NaN.
//
// Of a row: parts of all numbers, [blocks, parts, 32], and its end.
template <bool FINE>
struct WholeRows {
  static constexpr int PARTS = Activations::parts_of(FINE), BITS = FINE ? 21 : 13;

  // The sums of the whole numbers are low + high * 2 ** 16.
  struct End {
    float scale;
    int32_t low, high;
  };

  uint8_t* memory;  // at the beginning of a line of the cache
  int64_t num_blocks;

  static constexpr int64_t bytes_of(int64_t num_blocks) {
    return (num_blocks * BLOCK * PARTS * (int64_t)sizeof(Part) + (int64_t)sizeof(End) + 63) / 64 * 64;
  }
  Part* parts(int64_t row) const { return (Part*)(memory + row * bytes_of(num_blocks)); }
  End& end(int64_t row) const { return *(End*)(parts(row) + num_blocks * BLOCK * PARTS); }

  // Reads a row of `count` numbers; others are zero.
  void read(int64_t row, const float* numbers, int64_t count) const {
    const int64_t num_whole = count / BLOCK;
    float rest[BLOCK] = {};
    if (num_whole < num_blocks)
      memcpy(rest, numbers + num_whole * BLOCK, (count - num_whole * BLOCK) * sizeof(float));
    uint32_t largest_bits = 0;
    for (int64_t block = 0; block < num_blocks; block++) {
      const uint32_t bits = quantised::largest_size(block < num_whole ? numbers + block * BLOCK : rest);
      largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    const uint32_t exponent = largest_bits >> 23;
    End& found = end(row);
    found = {__builtin_nanf(""), 0, 0};
    if (exponent == 255) {
      memset(parts(row), 0, num_blocks * BLOCK * PARTS * sizeof(Part));
      return;
    }
    const uint32_t bounded = exponent < quantised::LEAST_EXPONENT ? quantised::LEAST_EXPONENT : exponent;
    found.scale = Activations::power(bounded - BITS);
    const Vec inverse = fill(Activations::power(254 + BITS - bounded));
    for (int64_t block = 0; block < num_blocks; block++)
      read_block(parts(row) + block * BLOCK * PARTS, block < num_whole ? numbers + block * BLOCK : rest,
                 inverse, found);
  }

  static void read_block(Part* to, const float* numbers, Vec inverse, End& end) {
    int32_t whole[BLOCK];
    UNROLL
    for (int i = 0; i < BLOCK; i += W) quantised::store_whole(whole + i, mul(load(numbers + i), inverse));
    UNROLL
    for (int half = 0; half < 2; half++) {
      int32_t low, high;
      quantised::split<PARTS>(to + half * 16, whole + half * 16, &low, &high);
      end.low += low;
      end.high += high;
    }
  }
};

// Sums of ROWS rows and of LINES lines that lie side by side.
template <int ROWS, int LINES, bool FINE>
struct Products {
  static constexpr int PARTS = WholeRows<FINE>::PARTS, LOW_PARTS = WholeRows<false>::PARTS;

  Sums sums[LINES][ROWS][PARTS];

  __attribute__((always_inline)) Products() {
    UNROLL
    for (int i = 0; i < LINES; i++) {
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int part = 0; part < PARTS; part++) quantised::clear(sums[i][r][part]);
      }
    }
  }

  // Adds the products of lines, `step` bytes from quad to quad and `apart` from one to the other, with block
  // `block` of rows from the first one on.
  __attribute__((always_inline)) void add(const uint8_t* codes, int64_t step, int64_t apart,
                                          const WholeRows<FINE>& rows, int64_t first, int64_t block) {
    const Part* parts[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) parts[r] = rows.parts(first + r) + block * BLOCK * PARTS;
    UNROLL
    for (int q = 0; q < BLOCK / QUAD; q++) {
      quantised::Codes line[LINES];
      UNROLL
      for (int i = 0; i < LINES; i++) line[i] = quantised::load_codes(codes + q * step + i * apart);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int part = 0; part < PARTS; part++) {
          UNROLL
          for (int i = 0; i < LINES; i++)
            add_products(sums[i][r][part], line[i], parts[r] + part * BLOCK + q * QUAD);
        }
      }
    }
  }

  // What was found of a line for a row, added to `before`.
  __attribute__((always_inline)) Lanes found(int line, int r, const typename WholeRows<FINE>::End& end,
                                             const Lanes& before) {
    Sums* own = sums[line][r];
    Lanes y = quantised::found_in<OFFSET_SHIFT, LOW_PARTS>(own, end.low);
    if (FINE) {
      const Lanes high = quantised::found_in<OFFSET_SHIFT, 1>(own + LOW_PARTS, end.high);
      y = quantised::multiple(high, 65536.0f, y);
    }
    return quantised::multiple(y, end.scale, before);
  }
};

// Lines that are multiplied side by side, so that enough sums grow at one time, and stay in registers.
template <int ROWS>
constexpr int lines_at_once() {
  return W == 16 && ROWS <= 4 ? 2 : 1;
}

// One side of a tile as it is multiplied. Codes behind the last have no meaning in what is found.
struct Turned {
  const uint8_t* codes;
  const uint8_t* next;  // of codes that are turned after these the second half is asked for
  int64_t next_bytes, length;
};

// Scores of ROWS rows of queries, from `row` on, with keys of `dim` dimensions.
template <int ROWS, bool FINE>
void dot_keys(float (*scores)[MOST_KEYS + W], const Turned& keys, const WholeRows<FINE>& queries, int64_t row,
              int64_t dim) {
  constexpr int LINES = lines_at_once<ROWS>();
  const int64_t num_blocks = padded(dim, BLOCK) / BLOCK, apart = num_blocks * BLOCK * TILE;
  const uint8_t* next = keys.next + keys.next_bytes / 2;
  const uint8_t* const end = keys.next + keys.next_bytes;
  for (int64_t k = 0; k < keys.length; k += LINES * TILE) {
    Products<ROWS, LINES, FINE> products;
    for (int64_t block = 0; block < num_blocks; block++) {
      fetch(next, least(LINES * ASKED_BYTES, end - next));
      next += LINES * ASKED_BYTES;
      products.add(keys.codes + k / TILE * apart + block * BLOCK / QUAD * LINE, LINE, apart, queries, row,
                   block);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < LINES; i++) {
        Lanes none;
        EACH(j) none.v[j] = zero();
        const Lanes y = products.found(i, r, queries.end(row + r), none);
        quantised::store_lanes(scores[r] + k + i * TILE, y);
      }
    }
  }
}

// acc[r] = acc[r] * decay[r] + sum of weights[r][k] * values[k], for channels [d, d + LINES * 16).
template <int ROWS, int LINES, bool FINE>
INLINE void add_channels(float* acc, int64_t stride, const float* decay, const Turned& values,
                         const WholeRows<FINE>& weights, int64_t d, int64_t columns) {
  Products<ROWS, LINES, FINE> products;
  for (int64_t block = 0; block < weights.num_blocks; block++)
    products.add(values.codes + block * BLOCK * columns + d * QUAD, columns * QUAD, LINE, weights, 0, block);
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < LINES; i++) {
      float* to = acc + r * stride + d + i * TILE;
      const int64_t left = stride - d - i * TILE;
      Lanes before;
      EACH(j) before.v[j] = j * W < left ? mul(load(to + j * W), fill(decay[r])) : zero();
      const Lanes y = products.found(i, r, weights.end(r), before);
      EACH(j)
      if (j * W < left) store(to + j * W, y.v[j]);
    }
  }
}

template <int ROWS, bool FINE>
void add_values(float* acc, int64_t stride, const float* decay, const float (*weights)[MOST_KEYS + W],
                const Turned& values, int64_t dim) {
  constexpr int LINES = lines_at_once<ROWS>();
  alignas(64) uint8_t memory[ROWS * WholeRows<FINE>::bytes_of((MOST_KEYS + BLOCK - 1) / BLOCK)];
  const int64_t columns = padded(dim, TILE);
  const WholeRows<FINE> rows = {memory, padded(values.length, BLOCK) / BLOCK};
  UNROLL
  for (int r = 0; r < ROWS; r++) rows.read(r, weights[r], values.length);
  const uint8_t* next = values.next + values.next_bytes / 2;
  const uint8_t* const end = values.next + values.next_bytes;
  for (int64_t d = 0; d < columns;) {
    const int64_t bytes = ASKED_BYTES * LINES * rows.num_blocks;
    fetch(next, least(bytes, end - next));
    next += bytes;
    if (d + LINES * TILE <= columns) {
      add_channels<ROWS, LINES, FINE>(acc, stride, decay, values, rows, d, columns);
      d += LINES * TILE;
    } else {
      add_channels<ROWS, 1, FINE>(acc, stride, decay, values, rows, d, columns);
      d += TILE;
    }
  }
}

}  // namespace whole
}  // namespace
