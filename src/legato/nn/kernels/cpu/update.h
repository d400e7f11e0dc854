// What follows the gradients, over all tensors of a model together: the gradients' norm, and AdamW's step, which takes
// them as long as clipping lets them be. One pass each, where PyTorch reads and writes gradients twice more.
//
//     g ← c g     w ← (1 - lr λ) w     m ← m + (1 - β₁) (g - m)     v ← β₂ v + (1 - β₂) g²
//     w ← w - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε)                    (Loshchilov & Hutter 2019)
#pragma once

#include <vector>

#include "elementwise.h"

struct Weights {
    float *weight, *gradient, *mean, *square;
    int64_t count;
    float keep, rate, root;  // 1 - lr λ, lr / (1 - β₁ᵗ), 1 / √(1 - β₂ᵗ)
};

struct Update {
    const Weights* tensors;
    int64_t count;
    float beta1, beta2, eps, clip;
};

struct Stretch {
    const Weights* of;
    int64_t first, count;
};

// Numbers that a thread takes at a time, of any tensor.
static std::vector<Stretch> stretches(const Weights* tensors, int64_t count) {
    std::vector<Stretch> found;
    for (int64_t i = 0; i < count; i++)
        for (int64_t first = 0; first < tensors[i].count; first += 4 * CHUNK)
            found.push_back({tensors + i, first, std::min(4 * CHUNK, tensors[i].count - first)});
    return found;
}

// The sum of squares: of vectors in a stretch, then of stretches in their order, whatever the number of threads.
static double squares(const Weights* tensors, int64_t count, int32_t threads) {
    const std::vector<Stretch> all_of = stretches(tensors, count);
    std::vector<double> sums(all_of.size());
#pragma omp parallel for num_threads(threads) if (all_of.size() > 1)
    for (size_t n = 0; n < all_of.size(); n++) {
        const float* from = all_of[n].of->gradient + all_of[n].first;
        int64_t i = 0;
        Floats totals[4] = {};
        for (; i + 4 * WIDE <= all_of[n].count; i += 4 * WIDE) UNROLL
        for (int v = 0; v < 4; v++) {
            const Floats x = load(from + i + v * WIDE);
            totals[v] = add_product(totals[v], x, x);
        }
        double total = sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
        for (; i < all_of[n].count; i++) total += (double)from[i] * from[i];
        sums[n] = total;
    }
    double total = 0;
    for (const double each : sums) total += each;
    return total;
}

INLINE Floats square_root(Floats x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (Floats)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__)
    return (Floats)vsqrtq_f32((float32x4_t)x);
#else
    UNROLL for (int i = 0; i < WIDE; i++) x[i] = std::sqrt(x[i]);
    return x;
#endif
}

static void adamw(const Update& task, int32_t threads) {
    const std::vector<Stretch> all_of = stretches(task.tensors, task.count);
#pragma omp parallel for num_threads(threads) if (all_of.size() > 1)
    for (size_t n = 0; n < all_of.size(); n++) {
        const Weights of = *all_of[n].of;
        const float clip = task.clip, beta2 = task.beta2, forget1 = 1 - task.beta1, forget2 = 1 - beta2, eps = task.eps;
        const float keep = of.keep, rate = of.rate, root = of.root;
        const auto step = [&](float* w, const float* g, float* m, float* v) {
            // All is read before anything is written: tensors a multiple of 4 KiB apart look alike to a processor.
            const Floats slope = load(g) * clip, before = load(m), squares = load(v), weight = load(w);
            const Floats mean = add_product(before, slope - before, all(forget1));
            const Floats square = add_product(squares * beta2, slope * forget2, slope);
            const Floats move = mean / (square_root(square) * root + eps);
            store(m, mean);
            store(v, square);
            store(w, weight * keep - move * rate);
        };
        const int64_t first = all_of[n].first, end = first + all_of[n].count;
        int64_t i = first;
        for (; i + WIDE <= end; i += WIDE) step(of.weight + i, of.gradient + i, of.mean + i, of.square + i);
        if (i < end) {
            float last[4][WIDE] = {};
            float* const from[4] = {of.weight + i, of.gradient + i, of.mean + i, of.square + i};
            for (int k = 0; k < 4; k++) std::copy_n(from[k], end - i, last[k]);
            step(last[0], last[1], last[2], last[3]);
            for (int k : {0, 2, 3}) std::copy_n(last[k], end - i, from[k]);
        }
    }
}
