// Products of a few rows with a matrix that lies ready for them: y = x Wᵀ + b.
//
// A matrix of N rows (outputs) and K columns (inputs) is kept in one of these ways:
//
//   PANELS  floats, sixteen outputs side by side: (N/16, K, 16)
//   BYTES   8 bits a number, a half-precision scale for each 32 inputs of an output: (N/16, K/32) blocks
//   NIBBLES 4 bits a number, and the same scales; with minimums they are 0 to 15, else what a table says of them
//
// A block of BYTES is (8, 16, 4) bytes, for 8 times 4 inputs of 16 outputs, and their 16 scales, and with `minimums`
// 16 halves more, which are added to each of the numbers. One of NIBBLES is (4, 16, 4) bytes, in the lower half of
// each an input of the first four of eight, in the upper half one of the last four.
//
// Where weights are narrow x is brought to 8 bits, too, with a scale for each 32 numbers of a row.
#pragma once

#include "vectors.h"

constexpr int PANEL = 16, GROUP = 32, VECTORS = PANEL / WIDE;

enum Kind : int32_t { PANELS = 1, BYTES = 2, NIBBLES = 3 };
enum Activation : int32_t { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, QUICK_GELU = 4, SILU = 5 };

struct Matrix {
    int32_t kind, rows, columns, minimums;  // rows: a multiple of 16; columns: of 32 where narrow
    const void* data;
    const float* bias;    // or null
    const int8_t* table;  // of NIBBLES
    float factor;         // of all scales
    int32_t unused;
};

// Rows of x: floats, and where a narrow matrix reads them bytes, scales and the sums of what the bytes stand for.
struct Rows {
    int64_t count, columns;
    float* floats;
    int8_t* codes;
    float* scales;
    float* sums;
};

INLINE bool narrow(const Matrix& w) { return w.kind >= BYTES; }

static __attribute__((noinline)) Floats activated(Floats x, int32_t how) {
    switch (how) {
        case RELU: return larger(x, all(0.f));
        case GELU: return 0.5f * x * (1.f + error_function(x * 0.70710678f));
        case GELU_TANH: return x * sigmoid(2.f * 0.79788456f * (x + 0.044715f * x * x * x));
        case QUICK_GELU: return x * sigmoid(1.702f * x);
        case SILU: return x * sigmoid(x);
        default: return x;
    }
}

// The groups from `first` to `last` of one row, to bytes.
static void narrow_down(Rows& x, int64_t row, int64_t first, int64_t last) {
    const float* from = x.floats + row * x.columns;
    const int64_t groups = x.columns / GROUP;
    for (int64_t g = first; g < last; g++) {
        const float* numbers = from + g * GROUP;
        Floats most = all(0.f), parts[GROUP / WIDE];
        Ints missing = Ints{};
        UNROLL for (int i = 0; i < GROUP / WIDE; i++) {
            parts[i] = load(numbers + i * WIDE);
            most = larger(most, larger(parts[i], -parts[i]));
            missing |= parts[i] != parts[i];
        }
        float largest = 0;
        UNROLL for (int i = 0; i < WIDE; i++) largest = most[i] > largest ? most[i] : largest;
        const float inverse = largest > 0 ? 127.f / largest : 0.f;
        float scale = largest / 127.f;
        UNROLL for (int i = 0; i < WIDE; i++) scale = missing[i] ? NAN : scale;  // which 8 bits do not have
        int8_t* codes = x.codes + row * x.columns + g * GROUP;
        Ints total = Ints{};
        UNROLL for (int i = 0; i < GROUP / WIDE; i++) {
            const float big = 12582912.f;
            Ints rounded = __builtin_convertvector((parts[i] * inverse + big) - big, Ints);
            total += rounded;
            UNROLL for (int j = 0; j < WIDE; j++) codes[i * WIDE + j] = (int8_t)rounded[j];
        }
        int32_t whole = 0;
        UNROLL for (int i = 0; i < WIDE; i++) whole += total[i];
        x.scales[row * groups + g] = scale;
        x.sums[row * groups + g] = scale * whole;
    }
}

// Outputs of a panel, or of some vectors of it, are done: bias, activation, and where they belong.
template <int R, int V>
INLINE void finish(Floats (&total)[R][V], const Matrix& w, int64_t output, float* y, int64_t stride, int32_t how) {
    UNROLL for (int v = 0; v < V; v++) {
        Floats bias = w.bias ? load(w.bias + output + v * WIDE) : all(0.f);
        UNROLL for (int r = 0; r < R; r++) store(y + r * stride + v * WIDE, total[r][v] + bias);
    }
    if (how != NONE)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) store(y + r * stride + v * WIDE, activated(load(y + r * stride + v * WIDE), how));
}

// Four inputs of V vectors of outputs and R rows.
template <int R, int V, int PLACE>
INLINE void four(Ints (&sums)[R][V], const uint8_t* at, const Inputs (&x)[R]) {
    UNROLL for (int v = 0; v < V; v++) {
        const Bytes some = load_bytes(at + v * LEGATO_BYTES);
        UNROLL for (int r = 0; r < R; r++) sums[r][v] = add_products<PLACE>(sums[r][v], some, x[r]);
    }
}

// Eight inputs, of which each byte of weights has two.
template <int R, int V, int PLACE>
INLINE void pair_of_fours(
    Ints (&sums)[R][V], Ints (&others)[R][V], const uint8_t* at, const int8_t* table, const Inputs (&x)[R]) {
    UNROLL for (int v = 0; v < V; v++) {
        const Bytes both = load_bytes(at + v * LEGATO_BYTES);
        const Bytes low = look_up(table, low_halves(both)), high = look_up(table, high_halves(both));
        UNROLL for (int r = 0; r < R; r++) {
            sums[r][v] = add_products<PLACE>(sums[r][v], low, x[r]);
            others[r][v] = add_products<PLACE + 1>(others[r][v], high, x[r]);
        }
    }
}

