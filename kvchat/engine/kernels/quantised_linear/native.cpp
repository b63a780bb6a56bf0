// A linear layer over quantised weights, for the few rows of a decoding step.
//
// Each weight is read once, and every row and output is summed by itself, over inputs in order: how many rows
// share a step, and how many threads compute it, changes no bit of any.
//
// Dimensions: T rows, K inputs, N outputs, G inputs of one group.

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/quantised_linear/rows.h"

namespace {

constexpr int64_t OUTPUTS = 32;  // of one task
constexpr int64_t ROWS = 16;     // whose outputs are found at one time

// The fields of native.py's `_Call`, in order.
struct Call {
  const void* x;         // [T, K]
  const uint8_t* codes;  // [N, K] bytes, or [N, K / 2]
  const fp16* scales;    // [N, K / G]
  const fp16* minima;    // [N, K / G], or null
  const void* bias;      // [N] of the type of `x`, or null
  void* out;             // [T, N] of the type of `x`
  Parallel parallel;     // null: compute alone
  int64_t num_threads, type, bits, group;
  int64_t num_rows, num_inputs, num_outputs, x_t;
};

template <typename X>
struct Linear {
  const Call& call;
  QuantisedRows weight;
  Activations x;

  explicit Linear(const Call& call)
      : call(call),
        weight{call.codes, call.scales, call.minima, call.bits, call.group, call.num_inputs, call.num_outputs},
        x{nullptr, call.num_inputs, sizeof(X) == 4} {}

  int compute() {
    const int64_t num_bytes = call.num_rows * Activations::row_bytes(call.num_inputs, x.is_fine);
    x.memory = (uint8_t*)allocate(num_bytes / (int64_t)sizeof(float));
    if (!x.memory) return 1;
    for (int64_t t = 0; t < call.num_rows; t++) x.prepare(t, (const X*)call.x + t * call.x_t);
    run_tasks(*this, (call.num_outputs + OUTPUTS - 1) / OUTPUTS, call.parallel, call.num_threads);
    free(x.memory);
    return 0;
  }

  void run(int64_t task) const {
    const int64_t begin = task * OUTPUTS, end = least(begin + OUTPUTS, call.num_outputs);
    float found[ROWS * OUTPUTS];
    for (int64_t t = 0; t < call.num_rows; t += ROWS) {
      const int64_t stop = least(t + ROWS, call.num_rows);
      multiply_rows(weight, x, t, stop, begin, end, found, OUTPUTS);
      for (int64_t r = t; r < stop; r++) write(found + (r - t) * OUTPUTS, r, begin, end);
    }
  }

  void write(const float* found, int64_t t, int64_t begin, int64_t end) const {
    for (int64_t n = begin; n < end; n++) {
      const float y = found[n - begin];
      round_to((X*)call.out + t * call.num_outputs + n,
               call.bias ? y + to_float(((const X*)call.bias)[n]) : y);
    }
  }
};

// The weight itself [N, K] in the type of `out`: what longer prompts are multiplied with.
template <typename X>
struct Expansion {
  const Call& call;
  Halves halves;

  explicit Expansion(const Call& call) : call(call), halves(call.minima ? 0.0f : 8.0f) {}

  void run(int64_t task) {
    const int64_t end = least((task + 1) * OUTPUTS, call.num_outputs);
    for (int64_t n = task * OUTPUTS; n < end; n++) write_row(n);
  }

  void write_row(int64_t n) const {
    const int64_t num_groups = call.num_inputs / call.group, half = call.group / 2;
    const uint8_t* codes = call.codes + n * call.num_inputs * call.bits / 8;
    for (int64_t g = 0; g < num_groups; g++) {
      const Vec scale = fill(to_float(call.scales[n * num_groups + g]));
      const Vec minimum = call.minima ? fill(to_float(call.minima[n * num_groups + g])) : zero();
      X* to = (X*)call.out + n * call.num_inputs + g * call.group;
      if (call.bits == 8) {
        for (int64_t k = 0; k < call.group; k += W)
          write(to + k, add(mul(load_codes((const int8_t*)codes + g * call.group + k), scale), minimum));
      } else {
        for (int64_t j = 0; j < half; j += W) {
          Vec low, high;
          load_halves(halves, codes + g * half + j, &low, &high);
          write(to + j, add(mul(low, scale), minimum));
          write(to + half + j, add(mul(high, scale), minimum));
        }
      }
    }
  }

  static void write(X* to, Vec numbers) {
    float lanes[W];
    store(lanes, numbers);
    for (int i = 0; i < W; i++) round_to(to + i, lanes[i]);
  }
};

template <typename X>
int expand(const Call& call) {
  Expansion<X> expansion(call);
  run_tasks(expansion, (call.num_outputs + OUTPUTS - 1) / OUTPUTS, call.parallel, call.num_threads);
  return 0;
}

}  // namespace

// Returns 0, or 1 where there is not enough memory.
EXPORT(quantised_linear)(const Call* call) {
  if (call->type == 0) return Linear<float>(*call).compute();
  if (call->type == 1) return Linear<bf16>(*call).compute();
  return Linear<fp16>(*call).compute();
}

EXPORT(expand_quantised)(const Call* call) {
  if (call->type == 0) return expand<float>(*call);
  if (call->type == 1) return expand<bf16>(*call);
  return expand<fp16>(*call);
}
