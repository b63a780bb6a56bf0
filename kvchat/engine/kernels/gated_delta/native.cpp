// The gated delta rule for calls of the model's own modules: see tile.h.

#include "kvchat/engine/kernels/gated_delta/tile.h"

namespace {

struct Job {
  const delta::Call& call;

  void run(int64_t task) const {
    if (call.type == 0)
      delta::Tile<float>(call, task).run();
    else if (call.type == 1)
      delta::Tile<bf16>(call, task).run();
    else
      delta::Tile<fp16>(call, task).run();
  }
};

}  // namespace

EXPORT(gated_delta)(const delta::Call* call) {
  Job job = {*call};
  const int64_t num_tasks = call->num_sequences * call->num_heads * delta::num_tiles(call->value_dim);
  run_tasks(job, num_tasks, call->parallel, call->num_threads);
  return 0;
}
