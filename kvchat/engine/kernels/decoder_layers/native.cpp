// All decoder layers of a model for the tokens of a step, in one call.
//
// A layer is five phases, or those of one half: what its mixer is given; the mixer, which is attention or goes
// on from a state (see mixers.h); the output projection; gate and up; down. Experts are three more: which ones a
// row goes through (see experts.h), their gates and ups, and their downs. Whoever ends a phase does what stands
// between products: norms, rotary embedding, keys and values into the pool, residuals. Of many rows that is a
// phase of its own. Numbers between the layers stay float32.
//
// Every row's result is a function of that row alone, and of whether products of the step are rounded: no sum
// depends on how many rows share the step, nor on which thread computes it. Layers with quantised blocks attend
// as `quantized_tile.h` says; what becomes old with the step was quantised before the call. Dimensions: T rows, H query
// heads, H_kv key-value heads, D head size, P block size.

#include <new>

#include "kvchat/engine/kernels/decoder_layers/experts.h"
#include "kvchat/engine/kernels/decoder_layers/layer.h"
#include "kvchat/engine/kernels/decoder_layers/phases.h"
#include "kvchat/engine/kernels/decoder_layers/products.h"

namespace {

enum Kind : int64_t {
  QKV, TURN, ATTEND, MIXED, OUTPUT, BETWEEN,
  ROUTE, CHOOSE, GATE_UP, PREPARE, DOWN, EXPERTS_UP, EXPERTS_DOWN, AFTER,
  HEAD,
};
// The phases of one layer: for few rows, and for many, where what stands between products is divided too.
constexpr Kind OF_FEW[] = {QKV, ATTEND, OUTPUT, ROUTE, GATE_UP, DOWN, EXPERTS_UP, EXPERTS_DOWN};
constexpr Kind OF_MANY[] = {QKV,    TURN,    ATTEND,  MIXED, OUTPUT,     BETWEEN,      ROUTE,
                            CHOOSE, GATE_UP, PREPARE, DOWN,  EXPERTS_UP, EXPERTS_DOWN, AFTER};
constexpr int64_t ROWS_TOGETHER = 24;  // of a task between products: whole panels

struct Phase {
  int64_t layer;
  Kind kind;
};

template <typename T>
struct Job {
  using OverQuantised = Attention<T, Quantised<sizeof(T) == 4>>;
  const Step& step;
  const bool has_many_rows;
  Phase* phases = nullptr;  // of all layers in turn, and of the head
  int64_t num_of_layers = 0, num_phases = 0;
  bool failed = false;  // for lack of memory
  Buffer normed, heads, convolved, attended, inner, added, sampled;
  ExpertRows experts;
  float* rates = nullptr;          // decays [T, H] and betas [T, H] of a delta rule; steps [T, H] of a scan
  float* decays = nullptr;         // [H] of a scan, and what it skips [H]
  QuantizedCall* calls = nullptr;     // of each layer
  Attention<T>* exact = nullptr;   // of each layer, and used by those without quantised blocks
  OverQuantised* older = nullptr;  // the same for the others
  float* pieces = nullptr;         // of the units of a phase: [T, UNIT] each
  int32_t* num_done = nullptr;     // pieces of the unit whose first one this is

  explicit Job(const Step& step) : step(step), has_many_rows(step.num_rows >= MANY_ROWS) {}

  bool list_phases() {
    phases = (Phase*)malloc((step.num_layers * sizeof OF_MANY / sizeof *OF_MANY + 1) * sizeof(Phase));
    if (!phases) return false;
    const Kind* kinds = has_many_rows ? OF_MANY : OF_FEW;
    const int64_t count = has_many_rows ? sizeof OF_MANY / sizeof *OF_MANY : sizeof OF_FEW / sizeof *OF_FEW;
    for (int64_t number = 0; number < step.num_layers; number++)
      for (int64_t i = 0; i < count; i++)
        if (has(number, kinds[i])) phases[num_of_layers++] = {number, kinds[i]};
    num_phases = num_of_layers + (step.head ? 1 : 0);
    phases[num_of_layers] = {step.num_layers, HEAD};
    return true;
  }

