// What looks at each number alone, for training: dropout by place (random.h), and GELU with its gradient.
#pragma once

#include "threads.h"
#include "tiles.h"

constexpr int64_t CHUNK = 4096;  // numbers that a thread takes at a time; of dropout, a row

// What `make` makes of the vectors of some arrays, chunk by chunk; the last numbers in an array of their own.
template <typename Number, int COUNT, typename Make>
static void each_vector(const Number* const (&from)[COUNT], Number* to, int64_t count, int32_t threads, Make make) {
    const int64_t chunks = (count + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(threads) if (chunks > 4)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t end = std::min(count, (chunk + 1) * CHUNK);
        const auto made = make(chunk);
        int64_t i = chunk * CHUNK;
        for (; i + WIDE <= end; i += WIDE) {
            Floats x[COUNT];
            UNROLL
            for (int n = 0; n < COUNT; n++) x[n] = read(from[n] + i);
            write(to + i, made(x, i - chunk * CHUNK));
        }
        if (i < end) {
            Number some[COUNT][WIDE] = {}, last[WIDE];
            Floats x[COUNT];
            for (int n = 0; n < COUNT; n++) {
                std::copy_n(from[n] + i, end - i, some[n]);
                x[n] = read(some[n]);
            }
            write(last, made(x, i - chunk * CHUNK));
            std::copy_n(last, end - i, to + i);
        }
    }
}

// Sixteen columns' sums over blocks that lie a `stride` apart.
INLINE void add_blocks(const float* from, int64_t blocks, int64_t stride, float* to) {
    Floats totals[16 / WIDE] = {};
    for (int64_t block = 0; block < blocks; block++) UNROLL
    for (int v = 0; v < 16 / WIDE; v++) totals[v] += load(from + block * stride + v * WIDE);
    UNROLL
    for (int v = 0; v < 16 / WIDE; v++) store(to + v * WIDE, totals[v]);
}

template <typename Number>
static void drop(const Number* x, Number* y, int64_t count, const Dropout& dropout, int32_t threads) {
    const Number* const from[1] = {x};
    each_vector(from, y, count, threads, [&](int64_t chunk) {
        const RowKey row(dropout.seed, chunk);
        return [row, &dropout](const Floats(&given)[1], int64_t place) {
            const Words draw = drawn(places_from(place), all_words(row.first), all_words(row.second));
            return kept_of(given[0] * dropout.scale, draw, dropout.threshold);
        };
    });
}

// How much of x GELU lets through, and how steeply that grows: Φ(x) and its density, or what is near them
// (0.5 (1 + tanh y) = σ(2 y)).
template <bool TANH>
INLINE void share_of_gelu(Floats x, Floats& share, Floats& steep) {
    if constexpr (TANH) {
        share = inverse_of(1.f + exponential(x * (x * x * -0.0713548162726f - 1.5957691216057308f)));
        steep = share * (1.f - share) * (x * x * 0.2140644488178f + 1.5957691216057308f);
    } else {
        share = error_function(x * 0.70710678f) * 0.5f + 0.5f;
        steep = exponential(x * x * -0.5f) * 0.39894228f;
    }
}

template <bool TANH, typename Number>
static void gelu(const Number* x, const Number* slope, Number* y, int64_t count, int32_t threads) {
    if (slope) {
        const Number* const from[2] = {x, slope};
        each_vector(from, y, count, threads, [](int64_t) {
            return [](const Floats(&given)[2], int64_t) {
                Floats share, steep;
                share_of_gelu<TANH>(given[0], share, steep);
                return given[1] * (share + given[0] * steep);
            };
        });
    } else {
        const Number* const from[1] = {x};
        each_vector(from, y, count, threads, [](int64_t) {
            return [](const Floats(&given)[1], int64_t) {
                Floats share, steep;
                share_of_gelu<TANH>(given[0], share, steep);
                return given[0] * share;
            };
        });
    }
}

// A layer's units, y = gelu(x + b), and on the way back the slopes of x and, summed over rows, of b.
struct BiasedGelu {
    int64_t rows, width;  // the width is a multiple of 16
    const void* x;
    const float* bias;
    const void* slope;  // none on the way there
    void* y;            // x's slope on the way back
    float *parts, *slopes;  // (blocks, width), and (width,)
};

constexpr int64_t ROWS = 32;  // of a block: its sums are made one after the other, whatever the number of threads

template <bool TANH, typename Number>
static void biased_gelu(const BiasedGelu& task, int32_t threads) {
    const int64_t blocks = (task.rows + ROWS - 1) / ROWS, width = task.width;
#pragma omp parallel num_threads(threads) if (blocks > 1)
    {
#pragma omp for
        for (int64_t block = 0; block < blocks; block++) {
            float* part = task.slope ? task.parts + block * width : nullptr;
            if (part) std::fill_n(part, width, 0.f);
            for (int64_t row = block * ROWS; row < std::min(task.rows, (block + 1) * ROWS); row++) {
                const Number *x = (const Number*)task.x + row * width, *up = (const Number*)task.slope + row * width;
                Number* y = (Number*)task.y + row * width;
                for (int64_t i = 0; i < width; i += WIDE) {
                    const Floats given = read(x + i) + load(task.bias + i);
                    Floats share, steep;
                    share_of_gelu<TANH>(given, share, steep);
                    if (part) {
                        const Floats down = read(up + i) * add_product(share, given, steep);
                        write(y + i, down);
                        store(part + i, load(part + i) + down);
                    } else {
                        write(y + i, given * share);
                    }
                }
            }
        }
        if (task.slope) {
#pragma omp for
            for (int64_t i = 0; i < width; i += 16) add_blocks(task.parts + i, blocks, width, task.slopes + i);
        }
    }
}
