// How threads share work, and wait for each other.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>

#include "vectors.h"

struct Share {
    int64_t first, last;
};

// What is this thread's of so many things.
INLINE Share share_of(int64_t count) {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    return {count * me / threads, count * (me + 1) / threads};
}

// All threads wait for each other: awake for some microseconds, since they come at about the same time, and then in
// turn with whatever else wants the processor.
class Barrier {
  public:
    void wait() {
        const int phase = passed.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == omp_get_num_threads()) {
            arrived.store(0, std::memory_order_relaxed);
            passed.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int turns = 0; passed.load(std::memory_order_acquire) == phase; turns++) {
            if (turns > AWAKE) sched_yield();
#if defined(__aarch64__)
            else asm volatile("isb");
#elif defined(__x86_64__)
            else __builtin_ia32_pause();
#endif
        }
    }

  private:
    static constexpr int AWAKE = 4000;
    std::atomic<int> arrived{0}, passed{0};
};
