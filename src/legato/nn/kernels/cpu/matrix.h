// Matrices as they lie ready for products, and the rows that they are multiplied with.
//
// A matrix of N rows (outputs) and K columns (inputs) is kept in one of these ways:
//
//   PANELS  floats, sixteen outputs side by side: (N/16, K, 16)
//   BYTES   8 bits a number, a half-precision scale for each 32 inputs of an output: (N/16, K/32) blocks
//   NIBBLES 4 bits a number, and the same scales; with minimums they are 0 to 15, else what a table says of them
//   BROAD   8 bits a number, a float scale for each 128 inputs of an output: for many rows, made of the two above
//   HALVES  half-precision numbers, as PANELS; for processors that multiply them (halves.h)
//
// A block of BYTES is (8, 16, 4) bytes, for 8 times 4 inputs of 16 outputs, and their 16 scales, and with `minimums`
// 16 halves more, which are added to each of the numbers. One of NIBBLES is (4, 16, 4) bytes, in the lower half of
// each an input of the first four of eight, in the upper half one of the last four. One of BROAD is (32, 16, 4) bytes
// and 16 floats.
//
// Where weights are narrow x is brought to 8 bits, too, with a scale for each 32 numbers of a row, of BROAD for 128.
// A scale costs three operations on floats and a product of 32 inputs eight on bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

constexpr int PANEL = 16, GROUP = 32, BROAD_GROUP = 128, VECTORS = PANEL / WIDE, LINE = 64, RANKS = 8;

enum Kind : int32_t { PANELS = 1, BYTES = 2, NIBBLES = 3, BROAD = 4, HALVES = 5 };
enum Activation : int32_t { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, QUICK_GELU = 4, SILU = 5 };

// What an adapter adds to a product, s B A x. RANKS of A's rows and of s Bᵀ's at a time have a say in the outputs of a
// span, and those alone of s Bᵀ are kept.
struct LowRank {
    int64_t rank;  // a multiple of RANKS, filled up with zeros
    const float *down, *up;  // (rank, columns), and (RANKS, last - first) of one span behind the other
    const int32_t* spans;    // (rank/RANKS, 2), the first output and the one behind the last, whole panels
};

struct Matrix {
    int32_t kind, rows, columns, minimums;  // rows: a multiple of 16; columns: of 32 where narrow, 8 of HALVES
    const void* data;
    const float* bias;    // or null
    const int8_t* table;  // of NIBBLES
    float factor;         // of all scales
    int32_t ranks;        // the most that an adapter of it has
    const LowRank* adapters;  // by an adapter's number, of which 0 is none; null: it has none
};

// Rows of x: floats, and where a narrow matrix reads them bytes, scales and the sums of what the bytes stand for.
// Where one of halves reads them, halves.
struct Rows {
    int64_t count, columns;
    float* floats;
    int8_t* codes;
    float* scales;
    float* sums;
    uint16_t* halves = nullptr;
};

INLINE bool narrow(const Matrix& w) { return w.kind >= BYTES && w.kind <= BROAD; }
INLINE int64_t group_of(const Matrix& w) { return w.kind == BROAD ? BROAD_GROUP : GROUP; }

template <int HOW>
INLINE Floats activated(Floats x) {
    if constexpr (HOW == RELU) return x < 0.f ? all(0.f) : x;  // NaN stays
    if constexpr (HOW == GELU) return 0.5f * x * (1.f + error_function(x * 0.70710678f));
    if constexpr (HOW == GELU_TANH) return x * sigmoid(2.f * 0.79788456f * (x + 0.044715f * x * x * x));
    if constexpr (HOW == QUICK_GELU) return x * sigmoid(1.702f * x);
    if constexpr (HOW == SILU) return x * sigmoid(x);
    return x;
}

template <int HOW>
static __attribute__((noinline)) SCHEDULED void activate_rows(
    float* y, int64_t stride, int64_t rows, int64_t columns) {
    constexpr int AT_ONCE = 4;
    for (int64_t r = 0; r < rows; r++) {
        float* at = y + r * stride;
        int64_t i = 0;
        for (; i + AT_ONCE * WIDE <= columns; i += AT_ONCE * WIDE) {
            Floats some[AT_ONCE];
            UNROLL for (int v = 0; v < AT_ONCE; v++) some[v] = activated<HOW>(load(at + i + v * WIDE));
            UNROLL for (int v = 0; v < AT_ONCE; v++) store(at + i + v * WIDE, some[v]);
        }
        for (; i < columns; i += WIDE) store(at + i, activated<HOW>(load(at + i)));
    }
}

// f(y) of some rows, in place; whole vectors.
static void activate(float* y, int64_t stride, int64_t rows, int64_t columns, int32_t how) {
    switch (how) {
        case RELU: return activate_rows<RELU>(y, stride, rows, columns);
        case GELU: return activate_rows<GELU>(y, stride, rows, columns);
        case GELU_TANH: return activate_rows<GELU_TANH>(y, stride, rows, columns);
        case QUICK_GELU: return activate_rows<QUICK_GELU>(y, stride, rows, columns);
        case SILU: return activate_rows<SILU>(y, stride, rows, columns);
    }
}

// A group of numbers to bytes, their scale, and the sum of what the bytes stand for. Where one is NaN, the scale is,
// since bytes cannot say it.
template <int SIZE>
static void narrow_group(const float* numbers, int8_t* codes, float* scale, float* sum_of_all) {
    Floats most = all(0.f);
    UNROLL for (int i = 0; i < SIZE; i += WIDE) most = larger_size(most, load(numbers + i));
    const float largest = largest_of(most), inverse = largest > 0 ? 127.f / largest : 0.f;
    Ints total = Ints{};
    for (int i = 0; i < SIZE; i += GROUP) {
        Ints rounded[GROUP / WIDE];
        UNROLL for (int j = 0; j < GROUP / WIDE; j++) {
            rounded[j] = as_bits(load(numbers + i + j * WIDE) * inverse + ROUNDING) - ROUNDING_BITS;
            total += rounded[j];
        }
        store_bytes<GROUP>(codes + i, rounded);
    }
    int32_t whole = 0;
    UNROLL for (int i = 0; i < WIDE; i++) whole += total[i];
    *scale = largest * (1.f / 127.f);
    *sum_of_all = *scale * whole;
}

// The groups from `first` to `last` of one row, to bytes.
template <int SIZE>
INLINE void narrow_down(Rows& x, int64_t row, int64_t first, int64_t last) {
    const int64_t at = row * (x.columns / SIZE), begin = row * x.columns;
    for (int64_t g = first; g < last; g++)
        narrow_group<SIZE>(
            x.floats + begin + g * SIZE, x.codes + begin + g * SIZE, x.scales + at + g, x.sums + at + g);
}

// Some groups of rows of x, counted row by row, to bytes as `reader` wants them.
static void narrow_for(const Matrix& reader, Rows& x, int64_t first, int64_t last) {
    const int64_t groups = x.columns / group_of(reader);
    for (int64_t i = first; i < last; i++) {
        if (reader.kind == BROAD) narrow_down<BROAD_GROUP>(x, i / groups, i % groups, i % groups + 1);
        else narrow_down<GROUP>(x, i / groups, i % groups, i % groups + 1);
    }
}
