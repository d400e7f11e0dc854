// What adapters add to a product (nn/adapters/lora_by_row.py): y_i += s B A x_i, with A and B those of row i.
#pragma once

#include "matrix.h"

// RANKS of A's rows times x, whose sums do not wait for one another.
static void lower(const float* down, const float* x, int64_t columns, float* low) {
    Floats total[RANKS] = {};
    int64_t i = 0;
    for (; i + WIDE <= columns; i += WIDE) {
        const Floats some = load(x + i);
        UNROLL for (int r = 0; r < RANKS; r++) total[r] = add_product(total[r], load(down + r * columns + i), some);
    }
    UNROLL for (int r = 0; r < RANKS; r++) low[r] = sum(total[r]);
    for (; i < columns; i++)
        for (int r = 0; r < RANKS; r++) low[r] += down[r * columns + i] * x[i];
}

// y += what RANKS numbers make of s Bᵀ, in some vectors of outputs.
template <int V>
INLINE void raise_vectors(const float* up, int64_t outputs, const float* low, float* y) {
    Floats total[V];
    UNROLL for (int v = 0; v < V; v++) total[v] = load(y + v * WIDE);
    for (int r = 0; r < RANKS; r++, up += outputs) {
        const Floats factor = all(low[r]);
        UNROLL for (int v = 0; v < V; v++) total[v] = add_product(total[v], load(up + v * WIDE), factor);
    }
    UNROLL for (int v = 0; v < V; v++) store(y + v * WIDE, total[v]);
}

// What an adapter adds in the outputs from `first` to `last`, whole panels.
static void raise_outputs(const LowRank& own, const float* low, float* y, int64_t first, int64_t last) {
    constexpr int AT_ONCE = 8;
    const float* up = own.up;
    for (int64_t rank = 0; rank < own.rank; rank += RANKS, low += RANKS) {
        const int64_t begin = own.spans[rank / RANKS * 2], end = own.spans[rank / RANKS * 2 + 1], outputs = end - begin;
        const int64_t stop = std::min(last, end);
        int64_t i = std::max(first, begin);
        for (; i + AT_ONCE * WIDE <= stop; i += AT_ONCE * WIDE)
            raise_vectors<AT_ONCE>(up + i - begin, outputs, low, y + i);
        for (; i < stop; i += WIDE) raise_vectors<1>(up + i - begin, outputs, low, y + i);
        up += RANKS * outputs;
    }
}
