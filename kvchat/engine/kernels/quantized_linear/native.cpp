// A linear layer over quantised weights, for the few rows of a decoding step, and for many where the processor
// multiplies whole numbers faster than others.
//
// Every row and output is summed by itself, over inputs in order: how many rows share a step, and how many
// threads compute it, changes no bit of any.
//
// Dimensions: T rows, K inputs, N outputs, G inputs of one group.

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"
#include "kvchat/engine/kernels/quantized_linear/expand.h"
#include "kvchat/engine/kernels/quantized_linear/panels.h"

namespace {

using namespace quantised;

constexpr int64_t PIECE = 32;  // outputs that are found at one time
constexpr int64_t ROWS = 16;   // whose outputs are found at one time
constexpr int64_t TASKS = 8;   // of every thread

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

Weight weight_of(const Call& call) {
  return {call.codes, call.scales, call.minima, call.bits, call.group, call.num_inputs, call.num_outputs};
}

template <typename X>
struct Linear {
  const Call& call;
  Weight weight;
  Activations x;
  Panels panels;    // the same, where they are used
  int64_t outputs;  // of one task

  explicit Linear(const Call& call)
      : call(call),
        weight(weight_of(call)),
        x{nullptr, call.num_inputs, sizeof(X) == 4},
        panels{nullptr, call.num_inputs, call.num_rows} {
    // Long runs of memory are read fastest; short tasks keep threads together.
    const int64_t wanted = call.num_outputs / (call.num_threads * TASKS);
    outputs = most(PIECE, wanted / TILE * TILE);
  }

  int compute() {
    const bool in_panels = !x.is_fine && Panels::take(weight, call.num_rows);
    const int64_t num_bytes = in_panels ? panels.num_bytes() : call.num_rows * x.row_bytes();
    uint8_t* memory = (uint8_t*)allocate(num_bytes / (int64_t)sizeof(float));
    if (!memory) return 1;
    (in_panels ? panels.memory : x.memory) = memory;
    if (in_panels) {
      const Preparation preparation = {*this};
      run_tasks(preparation, panels.num_panels(), call.parallel, call.num_threads);
    } else {
      for (int64_t t = 0; t < call.num_rows; t++) x.prepare(t, (const X*)call.x + t * call.x_t);
    }
    run_tasks(*this, (call.num_outputs + outputs - 1) / outputs, call.parallel, call.num_threads);
    free(memory);
    return 0;
  }

  struct Preparation {
    const Linear& linear;

    void run(int64_t panel) const {
      const Call& call = linear.call;
      const int64_t start = panel * linear.panels.rows(), stop = start + linear.panels.rows();
      for (int64_t t = start; t < least(stop, call.num_rows); t++)
        linear.panels.prepare(t, (const X*)call.x + t * call.x_t);
    }
  };

  void run(int64_t task) const {
    const int64_t stop = least((task + 1) * outputs, call.num_outputs);
    for (int64_t n = task * outputs; n < stop; n += PIECE) {
      if (panels.memory)
        compute_panels(n, least(n + PIECE, stop));
      else
        compute_piece(n, least(n + PIECE, stop));
    }
  }

  void compute_panels(int64_t begin, int64_t end) const {
    float found[MOST_IN_PANEL * PIECE];
    for (int64_t number = 0; number < panels.num_panels(); number++) {
      multiply_panel(weight, panels, number, begin, end, found, PIECE);
      const int64_t start = number * panels.rows(), stop = least(start + panels.rows(), call.num_rows);
      for (int64_t t = start; t < stop; t++) write(found + (t - start) * PIECE, t, begin, end);
    }
  }

  void compute_piece(int64_t begin, int64_t end) const {
    float found[ROWS * PIECE];
    for (int64_t t = 0; t < call.num_rows; t += ROWS) {
      const int64_t stop = least(t + ROWS, call.num_rows);
      multiply_rows(weight, x, t, stop, begin, end, found, PIECE);
      for (int64_t r = t; r < stop; r++) write(found + (r - t) * PIECE, r, begin, end);
    }
  }

  void write(const float* found, int64_t t, int64_t begin, int64_t end) const {
    X* out = (X*)call.out + t * call.num_outputs;
    const X* bias = (const X*)call.bias;
    int64_t n = begin;
    for (; n + W <= end; n += W) {
      const Vec y = load(found + n - begin);
      store(out + n, bias ? add(y, load(bias + n)) : y);
    }
    for (; n < end; n++) round_to(out + n, found[n - begin] + (bias ? to_float(bias[n]) : 0.0f));
  }
};

template <typename X>
struct Expand {
  const Call& call;
  Expansion<X> expansion;

  void run(int64_t task) const {
    expansion.expand(task * PIECE, least((task + 1) * PIECE, call.num_outputs));
  }
};

template <typename X>
int expand(const Call& call) {
  const Weight weight = weight_of(call);
  const Expand<X> expand = {call, {weight, (X*)call.out}};
  run_tasks(expand, (call.num_outputs + PIECE - 1) / PIECE, call.parallel, call.num_threads);
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
