// Products of rows with a weight of 16 bits, which is read once for many of them and widened in registers.
//
// A row and an output are summed over the inputs in one fixed order: how many rows share a weight, and how many
// threads compute them, changes no bit of any. Dimensions: T rows, K inputs, N outputs.

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/decoder_layers/product.h"
#include "kvchat/engine/kernels/linear/many_rows.h"
#include "kvchat/engine/kernels/native/threads.h"

namespace {

// The fields of native.py's `_Call`, in order. Types: 0 float, 1 bf16, 2 fp16.
struct Call {
  const float* x;      // [T, x_stride], with a number behind K where K is odd: it is multiplied by zero
  const void* weight;  // ROWS: [N, K], or COLUMNS, as in product.h
  const void* bias;    // [N], or null
  void* out;           // [T, N]
  Parallel parallel;   // null: compute alone
  int64_t num_threads, layout, type, bias_type, out_type, block, padded;
  int64_t num_rows, num_inputs, x_stride, num_outputs;
};

struct Rows {
  const Call& call;
  Product product;

  int64_t num_tasks() const { return product.num_units() * num_chunks(call.num_rows); }

  void run(int64_t task) const {
    const int64_t chunks = num_chunks(call.num_rows), unit = task / chunks;
    const int64_t first = task % chunks * chunk_len(call.num_rows);
    const int64_t num = least(chunk_len(call.num_rows), call.num_rows - first);
    alignas(64) float found[ROWS_OF_TASK * UNIT], further[ROWS_OF_TASK * UNIT];
    multiply_unit(product, found, further, call.x + first * call.x_stride, call.x_stride, num, unit);
    const int64_t begin = unit * product.unit(), count = least(product.unit(), call.num_outputs - begin);
    for (int64_t t = 0; t < num; t++) put(found + t * UNIT, (first + t) * call.num_outputs, begin, count);
  }

  void put(float* found, int64_t row, int64_t begin, int64_t count) const {
    for (int64_t n = 0; call.bias && n < count; n++)
      found[n] += number_at(call.bias, call.bias_type, begin + n);
    const int64_t at = row + begin;
    if (call.out_type == 0)
      memcpy((float*)call.out + at, found, count * sizeof(float));
    else if (call.out_type == 1)
      write_numbers((bf16*)call.out + at, found, count);
    else
      write_numbers((fp16*)call.out + at, found, count);
  }
};

// Puts pairs of inputs of one output side by side, PAIRED_BLOCK outputs one after the other.
struct Pairing {
  const uint16_t* from;  // [N, K]
  uint16_t* to;          // [N / PAIRED_BLOCK, padded / 2, PAIRED_BLOCK, 2]
  Parallel parallel;
  int64_t num_threads, num_inputs, num_outputs, padded;

  void run(int64_t block) const {
    const int64_t first = block * PAIRED_BLOCK, count = least(PAIRED_BLOCK, num_outputs - first);
    uint32_t* pairs = (uint32_t*)to + first * (padded / 2);
    memset(pairs, 0, padded / 2 * PAIRED_BLOCK * sizeof(uint32_t));
    // As many inputs as a line of the cache has.
    for (int64_t k = 0; k < num_inputs; k += 32)
      for (int64_t n = 0; n < count; n++) {
        const uint16_t* row = from + (first + n) * num_inputs + k;
        const int64_t num = least(32, num_inputs - k);
        for (int64_t i = 0; i + 2 <= num; i += 2)
          memcpy(pairs + (k + i) / 2 * PAIRED_BLOCK + n, row + i, sizeof(uint32_t));
        if (num % 2) memcpy(pairs + (k + num) / 2 * PAIRED_BLOCK + n, row + num - 1, sizeof(uint16_t));
      }
  }
};

}  // namespace

EXPORT(multiply_rows)(const Call* call) {
  Product product = {};
  product.weight = call->weight;
  product.layout = call->layout;
  product.type = call->type;
  product.num_inputs = call->num_inputs;
  product.num_outputs = call->num_outputs;
  product.block = call->block;
  product.padded = call->padded;
  Rows rows = {*call, product};
  run_tasks(rows, rows.num_tasks(), call->parallel, call->num_threads);
  return 0;
}

EXPORT(pair_inputs)(const Pairing* pairing) {
  run_tasks(*pairing, (pairing->num_outputs + PAIRED_BLOCK - 1) / PAIRED_BLOCK, pairing->parallel,
            pairing->num_threads);
  return 0;
}
