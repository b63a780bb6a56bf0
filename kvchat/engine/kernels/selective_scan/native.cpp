// The selective scan of many sequences in one call; tile.h computes it.

#include "kvchat/engine/kernels/selective_scan/tile.h"

namespace {

struct Job {
  const scan::Call& call;

  void run(int64_t task) const { scan::Tile(call, task).run(); }
};

}  // namespace

EXPORT(selective_scan)(const scan::Call* call) {
  Job job = {*call};
  const int64_t tasks = call->num_sequences * call->num_groups * call->tiles_of_group();
  run_tasks(job, tasks, call->parallel, call->num_threads);
  return 0;
}
