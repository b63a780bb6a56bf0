// Products of many rows of 8 bits with a quantised weight, as prompts are computed where products are rounded.
//
// Inputs are rounded to whole numbers of 8 bits, with a scale for every 32 of a row: by at most 1/254 of the
// largest of them. Their products with the codes of 32 inputs, or of 16 in groups of 16, are summed exactly, and
// added one after the other: neither pieces, nor threads, nor the rows beside it change a bit of a number.
//
// Six rows are a panel. What is read together lies together: [K / 256, panels, 8, BLOCK_BYTES], the last of fewer
// inputs, so of fewer blocks. A block is that of 32 inputs of a panel: [6, 32] numbers; [6] scales; [3, 6] where
// sums begin, less by what codes without a sign add too much; [3, 6] sums of what the numbers stand for; and
// padding. Three: of all inputs, of the first 16 and of the last 16.
//
// Dimensions: T rows, K inputs, N outputs.

#pragma once

#include "kvchat/engine/kernels/quantized_linear/rows.h"

namespace {
namespace quantised {

constexpr int64_t STRIP_LEN = 256;      // inputs whose codes lie in the nearest cache
constexpr int64_t MOST_TILES = 4;       // of one strip
constexpr float LEAST_SIZE = 0x1p-95f;  // blocks of smaller numbers are rounded as if one were so large

struct BytePanels {
  uint8_t* memory;  // num_bytes() bytes, at the beginning of a line of the cache
  int64_t num_inputs, num_rows;

  static constexpr int64_t ROWS = 6;  // as many as leave the sums of two tiles in registers
  static constexpr int64_t BLOCK_BYTES = (ROWS * (BLOCK + 7 * 4) + 63) / 64 * 64;
  static constexpr int64_t STRIP_BLOCKS = STRIP_LEN / BLOCK;

  int64_t num_blocks() const { return (num_inputs + BLOCK - 1) / BLOCK; }
  int64_t num_panels() const { return (num_rows + ROWS - 1) / ROWS; }
  int64_t num_bytes() const { return num_panels() * num_blocks() * BLOCK_BYTES; }
  // Whether products of a weight are computed so: it is made of whole tiles.
  static bool take(const Weight& weight) { return weight.num_outputs % TILE == 0; }
  // The blocks of a panel from input k on, the first of a strip: those of the strip lie one after the other.
  uint8_t* blocks(int64_t panel, int64_t k) const {
    const int64_t first = k / BLOCK, count = least(STRIP_BLOCKS, num_blocks() - first);
    return memory + (first * num_panels() + panel * count) * BLOCK_BYTES;
  }

  static float* scales(uint8_t* block) { return (float*)(block + ROWS * BLOCK); }
  static int32_t* starts(uint8_t* block) { return (int32_t*)scales(block) + ROWS; }
  static float* totals(uint8_t* block) { return scales(block) + 4 * ROWS; }
  static const float* scales(const uint8_t* block) { return scales((uint8_t*)block); }
  static const int32_t* starts(const uint8_t* block) { return starts((uint8_t*)block); }
  static const float* totals(const uint8_t* block) { return totals((uint8_t*)block); }

#if defined(__AVX512F__)
  // Reads row t from `x`, num_inputs numbers, a multiple of 16.
  void prepare(int64_t t, const float* x) const {
    for (int64_t k = 0; k < num_inputs; k += STRIP_LEN) {
      uint8_t* block = blocks(t / ROWS, k);
      for (int64_t i = k; i < least(k + STRIP_LEN, num_inputs); i += BLOCK, block += BLOCK_BYTES)
        prepare(block, t % ROWS, x + i, num_inputs - i);
    }
  }

