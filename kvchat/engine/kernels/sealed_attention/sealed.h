// Attention over quantised and exact blocks on a processor: paged attention, whose older tiles are multiplied
// as whole numbers where they have 8 bits, as they lie where they have 4 or 2, and else turned back into
// numbers, one tile of one head at a time, in memory that stays in the cache.
//
// Which form a query reads follows from its position, and the tiles do too: a query's result has the same
// bits whatever stands beside it, however its prompt was cut, and however many threads compute it. Records
// are laid out as `sealed_record.py` says.

#pragma once

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/attention.h"
#include "kvchat/engine/kernels/sealed_attention/coded.h"
#include "kvchat/engine/kernels/sealed_attention/whole.h"

namespace {

enum Code { FP8, INT8, INT4, INT2 };

constexpr int bits_of(int code) { return code == INT4 ? 4 : code == INT2 ? 2 : 8; }

// The fields of native.py's `Side`, in order. Strides and places in bytes.
struct Side {
  const uint8_t* pool;
  int64_t n, h;  // strides
  int64_t code, token_bytes, token_group, channel_group, num_columns, scales_at, minima_at, factor_at;
};

// The fields of native.py's `_Call`, in order.
struct SealedCall {
  AttentionCall attention;
  const int64_t* const* blocks;  // of each span, the first of them is logical block 0
  Side keys, values;
};

// W codes as numbers, from W * bits / 8 bytes.
template <int CODE>
INLINE Vec numbers(const uint8_t* p) {
#if defined(__AVX512F__)
  if constexpr (CODE == INT8)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
  if constexpr (CODE == FP8) {
    const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    const __m512i size = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x7F)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
    return mul(_mm512_castsi512_ps(_mm512_or_si512(size, sign)), fill(0x1p120f));
  }
  __m128i codes;
  if constexpr (CODE == INT4) {
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
    codes = _mm_and_si128(_mm_or_si128(x, _mm_slli_epi16(x, 4)), _mm_set1_epi8(0x0F));
  } else if constexpr (CODE == INT2) {
    const __m128i x = _mm_cvtepu8_epi32(_mm_loadu_si32(p));
    const __m128i low = _mm_or_si128(x, _mm_slli_epi32(x, 6));
    const __m128i high = _mm_or_si128(_mm_slli_epi32(x, 12), _mm_slli_epi32(x, 18));
    codes = _mm_and_si128(_mm_or_si128(low, high), _mm_set1_epi8(3));
  }
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
#else
  float lanes[W];
  for (int i = 0; i < W; i++) {
    const uint8_t x = CODE == INT4   ? p[i / 2] >> 4 * (i % 2) & 15
                      : CODE == INT2 ? p[i / 4] >> 2 * (i % 4) & 3
                                     : p[i];
    if (CODE == FP8) {
      const uint32_t bits = (uint32_t)(x & 0x7F) << 20 | (uint32_t)(x & 0x80) << 24;
      memcpy(lanes + i, &bits, 4);
      lanes[i] *= 0x1p120f;
    } else {
      lanes[i] = CODE == INT8 ? (float)(int8_t)x : (float)x;
    }
  }
  return load(lanes);
#endif
}

// The last codes of a token, fewer than W.
template <int CODE>
INLINE Vec last_numbers(const uint8_t* p, int64_t count) {
  uint8_t bytes[W] = {};
  memcpy(bytes, p, (count * bits_of(CODE) + 7) / 8);
  return numbers<CODE>(bytes);
}

// One head's part of a block, and how it is read.
struct Record {
  const Side& side;
  const uint8_t* bytes;
  float factor;

  Record(const Side& side, int64_t block, int64_t head) : side(side), bytes(at(side, block, head)) {
    memcpy(&factor, bytes + side.factor_at, 4);
  }

  static const uint8_t* at(const Side& side, int64_t block, int64_t head) {
    return side.pool + block * side.n + head * side.h;
  }

