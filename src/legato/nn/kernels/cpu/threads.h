// How threads share work, and wait for each other.
#pragma once

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "vectors.h"

struct Share {
    int64_t first, last;
};

// What is this thread's of so many things.
INLINE Share share_of(int64_t count) {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    return {count * me / threads, count * (me + 1) / threads};
}

// Things that threads take some at a time: each its own share first, as it stands in its cache, and then what others
// have left, since a thread may have to wait for a processor that is busy with something else.
class Taking {
  public:
    static constexpr int PIECES = 8;  // that a share is taken in

    void begin(int threads) {
        if ((int)taken.size() < threads) taken = std::vector<Line>(threads);
        for (Line& line : taken) line.count.store(0, std::memory_order_relaxed);
    }

    // `act(first, last)` for all of `count` things, a multiple of `whole` at a time.
    template <typename Do>
    void each(int64_t count, int64_t whole, Do act) {
        some_each(count, (count / omp_get_num_threads() / PIECES + whole) / whole * whole, act);
    }

    // `act(first, last)` for `some` of them at a time.
    template <typename Do>
    void some_each(int64_t count, int64_t some, Do act) {
        const int threads = omp_get_num_threads(), me = omp_get_thread_num();
        for (int i = 0; i < threads; i++) {
            const int whose = (me + i) % threads;
            const int64_t begin = count * whose / threads, end = count * (whose + 1) / threads;
            for (;;) {
                const int64_t first = begin + taken[whose].count.fetch_add(some, std::memory_order_relaxed);
                if (first >= end) break;
                act(first, std::min(first + some, end));
            }
        }
    }

  private:
    struct alignas(64) Line {
        std::atomic<int64_t> count{0};
        Line() = default;
        Line(const Line&) {}
        Line& operator=(const Line&) { return *this; }
    };
    std::vector<Line> taken;
};

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
