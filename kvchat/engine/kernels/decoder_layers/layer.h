// What native.py hands over: layers, and the rows of one step.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/decoder_layers/mixers.h"
#include "kvchat/engine/kernels/decoder_layers/product.h"
#include "kvchat/engine/kernels/linear/rounded_rows.h"
#include "kvchat/engine/kernels/paged_attention/attention.h"
#include "kvchat/engine/kernels/quantized_attention/quantized_tile.h"

namespace {

constexpr int64_t MOST_INPUTS = 4;

// The fields of native.py's `_Experts`, in order. No `router`: the layer has none.
struct Experts {
  Product router;
  Product shared_gate;    // of what the layer's MLP gives; no weight: nothing multiplies it
  Product gate_up, down;  // of the first expert; the others lie behind it
  int64_t num_experts, num_chosen, is_normalized;

  int64_t num_inner() const { return down.num_inputs; }
};

// The fields of native.py's `_Layer`, in order.
struct Layer {
  Norm before_attention, after_attention, before_mlp, after_mlp, query_norm, key_norm;
  // What attention, or another mixer, is given: queries, keys and values; queries, keys and values in one, gates,
  // betas and steps; inputs and gates in one; or gates, values, keys, queries and steps in one.
  Product inputs[MOST_INPUTS];
  // No ups: they are what `gate` gives behind gates, or there are none. No `down`: the layer has no MLP.
  Product output, gate, up, down;
  Experts experts;
  Mixer mixer;
  int64_t num_inputs;  // products; 0: nothing is mixed
  int64_t is_gated;    // whether each query head has a gate of its attention behind it
  const int64_t* places;  // where a mixer finds each number of its inputs, or null: as they come
  const float* sinks;  // [H], or null
  void* k_pool;
  void* v_pool;
  int64_t k_n, k_h, k_p, v_n, v_h, v_p;  // strides
  int64_t num_heads, num_kv_heads, dim_k, dim_v, block_size;
  int64_t window, chunk, rope, group, activation;  // 0: no window, no chunk; -1: no rope
  double scale, softcap;
  double residual;  // factor of what is added
  int64_t old;  // number of the group of its quantised blocks; -1: it has none
  Side old_keys, old_values;
};

// The fields of native.py's `_Rope`, in order: a row of cosines and one of sines [.., dim] per position.
struct Rope {
  const float* cosines;
  const float* sines;
  int64_t dim;
};

// The fields of native.py's `_Group`, in order: where the rows of a step lie in one group's pools.
struct Group {
  const int64_t* slots;  // [T]
  const Span* spans;
  int64_t num_spans;
};

// The fields of native.py's `_Step`, in order.
struct Step {
  const Layer* layers;
  const Rope* ropes;
  const Group* groups;
  const States* states;
  const int64_t* const* const* old;  // of each group of quantised blocks: of each span, as in `QuantizedCall`
  const Norm* last_norm;
  const Product* head;       // null: no logits
  float* hidden;             // [T, hidden]: what the first layer gets, and afterwards what the last one gives
  const int64_t* positions;  // [T]
  const int64_t* sampling;   // rows whose logits are wanted
  float* logits;             // [num_sampling, N]
  Parallel parallel;         // null: compute alone
  int64_t num_threads, num_layers, num_rows, num_hidden, num_sampling, pool_type;
  int64_t is_rounded;  // whether inputs of products are rounded, but for those that weights of two kinds share: the
                       // processor multiplies bfloat16
};

// Rows for all layers. Products read whole vectors, and pairs: behind what a layer wrote lie zeros or a wider
// layer's numbers, and weights are zero there.
struct Buffer {
  float* rows = nullptr;
  uint8_t* codes = nullptr;  // the same as products read them, if any read another form
  int64_t stride = 0;

  bool make(int64_t num_rows, int64_t width, bool has_codes, bool is_fine) {
    stride = (width + 31) / 32 * 32;
    rows = allocate(num_rows * stride);
    if (rows) memset(rows, 0, num_rows * stride * sizeof(float));
    if (!has_codes) return rows;
    const quantised::Activations as_codes = {nullptr, stride, is_fine};
    const quantised::Panels in_panels = {nullptr, stride, num_rows};
    const int64_t row_bytes = stride * (int64_t)sizeof(bf16), whole = whole_rounded_rows(num_rows);
    const quantised::BytePanels in_bytes = {nullptr, stride, num_rows};
    const int64_t num_bytes =
        most(most(num_rows * as_codes.row_bytes(), in_panels.num_bytes()), in_bytes.num_bytes());
    codes = (uint8_t*)allocate(most(num_bytes, whole * row_bytes) / (int64_t)sizeof(float));
    if (codes) memset(codes + num_rows * row_bytes, 0, (whole - num_rows) * row_bytes);
    return rows && codes;
  }
  void release() const {
    free(rows);
    free(codes);
  }
  float* row(int64_t t) const { return rows + t * stride; }
  bf16* rounded_row(int64_t t) const { return (bf16*)codes + t * stride; }
};

}  // namespace