  // Asks for the scales of tokens [first, first + count) and returns where their codes lie.
  static const uint8_t* ask(const Side& side, int64_t block, int64_t head, int64_t first, int64_t count) {
    const uint8_t* bytes = at(side, block, head);
    fetch(bytes + side.scales_at + first * 2, count * 2);
    fetch(bytes + side.factor_at, 4);
    return bytes + first * side.token_bytes;
  }

  const fp16* scales(int64_t row) const {
    return (const fp16*)(bytes + side.scales_at) + row * side.num_columns;
  }
  const fp16* minima(int64_t row) const {
    return (const fp16*)(bytes + side.minima_at) + row * side.num_columns;
  }

  const uint8_t* token(int64_t number) const { return bytes + number * side.token_bytes; }

  // The scales of tokens [first, first + count), with room for a vector behind the last.
  void read_scales(float* to, int64_t first, int64_t count) const {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, mul(load(scales(first + i)), fill(factor)));
    if (i < count) store(to + i, mul(load_part(scales(first + i), (int)(count - i)), fill(factor)));
  }

  // Tokens [first, first + count) as numbers, `stride` apart, with room for two more of them behind the last.
  void read(float* to, int64_t stride, int64_t dim, int64_t first, int64_t count) const {
    if (side.code == FP8)
      read_tokens<FP8>(to, stride, dim, first, count);
    else if (side.code == INT8)
      read_tokens<INT8>(to, stride, dim, first, count);
    else if (side.code == INT4)
      read_groups<INT4>(to, stride, dim, first, count);
    else
      read_groups<INT2>(to, stride, dim, first, count);
  }

  // A scale for each token.
  template <int CODE>
  void read_tokens(float* to, int64_t stride, int64_t dim, int64_t first, int64_t count) const {
    for (int64_t t = first; t < first + count; t++, to += stride) {
      const Vec scale = fill(to_float(scales(t)[0]) * factor);
      const uint8_t* from = bytes + t * side.token_bytes;
      int64_t d = 0;
      for (; d + W <= dim; d += W) store(to + d, mul(numbers<CODE>(from + d), scale));
      if (d < dim) store(to + d, mul(last_numbers<CODE>(from + d, dim - d), scale));
    }
  }

  // Scales and minima for each channel of some tokens, or for some channels of each token.
  template <int CODE>
  void read_groups(float* to, int64_t stride, int64_t dim, int64_t first, int64_t count) const {
    float* scale = to + count * stride;
    float* minimum = scale + stride;
    int64_t row = -1;
    for (int64_t t = first; t < first + count; t++, to += stride) {
      if (t / side.token_group != row) {
        row = t / side.token_group;
        spread(scale, scales(row), dim);
        spread(minimum, minima(row), dim);
      }
      const uint8_t* from = bytes + t * side.token_bytes;
      int64_t d = 0;
      for (; d + W <= dim; d += W)
        store(to + d, fma(numbers<CODE>(from + d * bits_of(CODE) / 8), load(scale + d), load(minimum + d)));
      if (d < dim)
        store(to + d, fma(last_numbers<CODE>(from + d * bits_of(CODE) / 8, dim - d), load(scale + d),
                          load(minimum + d)));
    }
  }

  // What belongs to groups of channels, for each channel.
  void spread(float* to, const fp16* from, int64_t dim) const {
    const Vec by = fill(factor);
    if (side.channel_group == 1) {
      int64_t d = 0;
      for (; d + W <= dim; d += W) store(to + d, mul(load(from + d), by));
      if (d < dim) store(to + d, mul(load_part(from + d, (int)(dim - d)), by));
      return;
    }
    // Groups are whole vectors, but for the last one.
    for (int64_t d = 0; d < dim; d += side.channel_group) {
      const Vec number = mul(fill(to_float(from[d / side.channel_group])), by);
      for (int64_t i = d; i < least(d + side.channel_group, dim); i += W) store(to + i, number);
    }
  }
};

template <bool FINE>
struct WholeTile : whole::WholeTile {};

