// What a call of paged attention is given, and one task of it.

#pragma once

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"

namespace {

// A row of native.py's table of spans.
struct Span {
  int64_t row, num_rows, position, first_block;
  const int64_t* blocks;  // the first of them is logical block `first_block`
};

// The fields of native.py's `AttentionCall`, in order.
struct AttentionCall {
  const void* query;
  const void* k_pool;
  const void* v_pool;
  void* out;
  const float* sinks;  // [H], or null
  const Span* spans;
  Parallel parallel;  // null: compute alone
  int64_t num_spans, num_threads;
  int64_t query_type, pool_type;
  int64_t num_heads, num_kv_heads, dim_k, dim_v, block_size;
  int64_t query_t, query_h, k_n, k_h, k_p, v_n, v_h, v_p, out_t, out_h;  // strides
  int64_t window, chunk;                                                 // 0: none
  float scale, softcap;                                                  // softcap 0: none
};

struct Task {
  int32_t span, query, num_queries, head, num_heads;  // key-value heads
  int64_t part, num_parts;
  float* partial;     // where one part of several tasks goes, or null
  int32_t* num_left;  // tasks that the partials of these queries and heads still wait for
};

INLINE int64_t first_visible(const AttentionCall& call, int64_t position) {
  if (call.chunk) return position - position % call.chunk;
  return call.window ? most(0, position - call.window + 1) : 0;
}

}  // namespace