  bool mixes(int64_t number) const { return step.layers[number].mixer.kind != NONE; }
  bool has(int64_t number, Kind kind) const {
    const bool has_mlp = step.layers[number].down.weight, has_experts = step.layers[number].experts.router.weight;
    if (kind < ROUTE) return mixes(number);
    if (kind == AFTER) return has_mlp || has_experts;
    return kind == GATE_UP || kind == PREPARE || kind == DOWN ? has_mlp : has_experts;
  }
  const Layer& layer(int64_t phase) const { return step.layers[phases[phase].layer]; }
  Kind kind(int64_t phase) const { return phases[phase].kind; }
  static bool is_product(Kind kind) {
    return kind == QKV || kind == OUTPUT || kind == ROUTE || kind == GATE_UP || kind == DOWN || kind == HEAD;
  }

  Products products(int64_t phase) const {
    Products found = products_of(phase);
    found.is_rounded = step.is_rounded && kind(phase) != HEAD;
    // Inputs that weights share are rounded in one way, or not at all.
    for (int64_t i = 0; i < found.num; i++)
      found.is_rounded &= can_round(*found.all[i]) && found.all[i]->layout == found.all[0]->layout;
    return found;
  }

  Products products_of(int64_t phase) const {
    const int64_t rows = step.num_rows;
    const int64_t threads = step.num_threads;
    if (kind(phase) == HEAD) return {{step.head}, 1, false, &sampled, step.num_sampling, threads};
    const Layer& layer = this->layer(phase);
    if (kind(phase) == QKV) {
      Products found = {{}, layer.num_inputs, false, &normed, rows, threads};
      for (int64_t i = 0; i < layer.num_inputs; i++) found.all[i] = layer.inputs + i;
      return found;
    }
    if (kind(phase) == OUTPUT) return {{&layer.output}, 1, false, &attended, rows, threads};
    if (kind(phase) == ROUTE) {
      const Experts& e = layer.experts;
      return {{&e.router, &e.shared_gate}, e.shared_gate.weight ? 2 : 1, false, &normed, rows, threads};
    }
    if (kind(phase) == GATE_UP && !layer.up.weight) return {{&layer.gate}, 1, false, &normed, rows, threads};
    if (kind(phase) == GATE_UP) return {{&layer.gate, &layer.up}, 2, true, &normed, rows, threads};
    return {{&layer.down}, 1, false, &inner, rows, threads};
  }

  int64_t num_tasks(int64_t phase) const {
    if (is_product(kind(phase))) return products(phase).num_tasks();
    if (kind(phase) == EXPERTS_UP || kind(phase) == EXPERTS_DOWN)
      return ExpertRows::num_tasks(layer(phase).experts, kind(phase) == EXPERTS_DOWN, step.num_rows);
    if (kind(phase) != ATTEND) return (step.num_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    const int64_t number = phases[phase].layer;
    const Mixer& mixer = step.layers[number].mixer;
    if (mixer.kind == CONVOLUTION) return 1;
    if (mixer.kind == DELTA)
      return states_of(mixer).num_sequences * mixer.num_heads * delta::num_tiles(mixer.value_dim);
    if (mixer.kind == SCAN) return states_of(mixer).num_sequences * scan_tiles(mixer);
    return of_kind(number, [&](const auto* all) { return all[number].num_tasks; });
  }

  static int64_t scan_tiles(const Mixer& m) {
    return m.num_key_heads * scan::num_tiles(m.num_values() / m.num_key_heads);
  }

  bool attends(int64_t number) const { return step.layers[number].mixer.kind == ATTENTION; }
  const States& states_of(const Mixer& mixer) const { return step.states[mixer.group]; }

  // Calls `take` with the attention of all layers, in the form that is a layer's.
  template <typename Take>
  auto of_kind(int64_t number, Take take) const {
    return step.layers[number].old < 0 ? take(exact) : take(older);
  }

  void run(int64_t phase, int64_t task, int64_t) {
    if (kind(phase) == ATTEND) {
      mix(phases[phase].layer, task);
    } else if (kind(phase) == EXPERTS_UP || kind(phase) == EXPERTS_DOWN) {
      const Layer& layer = this->layer(phase);
      experts.multiply(layer.experts, kind(phase) == EXPERTS_DOWN, task, step.num_rows, layer.activation);
    } else if (!is_product(kind(phase))) {
      const int64_t first = task * ROWS_TOGETHER, end = least(first + ROWS_TOGETHER, step.num_rows);
      if (kind(phase) == TURN) convolve(layer(phase), first, end);
      for (int64_t t = first; t < end; t++) go_on(phase, t);
    } else {
      const Products found = products(phase);
      found.are_whole() ? multiply_whole(phase, found, task) : multiply_piece(phase, found, task);
    }
  }

  // A piece of some outputs of all rows.
  void multiply_piece(int64_t phase, const Products& found, int64_t task) const {
    const Place place = place_of(found, task);
    const int64_t num_parts = found.all[place.product]->num_parts();
    const int64_t num_pieces = found.num_pieces(place.product), size = piece_size(found.num_rows);
    // Parts of one product, then those of the other.
    const Product& product = *found.all[place.product + place.piece / num_parts];
    float* first = pieces + place.first_piece * size;
    float* out = first + place.piece * size;
    if (product.layout == QUANTISED)
      multiply_codes(found, product, out, {place.unit, 0, found.num_rows});
    else
      multiply_dense(product, out, found.from->rows, found.from->stride, found.num_rows, place.unit,
                     place.piece % num_parts);
    int32_t* done = num_done + place.first_piece;
    if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) < num_pieces) return;
    *done = 0;
    for (int64_t i = 0; i < (found.is_joint ? 2 : 1); i++)
      add_parts(*found.all[place.product + i], first + i * num_parts * size, size, found.num_rows);
    finish_unit(phase, found, place, {place.unit, 0, found.num_rows}, first, first + num_parts * size);
  }

