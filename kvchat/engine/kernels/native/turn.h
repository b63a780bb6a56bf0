// Sixteen vectors of sixteen numbers of 32 bits, turned: what stood in lane i of all becomes vector i.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"

#if defined(__AVX512F__)

namespace {

INLINE void turn(__m512i* rows) {
  __m512i pairs[16], fours[16];
  UNROLL
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  UNROLL
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // fours[4 * r + j]: of rows [4 * r, 4 * r + 4), lanes j, j + 4, j + 8 and j + 12.
  UNROLL
  for (int j = 0; j < 4; j++) {
    const __m512i low = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
    const __m512i lower = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xDD);
    const __m512i high = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512i higher = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xDD);
    rows[j] = _mm512_shuffle_i32x4(low, high, 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(lower, higher, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(low, high, 0xDD);
    rows[12 + j] = _mm512_shuffle_i32x4(lower, higher, 0xDD);
  }
}

}  // namespace

#endif