template <int ROWS, bool FINE>
INLINE void dot_keys(float (*scores)[MOST_KEYS + W], const WholeTile<FINE>& tile, const float*, int64_t,
                     int64_t row, const AttentionCall& call, int64_t, int64_t) {
  whole::dot_keys<ROWS, FINE>(scores, tile, row, call.dim_k);
}
template <int ROWS, bool FINE>
INLINE void add_values(float* acc, int64_t stride, const float* decay, float (*weights)[MOST_KEYS + W],
                       const WholeTile<FINE>& tile, const AttentionCall& call, int64_t, int64_t) {
  whole::add_values<ROWS, FINE>(acc, stride, decay, weights, tile, call.dim_v);
}

// A tile whose codes are multiplied as they lie; see `Tile` for what has the same name there.
struct CodedTile {
  coded::Part keys, values;
  int64_t key_bits, value_bits;
  int64_t first, token_group;  // its first token in the block, and how many tokens share a scale of a channel
  int64_t p, length;
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
};

template <int ROWS>
INLINE void dot_keys(float (*scores)[MOST_KEYS + W], const CodedTile& tile, const float* query,
                     int64_t stride, int64_t, const AttentionCall& call, int64_t, int64_t) {
  const auto dot = tile.key_bits == 4 ? coded::dot_keys<ROWS, 4> : coded::dot_keys<ROWS, 2>;
  dot(scores, query, stride, tile.keys, call.dim_k, tile.first, tile.token_group, tile.length);
}
template <int ROWS>
INLINE void add_values(float* acc, int64_t stride, const float* decay, float (*weights)[MOST_KEYS + W],
                       const CodedTile& tile, const AttentionCall& call, int64_t, int64_t) {
  const auto add = tile.value_bits == 4 ? coded::add_values<ROWS, 4> : coded::add_values<ROWS, 2>;
  add(acc, stride, decay, weights, tile.values, call.dim_v, tile.length);
}

// Tiles whose keys and values are both of one byte are multiplied as whole numbers, `FINE` as float32 or as
// 16-bit types; those of fewer bits as they lie, where there are instructions for it; others become numbers
// in the scratch memory.
template <bool FINE>
struct Quantised {
  const SealedCall* call;

  bool is_whole() const { return call->keys.code == INT8 && call->values.code == INT8; }

  bool is_coded() const {
    const Side &keys = call->keys, &values = call->values;
    const int64_t columns = values.num_columns;
    return coded::IS_THERE && bits_of(keys.code) < 8 && bits_of(values.code) < 8 &&
           keys.channel_group == 1 && values.channel_group == coded::CHANNELS && values.token_group == 1 &&
           call->attention.dim_k % W == 0 && call->attention.dim_k <= coded::MOST_DIM &&
           call->attention.dim_v % coded::CHANNELS == 0 && columns <= coded::MOST_COLUMNS &&
           (columns & (columns - 1)) == 0;
  }

  // Behind a full successor.
  int64_t first_reader(int64_t p) const {
    return (p / call->attention.block_size + 2) * call->attention.block_size;
  }

  int64_t scratch(int64_t rows, int64_t stride_k, int64_t stride_v) const {
    if (is_coded()) return 0;
    if (!is_whole()) return (MOST_KEYS + 2) * (stride_k + stride_v);
    return (queries(nullptr, stride_k).row_bytes() * rows + turned_bytes()) / 4;
  }

  int64_t turned_bytes() const {
    return whole::key_bytes(call->attention.dim_k) + whole::value_bytes(call->attention.dim_v);
  }

  static whole::Activations queries(float* scratch, int64_t stride_k) {
    return {(uint8_t*)scratch, stride_k, FINE};
  }

  void begin(float* scratch, const float* query, int64_t rows, int64_t stride_k, int64_t) const {
    if (!is_whole()) return;
    const whole::Activations x = queries(scratch + turned_bytes() / 4, stride_k);
    for (int64_t row = 0; row < rows; row++) x.template prepare<FINE>(row, query + row * stride_k);
  }

