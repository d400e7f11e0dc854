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
struct Columns {
    float* keys;
    float* values;
    int64_t layer, row, head;  // in floats
};

// New tokens of the rows of a cache, `tokens` of each, one behind the other.
struct Step {
    int64_t rows, tokens, column;  // of all rows; the first token's column, in every row of the cache
    const int32_t* first;          // the first column of each row of the cache; null: 0
    const float* cos;              // (rows, head_width), null without rotary positions
    const float* sin;
    Columns cache, sources;
    int64_t rows_of_source;         // rows that look at one source
    const int32_t* source_lengths;  // (sources,)
    const float* embedded;          // (rows, width)
    float* logits;                  // (rows / tokens, readout.rows), after the last token of each
    const int32_t* adapters;        // (rows,), whose each row is; null: nobody's
};

struct Workspace {
    Rows x, normed, context, units;
    float *qkv, *inner, *added, *scores, *low;
    int64_t longest, ranks, seen;  // what a thread has room for in `scores`, a row in `low`; the columns of a cache
};

INLINE float dot(const float* a, const float* b, int64_t count) {
    Floats total = all(0.f), other = all(0.f);
    int64_t i = 0;
    for (; i + 2 * WIDE <= count; i += 2 * WIDE) {
        total += load(a + i) * load(b + i);
        other += load(a + i + WIDE) * load(b + i + WIDE);
    }
    float value = sum(total + other);
    for (; i < count; i++) value += a[i] * b[i];
    return value;
}

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

// softmax(q Kᵀ / √width) V of one query over `count` columns.
static void attend(
    const float* query, const float* keys, const float* values, int64_t count, int64_t width, float* scores, float* to) {
    const float scale = 1.f / std::sqrt((float)width);
    constexpr int AT_ONCE = 8;
    float most = -INFINITY;
    int64_t s = 0;
    for (; s + AT_ONCE <= count; s += AT_ONCE) {  // columns whose sums do not wait for one another
        Floats total[AT_ONCE] = {};
        int64_t i = 0;
        for (; i + WIDE <= width; i += WIDE) {
            const Floats some = load(query + i);
            UNROLL for (int c = 0; c < AT_ONCE; c++) total[c] += some * load(keys + (s + c) * width + i);
        }
        UNROLL for (int c = 0; c < AT_ONCE; c++) {
            scores[s + c] = scale * (sum(total[c]) + dot(query + i, keys + (s + c) * width + i, width - i));
            most = scores[s + c] > most ? scores[s + c] : most;
        }
    }
    for (; s < count; s++) {
        scores[s] = scale * dot(query, keys + s * width, width);
        most = scores[s] > most ? scores[s] : most;
    }
    Floats whole = all(0.f);
    for (s = 0; s + WIDE <= count; s += WIDE) {
        Floats weight = exponential(load(scores + s) - most);
        whole += weight;
        store(scores + s, weight);
    }
    float total = sum(whole);
    for (; s < count; s++) total += scores[s] = std::exp(scores[s] - most);
    const float inverse = 1.f / total;
    int64_t i = 0;
    for (; i + AT_ONCE * WIDE <= width; i += AT_ONCE * WIDE) {
        Floats found[AT_ONCE] = {};
        for (s = 0; s < count; s++) {
            const float* value = values + s * width + i;
            UNROLL for (int v = 0; v < AT_ONCE; v++) found[v] += load(value + v * WIDE) * scores[s];
        }
        UNROLL for (int v = 0; v < AT_ONCE; v++) store(to + i + v * WIDE, found[v] * inverse);
    }
    for (; i + WIDE <= width; i += WIDE) {
        Floats found = all(0.f);
        for (s = 0; s < count; s++) found += load(values + s * width + i) * scores[s];
        store(to + i, found * inverse);
    }
    for (; i < width; i++) {
        float found = 0;
        for (s = 0; s < count; s++) found += values[s * width + i] * scores[s];
        to[i] = found * inverse;
    }
}
