// Products of rows with a weight of 16 bits, which is read once for many of them and widened in registers.
//
// A row and an output are summed over the inputs in one fixed order: how many rows share a weight, and how many
// threads compute them, changes no bit of any. Dimensions: T rows, K inputs, N outputs.

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/decoder_layers/product.h"
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

constexpr int64_t ROWS_AT_ONCE = 8;    // whose outputs of one unit are found at one time
constexpr int64_t ROWS_OF_TASK = 256;  // that find a unit of the weight in the cache, but for the first
constexpr int64_t MANY_ROWS = 32;      // for which a unit is widened once, not again for every eight of them

struct Rows {
  const Call& call;
  Product product;

  int64_t num_chunks() const { return (call.num_rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK; }
  int64_t num_tasks() const { return product.num_units() * num_chunks(); }

  void run(int64_t task) const {
    const int64_t unit = task / num_chunks(), first = task % num_chunks() * ROWS_OF_TASK;
    const int64_t num = least(ROWS_OF_TASK, call.num_rows - first);
    alignas(64) float found[ROWS_OF_TASK * UNIT];
    const float* x = call.x + first * call.x_stride;
    for (int64_t part = 0; part < product.num_parts(); part++) {
      if (num >= MANY_ROWS && is_paired() && product.padded <= PIECE_LEN * product.num_parts())
        add_widened(found, x, num, unit, part);
      else
        add(found, num, part, [&](float* out, int64_t t, int64_t rows) {
          multiply_dense(product, out, x + t * call.x_stride, call.x_stride, rows, unit, part);
        });
    }
    const int64_t begin = unit * product.unit(), count = least(product.unit(), call.num_outputs - begin);
    for (int64_t t = 0; t < num; t++) put(found + t * UNIT, (first + t) * call.num_outputs, begin, count);
  }

  bool is_paired() const { return product.layout == COLUMNS && product.block == PAIRED_BLOCK; }

  // Adds what `multiply` finds for a few rows at one time to what the parts before have given.
  template <typename Multiply>
  void add(float* found, int64_t num, int64_t part, Multiply multiply) const {
    float further[ROWS_AT_ONCE * UNIT];
    for (int64_t t = 0; t < num; t += ROWS_AT_ONCE) {
      const int64_t rows = least(ROWS_AT_ONCE, num - t);
      multiply(part ? further : found + t * UNIT, t, rows);
      for (int64_t r = 0; part && r < rows; r++)
        add_row(found + (t + r) * UNIT, further + r * UNIT, product.unit());
    }
  }

  // The same sums in the same order as those of pairs.
  void add_widened(float* found, const float* x, int64_t num, int64_t unit, int64_t part) const {
    alignas(64) float wide[PIECE_LEN * PAIRED_BLOCK];
    const int64_t begin = part * PIECE_LEN, count = least(PIECE_LEN, product.padded - begin);
    const bf16* weight = (const bf16*)product.weight + (unit * product.padded + begin) * PAIRED_BLOCK;
    for (int64_t k = 0; k < count; k += 2) {
      float* to = wide + k * PAIRED_BLOCK;
      UNROLL
      for (int i = 0; i < PAIRED_BLOCK; i += W) {
        Vec first, second;
        load_pairs(weight + k * PAIRED_BLOCK + 2 * i, &first, &second);
        store(to + i, first);
        store(to + PAIRED_BLOCK + i, second);
      }
    }
    add(found, num, part, [&](float* out, int64_t t, int64_t rows) {
      multiply_blocks(out, x + t * call.x_stride + begin, call.x_stride, rows, wide, count, true);
    });
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
