// The loss of a softmax over a vocabulary, and in the place of the logits its gradient (nn/losses/vocabulary.py).
#pragma once

#include "elementwise.h"

struct Loss {
    void* logits;  // (rows, columns), of which the first `vocabulary` columns are tokens
    int64_t rows, columns, vocabulary;
    const int64_t* targets;  // (rows,)
    int64_t ignored;         // a target that does not count
    float smoothing;
    float* losses;  // (rows, 2), smoothed and plain
};

template <typename Number>
static void losses_and_gradient(const Loss& task, int64_t row) {
    constexpr int ONCE = 4;
    Number* z = (Number*)task.logits + row * task.columns;
    const int64_t count = task.vocabulary, together = count / (ONCE * WIDE) * (ONCE * WIDE);
    Floats most[ONCE], sums[ONCE] = {}, plain_sums[ONCE] = {};
    UNROLL
    for (int v = 0; v < ONCE; v++) most[v] = all(-INFINITY);
    for (int64_t i = 0; i < together; i += ONCE * WIDE) UNROLL
    for (int v = 0; v < ONCE; v++) {
        const Floats x = read(z + i + v * WIDE);
        most[v] = larger(most[v], x);
        plain_sums[v] += x;
    }
    UNROLL
    for (int v = 1; v < ONCE; v++) most[0] = larger(most[0], most[v]), plain_sums[0] += plain_sums[v];
    float highest = largest_of(most[0]), of_all = sum(plain_sums[0]);
    for (int64_t i = together; i < count; i++) {
        const float x = as_float(z[i]);
        highest = x > highest ? x : highest;
        of_all += x;
    }
    const auto powers = [&](int64_t i, auto& x) {
        constexpr int V = sizeof x / sizeof *x;
        UNROLL
        for (int v = 0; v < V; v++) x[v] = (read(z + i + v * WIDE) - highest) * LOG2_E;
        small_powers_of_two(x);
    };
    Floats x[ONCE];
    for (int64_t i = 0; i < together; i += ONCE * WIDE) {
        powers(i, x);
        UNROLL
        for (int v = 0; v < ONCE; v++) sums[v] += x[v];
    }
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t i = together; i < count; i++) total += std::exp(as_float(z[i]) - highest);
    const int64_t given = task.targets[row], target = given == task.ignored ? 0 : given;
    const float norm = highest + std::log(total), right = as_float(z[target]), even = task.smoothing / count;
    const float plain = norm - right,
                smoothed = (1 - task.smoothing) * plain + task.smoothing * (norm - of_all / count);
    task.losses[2 * row] = given == task.ignored ? 0.f : smoothed;
    task.losses[2 * row + 1] = given == task.ignored ? 0.f : plain;
    const float share = 1 / total;
    for (int64_t i = 0; i < together; i += ONCE * WIDE) {
        powers(i, x);
        UNROLL
        for (int v = 0; v < ONCE; v++) write(z + i + v * WIDE, x[v] * share - even);
    }
    for (int64_t i = together; i < count; i++) put(z + i, std::exp(as_float(z[i]) - highest) * share - even);
    put(z + target, std::exp(right - highest) * share - even - (1 - task.smoothing));
    std::fill_n(z + count, task.columns - count, Number(0));
}
