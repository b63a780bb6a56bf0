// A short convolution over the last tokens, channel by channel.
//
// Dimensions: B sequences, n tokens of each, C channels, L taps, P inputs that are kept.

#include "kvchat/engine/kernels/decoder_layers/elementwise.h"
#include "kvchat/engine/kernels/native/threads.h"

namespace {

constexpr int VECTORS = 4;
constexpr int64_t CHANNELS = VECTORS * W;  // of a task
constexpr int64_t MOST_TAPS = 8;  // and kept inputs

// The fields of native.py's `_Call`, in order. All numbers are of one type: 0 float, 1 bf16, 2 fp16.
struct Call {
  const void* x;       // [B, n, C], strides of sequence and token
  const void* weight;  // [C, L]
  const void* bias;    // [C], or null
  void* past;          // [B, C, P], or null: zeros; afterwards the last inputs
  void* out;           // [B, n, C]
  Parallel parallel;   // null: compute alone
  int64_t x_strides[2];
  int64_t num_threads, type, num_sequences, num_tokens, num_channels, num_taps, num_kept;
  int64_t is_activated;
};

template <typename T>
struct Tile {
  const Call& call;
  int64_t sequence, first, count;  // of its channels
  alignas(64) float taps[MOST_TAPS][CHANNELS], bias[CHANNELS];
  alignas(64) float inputs[MOST_TAPS][CHANNELS];  // of the last tokens: a ring

  Tile(const Call& call, int64_t task) : call(call) {
    const int64_t tiles = (call.num_channels + CHANNELS - 1) / CHANNELS;
    sequence = task / tiles;
    first = task % tiles * CHANNELS;
    count = least(CHANNELS, call.num_channels - first);
  }

  void run() {
    const int64_t num_taps = call.num_taps, before = num_taps - 1;
    memset(taps, 0, sizeof taps);
    memset(bias, 0, sizeof bias);
    memset(inputs, 0, sizeof inputs);
    alignas(64) float rows[CHANNELS * MOST_TAPS];
    widen_row(rows, (const T*)call.weight + first * num_taps, count * num_taps);
    for (int64_t c = 0; c < count; c++)
      for (int64_t tap = 0; tap < num_taps; tap++) taps[tap][c] = rows[c * num_taps + tap];
    if (call.bias) widen_row(bias, (const T*)call.bias + first, count);
    T* past = call.past ? (T*)call.past + (sequence * call.num_channels + first) * call.num_kept : nullptr;
    if (past) {
      widen_row(rows, past, count * call.num_kept);
      const float* last = rows + call.num_kept - before;
      for (int64_t c = 0; c < count; c++)
        for (int64_t i = 0; i < before; i++) inputs[i][c] = last[c * call.num_kept + i];
    }
    for (int64_t t = 0; t < call.num_tokens; t++) {
      const T* from = (const T*)call.x + sequence * call.x_strides[0] + t * call.x_strides[1] + first;
      float* now = inputs[(t + before) % num_taps];
      widen_row(now, from, count);
      T* to = (T*)call.out + (sequence * call.num_tokens + t) * call.num_channels + first;
      add_up(to, t);
    }
    if (past) keep(past);
  }

  void add_up(T* to, int64_t t) const {
    alignas(64) float row[CHANNELS];
    const float* last[MOST_TAPS];
    for (int64_t tap = 0; tap < call.num_taps; tap++) last[tap] = inputs[(t + tap) % call.num_taps];
    for (int64_t c = 0; c < CHANNELS; c += W) {
      Vec total = load(bias + c);
      for (int64_t tap = 0; tap < call.num_taps; tap++)
        total = fma(load(last[tap] + c), load(taps[tap] + c), total);
      if (call.is_activated) {
        T rounded[W];
        store(rounded, total);
        total = silu(load(rounded));
      }
      store(row + c, total);
    }
    write_numbers(to, row, count);
  }

  void keep(T* past) const {
    const int64_t kept = call.num_kept, num = call.num_tokens;
    for (int64_t c = 0; c < count; c++) {
      T* row = past + c * kept;
      const int64_t stay = most(0, kept - num);
      for (int64_t i = 0; i < stay; i++) row[i] = row[i + kept - stay];
      for (int64_t i = stay; i < kept; i++) {
        const int64_t t = num - kept + i;
        row[i] = ((const T*)call.x + sequence * call.x_strides[0] + t * call.x_strides[1])[first + c];
      }
    }
  }
};

struct Job {
  const Call& call;

  void run(int64_t task) const {
    if (call.type == 0)
      Tile<float>(call, task).run();
    else if (call.type == 1)
      Tile<bf16>(call, task).run();
    else
      Tile<fp16>(call, task).run();
  }
};

}  // namespace

EXPORT(causal_conv)(const Call* call) {
  Job job = {*call};
  const int64_t tiles = (call->num_channels + CHANNELS - 1) / CHANNELS;
  run_tasks(job, call->num_sequences * tiles, call->parallel, call->num_threads);
  return 0;
}
