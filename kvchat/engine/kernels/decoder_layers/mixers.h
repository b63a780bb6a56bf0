// What stands between the products of a layer that keeps a state in the place of keys and values: a short
// convolution, alone or before the gated delta rule or the selective scan.
//
// What goes into a convolution is rounded to the type in which states keep it, so that a row's result does not
// depend on which rows before it share its step. Dimensions: T rows, C channels, L taps, P inputs that are
// kept, H heads, V numbers of one.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/gated_delta/tile.h"
#include "kvchat/engine/kernels/selective_scan/tile.h"

namespace {

enum MixerKind : int64_t { ATTENTION = 0, DELTA = 1, CONVOLUTION = 2, SCAN = 3, NONE = 4 };

// The fields of native.py's `_Mixer`, in order. Types: 0 float, 1 bf16, 2 fp16.
struct Mixer {
  const void *taps, *conv_bias;     // [C, L]; [C], or null
  const void *decay, *step_bias;    // [H]: logarithms, and what steps begin with
  const void* skip;                 // [H]: of a scan
  void* inputs;                     // [N, C, P]: the last inputs behind some token, of the pool's type
  float* states;                    // [N, H, K, V]; of a scan [N, H, V, K]
  int64_t taps_type, conv_bias_type, decay_type, step_bias_type, skip_type;
  int64_t input_stride, state_stride;  // numbers from one state to the next
  int64_t num_channels, num_taps, num_kept;
  int64_t num_heads, num_key_heads, key_dim, value_dim;  // of a scan: groups of heads for key heads
  int64_t kind, group;
  double least_step;  // of a scan, but for a token on its own behind a state
  Norm norm;          // [V]; of a scan [H, V], of which a group's heads have one mean

  bool has_rates() const { return kind == DELTA || kind == SCAN; }
  int64_t num_values() const { return num_heads * value_dim; }
};

// Rows [begin, end) of a sequence whose rows in the step begin at `first`: the state before that row lies at
// `read` (-1: it is zero), and the one behind `end` is wanted at `write`. Nobody reads that in the same step but
// the next rows of the sequence.
struct Run {
  int64_t first, begin, end, read, write;
};

// The fields of native.py's `_States`, in order: the runs of a step, sequence after sequence.
struct States {
  const Run* runs;
  const int64_t* offsets;  // of each sequence's first run, and the number of all
  int64_t num_sequences;
};

constexpr int64_t MOST_TAPS = 8;  // and kept inputs

// The convolution of a layer for some rows of a step. `Rows` says what goes in, and takes what comes out:
// `take(to, t, c, n)` and `give(t, c, from, n)`, channels [c, c + n) of row t, with room for whole vectors.
template <typename T, typename Rows>
struct Convolution {
  static constexpr int64_t CHANNELS = 4 * W;
  const Mixer& mixer;
  const Rows& rows;
  alignas(64) float taps[MOST_TAPS][CHANNELS], bias[CHANNELS];
  alignas(64) float ring[MOST_TAPS][CHANNELS];

  Convolution(const Mixer& mixer, const Rows& rows) : mixer(mixer), rows(rows) {}

  // Rows [begin, end) of one run.
  void run(const Run& run, int64_t begin, int64_t end) {
    for (int64_t c = 0; c < mixer.num_channels; c += CHANNELS) {
      const int64_t n = least(CHANNELS, mixer.num_channels - c), num_taps = mixer.num_taps;
      load_taps(c, n);
      for (int64_t t = begin - num_taps + 1; t < begin; t++) take(run, t, ring[at(run, t)], c, n);
      for (int64_t t = begin; t < end; t++) {
        take(run, t, ring[at(run, t)], c, n);
        alignas(64) float out[CHANNELS];
        for (int64_t i = 0; i < CHANNELS; i += W) {
          Vec total = load(bias + i);
          for (int64_t tap = 0; tap < num_taps; tap++)
            total = fma(load(ring[at(run, t - num_taps + 1 + tap)] + i), load(taps[tap] + i), total);
          store(out + i, total);
        }
        rows.give(t, c, out, n);
      }
      if (end == run.end) keep(run, c, n);
    }
  }

  int64_t at(const Run& run, int64_t t) const { return (t - run.first + MOST_TAPS) % mixer.num_taps; }

  void load_taps(int64_t c, int64_t n) {
    const int64_t num_taps = mixer.num_taps;
    memset(taps, 0, sizeof taps);
    memset(bias, 0, sizeof bias);
    for (int64_t i = 0; i < n; i++)
      for (int64_t tap = 0; tap < num_taps; tap++)
        taps[tap][i] = number_at(mixer.taps, mixer.taps_type, (c + i) * num_taps + tap);
    for (int64_t i = 0; mixer.conv_bias && i < n; i++)
      bias[i] = number_at(mixer.conv_bias, mixer.conv_bias_type, c + i);
  }