  static void prepare(uint8_t* block, int64_t r, const float* x, int64_t num_left) {
    alignas(64) float numbers[BLOCK] = {};
    for (int64_t i = 0; i < least(BLOCK, num_left); i += W) store(numbers + i, load(x + i));
    const float largest = Activations::number_of(largest_size(numbers));
    const bool is_finite = largest < __builtin_inff();
    const float bounded = largest > LEAST_SIZE ? largest : LEAST_SIZE;
    const float inverse = is_finite ? 127.0f / bounded : 0.0f;
    const float scale = is_finite ? bounded / 127.0f : __builtin_nanf("");
    int32_t sums[3];
    UNROLL
    for (int half = 0; half < 2; half++) {
      __m512i whole = _mm512_setzero_si512();
      if (is_finite) whole = _mm512_cvtps_epi32(mul(load(numbers + half * 16), fill(inverse)));
      _mm_storeu_si128((__m128i*)(block + r * BLOCK + half * 16), _mm512_cvtepi32_epi8(whole));
      sums[1 + half] = _mm512_reduce_add_epi32(whole);
    }
    sums[0] = sums[1] + sums[2];
    scales(block)[r] = scale;
    for (int i = 0; i < 3; i++) {
      starts(block)[i * ROWS + r] = -128 * sums[i];
      totals(block)[i * ROWS + r] = (float)sums[i] * scale;
    }
  }

#else
  void prepare(int64_t, const float*) const {}
#endif
};

#if defined(__AVX512F__)

// Codes of some tiles and a strip of inputs, each with 128 added, and the scales of every `unit` inputs.
struct Strip {
  alignas(64) uint8_t codes[MOST_TILES][STRIP_LEN * TILE];  // inputs in fours, as they lie in a tile
  alignas(64) float scales[MOST_TILES][STRIP_LEN / 16][TILE];
  alignas(64) float minima[MOST_TILES][STRIP_LEN / 16][TILE];
  int64_t num_units;

  // Takes inputs [begin, begin + count) of the tile of output n.
  void take(int64_t tile, const Weight& weight, int64_t n, int64_t begin, int64_t count, int64_t unit) {
    num_units = count / unit;
    const int64_t num_groups = weight.num_inputs / weight.group;
    for (int64_t i = 0; i < num_units; i++) {
      const int64_t at = n * num_groups + (begin + i * unit) / weight.group * TILE;
      store(scales[tile][i], load(weight.scales + at));
      if (weight.minima) store(minima[tile][i], load(weight.minima + at));
    }
    const uint8_t* from = weight.codes + (n * weight.num_inputs + begin * TILE) * weight.bits / 8;
    uint8_t* to = codes[tile];
    if (weight.bits == 8) {
      const __m512i sign = _mm512_set1_epi8((char)0x80);
      for (int64_t i = 0; i < count * TILE; i += 64)
        _mm512_store_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), sign));
      return;
    }
    const __m512i mask = _mm512_set1_epi8(15), added = _mm512_set1_epi8((char)(weight.minima ? 128 : 120));
    for (int64_t i = 0; i < count * TILE; i += 128, from += 64) {
      const __m512i bytes = _mm512_loadu_si512(from);
      _mm512_store_si512(to + i, _mm512_add_epi8(_mm512_and_si512(bytes, mask), added));
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
      _mm512_store_si512(to + i + 64, _mm512_add_epi8(high, added));
    }
  }
};

