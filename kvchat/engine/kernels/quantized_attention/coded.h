// Tiles of keys and values of 4 or 2 bits, multiplied as they lie: no number is put together from a code, its
// scale and its minimum.
//
// Keys of a group of tokens share a scale and a minimum for each channel, so a query is multiplied by the
// scales once, and what it makes of the minima is where its sums begin. Values of a token share both for 32
// channels, so weights are multiplied by the scales, and what they make of the minima is added once. A code
// itself becomes a number by one look-up. A row's result follows from the row alone.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/tile.h"

namespace {
namespace coded {

constexpr int64_t MOST_DIM = 256;                      // of a key
constexpr int64_t CHANNELS = 32;                       // of a value that share a scale
constexpr int64_t MOST_COLUMNS = MOST_DIM / CHANNELS;  // groups of channels

// One head's keys, or values, of a tile. Scales and minima stand row after row, `num_columns` numbers each.
struct Part {
  const uint8_t* codes;  // of the first token
  const uint8_t* next;   // codes that are read after these, as far apart
  const fp16* scales;    // of the first token's row
  const fp16* minima;
  float factor;  // of both
  int64_t token_bytes, num_columns;
};

#if defined(__AVX512F__)

constexpr bool IS_THERE = true;

INLINE __m512i lane_numbers() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Turns W codes into numbers.
template <int BITS>
struct Codes {
  __m512i shifts;
  Vec table;  // by the lowest 4 bits of a lane, whatever stands above them

  Codes() {
    const __m512i lane = lane_numbers();
    if (BITS == 4) {
      shifts = _mm512_slli_epi32(_mm512_and_si512(lane, _mm512_set1_epi32(7)), 2);
      table = _mm512_cvtepi32_ps(lane);
    } else {
      shifts = _mm512_slli_epi32(lane, 1);
      table = _mm512_cvtepi32_ps(_mm512_and_si512(lane, _mm512_set1_epi32(3)));
    }
  }

  __attribute__((always_inline)) Vec operator()(const uint8_t* p) const {
    __m512i words = _mm512_broadcastd_epi32(_mm_loadu_si32(p));
    if (BITS == 4) words = _mm512_mask_broadcastd_epi32(words, 0xFF00, _mm_loadu_si32(p + 4));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), table);
  }
};

// Scores of ROWS queries [ROWS, stride] with a tile's `length` keys, the first of which is `first` in its
// block; `group` tokens share a scale.
template <int ROWS, int BITS>
void dot_keys(float (*scores)[MOST_KEYS + W], const float* query, int64_t stride, const Part& keys,
              int64_t dim, int64_t first, int64_t group, int64_t length) {
  // As many keys at one time as give a vector of sums.
  constexpr int FIT = W / ROWS ? W / ROWS : 1;
  constexpr int KEYS = FIT >= 16 ? 16 : FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
  constexpr int SUMS = ROWS * KEYS > W ? ROWS * KEYS : W;
  alignas(64) float scaled[ROWS][MOST_DIM];
  const Codes<BITS> numbers;
  const Vec by = fill(keys.factor);
  for (int64_t k = 0, row = 0; k < length; row++) {
    const int64_t end = least(length, (first / group + row + 1) * group - first);
    Vec begin[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) begin[r] = zero();
    for (int64_t d = 0; d < dim; d += W) {
      const Vec scale = mul(load(keys.scales + row * keys.num_columns + d), by);
      const Vec minimum = mul(load(keys.minima + row * keys.num_columns + d), by);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        const Vec q = load(query + r * stride + d);
        store(scaled[r] + d, mul(q, scale));
        begin[r] = fma(q, minimum, begin[r]);
      }
    }
    for (; k < end; k += KEYS) {
      fetch(keys.next + k * keys.token_bytes, KEYS * keys.token_bytes);
      const uint8_t* key[KEYS];
      UNROLL
      for (int j = 0; j < KEYS; j++) key[j] = keys.codes + least(k + j, end - 1) * keys.token_bytes;
      Vec acc[SUMS];
      UNROLL
      for (int i = 0; i < SUMS; i++) acc[i] = i < ROWS * KEYS ? begin[i / KEYS] : zero();
      for (int64_t d = 0; d < dim; d += W) {
        Vec q[ROWS];
        UNROLL
        for (int r = 0; r < ROWS; r++) q[r] = load(scaled[r] + d);
        UNROLL
        for (int j = 0; j < KEYS; j++) {
          const Vec x = numbers(key[j] + d * BITS / 8);
          UNROLL
          for (int r = 0; r < ROWS; r++) acc[r * KEYS + j] = fma(q[r], x, acc[r * KEYS + j]);
        }
      }
      float found[SUMS];
      UNROLL
      for (int i = 0; i < SUMS; i += W) store(found + i, sums(acc + i));
      // What is written behind `end` is overwritten, or hidden.
      UNROLL
      for (int r = 0; r < ROWS; r++) memcpy(scores[r] + k, found + r * KEYS, KEYS * sizeof(float));
    }
    k = end;
  }
}

