// Paged attention as one call: see attention.h.

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/paged_attention/attention.h"

namespace {

template <typename T>
int compute(const AttentionCall& call) {
  Attention<T> attention(call);
  if (!attention.prepare(call.num_threads)) return 1;
  run_tasks(attention, attention.num_tasks, call.parallel, call.num_threads);
  attention.release();
  return attention.failed;
}

}  // namespace

// Returns 0, or 1 where there is not enough memory.
EXPORT(paged_attention)(const AttentionCall* call) {
  if (call->pool_type == 0) return compute<float>(*call);
  if (call->pool_type == 1) return compute<bf16>(*call);
  return compute<fp16>(*call);
}