// Adds the products of a strip with TILES tiles to those of a panel: row r goes to out[r * out_t].
template <int TILES, int UNIT, bool HAS_MINIMA>
void add_panel(float* out, int64_t out_t, const Strip& strip, int64_t tile, const uint8_t* block, bool is_first) {
  constexpr int ROWS = BytePanels::ROWS;
  Vec total[ROWS][TILES];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < TILES; i++) total[r][i] = is_first ? zero() : load(out + r * out_t + i * TILE);
  }
  const uint8_t* codes = strip.codes[tile];
  for (int64_t unit = 0; unit < strip.num_units; unit++, codes += UNIT * TILE) {
    const int part = UNIT == BLOCK ? 0 : 1 + unit % 2;
    const uint8_t* x = block + (part == 2 ? UNIT : 0);
    const int32_t* starts = BytePanels::starts(block) + part * ROWS;
    const float* x_scales = BytePanels::scales(block);
    const float* x_totals = BytePanels::totals(block) + part * ROWS;
    __m512i sums[ROWS][TILES];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < TILES; i++) sums[r][i] = _mm512_set1_epi32(starts[r]);
    }
    UNROLL
    for (int q = 0; q < UNIT; q += QUAD) {
      __m512i code[TILES];
      UNROLL
      for (int i = 0; i < TILES; i++) code[i] = _mm512_load_si512(codes + i * STRIP_LEN * TILE + q * TILE);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        int32_t quad;
        memcpy(&quad, x + r * BLOCK + q, sizeof quad);
        const __m512i numbers = _mm512_set1_epi32(quad);
        UNROLL
        for (int i = 0; i < TILES; i++) sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], code[i], numbers);
      }
    }
    UNROLL
    for (int i = 0; i < TILES; i++) {
      const Vec scale = load(strip.scales[tile + i][unit]);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        total[r][i] = fma(mul(_mm512_cvtepi32_ps(sums[r][i]), scale), fill(x_scales[r]), total[r][i]);
        if (HAS_MINIMA) total[r][i] = fma(load(strip.minima[tile + i][unit]), fill(x_totals[r]), total[r][i]);
      }
    }
    if (part != 1) block += BytePanels::BLOCK_BYTES;
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < TILES; i++) store(out + r * out_t + i * TILE, total[r][i]);
  }
}

template <int UNIT, bool HAS_MINIMA>
void multiply_bytes(float* out, int64_t out_t, const Weight& weight, const BytePanels& x, int64_t start,
                    int64_t stop, int64_t begin, int64_t end) {
  constexpr int64_t ROWS = BytePanels::ROWS;
  const int64_t num_tiles = (end - begin) / TILE;
  Strip strip;
  for (int64_t k = 0; k < weight.num_inputs; k += STRIP_LEN) {
    for (int64_t tile = 0; tile < num_tiles; tile++)
      strip.take(tile, weight, begin + tile * TILE, k, least(STRIP_LEN, weight.num_inputs - k), UNIT);
    for (int64_t t = start; t < stop; t += ROWS) {
      float* to = out + (t - start) * out_t;
      const uint8_t* blocks = x.blocks(t / ROWS, k);
      int64_t tile = 0;
      for (; tile + 2 <= num_tiles; tile += 2)
        add_panel<2, UNIT, HAS_MINIMA>(to + tile * TILE, out_t, strip, tile, blocks, k == 0);
      if (tile < num_tiles) add_panel<1, UNIT, HAS_MINIMA>(to + tile * TILE, out_t, strip, tile, blocks, k == 0);
    }
  }
}

// Computes rows [start, stop) and outputs [begin, end), at most MOST_TILES whole tiles, without a bias: row t and
// output n go to out[(t - start) * out_t + n - begin], where there is room for whole panels. `start` is the first
// row of one.
INLINE void multiply_bytes(const Weight& weight, const BytePanels& x, int64_t start, int64_t stop,
                           int64_t begin, int64_t end, float* out, int64_t out_t) {
  const bool is_short = weight.group < BLOCK;
  if (is_short && weight.minima)
    multiply_bytes<16, true>(out, out_t, weight, x, start, stop, begin, end);
  else if (is_short)
    multiply_bytes<16, false>(out, out_t, weight, x, start, stop, begin, end);
  else if (weight.minima)
    multiply_bytes<32, true>(out, out_t, weight, x, start, stop, begin, end);
  else
    multiply_bytes<32, false>(out, out_t, weight, x, start, stop, begin, end);
}

#else

// No other level rounds rows.
INLINE void multiply_bytes(const Weight&, const BytePanels&, int64_t, int64_t, int64_t, int64_t, float*,
                           int64_t) {}

#endif

}  // namespace quantised
}  // namespace