  // Some outputs of some rows.
  void multiply_whole(int64_t phase, const Products& found, int64_t task) const {
    constexpr int64_t SIZE = ROWS_OF_TASK * UNIT;
    alignas(64) float sums[3 * SIZE];
    const Place place = place_of(found, task);
    const int64_t first = place.piece * found.chunk_len();
    const Outputs outputs = {place.unit, first, least(found.chunk_len(), found.num_rows - first)};
    for (int64_t i = 0; i < (found.is_joint ? 2 : 1); i++) {
      const Product& product = *found.all[place.product + i];
      if (found.is_rounded && product.layout != QUANTISED)
        multiply_rounded(product, sums + i * SIZE, found.from->rounded_row(first), found.from->stride,
                         outputs.num_rows, place.unit);
      else if (product.layout == QUANTISED)
        multiply_codes(found, product, sums + i * SIZE, outputs);
      else
        multiply_unit(product, sums + i * SIZE, sums + 2 * SIZE, found.from->row(first), found.from->stride,
                      outputs.num_rows, place.unit);
    }
    finish_unit(phase, found, place, outputs, sums, sums + SIZE);
  }

  void multiply_codes(const Products& found, const Product& product, float* out, const Outputs& outputs) const {
    if (found.is_rounded)
      multiply_quantised(product, out, byte_panels(found), outputs.first, outputs.num_rows, outputs.unit);
    else if (in_panels(found))
      multiply_quantised(product, out, panels(found), outputs.first, outputs.num_rows, outputs.unit);
    else
      multiply_quantised(product, out, activations(product, *found.from), outputs.first, outputs.num_rows,
                         outputs.unit);
  }

  bool is_fine() const { return step.pool_type == 0; }

  quantised::Activations activations(const Product& product, const Buffer& from) const {
    return {from.codes, product.num_inputs, is_fine()};
  }

  // Whether the inputs of a phase are read in panels: all its quantised weights take them.
  bool in_panels(const Products& found) const {
    bool all_do = !is_fine();
    for (int64_t i = 0; i < found.num; i++) {
      const Product& product = *found.all[i];
      all_do &= product.layout != QUANTISED || quantised::Panels::take(weight_of(product), found.num_rows);
    }
    return all_do;
  }

  static quantised::BytePanels byte_panels(const Products& found) {
    return {found.from->codes, found.all[0]->num_inputs, found.num_rows};
  }

  static quantised::Panels panels(const Products& found) {
    return {found.from->codes, found.all[0]->num_inputs, found.num_rows};
  }

