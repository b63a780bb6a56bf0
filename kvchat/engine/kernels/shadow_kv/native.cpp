// Attention to what is chosen as one call: see choice.h.

#include "kvchat/engine/kernels/shadow_kv/choice.h"

namespace {

template <typename T>
int compute(ChoiceCall& call) {
  Choice<T> choice(call);
  if (!choice.prepare()) return NO_MEMORY;
  Products<T> products = {choice};
  Heads<T> heads = {choice};
  if (call.num_chosen) run_tasks(products, products.num_tasks(), call.parallel, call.num_threads);
  if (!choice.is_odd) run_tasks(heads, call.num_kv_heads, call.parallel, call.num_threads);
  choice.release();
  return choice.is_odd ? NOT_FINITE : DONE;
}

}  // namespace

EXPORT(chosen_attention)(ChoiceCall* call) {
  if (call->pool_type == 0) return compute<float>(*call);
  if (call->pool_type == 1) return compute<bf16>(*call);
  return compute<fp16>(*call);
}
