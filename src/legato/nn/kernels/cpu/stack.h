// New tokens through all blocks of a decoder, one a row or a prompt's: what nn/transformer.py's Stack does with a key/value cache, and the
// readout behind it, in one call. Matrices are large and rows are few, so it is the reading of weights that takes time;
// everything else is kept out of its way.
#pragma once

#include <algorithm>

#include "products.h"

enum NormKind : int32_t { NO_NORM = 0, LAYER_NORM = 1, RMS_NORM = 2 };

struct Norm {
    int32_t kind;
    float eps;
    const float* weight;
    const float* bias;  // or null
};

struct Block {
    Norm attention_norm, cross_norm, feedforward_norm, query_norm, key_norm;
    Matrix qkv, attention_output, query, cross_output, inner, outer;
    int64_t window;  // tokens that one sees, itself included; 0: all
};

struct Stack {
    int32_t layers, width, heads, kv_heads, head_width, units, activation, gated, norm_first, cross;
    Norm norm;  // behind the last block
    const Block* blocks;
    Matrix readout;
};

// Keys and values: of layer l, row b, head h and column s from `keys` + l · layer + b · row + h · head + s · head_width.
// In blocks a block is a row of BLOCK columns.
struct Columns {
    float* keys;
    float* values;
    int64_t layer, row, head;  // in floats
};

constexpr int64_t BLOCK = 16;  // slots of a block (nn/block_cache.py)

// New tokens of the rows of a cache, one row's behind the other's. In columns `tokens` of each, from the same column on.
// In blocks those of a `Reading` (nn/block_cache.py) from number `from` on, which may begin and end inside a row.
struct Step {
    int64_t rows, tokens, column;  // tokens of all rows, and of each; the first token's column, in every row of the cache
    const int32_t* first;          // the first column of each row of the cache; null: 0
    const float* cos;              // (rows, head_width), null without rotary positions
    const float* sin;
    Columns cache, sources;
    int64_t rows_of_source;         // rows that look at one source
    const int32_t* source_lengths;  // (sources,)
    const float* embedded;          // (rows, width)
    float* logits;                  // (rows of the cache that end here, readout.rows), after the last token of each
    const int32_t* adapters;        // (rows,), whose each row is; null: nobody's
    const int32_t* starts;          // (readers + 1,), of all tokens; null: in columns
    const int64_t *positions, *slots;  // of all tokens
    const int32_t* tables;          // (readers, capacity)
    int64_t readers, capacity, from;
};

struct Workspace {
    Rows x, normed, context, units;
    float *qkv, *inner, *added, *scores, *low;
    int64_t longest, ranks, seen;  // what a thread has room for in `scores`, a row in `low`; the most columns of a row
};

static void normalise(const Norm& norm, const float* x, float* y, int64_t count) {
    float mean = 0, square = 0;
    if (norm.kind == LAYER_NORM) {
        Floats total = all(0.f);
        int64_t i = 0;
        for (; i + WIDE <= count; i += WIDE) total += load(x + i);
        mean = sum(total);
        for (; i < count; i++) mean += x[i];
        mean /= count;
    }
    Floats total = all(0.f);
    int64_t i = 0;
    for (; i + WIDE <= count; i += WIDE) {
        Floats apart = load(x + i) - mean;
        total += apart * apart;
    }
    square = sum(total);
    for (; i < count; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.f / std::sqrt(square / count + norm.eps);
    if (norm.bias)
        for (i = 0; i < count; i++) y[i] = (x[i] - mean) * scale * norm.weight[i] + norm.bias[i];
    else
        for (i = 0; i < count; i++) y[i] = (x[i] - mean) * scale * norm.weight[i];
}

INLINE void rotate(float* x, const float* cos, const float* sin, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}