  template <typename Take>
  void open(float* scratch, int64_t stride_k, int64_t stride_v, int64_t span, int64_t head, int64_t p,
            int64_t length, Take take) const {
    const AttentionCall& exact = call->attention;
    const int64_t block = call->blocks[span][p / exact.block_size], first = p % exact.block_size;
    const Record keys(call->keys, block, head), values(call->values, block, head);
    if (is_whole())
      open_whole(scratch, stride_k, keys, values, next_of(span, head, p), p, length, take);
    else if (is_coded())
      open_coded(keys, values, next_of(span, head, p), p, length, take);
    else
      open_numbers(scratch, stride_k, stride_v, keys, values, p, length, take);
  }

  // Where the tile after that of a head at position p lies: its block and head.
  struct Next {
    int64_t block, head;
  };

  Next next_of(int64_t span, int64_t head, int64_t p) const {
    const AttentionCall& exact = call->attention;
    const Span& asked = exact.spans[span];
    const int64_t number = p / exact.block_size, last = asked.position + asked.num_rows - 1;
    if (head + 1 < exact.num_kv_heads) return {call->blocks[span][number], head + 1};
    const bool is_old = first_reader((number + 1) * exact.block_size) <= last;
    return {call->blocks[span][is_old ? number + 1 : number], 0};
  }

  template <typename Take>
  void open_whole(float* scratch, int64_t stride_k, const Record& keys, const Record& values, Next next,
                  int64_t p, int64_t length, Take take) const {
    const AttentionCall& exact = call->attention;
    const int64_t first = p % exact.block_size;
    alignas(64) float scales[2][MOST_KEYS + W];
    keys.read_scales(scales[0], first, length);
    values.read_scales(scales[1], first, length);
    uint8_t* turned = (uint8_t*)scratch;
    uint8_t* turned_values = turned + whole::key_bytes(exact.dim_k);
    const uint8_t* next_keys = Record::ask(call->keys, next.block, next.head, first, length);
    const uint8_t* next_values = Record::ask(call->values, next.block, next.head, first, length);
    whole::turn_keys(keys.token(first), next_keys, call->keys.token_bytes, exact.dim_k, length, turned);
    whole::turn_values(values.token(first), next_values, call->values.token_bytes, exact.dim_v, length,
                       turned_values);
    const whole::Activations x = queries(scratch + turned_bytes() / 4, stride_k);
    take(WholeTile<FINE>{{turned, turned_values, p, length, scales[0], scales[1], &x}});
  }

  template <typename Take>
  void open_coded(const Record& keys, const Record& values, Next next, int64_t p, int64_t length,
                  Take take) const {
    const int64_t first = p % call->attention.block_size;
    take(CodedTile{part_of(keys, next, first), part_of(values, next, first), bits_of(call->keys.code),
                   bits_of(call->values.code), first, call->keys.token_group, p, length});
  }

  // Asks for the scales that are read after these, and says where their codes lie.
  static coded::Part part_of(const Record& record, Next next, int64_t first) {
    const Side& side = record.side;
    const uint8_t* later = Record::at(side, next.block, next.head);
    fetch(later + side.scales_at, side.factor_at + 4 - side.scales_at);
    const int64_t row = first / side.token_group;
    return {record.token(first), later + first * side.token_bytes, record.scales(row), record.minima(row),
            record.factor,       side.token_bytes,                 side.num_columns};
  }

  template <typename Take>
  void open_numbers(float* scratch, int64_t stride_k, int64_t stride_v, const Record& keys,
                    const Record& values, int64_t p, int64_t length, Take take) const {
    const AttentionCall& exact = call->attention;
    const int64_t first = p % exact.block_size;
    float* numbers = scratch + (MOST_KEYS + 2) * stride_k;
    keys.read(scratch, stride_k, exact.dim_k, first, length);
    values.read(numbers, stride_v, exact.dim_v, first, length);
    const Tile<float> tile = {scratch, numbers, nullptr, stride_k, stride_v, p, length};
    take(tile);
  }
};

}  // namespace
