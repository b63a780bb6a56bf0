// Which experts the rows of a step go through, and what these give.
//
// A pair is a row and one of its experts: pair t * C + i is that of row t with its i-th expert. Pairs lie in places,
// those of one expert together, and whoever computes an expert does so for all of them: its weights are read once,
// and no row's numbers depend on who else is there. Dimensions: T rows, E experts, C that each row chooses.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/layer.h"

namespace {

constexpr int64_t PAIRS_AT_ONCE = 8;

// One expert's product, of the first outputs or of those from `first` on.
INLINE Product product_of(const Product& all, int64_t expert, int64_t first, int64_t num_outputs) {
  const int64_t size = all.type == 0 ? 4 : 2;
  Product one = all;
  one.weight = (const char*)all.weight + (expert * all.num_outputs + first) * all.num_inputs * size;
  one.num_outputs = num_outputs;
  return one;
}

struct ExpertRows {
  Buffer logits;              // the router's, and behind them what gates the layer's MLP [T, E + 1]
  Buffer given, inner, out;   // of each place: what its expert reads, makes of it, and gives
  int32_t* experts = nullptr;  // [T, C]
  float* shares = nullptr;     // [T, C]
  int32_t* pairs = nullptr;    // that of each place, by expert and row [T * C]
  int32_t* places = nullptr;   // that of each pair [T * C]
  int32_t* ends = nullptr;     // behind the places of each expert's pairs, while these are given [E]

  // For the layers of a step with most of everything.
  bool make(const Step& step, bool is_fine) {
    int64_t most_chosen = 0, most_experts = 0, most_inner = 0;
    for (int64_t i = 0; i < step.num_layers; i++) {
      const Experts& e = step.layers[i].experts;
      most_chosen = most(most_chosen, e.num_chosen);
      most_experts = most(most_experts, e.num_experts);
      most_inner = most(most_inner, e.num_inner());
    }
    const int64_t num_pairs = step.num_rows * most_chosen;
    experts = (int32_t*)allocate(num_pairs);
    shares = allocate(num_pairs);
    pairs = (int32_t*)allocate(num_pairs);
    places = (int32_t*)allocate(num_pairs);
    ends = (int32_t*)allocate(most_experts);
    return experts && shares && pairs && places && ends &&
           logits.make(num_pairs ? step.num_rows : 0, most_experts + 1, false, is_fine) &&
           given.make(num_pairs, step.num_hidden, false, is_fine) &&
           inner.make(num_pairs, most_inner, false, is_fine) && out.make(num_pairs, step.num_hidden, false, is_fine);
  }

  void release() const {
    free(experts);
    free(shares);
    free(pairs);
    free(places);
    free(ends);
    const Buffer* all[] = {&logits, &given, &inner, &out};
    for (const Buffer* buffer : all) buffer->release();
  }

  // Chooses the largest logits of row t, the first of equal ones. Where one is no number, no share is.
  void choose(const Experts& e, int64_t t) const {
    const float* logits = this->logits.row(t);
    int32_t* chosen = experts + t * e.num_chosen;
    float* share = shares + t * e.num_chosen;
    float last = INFINITY, none = 0.0f;
    int64_t at = -1;
    for (int64_t n = 0; n < e.num_experts; n++)
      if (logits[n] != logits[n]) none = NAN;
    for (int64_t i = 0; i < e.num_chosen; i++) {
      int64_t best = -1;
      for (int64_t n = 0; n < e.num_experts; n++) {
        const bool is_left = logits[n] < last || (logits[n] == last && n > at);
        if (is_left && (best < 0 || logits[n] > logits[best])) best = n;
      }
      at = best < 0 ? i : best;  // none is left where numbers are none
      last = logits[at];
      chosen[i] = (int32_t)at;
    }
    const float largest = logits[chosen[0]];
    for (int64_t i = 0; i < e.num_chosen; i++) share[i] = logits[chosen[i]];
    const float total = e.is_normalized ? exponentials(share, share, e.num_chosen, largest)
                                        : exponentials(nullptr, logits, e.num_experts, largest);
    if (!e.is_normalized) exponentials(share, share, e.num_chosen, largest);
    for (int64_t i = 0; i < e.num_chosen; i++) share[i] = share[i] / total + none;
  }