  // Numbers in a piece: panels are computed whole.
  static int64_t piece_size(int64_t num_rows) {
    if (num_rows < quantised::Panels::LEAST_ROWS) return num_rows * UNIT;
    const quantised::Panels whole = {nullptr, 0, num_rows};
    return whole.num_panels() * whole.rows() * UNIT;
  }

  void prepare_inputs(int64_t phase) const {
    for (int64_t t = 0; t < products(phase).num_rows; t++) prepare_row(phase, t);
  }

  // Prepares an input of a phase in the form in which its products read it, if that is another.
  void prepare_row(int64_t phase, int64_t t) const {
    const Products found = products(phase);
    if (!found.has_codes()) {
      if (found.is_rounded) round_row(found.from->rounded_row(t), found.from->row(t), found.from->stride);
      return;
    }
    if (found.is_rounded)
      byte_panels(found).prepare(t, found.from->row(t));
    else if (in_panels(found))
      panels(found).prepare(t, found.from->row(t));
    else
      activations(*found.all[0], *found.from).prepare(t, found.from->row(t));
  }

  // Adds the parts of a product's outputs, in order, to the first.
  static void add_parts(const Product& product, float* first, int64_t size, int64_t num_rows) {
    for (int64_t i = 1; i < product.num_parts(); i++) add_row(first, first + i * size, num_rows * UNIT);
  }

  // What is done with the sums of a unit, and of the gates' ups.
  void finish_unit(int64_t phase, const Products& found, const Place& place, const Outputs& outputs, float* sums,
                   float* ups) const {
    const Product& product = *found.all[place.product];
    const int64_t unit = product.unit(found.is_rounded), begin = outputs.unit * unit;
    const int64_t count = least(unit, product.num_outputs - begin);
    for (int64_t t = 0; t < outputs.num_rows; t++) {
      float* row = sums + t * UNIT;
      add_bias(product, row, begin, count);
      if (found.is_joint) {
        add_bias(*found.all[1], ups + t * UNIT, begin, count);
        activate(row, ups + t * UNIT, count, layer(phase).activation);
      }
      put_row(phase, output_row(phase, outputs.first + t), place.column + begin, row, count);
    }
  }

  void put_row(int64_t phase, float* to, int64_t first, const float* from, int64_t count) const {
    const int64_t* places = kind(phase) == QKV ? layer(phase).places : nullptr;
    if (!places) return copy_row(to + first, from, count);
    for (int64_t n = 0; n < count; n++) to[places[first + n]] = from[n];
  }

  static void add_bias(const Product& product, float* row, int64_t begin, int64_t count) {
    for (int64_t n = 0; product.bias && n < count; n++)
      row[n] += number_at(product.bias, product.bias_type, begin + n);
  }

  float* output_row(int64_t phase, int64_t t) const {
    if (kind(phase) == HEAD) return step.logits + t * step.head->num_outputs;
    if (kind(phase) == QKV) return heads.row(t);
    if (kind(phase) == ROUTE) return experts.logits.row(t);
    return (kind(phase) == GATE_UP ? inner : added).row(t);
  }

  void finish(int64_t phase) const {
    const int64_t number = phases[phase].layer;
    if (kind(phase) == ATTEND && attends(number)) of_kind(number, [&](const auto* all) { all[number].reset(); });
    if (kind(phase) == QKV && layer(phase).mixer.kind == SCAN) {
      const Mixer& mixer = layer(phase).mixer;
      take_decays(mixer, decays, decays + mixer.num_heads);
    }
    if (kind(phase) == QKV && !has_many_rows) convolve(layer(phase), 0, step.num_rows);
    if (!has_many_rows && kind(phase) != HEAD)
      for (int64_t t = 0; t < step.num_rows; t++) go_on(phase, t);
    if (kind(phase) == (has_many_rows ? CHOOSE : ROUTE))
      experts.place(layer(phase).experts, normed, step.num_rows, step.num_hidden);
    if (phase + 1 == num_of_layers && step.head) {
      for (int64_t i = 0; i < step.num_sampling; i++)
        apply_norm(*step.last_norm, sampled.row(i), hidden(step.sampling[i]), step.num_hidden);
      prepare_inputs(phase + 1);
    }
  }