  // The input of a row of the step, or of one before its first: as it was kept, or zero.
  void take(const Run& run, int64_t t, float* to, int64_t c, int64_t n) const {
    memset(to, 0, CHANNELS * sizeof(float));
    if (t >= run.first) {
      rows.take(to, t, c, n);
      alignas(64) T rounded[CHANNELS];
      write_numbers(rounded, to, CHANNELS);
      for (int64_t i = 0; i < CHANNELS; i += W) store(to + i, load(rounded + i));
    } else if (run.read >= 0) {
      const T* kept = kept_at(run.read, c) + mixer.num_kept + t - run.first;
      for (int64_t i = 0; i < n; i++) to[i] = to_float(kept[i * mixer.num_kept]);
    }
  }

  T* kept_at(int64_t slot, int64_t c) const {
    return (T*)mixer.inputs + slot * mixer.input_stride + c * mixer.num_kept;
  }

  void keep(const Run& run, int64_t c, int64_t n) const {
    T* to = kept_at(run.write, c);
    alignas(64) float row[CHANNELS];
    for (int64_t p = 0; p < mixer.num_kept; p++) {
      take(run, run.end - mixer.num_kept + p, row, c, n);
      for (int64_t i = 0; i < n; i++) round_to(to + i * mixer.num_kept + p, row[i]);
    }
  }
};

// Rows of inputs and gates, [B | C | x] of one width: C * convolution(B * x).
struct GatedRows {
  const float* from;
  float* to;
  int64_t stride, out_stride, width;

  void take(float* row, int64_t t, int64_t c, int64_t n) const {
    const float *b = from + t * stride + c, *x = b + 2 * width;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(row + i, mul(load(b + i), load(x + i)));
    for (; i < n; i++) row[i] = b[i] * x[i];
  }
  void give(int64_t t, int64_t c, const float* row, int64_t n) const {
    const float* gate = from + t * stride + width + c;
    float* out = to + t * out_stride + c;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(out + i, mul(load(gate + i), load(row + i)));
    for (; i < n; i++) out[i] = gate[i] * row[i];
  }
};

// Rows of queries, keys and values: silu(convolution(row)).
struct ActivatedRows {
  const float* from;
  float* to;
  int64_t stride, out_stride;

  void take(float* row, int64_t t, int64_t c, int64_t n) const { copy_row(row, from + t * stride + c, n); }
  void give(int64_t t, int64_t c, const float* row, int64_t n) const {
    float* out = to + t * out_stride + c;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(out + i, silu(load(row + i)));
    if (i == n) return;
    alignas(64) float rest[W];
    store(rest, silu(load(row + i)));
    copy_row(out + i, rest, n - i);
  }
};

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// to[i] *= sigmoid(gates[i])
INLINE void gate_row(float* to, const float* gates, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    const Vec e = exponential(max(fill(-88.0f), sub(zero(), max(load(gates + i), fill(-88.0f)))));
    store(to + i, div(load(to + i), add(fill(1.0f), e)));
  }
  for (; i < count; i++) to[i] *= sigmoid(gates[i]);
}

// to[i] *= silu(gates[i])
INLINE void gate_row_by_silu(float* to, const float* gates, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, mul(load(to + i), silu(load(gates + i))));
  for (; i < count; i++) to[i] *= gates[i] * sigmoid(gates[i]);
}

// What a token of the gated delta rule forgets and takes in, of each head.
INLINE void take_rates(const Mixer& mixer, const float* betas, const float* steps, float* decay, float* beta) {
  for (int64_t h = 0; h < mixer.num_heads; h++) {
    const float step = softplus(steps[h] + number_at(mixer.step_bias, mixer.step_bias_type, h));
    decay[h] = -expf(number_at(mixer.decay, mixer.decay_type, h)) * step;
    beta[h] = sigmoid(betas[h]);
  }
}

// The steps of a token of the selective scan.
INLINE void take_steps(const Mixer& mixer, const float* steps, float* to) {
  for (int64_t h = 0; h < mixer.num_heads; h++)
    to[h] = softplus(steps[h] + number_at(mixer.step_bias, mixer.step_bias_type, h));
}

// What heads of the selective scan decay by, and skip.
INLINE void take_decays(const Mixer& mixer, float* decays, float* skips) {
  for (int64_t h = 0; h < mixer.num_heads; h++) {
    decays[h] = -expf(number_at(mixer.decay, mixer.decay_type, h));
    skips[h] = number_at(mixer.skip, mixer.skip_type, h);
  }
}

// Norms each group of heads of a row on its own.
INLINE void norm_groups(const Mixer& mixer, float* row) {
  const int64_t size = mixer.num_values() / mixer.num_key_heads, number_bytes = mixer.norm.type == 0 ? 4 : 2;
  Norm norm = mixer.norm;
  for (int64_t g = 0; g < mixer.num_key_heads; g++) {
    norm.weight = (const char*)mixer.norm.weight + g * size * number_bytes;
    apply_norm(norm, row + g * size, row + g * size, size);
  }
}

}  // namespace
