// Tiles of keys and values of one byte, multiplied as whole numbers: nothing becomes a float32 on the way.
//
// Queries, and the weights of a tile, become whole numbers of 15 bits, or of 23 where they are to be as fine
// as float32; see `quantised_linear/rows.h`. Codes are turned once for all rows of a head, so that four that
// are multiplied by the same numbers lie side by side for 16 keys, or for 16 channels. Products are summed
// exactly within 32 dimensions or 32 keys, so a row's result follows from the row alone.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"
#include "kvchat/engine/kernels/quantised_linear/rows.h"

namespace {
namespace whole {

using quantised::Activations;
using quantised::BLOCK;
using quantised::Lanes;
using quantised::QUAD;
using quantised::Sums;
using quantised::TILE;

constexpr int LINE = TILE * QUAD;  // bytes that are multiplied at one time

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
  __m512i a[16], b[16];
  if (num_rows >= 16 && count >= LINE) {
    UNROLL
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(from + i * stride);
  } else {
    for (int i = 0; i < 16; i++)
      a[i] = i < num_rows ? load_line(from + i * stride, count) : _mm512_setzero_si512();
  }
  UNROLL
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  UNROLL
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4 * r + j]: of rows [4 * r, 4 * r + 4), quads j, j + 4, j + 8 and j + 12.
  UNROLL
  for (int j = 0; j < 4; j++) {
    const __m512i low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
    const __m512i lower = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
    const __m512i high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i higher = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
    _mm512_store_si512(to + (j + 0) * LINE, _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_store_si512(to + (j + 8) * LINE, _mm512_shuffle_i32x4(low, high, 0xDD));
    _mm512_store_si512(to + (j + 4) * LINE, _mm512_shuffle_i32x4(lower, higher, 0x88));
    _mm512_store_si512(to + (j + 12) * LINE, _mm512_shuffle_i32x4(lower, higher, 0xDD));
  }
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
// are the keys behind the last. `next`: as many keys that are turned after them are asked for.
INLINE void turn_keys(const uint8_t* from, const uint8_t* next, int64_t stride, int64_t dim, int64_t length,
                      uint8_t* to) {
  const int64_t row_bytes = padded(dim, BLOCK) * TILE;
  for (int64_t k = 0; k < length; k += TILE, to += row_bytes) {
    fetch(next + k * stride, TILE * stride);
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

// Codes of `length` values → [keys / 4, channels / 16, 16, 4], of whole 32 keys; others are zero.
INLINE void turn_values(const uint8_t* from, const uint8_t* next, int64_t stride, int64_t dim,
                        int64_t length, uint8_t* to) {
  const int64_t row_bytes = padded(dim, TILE) * QUAD;
  for (int64_t k = 0; k < length; k += QUAD, to += row_bytes) {
    fetch(next + k * stride, QUAD * stride);
    for (int64_t d = 0; d < dim; d += LINE)
      turn_rows(from + k * stride + d, stride, length - k, dim - d, to + d * QUAD);
  }
  memset(to, 0, (padded(length, BLOCK) - padded(length, QUAD)) / QUAD * row_bytes);
}

// A tile as it is multiplied; see `Tile` for what has the same name there.
struct WholeTile {
  const uint8_t* keys;
  const uint8_t* values;
  int64_t p, length;
  const float* key_scales;
  const float* value_scales;
  const Activations* queries;  // of all rows of a task
};

// Adds to ROWS totals the products of codes, `step` bytes between quads, with one block of whole numbers.
template <int ROWS, bool FINE>
INLINE void multiply_block(Lanes* total, const uint8_t* codes, int64_t step, const Activations& x,
                           int64_t first, int64_t block) {
  constexpr int PARTS = Activations::parts_of(FINE), LOW_PARTS = Activations::parts_of(false);
  Sums sums[ROWS][PARTS];
  const quantised::Part* parts[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    parts[r] = x.parts(first + r) + block * BLOCK * PARTS;
    UNROLL
    for (int part = 0; part < PARTS; part++) clear(sums[r][part]);
  }
  UNROLL
  for (int q = 0; q < BLOCK / QUAD; q++) {
    const quantised::Codes line = quantised::load_codes(codes + q * step);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int part = 0; part < PARTS; part++)
        add_products(sums[r][part], line, parts[r] + part * BLOCK + q * QUAD);
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    const Activations::Sums taken = x.sums(first + r, BLOCK);
    Lanes y = quantised::found_in<quantised::OFFSET_SHIFT, LOW_PARTS>(sums[r], taken.low[block]);
    if (FINE) {
      const Lanes high =
          quantised::found_in<quantised::OFFSET_SHIFT, 1>(sums[r] + LOW_PARTS, taken.high[block]);
      y = quantised::multiple(high, 65536.0f, y);
    }
    total[r] = quantised::multiple(y, x.scales(first + r)[block], total[r]);
  }
}

template <int ROWS, bool FINE>
void dot_keys(float (*scores)[MOST_KEYS + W], const WholeTile& tile, int64_t row, int64_t dim) {
  const int64_t num_blocks = padded(dim, BLOCK) / BLOCK;
  const uint8_t* codes = tile.keys;
  for (int64_t k = 0; k < tile.length; k += TILE) {
    Lanes total[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      EACH(i) total[r].v[i] = zero();
    }
    for (int64_t block = 0; block < num_blocks; block++, codes += BLOCK / QUAD * LINE)
      multiply_block<ROWS, FINE>(total, codes, LINE, *tile.queries, row, block);
    UNROLL
    for (int r = 0; r < ROWS; r++) quantised::store_lanes(scores[r] + k, total[r]);
  }
}

// Reads a row of weights as `Activations::prepare` does, without the sums that no tile of bytes asks for.
template <bool FINE>
INLINE void prepare_weights(const Activations& x, int64_t row, const float* weights) {
  constexpr int PARTS = Activations::parts_of(FINE);
  const Activations::Sums sums = x.sums(row, BLOCK);
  for (int64_t block = 0; block < x.num_blocks(); block++) {
    quantised::Part* to = x.parts(row) + block * BLOCK * PARTS;
    int32_t whole[BLOCK], low[2], high[2];
    x.scales(row)[block] = Activations::to_whole(whole, weights + block * BLOCK, FINE ? 21 : 13);
    for (int half = 0; half < 2; half++)
      quantised::split<PARTS>(to + half * 16, whole + half * 16, low + half, high + half);
    sums.low[block] = low[0] + low[1];
    sums.high[block] = high[0] + high[1];
  }
}

template <int ROWS, bool FINE>
void add_values(float* acc, int64_t stride, const float* decay, float (*weights)[MOST_KEYS + W],
                const WholeTile& tile, int64_t dim) {
  constexpr int64_t NUM_BLOCKS = (MOST_KEYS + BLOCK - 1) / BLOCK;
  alignas(64) uint8_t memory[ROWS * (NUM_BLOCKS * (BLOCK * 4 + 40) + 64)];
  const int64_t count = padded(tile.length, BLOCK), columns = padded(dim, TILE);
  const Activations x = {memory, count, FINE};
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    for (int64_t i = tile.length; i < count; i++) weights[r][i] = 0.0f;
    prepare_weights<FINE>(x, r, weights[r]);
  }
  for (int64_t d = 0; d < columns; d += TILE) {
    Lanes total[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      EACH(i)
      total[r].v[i] = d + i * W < stride ? mul(load(acc + r * stride + d + i * W), fill(decay[r])) : zero();
    }
    for (int64_t block = 0; block < count / BLOCK; block++)
      multiply_block<ROWS, FINE>(total, tile.values + block * BLOCK * columns + d * QUAD, columns * QUAD, x,
                                 0, block);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      EACH(i)
      if (d + i * W < stride) store(acc + r * stride + d + i * W, total[r].v[i]);
    }
  }
}

}  // namespace whole
}  // namespace
