// The selective scan, token by token: a state gives the same bits however its tokens were divided into calls.
//
// A task has as many channels of one group as a vector has lanes, for all tokens of a sequence; their states
// stay in a core's first cache.
//
// Dimensions: B sequences, n tokens of each, H heads of P channels, G groups of heads, N numbers of a
// channel's state.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/native/threads.h"

namespace {
namespace scan {

constexpr int64_t MOST_SIZE = 256;  // N

constexpr int64_t num_tiles(int64_t num_channels) { return (num_channels + W - 1) / W; }

// The fields of native.py's `_Call`, in order. Types: 0 float, 1 bf16, 2 fp16.
struct Call {
  const void* x;        // [B, n, H * P], strides of sequence and token
  const float* dt;      // [B, n, H]
  const float* a;       // [H], or [H, N]
  const float *b, *c;   // [B, n, G, N], tokens `key_stride` numbers apart
  const float* skip;    // [H], or null
  float* states;          // [S, H, P, N]: slots, `slot_stride` numbers from one to the next
  const int64_t* reads;   // [B], slots of the states before the tokens, or null: they are zero
  const int64_t* writes;  // [B], slots of the states behind them, which nobody reads
  float* out;             // [B, n, H * P], tokens `out_stride` numbers apart
  Parallel parallel;      // null: compute alone
  int64_t x_strides[2];
  int64_t num_threads, type, num_sequences, num_tokens, num_heads, head_dim, num_groups, size, decays_each;
  int64_t slot_stride, key_stride, out_stride;
  double least_step;  // but for a token on its own behind a state

  int64_t num_channels() const { return num_heads * head_dim; }
  int64_t of_group() const { return num_channels() / num_groups; }
  int64_t tiles_of_group() const { return num_tiles(of_group()); }
};

struct Tile {
  const Call& call;
  int64_t sequence, group, first, count;  // of its channels
  alignas(64) float states[W * MOST_SIZE];
  alignas(64) float decays[W * MOST_SIZE];  // A of each channel, where it has its own for each number
  alignas(64) float b[MOST_SIZE], c[MOST_SIZE];

  Tile(const Call& call, int64_t task) : call(call) {
    const int64_t tiles = call.tiles_of_group();
    sequence = task / tiles / call.num_groups;
    group = task / tiles % call.num_groups;
    const int64_t start = task % tiles * W;
    first = group * call.of_group() + start;
    count = least(W, call.of_group() - start);
  }

  int64_t head(int64_t channel) const { return (first + channel) / call.head_dim; }

  float* slot(const int64_t* slots) const { return call.states + slots[sequence] * call.slot_stride; }

  void run() {
    const int64_t size = call.size, padded = (size + W - 1) / W * W;
    memset(states, 0, W * padded * sizeof(float));
    memset(decays, 0, W * padded * sizeof(float));
    memset(b, 0, sizeof b);
    memset(c, 0, sizeof c);
    const int64_t at = first * size;
    for (int64_t i = 0; i < count; i++) {
      if (call.reads) copy_row(states + i * padded, slot(call.reads) + at + i * size, size);
      if (call.decays_each) memcpy(decays + i * padded, call.a + head(i) * size, size * sizeof(float));
    }
    for (int64_t t = 0; t < call.num_tokens; t++) {
      const int64_t token = sequence * call.num_tokens + t;
      const int64_t of_group = token * call.key_stride + group * size;
      memcpy(b, call.b + of_group, size * sizeof(float));
      memcpy(c, call.c + of_group, size * sizeof(float));
      if (call.decays_each)
        step<true>(token, t, padded);
      else
        step<false>(token, t, padded);
    }
    for (int64_t i = 0; i < count; i++)
      copy_row(slot(call.writes) + at + i * size, states + i * padded, size);
  }

  template <bool EACH>
  void step(int64_t token, int64_t t, int64_t padded) {
    const bool is_bounded = call.least_step > 0 && !(call.reads && call.num_tokens == 1);
    alignas(64) float x[W] = {}, dt[W] = {}, a[W] = {}, skip[W] = {};
    for (int64_t i = 0; i < count; i++) {
      x[i] = number_at(call.x, call.type, sequence * call.x_strides[0] + t * call.x_strides[1] + first + i);
      dt[i] = call.dt[token * call.num_heads + head(i)];
      if (is_bounded) dt[i] = fmaxf(dt[i], (float)call.least_step);
      if (!EACH) a[i] = call.a[head(i)];
      if (call.skip) skip[i] = call.skip[head(i)];
    }
    if (!EACH) store(a, exponential(mul(load(a), load(dt))));
    Vec reads[W];
    for (int i = 0; i < W; i++) reads[i] = zero();
    for (int64_t i = 0; i < count; i++) {
      const Vec put = fill(dt[i] * x[i]), step = fill(dt[i]);
      Vec decay = fill(a[i]), read = zero();
      for (int64_t n = 0; n < padded; n += W) {
        float* numbers = states + i * padded + n;
        if (EACH) decay = exponential(mul(load(decays + i * padded + n), step));
        const Vec now = fma(put, load(b + n), mul(load(numbers), decay));
        store(numbers, now);
        read = fma(now, load(c + n), read);
      }
      reads[i] = read;
    }
    alignas(64) float row[W];
    store(row, fma(load(skip), load(x), sums(reads)));
    memcpy(call.out + token * call.out_stride + first, row, count * sizeof(float));
  }
};

}  // namespace scan
}  // namespace
