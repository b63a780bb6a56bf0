// Products of a few rows with a plain weight, which is read once and widened in registers.
//
// A row and an output are summed over the inputs in one fixed order: how many rows share a weight, and how many
// threads compute them, changes no bit of any. Dimensions: T rows, K inputs, N outputs.

#include "kvchat/engine/kernels/decoder_layers/product.h"
#include "kvchat/engine/kernels/native/threads.h"

namespace {

// The fields of native.py's `_Call`, in order.
struct Call {
  const float* x;      // [T, K]
  const void* weight;  // [N, K] of `type`: 1 bf16, 2 fp16
  float* out;          // [T, N]
  Parallel parallel;   // null: compute alone
  int64_t num_threads, type, num_rows, num_inputs, num_outputs;
};

constexpr int64_t ROWS_AT_ONCE = 8;  // whose outputs of one unit are found at one time

struct FewRows {
  const Call& call;
  Product product;

  void run(int64_t unit) const {
    const int64_t begin = unit * product.unit(), count = least(product.unit(), call.num_outputs - begin);
    float found[ROWS_AT_ONCE * UNIT];
    for (int64_t t = 0; t < call.num_rows; t += ROWS_AT_ONCE) {
      const int64_t num = least(ROWS_AT_ONCE, call.num_rows - t);
      multiply_dense(product, found, call.x + t * call.num_inputs, call.num_inputs, num, unit, 0);
      for (int64_t r = 0; r < num; r++)
        memcpy(call.out + (t + r) * call.num_outputs + begin, found + r * UNIT, count * sizeof(float));
    }
  }
};

}  // namespace

EXPORT(few_rows)(const Call* call) {
  Product product = {};
  product.weight = call->weight;
  product.layout = ROWS;
  product.type = call->type;
  product.num_inputs = call->num_inputs;
  product.num_outputs = call->num_outputs;
  FewRows rows = {*call, product};
  run_tasks(rows, product.num_units(), call->parallel, call->num_threads);
  return 0;
}
