// Attention over quantised and exact blocks on a processor, as `quantized_tile.h` says.

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/quantized_attention/quantized_tile.h"

namespace {

template <typename T>
int compute(const QuantizedCall& call) {
  Attention<T, Quantised<sizeof(T) == 4>> attention(call.attention, {&call});
  if (!attention.prepare(call.attention.num_threads)) return 1;
  run_tasks(attention, attention.num_tasks, call.attention.parallel, call.attention.num_threads);
  attention.release();
  return attention.failed;
}

}  // namespace

// Returns 0, or 1 where there is not enough memory.
EXPORT(quantized_attention)(const QuantizedCall* call) {
  if (call->attention.pool_type == 0) return compute<float>(*call);
  if (call->attention.pool_type == 1) return compute<bf16>(*call);
  return compute<fp16>(*call);
}
