// Which experts the rows of a step go through.
//
// A pair is a row and one of its experts: pair t * C + i is that of row t with its i-th expert. Pairs lie in places,
// those of one expert together, and whoever computes an expert does so for all of them: its weights are read once,
// and no row's numbers depend on who else is there. Dimensions: T rows, E experts, C that each row chooses.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/layer.h"

namespace {

struct Choices {
  int32_t* experts = nullptr;  // [T, C]
  float* shares = nullptr;     // [T, C]
  int32_t* pairs = nullptr;    // that of each place, by expert and row [T * C]
  int32_t* places = nullptr;   // that of each pair [T * C]
  int32_t* ends = nullptr;     // behind the places of each expert's pairs, while these are given [E]

  bool make(int64_t num_pairs, int64_t num_experts) {
    experts = (int32_t*)allocate(num_pairs);
    shares = allocate(num_pairs);
    pairs = (int32_t*)allocate(num_pairs);
    places = (int32_t*)allocate(num_pairs);
    ends = (int32_t*)allocate(num_experts);
    return experts && shares && pairs && places && ends;
  }

  void release() const {
    free(experts);
    free(shares);
    free(pairs);
    free(places);
    free(ends);
  }

  // Chooses the largest logits of row t, the first of equal ones. Where one is no number, no share is.
  void choose(const Experts& e, const float* logits, int64_t t) const {
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

  // Gives the pairs of all rows their places.
  void sort(const Experts& e, int64_t num_rows) const {
    const int64_t num_pairs = num_rows * e.num_chosen;
    memset(ends, 0, e.num_experts * sizeof(int32_t));
    for (int64_t pair = 0; pair < num_pairs; pair++) ends[experts[pair]]++;
    for (int64_t n = 1; n < e.num_experts; n++) ends[n] += ends[n - 1];
    for (int64_t pair = num_pairs - 1; pair >= 0; pair--) {
      places[pair] = --ends[experts[pair]];
      pairs[places[pair]] = (int32_t)pair;
    }
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

// One expert's product, of the first outputs or of those from `first` on.
INLINE Product product_of(const Product& all, int64_t expert, int64_t first, int64_t num_outputs) {
  const int64_t size = all.type == 0 ? 4 : 2;
  Product one = all;
  one.weight = (const char*)all.weight + (expert * all.num_outputs + first) * all.num_inputs * size;
  one.num_outputs = num_outputs;
  return one;
}

}  // namespace