  // Gives the pairs of all rows their places, and their experts what they read.
  void place(const Experts& e, const Buffer& rows, int64_t num_rows, int64_t width) const {
    const int64_t num_pairs = num_rows * e.num_chosen;
    memset(ends, 0, e.num_experts * sizeof(int32_t));
    for (int64_t pair = 0; pair < num_pairs; pair++) ends[experts[pair]]++;
    for (int64_t n = 1; n < e.num_experts; n++) ends[n] += ends[n - 1];
    for (int64_t pair = num_pairs - 1; pair >= 0; pair--) {
      places[pair] = --ends[experts[pair]];
      pairs[places[pair]] = (int32_t)pair;
      copy_row(given.row(places[pair]), rows.row(pair / e.num_chosen), width);
    }
  }

  // Whatever is chosen: a thread that comes late asks for it while others choose anew.
  static int64_t num_tasks(const Experts& e, bool is_down, int64_t num_rows) {
    return num_rows * e.num_chosen * product(e, is_down, 0, 0).num_units();
  }

  // An expert's downs, its gates, or its ups behind them.
  static Product product(const Experts& e, bool is_down, int64_t expert, int64_t first) {
    if (is_down) return product_of(e.down, expert, 0, e.down.num_outputs);
    return product_of(e.gate_up, expert, first, e.num_inner());
  }

  // Some outputs of an expert for all its pairs, if the task is that of the first of their places.
  void multiply(const Experts& e, bool is_down, int64_t task, int64_t num_rows, int64_t activation) const {
    const int64_t units = product(e, is_down, 0, 0).num_units(), unit = task % units, first = task / units;
    if (!is_first(first)) return;
    int64_t end = first + 1;
    while (end < num_rows * e.num_chosen && !is_first(end)) end++;
    const int64_t expert = expert_at(first);
    const Product gate = product(e, is_down, expert, 0), up = product(e, is_down, expert, e.num_inner());
    const int64_t begin = unit * gate.unit(), count = least(gate.unit(), gate.num_outputs - begin);
    const Buffer &from = is_down ? inner : given, &to = is_down ? out : inner;
    alignas(64) float sums[PAIRS_AT_ONCE * UNIT], ups[PAIRS_AT_ONCE * UNIT];
    for (int64_t place = first; place < end; place += PAIRS_AT_ONCE) {
      const int64_t num = least(PAIRS_AT_ONCE, end - place);
      multiply_dense(gate, sums, from.row(place), from.stride, num, unit, 0);
      if (!is_down) multiply_dense(up, ups, from.row(place), from.stride, num, unit, 0);
      for (int64_t i = 0; i < num; i++) {
        if (!is_down) activate(sums + i * UNIT, ups + i * UNIT, count, activation);
        copy_row(to.row(place + i) + begin, sums + i * UNIT, count);
      }
    }
  }

  // Adds what row t's experts give to what the layer's MLP does, if it has one.
  void add(const Layer& layer, int64_t t, float* sum, int64_t width) const {
    const Experts& e = layer.experts;
    if (!layer.down.weight) memset(sum, 0, width * sizeof(float));
    if (e.shared_gate.weight) {
      const float gate = logits.row(t)[e.num_experts];
      scale_row(sum, 1.0f / (1.0f + exponential(fminf(fmaxf(-gate, -88.0f), 88.0f))), width);
    }
    for (int64_t pair = t * e.num_chosen; pair < (t + 1) * e.num_chosen; pair++)
      add_scaled_row(sum, out.row(places[pair]), shares[pair], width);
  }

  int64_t expert_at(int64_t place) const { return experts[pairs[place]]; }
  bool is_first(int64_t place) const { return place == 0 || expert_at(place - 1) != expert_at(place); }

  // Writes e ** (x - largest), if anywhere, and returns their sum, from the first to the last.
  static float exponentials(float* to, const float* x, int64_t count, float largest) {
    float sum = 0.0f, lanes[W];
    for (int64_t n = 0; n < count; n += W) {
      const int64_t here = least(W, count - n);
      const Vec numbers = here == W ? load(x + n) : load_part(x + n, (int)here);
      store(lanes, exponential(max(sub(numbers, fill(largest)), fill(-88.0f))));
      for (int64_t i = 0; i < here; i++) sum += lanes[i];
      if (to) memcpy(to + n, lanes, here * sizeof(float));
    }
    return sum;
  }
};

}  // namespace
