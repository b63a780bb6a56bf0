// Work in phases: many small tasks each, of which all must be done before the next phase begins.
//
// One parallel region serves all phases of a step: opening one per phase would cost more than the work of
// many phases. A thread takes tasks from its own range first, in order, so that it reads memory in order, and
// then from the others'; a thread that the system lets wait delays nobody unless it holds a task.

#pragma once

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvchat/engine/kernels/native/threads.h"
#include "kvchat/engine/kernels/native/vector.h"

namespace {

constexpr int64_t LINE = 64;  // bytes that threads share at once
constexpr int SPINS = 2000;   // looks at a flag before the processor is offered to others

INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

INLINE void wait_for(const int64_t* flag) {
  for (int spins = 0; !__atomic_load_n(flag, __ATOMIC_ACQUIRE); spins++) {
    if (spins < SPINS)
      relax();
    else
      sched_yield();
  }
}

// Runs a job: `num_phases` phases; `num_tasks(phase)`, at least 1; `run(phase, task, thread)`, by any thread
// and in any order; `finish(phase)`, by one thread after all tasks of the phase and before the next.
template <typename Job>
struct Phases {
  Job& job;
  const int64_t num_threads;
  char* lines;          // of each phase: that of its end, and one of each range of tasks
  int64_t num_here = 0;

  struct End {
    int64_t num_done, is_finished;
  };

  Phases(Job& job, int64_t num_threads) : job(job), num_threads(num_threads) {}

  End* end(int64_t phase) const { return (End*)(lines + phase * (num_threads + 1) * LINE); }
  int64_t* taken(int64_t phase, int64_t range) const {
    return (int64_t*)(lines + (phase * (num_threads + 1) + 1 + range) * LINE);
  }

  // False: for lack of memory.
  bool run(Parallel parallel) {
    const int64_t size = job.num_phases * (num_threads + 1) * LINE;
    lines = (char*)allocate(size / sizeof(float));
    if (!lines) return false;
    memset(lines, 0, size);
    if (parallel && num_threads > 1)
      parallel(enter, this, (unsigned)num_threads, 0);
    else
      enter(this);
    free(lines);
    return true;
  }

  static void enter(void* data) {
    Phases* phases = (Phases*)data;
    const int64_t thread = __atomic_fetch_add(&phases->num_here, 1, __ATOMIC_RELAXED);
    for (int64_t phase = 0; phase < phases->job.num_phases; phase++) phases->take_part(phase, thread);
  }

  void take_part(int64_t phase, int64_t thread) {
    End* end = this->end(phase);
    // Whoever comes late finds phases that are over.
    if (__atomic_load_n(&end->is_finished, __ATOMIC_ACQUIRE)) return;
    const int64_t num_tasks = job.num_tasks(phase);
    int64_t num_run = 0;
    for (int64_t i = 0; i < num_threads; i++) {
      const int64_t range = (thread + i) % num_threads, begin = num_tasks * range / num_threads;
      const int64_t count = num_tasks * (range + 1) / num_threads - begin;
      for (;;) {
        const int64_t task = __atomic_fetch_add(taken(phase, range), 1, __ATOMIC_RELAXED);
        if (task >= count) break;
        job.run(phase, begin + task, thread);
        num_run++;
      }
    }
    if (num_run && __atomic_add_fetch(&end->num_done, num_run, __ATOMIC_ACQ_REL) == num_tasks) {
      job.finish(phase);
      __atomic_store_n(&end->is_finished, 1, __ATOMIC_RELEASE);
    } else {
      wait_for(&end->is_finished);
    }
  }
};

}  // namespace
