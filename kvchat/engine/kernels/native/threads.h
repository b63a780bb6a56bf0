// Tasks divided among threads of a pool that somebody else owns.

#pragma once

#include <stdint.h>

// Runs `work(data)` once on each of `num_threads` threads, of which the caller is one, and returns when all
// are done. This is how compilers call OpenMP's runtime, and the runtime is the one torch has loaded: a
// second pool would compete with torch's threads, which spin for a while after each of their operations.
typedef void (*Parallel)(void (*work)(void*), void* data, unsigned num_threads, unsigned flags);

namespace {

template <typename Job>
struct Shared {
  Job* job;
  int64_t num_tasks;
  int64_t next;
};

template <typename Job>
void take_tasks(void* data) {
  Shared<Job>* shared = (Shared<Job>*)data;
  for (;;) {
    const int64_t task = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
    if (task >= shared->num_tasks) return;
    shared->job->run(task);
  }
}

// Calls job.run(task) for every task in [0, num_tasks); each thread takes the next one when it is free.
template <typename Job>
void run_tasks(Job& job, int64_t num_tasks, Parallel parallel, int64_t num_threads) {
  Shared<Job> shared = {&job, num_tasks, 0};
  if (num_threads > num_tasks) num_threads = num_tasks;
  if (!parallel || num_threads <= 1)
    take_tasks<Job>(&shared);
  else
    parallel(take_tasks<Job>, &shared, (unsigned)num_threads, 0);
}

}  // namespace