  // What follows a phase, for one row, until the next products or attention.
  void go_on(int64_t phase, int64_t t) const {
    const Layer& layer = this->layer(phase);
    const Kind kind = this->kind(phase);
    if (kind == QKV || kind == TURN) {
      if (layer.mixer.kind == ATTENTION) place_heads(layer, t);
      if (layer.mixer.has_rates()) place_rates(layer.mixer, t);
    } else if ((kind == ATTEND && !has_many_rows) || kind == MIXED) {
      gate_mixed(layer, t);
    } else if (kind == OUTPUT || kind == BETWEEN) {
      add_residual(layer, layer.after_attention, t);
      if (has(phases[phase].layer, AFTER))
        apply_norm(layer.before_mlp, normed.row(t), hidden(t), step.num_hidden);
      else
        begin_layer(phases[phase].layer + 1, t);
    } else if ((kind == ROUTE && !has_many_rows) || kind == CHOOSE) {
      experts.choose(layer.experts, t);
    } else if (kind == GATE_UP || kind == PREPARE) {
      if (!layer.up.weight) activate_inner(layer, t);
    } else if (kind == (layer.experts.router.weight ? EXPERTS_DOWN : DOWN) || kind == AFTER) {
      if (layer.experts.router.weight) experts.add(layer, t, added.row(t), step.num_hidden);
      add_residual(layer, layer.after_mlp, t);
      begin_layer(phases[phase].layer + 1, t);
    }
    const bool is_last = phase + 1 == num_of_layers;
    if (!is_last && is_product(this->kind(phase + 1))) prepare_row(phase + 1, t);
  }

  float* hidden(int64_t t) const { return step.hidden + t * step.num_hidden; }

  void begin_layer(int64_t number, int64_t t) const {
    if (number == step.num_layers) return;
    const Norm& before = mixes(number) ? step.layers[number].before_attention : step.layers[number].before_mlp;
    apply_norm(before, normed.row(t), hidden(t), step.num_hidden);
  }

  // What comes of one product's gates and ups, or of gates alone.
  void activate_inner(const Layer& layer, int64_t t) const {
    const int64_t count = layer.down.num_inputs;
    float* row = inner.row(t);
    activate(row, layer.gate.num_outputs > count ? row + count : nullptr, count, layer.activation);
  }

  void add_residual(const Layer& layer, const Norm& norm, int64_t t) const {
    if (norm.weight) apply_norm(norm, added.row(t), added.row(t), step.num_hidden);
    if (layer.residual != 1.0) scale_row(added.row(t), (float)layer.residual, step.num_hidden);
    add_row(hidden(t), added.row(t), step.num_hidden);
  }

  // Norms and turns the heads of a row, and stores its keys and values.
  void place_heads(const Layer& layer, int64_t t) const {
    const int64_t position = step.positions[t], slot = step.groups[layer.group].slots[t];
    float* keys = heads.row(t) + layer.num_heads * query_stride(layer);
    float* values = keys + layer.num_kv_heads * layer.dim_k;
    turn(layer, layer.query_norm, heads.row(t), layer.num_heads, query_stride(layer), position);
    turn(layer, layer.key_norm, keys, layer.num_kv_heads, layer.dim_k, position);
    const int64_t block = slot / layer.block_size, at = slot % layer.block_size;
    T* k = (T*)layer.k_pool + block * layer.k_n + at * layer.k_p;
    T* v = (T*)layer.v_pool + block * layer.v_n + at * layer.v_p;
    for (int64_t h = 0; h < layer.num_kv_heads; h++) {
      write_numbers(k + h * layer.k_h, keys + h * layer.dim_k, layer.dim_k);
      write_numbers(v + h * layer.v_h, values + h * layer.dim_v, layer.dim_v);
    }
  }

  static int64_t query_stride(const Layer& layer) { return layer.dim_k * (layer.is_gated ? 2 : 1); }

  void turn(const Layer& layer, const Norm& norm, float* row, int64_t num_heads, int64_t stride,
            int64_t position) const {
    const Rope rope = layer.rope < 0 ? Rope{nullptr, nullptr, 0} : step.ropes[layer.rope];
    for (int64_t h = 0; h < num_heads; h++) {
      float* head = row + h * stride;
      if (norm.weight) apply_norm(norm, head, head, layer.dim_k);
      rotate(head, rope.cosines + position * rope.dim, rope.sines + position * rope.dim, rope.dim);
    }
  }

