// Attention over quantised and exact blocks on a processor: paged attention, whose older tiles are multiplied
// in the form that their codes allow, keys and values each in their own.
//
//   WHOLE    integers of 8 bits, as whole numbers: whole.h
//   TOKENS   codes that become numbers by a few bit operations, as they are read; scales of tokens are for
//            scores and weights
//   CODED    integers of 4 and 2 bits, as they lie, where there are instructions for it: coded.h
//   NUMBERS  turned back into numbers, one tile of one head at a time, in memory that stays in the cache
//
// Which form a query reads follows from its position, and the tiles do too: a query's result has the same
// bits whatever stands beside it, however its prompt was cut, and however many threads compute it. Records
// are laid out as `quantized_record.py` says.

#pragma once

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/paged_attention/attention.h"
#include "kvchat/engine/kernels/quantized_attention/coded.h"
#include "kvchat/engine/kernels/quantized_attention/whole.h"

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
struct QuantizedCall {
  AttentionCall attention;
  const int64_t* const* blocks;  // of each span, the first of them is logical block 0
  Side keys, values;
};

enum Form { WHOLE, TOKENS, CODED, NUMBERS };

// W codes of 4 or 2 bits as numbers, from W * bits / 8 bytes.
template <int CODE>
INLINE Vec numbers(const uint8_t* p) {
#if defined(__AVX512F__)
  __m128i codes;
  if constexpr (CODE == INT4) {
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
    codes = _mm_and_si128(_mm_or_si128(x, _mm_slli_epi16(x, 4)), _mm_set1_epi8(0x0F));
  } else {
    const __m128i x = _mm_cvtepu8_epi32(_mm_loadu_si32(p));
    const __m128i low = _mm_or_si128(x, _mm_slli_epi32(x, 6));
    const __m128i high = _mm_or_si128(_mm_slli_epi32(x, 12), _mm_slli_epi32(x, 18));
    codes = _mm_and_si128(_mm_or_si128(low, high), _mm_set1_epi8(3));
  }
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
#else
  float lanes[W];
  for (int i = 0; i < W; i++)
    lanes[i] = CODE == INT4 ? p[i / 2] >> 4 * (i % 2) & 15 : p[i / 4] >> 2 * (i % 4) & 3;
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

  const fp16* scales(int64_t row) const {
    return (const fp16*)(bytes + side.scales_at) + row * side.num_columns;
  }
  const fp16* minima(int64_t row) const {
    return (const fp16*)(bytes + side.minima_at) + row * side.num_columns;
  }

  // The scales of tokens [first, first + count), with room for a vector behind the last.
  void read_scales(float* to, int64_t first, int64_t count) const {
    const Vec by = fill(side.code == FP8 ? factor * 256.0f : factor);  // see `e4m3`
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, mul(load(scales(first + i)), by));
    if (i < count) store(to + i, mul(load_part(scales(first + i), (int)(count - i)), by));
  }

  // Codes from token `first` on. Asks for the scales that are read after these.
  coded::Part part(int64_t first, const uint8_t* later) const {
    fetch(later + side.scales_at, side.factor_at + 4 - side.scales_at);
    const int64_t row = first / side.token_group, start = first * side.token_bytes;
    return {bytes + start, later + start,    scales(row),     minima(row),
            factor,        side.token_bytes, side.num_columns};
  }

  // Tokens [first, first + count) as numbers, `stride` apart, with room for two more of them behind the last.
  void read(float* to, int64_t stride, int64_t dim, int64_t first, int64_t count, const uint8_t* later) const {
    fetch(later + first * side.token_bytes, count * side.token_bytes);
    if (side.code == INT4)
      read_groups<INT4>(to, stride, dim, first, count);
    else
      read_groups<INT2>(to, stride, dim, first, count);
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

// Keys or values of a tile in their form.
struct Half {
  Form form;
  int64_t code;
  coded::Part part;
  const void* made;  // what was made of the codes: WHOLE, turned ones; NUMBERS, [length, stride]
  int64_t stride;
};

// See `Tile` for what has the same name there.
template <bool FINE>
struct QuantizedTile {
  Half keys, values;
  int64_t first, token_group;  // its first token in the block, and how many tokens share a scale of a channel
  int64_t p, length;
  const float* key_scales;
  const float* value_scales;
  whole::WholeRows<FINE> queries;

  whole::Turned turned(const Half& half) const {
    return {(const uint8_t*)half.made, half.part.next, length * half.part.token_bytes, length};
  }
};

template <int ROWS, bool FINE>
INLINE void dot_keys(float (*scores)[MOST_KEYS + W], const QuantizedTile<FINE>& tile, const float* query,
                     int64_t stride, int64_t row, const AttentionCall& call, int64_t begin, int64_t end) {
  const Half& keys = tile.keys;
  const coded::Part& part = keys.part;
  const int64_t dim = call.dim_k, bytes = part.token_bytes;
  if (keys.form == WHOLE) {
    whole::dot_keys<ROWS, FINE>(scores, tile.turned(keys), tile.queries, row, dim);
  } else if (keys.form == CODED) {
    const auto dot = keys.code == INT4 ? coded::dot_keys<ROWS, 4> : coded::dot_keys<ROWS, 2>;
    dot(scores, query, stride, part, dim, tile.first, tile.token_group, tile.length);
  } else if (keys.form == NUMBERS) {
    dot_keys<ROWS>(scores, query, stride, (const float*)keys.made, keys.stride, dim, begin, end, part.next, 0,
                   0);
  } else if (keys.code == FP8) {
    dot_keys<ROWS>(scores, query, stride, (const e4m3*)part.codes, bytes, dim, begin, end, part.next, bytes,
                   bytes);
  } else {
    dot_keys<ROWS>(scores, query, stride, (const int8_t*)part.codes, bytes, dim, begin, end, part.next, bytes,
                   bytes);
  }
}

template <int ROWS, bool FINE>
INLINE void add_values(float* acc, int64_t stride, const float* decay, float (*weights)[MOST_KEYS + W],
                       const QuantizedTile<FINE>& tile, const AttentionCall& call, int64_t begin, int64_t end) {
  const Half& values = tile.values;
  const coded::Part& part = values.part;
  const int64_t dim = call.dim_v, bytes = part.token_bytes;
  if (values.form == WHOLE) {
    whole::add_values<ROWS, FINE>(acc, stride, decay, weights, tile.turned(values), dim);
  } else if (values.form == CODED) {
    const auto add = values.code == INT4 ? coded::add_values<ROWS, 4> : coded::add_values<ROWS, 2>;
    add(acc, stride, decay, weights, part, dim, tile.length);
  } else if (values.form == NUMBERS) {
    add_values<ROWS>(acc, stride, decay, weights, (const float*)values.made, values.stride, dim, begin, end,
                     (const float*)nullptr, 0, 0);
  } else {
    add_values<ROWS>(acc, stride, decay, weights, (const e4m3*)part.codes, bytes, dim, begin, end,
                     (const e4m3*)part.next, bytes, bytes);
  }
}

// Older tiles, `FINE` as float32 or as 16-bit types.
template <bool FINE>
struct Quantised {
  const QuantizedCall* call;
  Form key_form, value_form;

  Quantised(const QuantizedCall* call)
      : call(call), key_form(form_of_keys(*call)), value_form(form_of_values(*call)) {}

  static Form form_of_keys(const QuantizedCall& call) {
    const int64_t dim = call.attention.dim_k;
    if (bits_of(call.keys.code) == 8)
      return call.keys.code == INT8 && dim <= whole::MOST_DIM ? WHOLE : TOKENS;
    const bool is_coded =
        coded::IS_THERE && call.keys.channel_group == 1 && dim % W == 0 && dim <= coded::MOST_DIM;
    return is_coded ? CODED : NUMBERS;
  }

  static Form form_of_values(const QuantizedCall& call) {
    const Side& side = call.values;
    const int64_t dim = call.attention.dim_v, columns = side.num_columns;
    if (bits_of(side.code) == 8) return side.code == INT8 ? WHOLE : TOKENS;
    const bool is_coded = coded::IS_THERE && side.channel_group == coded::CHANNELS && side.token_group == 1 &&
                          dim % coded::CHANNELS == 0 && columns <= coded::MOST_COLUMNS &&
                          (columns & (columns - 1)) == 0;
    return is_coded ? CODED : NUMBERS;
  }

  // Behind a full successor.
  int64_t first_reader(int64_t p) const {
    return (p / call->attention.block_size + 2) * call->attention.block_size;
  }

  // What is made of keys, then of values, then queries as whole numbers.
  int64_t scratch(int64_t rows, int64_t stride_k, int64_t stride_v) const {
    const int64_t row_bytes = key_form == WHOLE ? queries(nullptr).bytes_of(num_blocks()) : 0;
    return key_room(stride_k) + value_room(stride_v) + State::padded(row_bytes * rows / 4);
  }

  int64_t key_room(int64_t stride_k) const {
    return room(key_form, stride_k, whole::key_bytes(call->attention.dim_k));
  }
  int64_t value_room(int64_t stride_v) const {
    return room(value_form, stride_v, whole::value_bytes(call->attention.dim_v));
  }
  static int64_t room(Form form, int64_t stride, int64_t turned_bytes) {
    return State::padded(form == WHOLE ? turned_bytes / 4 : form == NUMBERS ? (MOST_KEYS + 2) * stride : 0);
  }

  int64_t num_blocks() const {
    return whole::padded(call->attention.dim_k, whole::BLOCK) / whole::BLOCK;
  }
  whole::WholeRows<FINE> queries(float* memory) const { return {(uint8_t*)memory, num_blocks()}; }

  void begin(float* scratch, const float* query, int64_t rows, int64_t stride_k, int64_t stride_v) const {
    if (key_form != WHOLE) return;
    const auto x = queries(scratch + key_room(stride_k) + value_room(stride_v));
    for (int64_t row = 0; row < rows; row++) x.read(row, query + row * stride_k, stride_k);
  }

  template <typename Take>
  void open(float* scratch, int64_t stride_k, int64_t stride_v, int64_t span, int64_t head, int64_t p,
            int64_t length, Take take) const {
    const AttentionCall& exact = call->attention;
    const int64_t block = call->blocks[span][p / exact.block_size], first = p % exact.block_size;
    const Next next = next_of(span, head, p);
    const uint8_t* later_keys = Record::at(call->keys, next.block, next.head);
    const uint8_t* later_values = Record::at(call->values, next.block, next.head);
    const Record keys(call->keys, block, head), values(call->values, block, head);
    const coded::Part key_part = keys.part(first, later_keys), value_part = values.part(first, later_values);
    float* key_memory = scratch;
    float* value_memory = scratch + key_room(stride_k);
    alignas(64) float scales[2][MOST_KEYS + W];
    if (key_form == WHOLE)
      whole::turn_keys(key_part.codes, key_part.next, key_part.token_bytes, exact.dim_k, length,
                       (uint8_t*)key_memory);
    else if (key_form == NUMBERS)
      keys.read(key_memory, stride_k, exact.dim_k, first, length, later_keys);
    if (value_form == WHOLE)
      whole::turn_values(value_part.codes, value_part.next, value_part.token_bytes, exact.dim_v, length,
                         (uint8_t*)value_memory);
    else if (value_form == NUMBERS)
      values.read(value_memory, stride_v, exact.dim_v, first, length, later_values);
    const bool scale_keys = bits_of(call->keys.code) == 8, scale_values = bits_of(call->values.code) == 8;
    if (scale_keys) keys.read_scales(scales[0], first, length);
    if (scale_values) values.read_scales(scales[1], first, length);
    take(QuantizedTile<FINE>{{key_form, call->keys.code, key_part, key_memory, stride_k},
                          {value_form, call->values.code, value_part, value_memory, stride_v},
                          first,
                          call->keys.token_group,
                          p,
                          length,
                          scale_keys ? scales[0] : nullptr,
                          scale_values ? scales[1] : nullptr,
                          queries(value_memory + value_room(stride_v))});
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
};

}  // namespace
