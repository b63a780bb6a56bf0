// How rows, a query and a head each, are read and written, whatever call they belong to.
//
// A call has queries and results, `query` and `out`, of `query_type` (0 float32, 1 bfloat16, 2 float16) with
// strides for tokens and heads, `dim_k` and `dim_v` numbers of each, and a `scale`.

#pragma once

#include "kvchat/engine/kernels/native/vector.h"

namespace {

// Tokens and key-value heads, and the query heads of each of these.
struct RowRange {
  int64_t token, num_tokens, head, num_heads, group;
};

// Calls `take(token, query head)` for every row: key-value head, then token, then query head of the group.
template <typename Take>
INLINE void each_row(const RowRange& rows, Take take) {
  for (int64_t h = rows.head; h < rows.head + rows.num_heads; h++)
    for (int64_t t = rows.token; t < rows.token + rows.num_tokens; t++)
      for (int64_t g = 0; g < rows.group; g++) take(t, h * rows.group + g);
}

template <typename Q>
INLINE void read_query(const Q* from, int64_t dim, float scale, float* to) {
  int64_t d = 0;
  for (; d + W <= dim; d += W) store(to + d, mul(load(from + d), fill(scale)));
  if (d < dim) store(to + d, mul(load_part(from + d, (int)(dim - d)), fill(scale)));
}

// Scaled queries as float32, `stride` apart, zero behind their numbers up to a whole vector.
template <typename Call>
INLINE void read_queries(const Call& call, const RowRange& rows, int64_t stride, float* to) {
  each_row(rows, [&](int64_t token, int64_t head) {
    const int64_t at = token * call.query_t + head * call.query_h;
    if (call.query_type == 0)
      read_query((const float*)call.query + at, call.dim_k, call.scale, to);
    else if (call.query_type == 1)
      read_query((const bf16*)call.query + at, call.dim_k, call.scale, to);
    else
      read_query((const fp16*)call.query + at, call.dim_k, call.scale, to);
    to += stride;
  });
}

template <typename Q>
INLINE void write_quotients(Q* to, const float* acc, int64_t dim, float factor, float total) {
  int64_t d = 0;
  for (; d + W <= dim; d += W) store(to + d, div(mul(load(acc + d), fill(factor)), fill(total)));
  for (; d < dim; d++) round_to(to + d, acc[d] * factor / total);
}

// The result of one row: its sum of values, multiplied by a factor, over its sum of weights.
template <typename Call>
INLINE void write_row(const Call& call, int64_t token, int64_t head, const float* acc, float factor,
                      float total) {
  const int64_t at = token * call.out_t + head * call.out_h;
  if (call.query_type == 0)
    write_quotients((float*)call.out + at, acc, call.dim_v, factor, total);
  else if (call.query_type == 1)
    write_quotients((bf16*)call.out + at, acc, call.dim_v, factor, total);
  else
    write_quotients((fp16*)call.out + at, acc, call.dim_v, factor, total);
}

}  // namespace