  // What mixes rows of a step: attention, or states of its sequences.
  void mix(int64_t number, int64_t task) {
    const Mixer& mixer = step.layers[number].mixer;
    if (mixer.kind == ATTENTION) of_kind(number, [&](auto* all) { all[number].run(task); });
    if (!mixer.has_rates()) return;
    const int64_t of_sequence =
        mixer.kind == SCAN ? scan_tiles(mixer) : mixer.num_heads * delta::num_tiles(mixer.value_dim);
    const States& states = states_of(mixer);
    const int64_t sequence = task / of_sequence, end = states.offsets[sequence + 1];
    int64_t read = states.runs[states.offsets[sequence]].read;
    for (int64_t i = states.offsets[sequence]; i < end; i++) {
      const Run& run = states.runs[i];
      if (mixer.kind == SCAN) {
        const scan::Call call = scan_call_of(mixer, run, read);
        scan::Tile(call, task % of_sequence).run();
      } else {
        const delta::Call call = delta_call_of(mixer, run, read);
        delta::Tile<float>(call, task % of_sequence).run();
      }
      read = run.write;
    }
  }

  scan::Call scan_call_of(const Mixer& m, const Run& run, const int64_t& read) const {
    const float *x = convolved.row(run.begin), *b = x + m.num_values();
    scan::Call call = {x, rates + run.begin * m.num_heads, decays, b, b + m.num_key_heads * m.key_dim};
    call.skip = decays + m.num_heads;
    call.states = m.states;
    call.reads = read < 0 ? nullptr : &read;
    call.writes = &run.write;
    call.out = attended.row(run.begin);
    call.x_strides[1] = call.key_stride = convolved.stride;
    call.num_sequences = 1;
    call.num_tokens = run.end - run.begin;
    call.num_heads = m.num_heads;
    call.head_dim = m.value_dim;
    call.num_groups = m.num_key_heads;
    call.size = m.key_dim;
    call.slot_stride = m.state_stride;
    call.out_stride = attended.stride;
    call.least_step = m.least_step;
    return call;
  }

  delta::Call delta_call_of(const Mixer& m, const Run& run, const int64_t& read) const {
    const float *query = convolved.row(run.begin), *key = query + m.num_key_heads * m.key_dim;
    delta::Call call = {query, key, key + m.num_key_heads * m.key_dim};
    call.decay = rates + run.begin * m.num_heads;
    call.beta = call.decay + step.num_rows * m.num_heads;
    call.states = m.states;
    call.reads = read < 0 ? nullptr : &read;
    call.writes = &run.write;
    call.out = attended.row(run.begin);
    call.query_strides[1] = call.key_strides[1] = call.value_strides[1] = convolved.stride;
    call.query_strides[2] = call.key_strides[2] = m.key_dim;
    call.value_strides[2] = m.value_dim;
    call.num_sequences = 1;
    call.num_tokens = run.end - run.begin;
    call.num_key_heads = m.num_key_heads;
    call.num_heads = m.num_heads;
    call.key_dim = m.key_dim;
    call.value_dim = m.value_dim;
    call.is_normal = 1;
    call.slot_stride = m.state_stride;
    call.out_stride = attended.stride;
    call.epsilon = delta::EPSILON;
    return call;
  }

  // The convolutions of a layer for rows [first, end) of the step.
  void convolve(const Layer& layer, int64_t first, int64_t end) const {
    const Mixer& m = layer.mixer;
    const GatedRows gated = {heads.rows, attended.rows, heads.stride, attended.stride, m.num_channels};
    const ActivatedRows activated = {heads.rows, convolved.rows, heads.stride, convolved.stride};
    const ActivatedRows behind_gates = {heads.rows + m.num_values(), convolved.rows, heads.stride, convolved.stride};
    if (m.kind == CONVOLUTION) convolve(m, gated, first, end);
    if (m.kind == DELTA) convolve(m, activated, first, end);
    if (m.kind == SCAN) convolve(m, behind_gates, first, end);
  }