// V vectors of outputs of R rows, from `offset` in a panel.
template <int R, int V, bool NARROWER, bool MINIMUMS>
static void narrow_tile(
    const Matrix& w, int64_t panel, int offset, const Rows& x, int64_t row, float* y, int64_t stride, int32_t how) {
    const int64_t groups = x.columns / GROUP;
    constexpr int codes = PANEL * GROUP / (NARROWER ? 2 : 1), size = codes + 2 * PANEL * (MINIMUMS ? 2 : 1);
    const uint8_t* block = (const uint8_t*)w.data + panel * groups * size;
    const int8_t* inputs = x.codes + row * x.columns;
    const int8_t* table = MINIMUMS ? nullptr : w.table;
    Floats total[R][V] = {};
    for (int64_t g = 0; g < groups; g++, block += size, inputs += GROUP) {
        Ints whole[R][V] = {}, other[R][V] = {};  // two sums where one would wait for itself
        const uint8_t* at = block + offset * 4;
        UNROLL for (int half = 0; half < GROUP / 16; half++) {
            Inputs given[R];
            UNROLL for (int r = 0; r < R; r++) given[r] = load_inputs(inputs + r * x.columns + 16 * half);
            if constexpr (NARROWER) {
                pair_of_fours<R, V, 0>(whole, other, at, table, given);
                pair_of_fours<R, V, 2>(whole, other, at + PANEL * 4, table, given);
                at += 2 * PANEL * 4;
            } else {
                four<R, V, 0>(whole, at, given);
                four<R, V, 1>(R == 1 ? other : whole, at + PANEL * 4, given);
                four<R, V, 2>(whole, at + 2 * PANEL * 4, given);
                four<R, V, 3>(R == 1 ? other : whole, at + 3 * PANEL * 4, given);
                at += 4 * PANEL * 4;
            }
        }
        const uint16_t* scales = (const uint16_t*)(block + codes) + offset;
        UNROLL for (int v = 0; v < V; v++) {
            Floats scale = from_halves(scales + v * WIDE);
            UNROLL for (int r = 0; r < R; r++) {
                if (NARROWER || R == 1) whole[r][v] += other[r][v];
                total[r][v] += to_floats(whole[r][v]) * (scale * x.scales[(row + r) * groups + g]);
            }
            if constexpr (MINIMUMS) {
                Floats minimum = from_halves(scales + PANEL + v * WIDE);
                UNROLL for (int r = 0; r < R; r++) total[r][v] += minimum * x.sums[(row + r) * groups + g];
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) total[r][v] *= w.factor;
    finish<R, V>(total, w, panel * PANEL + offset, y + offset, stride, how);
}

template <int R>
static void panel_tile(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, float* y, int64_t stride, int32_t how) {
    const float* weights = (const float*)w.data + panel * PANEL * x.columns;
    const float* inputs = x.floats + row * x.columns;
    Floats total[R][VECTORS] = {};
    for (int64_t k = 0; k < x.columns; k++, weights += PANEL) {
        Floats some[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) some[v] = load(weights + v * WIDE);
        UNROLL for (int r = 0; r < R; r++) {
            const float input = inputs[r * x.columns + k];
            UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] += some[v] * input;
        }
    }
    finish<R, VECTORS>(total, w, panel * PANEL, y, stride, how);
}

template <int R>
INLINE void narrow_rows(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, float* y, int64_t stride, int32_t how) {
    constexpr int V = VECTORS > 2 && R > 2 ? 2 : VECTORS;  // as many sums as there are registers
    for (int offset = 0; offset < PANEL; offset += V * WIDE) {
        if (w.kind == BYTES && !w.minimums) narrow_tile<R, V, false, false>(w, panel, offset, x, row, y, stride, how);
        if (w.kind == BYTES && w.minimums) narrow_tile<R, V, false, true>(w, panel, offset, x, row, y, stride, how);
        if (w.kind == NIBBLES && !w.minimums) narrow_tile<R, V, true, false>(w, panel, offset, x, row, y, stride, how);
        if (w.kind == NIBBLES && w.minimums) narrow_tile<R, V, true, true>(w, panel, offset, x, row, y, stride, how);
    }
}

// All rows of x with the panels from `first` to `last`; y has `stride` floats a row, and room for whole panels.
static void multiply(
    const Matrix& w, const Rows& x, float* y, int64_t stride, int32_t how, int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; panel++) {
        float* to = y + panel * PANEL;
        int64_t row = 0;
        if (narrow(w)) {
            for (; row + 4 <= x.count; row += 4) narrow_rows<4>(w, panel, x, row, to + row * stride, stride, how);
            for (; row + 2 <= x.count; row += 2) narrow_rows<2>(w, panel, x, row, to + row * stride, stride, how);
            if (row < x.count) narrow_rows<1>(w, panel, x, row, to + row * stride, stride, how);
            continue;
        }
        for (; row + 6 <= x.count && x.count - row != 8; row += 6)
            panel_tile<6>(w, panel, x, row, to + row * stride, stride, how);
        for (; row + 4 <= x.count; row += 4) panel_tile<4>(w, panel, x, row, to + row * stride, stride, how);
        if (row + 3 == x.count) panel_tile<3>(w, panel, x, row, to + row * stride, stride, how);
        else if (row + 2 == x.count) panel_tile<2>(w, panel, x, row, to + row * stride, stride, how);
        else if (row + 1 == x.count) panel_tile<1>(w, panel, x, row, to + row * stride, stride, how);
    }
}
