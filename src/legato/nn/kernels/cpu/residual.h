// Training's way from one sublayer to the next in one pass, and back in another: what is added is dropped in part
// (random.h), the sum is the residual stream, and its norm is what the next sublayer reads.
//
//     s = x + y ∘ mask / keep        n = x̂ ∘ γ + β,   x̂ = (s - mean) / std
//     g = dn ∘ γ                     dx = ds + (g - mean(g) - x̂ mean(g ∘ x̂)) / std     dy = dx ∘ mask / keep
//     dγ = Σ dn ∘ x̂                  dβ = Σ dn                    an RMS norm is the same without means
//
// Sums over rows are made of blocks of rows and then of those, in the same order whatever the number of threads.
#pragma once

#include "elementwise.h"

struct Residual {
    int64_t rows, width;  // the width is a multiple of 16
    const void *stream, *added;
    void *sum, *normed;  // no sum where nothing is added
    float* stats;        // (rows, 2): the mean, and 1 / std
    const float *weight, *bias;
    float eps;
    int32_t rms;
    Dropout dropout;
    // back; slopes of the sum and of what is added may be missing
    const void *sum_slope, *normed_slope;
    void *stream_slope, *added_slope;
    float *parts, *slopes;  // (blocks, 2, width), and (2, width): of the weight and the bias
};

// The sum of a vector's numbers: a row waits for each of its sums, and one number after the other takes 64 cycles.
INLINE float total_of(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    return sum(x);
#endif
}

// The sum over a row of what `add` adds to four sums in turn.
template <typename Add>
INLINE float total_of_row(int64_t width, Add add) {
    Floats totals[4] = {};
    int64_t i = 0;
    for (; i + 4 * WIDE <= width; i += 4 * WIDE) UNROLL
    for (int v = 0; v < 4; v++) add(i + v * WIDE, totals[v]);
    for (; i < width; i += WIDE) add(i, totals[0]);
    return total_of((totals[0] + totals[1]) + (totals[2] + totals[3]));
}

// `make` for each vector of a row with what its numbers are multiplied by: 0 where they are dropped.
template <typename Make>
INLINE void each_kept(const Dropout& dropout, int64_t first, int64_t width, Make make) {
    for (int64_t i = 0; i < width;) {
        const int64_t chunk = (first + i) / CHUNK, end = std::min(width, (chunk + 1) * CHUNK - first);
        const RowKey row(dropout.seed, chunk);
        for (; i < end; i += WIDE) {
            const Words draw =
                drawn(places_from(first + i - chunk * CHUNK), all_words(row.first), all_words(row.second));
            make(i, kept_of(all(dropout.scale), draw, dropout.threshold));
        }
    }
}

template <typename Stream, typename Added, typename Normed>
static void residual_forward(const Residual& task, int64_t row) {
    const int64_t width = task.width, first = row * width;
    const Stream* x = (const Stream*)task.stream + first;
    Normed* n = (Normed*)task.normed + first;
    if (task.added) {
        const Added* y = (const Added*)task.added + first;
        Stream* s = (Stream*)task.sum + first;
        const auto add = [&](int64_t i, Floats kept) { write(s + i, add_product(read(x + i), read(y + i), kept)); };
        if (task.dropout.threshold) each_kept(task.dropout, first, width, add);
        else
            for (int64_t i = 0; i < width; i += WIDE) add(i, all(1.f));
        x = s;
    }
    const float total = task.rms ? 0.f : total_of_row(width, [&](int64_t i, Floats& to) { to += read(x + i); });
    const float mean = total / width;
    const float apart = total_of_row(width, [&](int64_t i, Floats& to) {
        const Floats far = read(x + i) - mean;
        to = add_product(to, far, far);
    });
    const float inverse = 1 / std::sqrt(apart / width + task.eps);
    for (int64_t i = 0; i < width; i += WIDE) {
        const Floats made = (read(x + i) - mean) * inverse * load(task.weight + i);
        write(n + i, task.bias ? made + load(task.bias + i) : made);
    }
    task.stats[2 * row] = mean;
    task.stats[2 * row + 1] = inverse;
}

template <typename Stream, typename Added, typename Normed>
static void residual_backward(const Residual& task, int64_t row, float* of_weight, float* of_bias) {
    const int64_t width = task.width, first = row * width;
    const Stream *s = (const Stream*)task.stream + first, *ds = (const Stream*)task.sum_slope;
    const Normed* dn = (const Normed*)task.normed_slope + first;
    Stream* dx = (Stream*)task.stream_slope + first;
    const float mean = task.stats[2 * row], inverse = task.stats[2 * row + 1];
    Floats even = {}, along = {};
    for (int64_t i = 0; i < width; i += WIDE) {
        const Floats slope = read(dn + i), x = (read(s + i) - mean) * inverse, g = slope * load(task.weight + i);
        store(of_weight + i, add_product(load(of_weight + i), slope, x));
        store(of_bias + i, load(of_bias + i) + slope);
        even += g;
        along = add_product(along, g, x);
    }
    const float evenly = task.rms ? 0.f : total_of(even) / width, steep = total_of(along) / width;
    for (int64_t i = 0; i < width; i += WIDE) {
        const Floats x = (read(s + i) - mean) * inverse, g = read(dn + i) * load(task.weight + i);
        const Floats made = (g - evenly - x * steep) * inverse;
        write(dx + i, ds ? made + read(ds + first + i) : made);
    }
    if (!task.added_slope) return;
    Added* dy = (Added*)task.added_slope + first;
    const auto leave = [&](int64_t i, Floats kept) { write(dy + i, read(dx + i) * kept); };
    if (task.dropout.threshold) each_kept(task.dropout, first, width, leave);
    else
        for (int64_t i = 0; i < width; i += WIDE) leave(i, all(1.f));
}

template <typename Stream, typename Added, typename Normed>
static void residual(const Residual& task, bool back, int32_t threads) {
    const int64_t blocks = (task.rows + ROWS - 1) / ROWS, numbers = 2 * task.width;
#pragma omp parallel num_threads(threads) if (blocks > 1)
    {
#pragma omp for
        for (int64_t block = 0; block < blocks; block++) {
            float* part = task.parts + block * numbers;
            if (back) std::fill_n(part, numbers, 0.f);
            for (int64_t row = block * ROWS; row < std::min(task.rows, (block + 1) * ROWS); row++)
                if (back) residual_backward<Stream, Added, Normed>(task, row, part, part + task.width);
                else residual_forward<Stream, Added, Normed>(task, row);
        }
        if (back) {
#pragma omp for
            for (int64_t i = 0; i < numbers; i += 16) add_blocks(task.parts + i, blocks, numbers, task.slopes + i);
        }
    }
}