  template <typename Rows>
  void convolve(const Mixer& mixer, const Rows& rows, int64_t first, int64_t end) const {
    const States& states = states_of(mixer);
    Convolution<T, Rows> convolution(mixer, rows);
    for (int64_t i = 0; i < states.offsets[states.num_sequences]; i++) {
      const Run& run = states.runs[i];
      const int64_t begin = most(first, run.begin), behind = least(end, run.end);
      if (begin < behind) convolution.run(run, begin, behind);
    }
  }

  void place_rates(const Mixer& m, int64_t t) const {
    if (m.kind == SCAN)
      return take_steps(m, heads.row(t) + m.num_values() + m.num_channels, rates + t * m.num_heads);
    const float* betas = heads.row(t) + m.num_channels + m.num_heads * m.value_dim;
    float* decay = rates + t * m.num_heads;
    take_rates(m, betas, betas + m.num_heads, decay, decay + step.num_rows * m.num_heads);
  }

  // Norms and gates what a layer has mixed for a row.
  void gate_mixed(const Layer& layer, int64_t t) const {
    const Mixer& m = layer.mixer;
    if (m.kind == ATTENTION && layer.is_gated)
      for (int64_t h = 0; h < layer.num_heads; h++)
        gate_row(attended.row(t) + h * layer.dim_v, heads.row(t) + (2 * h + 1) * layer.dim_k, layer.dim_v);
    for (int64_t h = 0; m.kind == DELTA && h < m.num_heads; h++) {
      float* head = attended.row(t) + h * m.value_dim;
      apply_norm(m.norm, head, head, m.value_dim);
      gate_row_by_silu(head, heads.row(t) + m.num_channels + h * m.value_dim, m.value_dim);
    }
    if (m.kind == SCAN) {
      gate_row_by_silu(attended.row(t), heads.row(t), m.num_values());
      norm_groups(m, attended.row(t));
    }
  }

  bool make_buffers() {
    int64_t num_heads = 0, num_attended = 0, num_inner = 0, num_pieces = 0, num_convolved = 0, num_rates = 0;
    for (int64_t i = 0; i < step.num_layers; i++) {
      const Layer& l = step.layers[i];
      int64_t num_outputs = 0;
      for (int64_t k = 0; k < l.num_inputs; k++) num_outputs += l.inputs[k].num_outputs;
      num_heads = most(num_heads, num_outputs);
      if (l.mixer.has_rates()) num_convolved = most(num_convolved, l.mixer.num_channels);
      if (l.mixer.has_rates()) num_rates = most(num_rates, 2 * l.mixer.num_heads);
      num_attended = most(num_attended, l.output.num_inputs);
      num_inner = most(num_inner, l.gate.num_outputs);
    }
    int64_t size = 0;
    bool has_codes = false;
    for (int64_t phase = 0; phase < num_phases; phase++) {
      if (!is_product(kind(phase))) continue;
      const Products found = products(phase);
      has_codes |= found.has_codes() || found.is_rounded;
      if (found.are_whole()) continue;
      num_pieces = most(num_pieces, found.num_tasks());
      size = most(size, found.num_tasks() * piece_size(found.num_rows));
    }
    pieces = allocate(size);
    rates = allocate(step.num_rows * num_rates);
    decays = allocate(num_rates);
    num_done = (int32_t*)calloc(num_pieces, sizeof(int32_t));
    const int64_t rows = step.num_rows, width = step.num_hidden;
    return pieces && num_done && rates && decays && convolved.make(rows, num_convolved, false, is_fine()) &&
           normed.make(rows, width, has_codes, is_fine()) &&
           heads.make(rows, num_heads, false, is_fine()) && added.make(rows, width, false, is_fine()) &&
           attended.make(rows, num_attended, has_codes, is_fine()) &&
           inner.make(rows, num_inner, has_codes, is_fine()) && experts.make(step, is_fine()) &&
           sampled.make(step.num_sampling, width, has_codes, is_fine());
  }