// Weights of ROWS rows multiplied by a tile's scales, and what they make of its minima, for each group of
// channels.
template <int ROWS>
struct Weights {
  alignas(64) float scaled[ROWS][MOST_KEYS * MOST_COLUMNS + W];  // [keys, groups]
  alignas(64) float added[ROWS][W];

  // Weights behind the last key are zero up to a whole vector.
  Weights(const float (*weights)[MOST_KEYS + W], const Part& values, int64_t length) {
    const int64_t columns = values.num_columns, count = length * columns;
    const Vec by = fill(values.factor);
    const __m512i lane = lane_numbers();
    const __m512i token = _mm512_srli_epi32(lane, __builtin_ctzll(columns));
    Vec sum_of[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) sum_of[r] = zero();
    for (int64_t i = 0; i < count; i += W) {
      const int left = (int)least(count - i, W);
      const Vec scale = mul(left == W ? load(values.scales + i) : load_part(values.scales + i, left), by);
      const Vec minimum = mul(left == W ? load(values.minima + i) : load_part(values.minima + i, left), by);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        const Vec weight = _mm512_permutexvar_ps(token, load(weights[r] + i / columns));
        store(scaled[r] + i, mul(weight, scale));
        sum_of[r] = fma(weight, minimum, sum_of[r]);
      }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      for (int step = W / 2; step >= columns; step /= 2)
        sum_of[r] = add(sum_of[r], _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(step)),
                                                         sum_of[r]));
      store(added[r], sum_of[r]);
    }
  }
};

// acc[r] = acc[r] * decay[r] + sum of weights[r][k] * values[k], for channels [d, d + VECS * W).
template <int ROWS, int BITS, int VECS>
INLINE void add_channels(float* acc, int64_t stride, const float* decay, const Weights<ROWS>& weights,
                         const Part& values, int64_t d, int64_t length, const Codes<BITS>& numbers) {
  const int64_t columns = values.num_columns, column = d / CHANNELS;
  Vec total[ROWS][VECS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++)
      total[r][i] = fma(load(acc + r * stride + d + i * W), fill(decay[r]),
                        fill(weights.added[r][column + i * W / CHANNELS]));
  }
  const uint8_t* codes = values.codes + d * BITS / 8;
  for (int64_t k = 0; k < length; k++, codes += values.token_bytes) {
    if (d == 0) fetch(values.next + k * values.token_bytes, values.token_bytes);
    Vec x[VECS];
    UNROLL
    for (int i = 0; i < VECS; i++) x[i] = numbers(codes + i * W * BITS / 8);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int i = 0; i < VECS; i++)
        total[r][i] = fma(fill(weights.scaled[r][k * columns + column + i * W / CHANNELS]), x[i], total[r][i]);
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int i = 0; i < VECS; i++) store(acc + r * stride + d + i * W, total[r][i]);
  }
}

template <int ROWS, int BITS>
void add_values(float* acc, int64_t stride, const float* decay, const float (*weights)[MOST_KEYS + W],
                const Part& values, int64_t dim, int64_t length) {
  const Codes<BITS> numbers;
  const Weights<ROWS> found(weights, values, length);
  // What stays in registers.
  constexpr int VECS = ROWS > 4 ? 2 : 4;
  int64_t d = 0;
  for (; d + VECS * W <= dim; d += VECS * W)
    add_channels<ROWS, BITS, VECS>(acc, stride, decay, found, values, d, length, numbers);
  if (d < dim) add_channels<ROWS, BITS, 2>(acc, stride, decay, found, values, d, length, numbers);
}

#else

constexpr bool IS_THERE = false;

template <int ROWS, int BITS>
void dot_keys(float (*)[MOST_KEYS + W], const float*, int64_t, const Part&, int64_t, int64_t, int64_t,
              int64_t) {}
template <int ROWS, int BITS>
void add_values(float*, int64_t, const float*, const float (*)[MOST_KEYS + W], const Part&, int64_t,
                int64_t) {}

#endif

}  // namespace coded
}  // namespace
