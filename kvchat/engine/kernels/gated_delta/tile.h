// The gated delta rule, token by token: a state gives the same bits however its tokens were divided into calls.
//
// Columns of a state, which belong to numbers of the values, do not touch each other: a task has some of them
// for all tokens of a sequence, in a copy that stays in a core's first cache. A token reads and writes that
// copy once: it applies what the token before it changed, and sums up for itself and its query.
//
// Dimensions: B sequences, n tokens of each, G key heads, H value heads, K and V numbers of a head.

#pragma once

#include <math.h>

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/native/threads.h"

namespace {
namespace delta {

constexpr int VECTORS = 4;
constexpr int64_t COLUMNS = VECTORS * W;  // of a task
constexpr int64_t MOST_DIM = 256;         // K

// The fields of native.py's `_Call`, in order. Types: 0 float, 1 bf16, 2 fp16. Strides, in numbers, are of
// sequence, token and head; heads lie without gaps.
struct Call {
  const void *query, *key, *value;
  const float* decay;   // [B, n, H], or [B, n, H, K]
  const float* beta;    // [B, n, H]
  float* states;          // [N, H, K, V]: slots, `slot_stride` numbers from one to the next
  const int64_t* reads;   // [B], slots of the states before the tokens, or null: they are zero
  const int64_t* writes;  // [B], slots of the states behind them, which nobody reads
  void* out;              // [B, n, H, V], its rows `out_stride` numbers apart
  Parallel parallel;      // null: compute alone
  int64_t query_strides[3], key_strides[3], value_strides[3];
  int64_t num_threads, type, num_sequences, num_tokens, num_key_heads, num_heads, key_dim, value_dim;
  int64_t decays_each, is_normal, slot_stride, out_stride;
  double epsilon;
};

constexpr double EPSILON = 1e-6;  // of the lengths of queries and keys

constexpr int64_t num_tiles(int64_t value_dim) { return (value_dim + COLUMNS - 1) / COLUMNS; }

float dot(const float* a, const float* b, int64_t count) {
  Vec total = zero();
  for (int64_t i = 0; i < count; i += W) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

template <typename T>
struct Tile {
  const Call& call;
  int64_t sequence, head, first, count;  // of its columns
  alignas(64) float state[MOST_DIM * COLUMNS];
  alignas(64) float keys[2][MOST_DIM], query[MOST_DIM], decays[MOST_DIM], change[COLUMNS];

  Tile(const Call& call, int64_t task) : call(call) {
    const int64_t tiles = num_tiles(call.value_dim);
    sequence = task / tiles / call.num_heads;
    head = task / tiles % call.num_heads;
    first = task % tiles * COLUMNS;
    count = least(COLUMNS, call.value_dim - first);
  }

  float* rows_of(const int64_t* slots) const {
    return call.states + slots[sequence] * call.slot_stride + head * call.key_dim * call.value_dim + first;
  }

  void run() {
    switch ((count + W - 1) / W) {
      case 1: return run<1>();
      case 2: return run<2>();
      case 3: return run<3>();
      default: return run<4>();
    }
  }

  template <int N>
  void run() {
    const int64_t dim = call.key_dim, padded = (dim + W - 1) / W * W;
    const float* from = call.reads ? rows_of(call.reads) : nullptr;
    for (int64_t k = 0; k < dim; k++) {
      float* row = state + k * N * W;
      if (count < N * W || !from) memset(row, 0, N * W * sizeof(float));
      if (from) copy_row(row, from + k * call.value_dim, count);
    }
    memset(change, 0, sizeof change);
    memset(keys[1], 0, sizeof keys[1]);
    const float scale = 1.0f / sqrtf((float)dim);
    for (int64_t t = 0; t < call.num_tokens; t++) {
      float *key = keys[t % 2], *last = keys[(t + 1) % 2];
      take(key, call.key, call.key_strides, t, padded, 1.0f);
      take(query, call.query, call.query_strides, t, padded, scale);
      const float overlap = dot(key, query, padded);
      if (call.decays_each)
        step<N, true>(t, last, key, overlap);
      else
        step<N, false>(t, last, key, overlap);
    }
    float* last = keys[(call.num_tokens + 1) % 2];
    float* to = rows_of(call.writes);
    for (int64_t k = 0; k < dim; k++) {
      float* row = state + k * N * W;
      UNROLL
      for (int i = 0; i < N; i++) store(row + i * W, fma(fill(last[k]), load(change + i * W), load(row + i * W)));
      copy_row(to + k * call.value_dim, row, count);
    }
  }

  // A key or query of this head, one long where that is asked for.
  void take(float* to, const void* from, const int64_t* strides, int64_t t, int64_t padded, float scale) const {
    const int64_t of_head = head / (call.num_heads / call.num_key_heads);
    widen_row(to, (const T*)from + sequence * strides[0] + t * strides[1] + of_head * strides[2], call.key_dim);
    if (call.is_normal) scale_row(to, 1.0f / sqrtf(dot(to, to, padded) + (float)call.epsilon), padded);
    if (scale != 1.0f) scale_row(to, scale, padded);
  }

  template <int N, bool EACH>
  void step(int64_t t, const float* last, const float* key, float overlap) {
    const int64_t token = (sequence * call.num_tokens + t) * call.num_heads + head, dim = call.key_dim;
    Vec decay = zero();
    if (EACH) {
      for (int64_t k = 0; k < dim; k += W) {
        const int64_t n = least(W, dim - k);
        const float* from = call.decay + token * dim + k;
        store(decays + k, exponential(n == W ? load(from) : load_part(from, (int)n)));
      }
    } else {
      decay = fill(exponential(call.decay[token]));
    }
    Vec changed[N], read[N], found[N];
    UNROLL
    for (int i = 0; i < N; i++) {
      changed[i] = load(change + i * W);
      read[i] = found[i] = zero();
    }
    for (int64_t k = 0; k < dim; k++) {
      float* row = state + k * N * W;
      const Vec before = fill(last[k]), now = fill(key[k]), asked = fill(query[k]);
      if (EACH) decay = fill(decays[k]);
      UNROLL
      for (int i = 0; i < N; i++) {
        const Vec held = mul(fma(before, changed[i], load(row + i * W)), decay);
        store(row + i * W, held);
        read[i] = fma(now, held, read[i]);
        found[i] = fma(asked, held, found[i]);
      }
    }
    alignas(64) float row[COLUMNS];
    const int64_t* strides = call.value_strides;
    const T* value = (const T*)call.value + sequence * strides[0] + t * strides[1] + head * strides[2];
    widen_row(row, value + first, count);
    const Vec beta = fill(call.beta[token]);
    UNROLL
    for (int i = 0; i < N; i++) {
      const Vec moved = mul(sub(load(row + i * W), read[i]), beta);
      store(change + i * W, moved);
      store(row + i * W, fma(fill(overlap), moved, found[i]));
    }
    T* out = (T*)call.out + (sequence * call.num_tokens + t) * call.out_stride + head * call.value_dim;
    write_numbers(out + first, row, count);
  }
};

}  // namespace delta
}  // namespace