  AttentionCall call_of(const Layer& l) const {
    const Group& group = step.groups[l.group];
    AttentionCall call = {heads.rows, l.k_pool, l.v_pool, attended.rows, l.sinks, group.spans, nullptr};
    call.num_spans = group.num_spans;
    call.num_threads = 1;
    call.query_type = 0;
    call.pool_type = step.pool_type;
    call.num_heads = l.num_heads;
    call.num_kv_heads = l.num_kv_heads;
    call.dim_k = l.dim_k;
    call.dim_v = l.dim_v;
    call.block_size = l.block_size;
    call.query_t = heads.stride;
    call.query_h = query_stride(l);
    call.k_n = l.k_n;
    call.k_h = l.k_h;
    call.k_p = l.k_p;
    call.v_n = l.v_n;
    call.v_h = l.v_h;
    call.v_p = l.v_p;
    call.out_t = attended.stride;
    call.out_h = l.dim_v;
    call.window = l.window;
    call.chunk = l.chunk;
    call.scale = (float)l.scale;
    call.softcap = (float)l.softcap;
    return call;
  }

  QuantizedCall quantized_call_of(const Layer& l) const {
    return {call_of(l), l.old < 0 ? nullptr : step.old[l.old], l.old_keys, l.old_values};
  }

  // Layers that keep the same share their tasks: they are computed one after the other.
  bool cut_attention() {
    calls = (QuantizedCall*)malloc(step.num_layers * sizeof(QuantizedCall));
    exact = (Attention<T>*)malloc(step.num_layers * sizeof(Attention<T>));
    older = (OverQuantised*)malloc(step.num_layers * sizeof(OverQuantised));
    if (!calls || !exact || !older) return false;
    for (int64_t i = 0; i < step.num_layers; i++) {
      if (!attends(i)) continue;
      calls[i] = quantized_call_of(step.layers[i]);
      new (exact + i) Attention<T>(calls[i].attention);
      new (older + i) OverQuantised(calls[i].attention, {calls + i});
    }
    for (int64_t i = 0; i < step.num_layers; i++)
      if (attends(i) && !of_kind(i, [&](auto* all) { return cut(all, i); })) return false;
    return true;
  }

  template <typename AnyAttention>
  bool cut(AnyAttention* all, int64_t number) const {
    const int64_t like = first_like(number);
    if (like == number) return all[number].prepare(step.num_threads > 1 ? 4 * step.num_threads : 1);
    all[number].share(all[like]);
    return true;
  }

  int64_t first_like(int64_t number) const {
    const Layer& l = step.layers[number];
    int64_t i = 0;
    for (; i < number; i++) {
      const Layer& other = step.layers[i];
      if (attends(i) && other.group == l.group && other.num_heads == l.num_heads && other.window == l.window &&
          other.chunk == l.chunk && (other.old < 0) == (l.old < 0))
        break;
    }
    return i;
  }

  int compute() {
    const bool is_ready = list_phases() && make_buffers() && cut_attention();
    if (is_ready) {
      for (int64_t t = 0; t < step.num_rows; t++) begin_layer(0, t);
      prepare_inputs(0);
      Phases<Job> work(*this, step.num_threads);
      failed = !work.run(step.parallel);
      for (int64_t i = 0; i < step.num_layers; i++)
        failed = failed || (attends(i) && of_kind(i, [&](const auto* all) { return all[i].failed; }));
    }
    release();
    return failed || !is_ready;
  }

  void release() {
    for (int64_t i = 0; calls && exact && older && i < step.num_layers; i++)
      if (attends(i) && first_like(i) == i) of_kind(i, [&](auto* all) { all[i].release(); });
    free(exact);
    free(older);
    free(calls);
    free(phases);
    free(pieces);
    free(rates);
    free(decays);
    free(num_done);
    experts.release();
    const Buffer* all[] = {&normed, &heads, &convolved, &attended, &inner, &added, &sampled};
    for (const Buffer* buffer : all) buffer->release();
  }
};

}  // namespace

// Whether steps can be rounded, on processors that multiply bfloat16.
EXPORT(rounds_products)() { return ROUNDS_PRODUCTS; }

// Returns 0, or 1 where there is not enough memory.
EXPORT(decoder_layers)(const Step* step) {
  if (step->pool_type == 0) return Job<float>(*step).compute();
  if (step->pool_type == 1) return Job<bf16>(*step).compute();
  return Job<fp16>(*step).compute();
}
