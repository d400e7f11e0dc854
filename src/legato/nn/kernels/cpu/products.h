// Products of rows with a matrix that lies ready for them (matrix.h): y = f(x Wᵀ + b).
//
// A tile is some rows and some outputs of a panel, as many sums as there are registers. Up to four rows read a narrow
// panel as it is; for more it is made ready first, and while they multiply the panel behind it is asked for.
#pragma once

#include "halves.h"
#include "matrix.h"

// Outputs of a panel, or of some vectors of it, are done: bias, activation, and where they belong.
template <int R, int V>
INLINE void finish(Floats (&total)[R][V], const Matrix& w, int64_t output, float* y, int64_t stride, int32_t how) {
    UNROLL for (int v = 0; v < V; v++) {
        Floats bias = w.bias ? load(w.bias + output + v * WIDE) : all(0.f);
        UNROLL for (int r = 0; r < R; r++) store(y + r * stride + v * WIDE, total[r][v] + bias);
    }
    if (how != NONE) activate(y, stride, R, V * WIDE, how);
}

// Four inputs of V vectors of outputs and R rows.
template <int R, int V, int PLACE>
INLINE void four(Ints (&sums)[R][V], const uint8_t* at, const Inputs (&x)[R]) {
    UNROLL for (int v = 0; v < V; v++) {
        const Bytes some = load_bytes(at + v * LEGATO_BYTES);
        UNROLL for (int r = 0; r < R; r++) sums[r][v] = add_products<PLACE>(sums[r][v], some, x[r]);
    }
}

// What numbers of 4 bits stand for: a table says it, or where there is none they themselves.
INLINE const int8_t* table_of(const Matrix& w) {
    static const int8_t themselves[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return w.table ? w.table : themselves;
}

// Eight inputs, of which each byte of weights has two.
template <int R, int V, int PLACE, bool TABLE>
INLINE void pair_of_fours(Ints (&sums)[R][V], const uint8_t* at, const int8_t* table, const Inputs (&x)[R]) {
    UNROLL for (int v = 0; v < V; v++) {
        const Bytes both = load_bytes(at + v * LEGATO_BYTES);
        Bytes low = low_halves(both), high = high_halves(both);
        if constexpr (TABLE) low = look_up(table, low), high = look_up(table, high);
        UNROLL for (int r = 0; r < R; r++) {
            sums[r][v] = add_products<PLACE>(sums[r][v], low, x[r]);
            sums[r][v] = add_products<PLACE + 1>(sums[r][v], high, x[r]);
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
    const int8_t* table = table_of(w);
    Floats total[R][V] = {};
    for (int64_t g = 0; g < groups; g++, block += size, inputs += GROUP) {
        Ints whole[R][V], other[R][V] = {};  // two sums where one would wait for itself: of 4 bits it does for them
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) whole[r][v] = sum_start();
        const uint8_t* at = block + offset * 4;
        UNROLL for (int half = 0; half < GROUP / 16; half++) {
            Inputs given[R];
            UNROLL for (int r = 0; r < R; r++) given[r] = load_inputs(inputs + r * x.columns + 16 * half);
            if constexpr (NARROWER) {
                pair_of_fours<R, V, 0, !MINIMUMS>(whole, at, table, given);
                pair_of_fours<R, V, 2, !MINIMUMS>(whole, at + PANEL * 4, table, given);
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
                if (!NARROWER && R == 1) whole[r][v] += other[r][v];
                total[r][v] += sum_to_floats(whole[r][v]) * (scale * x.scales[(row + r) * groups + g]);
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

// Lines of the panel behind this one that a tile asks for while it multiplies: between them its tiles ask for all.
struct Ahead {
    const uint8_t* at;  // null: nothing is behind it
    int64_t size, first, step;  // bytes of a block; the first byte of a tile's lines in it, and from one to the next

    inline __attribute__((always_inline)) void ask(int64_t block) const {
        if (!at) return;
        for (int64_t i = first; i < size; i += step) __builtin_prefetch(at + block * size + i, 0, 2);
    }
};

// A panel of a narrow matrix made ready for many rows: every code a byte, scales and minimums floats.
struct ReadyPanel {
    const uint8_t* codes;  // (K/32) blocks of (8, 16, 4)
    int64_t block;         // bytes from one to the next
    const float* scales;   // (K/32, 16)
    const float* minimums;
};

static ReadyPanel made_ready(const Matrix& w, int64_t panel) {
    static thread_local std::vector<float> numbers;
    static thread_local std::vector<uint8_t> bytes;
    const int64_t groups = w.columns / GROUP, codes = PANEL * GROUP / (w.kind == NIBBLES ? 2 : 1);
    const int64_t size = codes + 2 * PANEL * (w.minimums ? 2 : 1);
    const uint8_t* block = (const uint8_t*)w.data + panel * groups * size;
    numbers.resize(std::max<size_t>(numbers.size(), 2 * groups * PANEL));
    float *scales = numbers.data(), *minimums = scales + groups * PANEL;
    const int8_t* table = table_of(w);
    ReadyPanel ready{block, size, scales, minimums};
    if (w.kind == NIBBLES) {
        bytes.resize(std::max<size_t>(bytes.size(), groups * PANEL * GROUP));
        ready.codes = bytes.data();
        ready.block = PANEL * GROUP;
    }
    for (int64_t g = 0; g < groups; g++, block += size) {
        const uint16_t* halves = (const uint16_t*)(block + codes);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            store(scales + g * PANEL + v * WIDE, from_halves(halves + v * WIDE));
            if (w.minimums) store(minimums + g * PANEL + v * WIDE, from_halves(halves + PANEL + v * WIDE));
        }
        if (w.kind == NIBBLES) {
            uint8_t* to = bytes.data() + g * PANEL * GROUP;
            for (int64_t eight = 0; eight < 4; eight++, to += 2 * PANEL * 4)
                UNROLL for (int v = 0; v < VECTORS; v++) {
                    const Bytes both = load_bytes(block + eight * PANEL * 4 + v * LEGATO_BYTES);
                    const Bytes low = look_up(table, low_halves(both)), high = look_up(table, high_halves(both));
                    std::memcpy(to + v * LEGATO_BYTES, &low, sizeof low);
                    std::memcpy(to + PANEL * 4 + v * LEGATO_BYTES, &high, sizeof high);
                }
        }
    }
    return ready;
}

// V vectors of outputs of R rows, from `offset` in a panel that is ready.
template <int R, int V, bool MINIMUMS>
static void ready_tile(
    const Matrix& w, const ReadyPanel& ready, int64_t panel, int offset, const Rows& x, int64_t row, float* y,
    int64_t stride, int32_t how, const Ahead& ahead) {
    const int64_t groups = x.columns / GROUP;
    const uint8_t* block = ready.codes + offset * 4;
    const int8_t* inputs = x.codes + row * x.columns;
    const float *scales = ready.scales + offset, *minimums = ready.minimums + offset;
    const float *of_inputs = x.scales + row * groups, *sums = x.sums + row * groups;
    Floats total[R][V] = {};
    for (int64_t g = 0; g < groups; g++, block += ready.block, inputs += GROUP, scales += PANEL, minimums += PANEL) {
        ahead.ask(g);
        Ints whole[R][V];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) whole[r][v] = sum_start();
        const uint8_t* at = block;
        UNROLL for (int half = 0; half < GROUP / 16; half++, at += 4 * PANEL * 4) {
            Inputs given[R];
            UNROLL for (int r = 0; r < R; r++) given[r] = load_inputs(inputs + r * x.columns + 16 * half);
            four<R, V, 0>(whole, at, given);
            four<R, V, 1>(whole, at + PANEL * 4, given);
            four<R, V, 2>(whole, at + 2 * PANEL * 4, given);
            four<R, V, 3>(whole, at + 3 * PANEL * 4, given);
        }
        UNROLL for (int v = 0; v < V; v++) {
            const Floats scale = load(scales + v * WIDE);
            UNROLL for (int r = 0; r < R; r++)
                total[r][v] += sum_to_floats(whole[r][v]) * (scale * of_inputs[r * groups + g]);
            if constexpr (MINIMUMS) {
                const Floats minimum = load(minimums + v * WIDE);
                UNROLL for (int r = 0; r < R; r++) total[r][v] += minimum * sums[r * groups + g];
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) total[r][v] *= w.factor;
    finish<R, V>(total, w, panel * PANEL + offset, y + offset, stride, how);
}

#if defined(__aarch64__)
template <int R, int PLACE>
INLINE void one_input(Floats (&total)[R][VECTORS], const float* weights, const Floats (&given)[R]) {
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const Floats some = load(weights + v * WIDE);
        UNROLL for (int r = 0; r < R; r++)
            total[r][v] = (Floats)vfmaq_laneq_f32(
                (float32x4_t)total[r][v], (float32x4_t)some, (float32x4_t)given[r], PLACE);
    }
}
#endif

// The lines of floats of P panels that come next, for which tiles ask while they multiply.
template <int P>
struct FloatsAhead {
    const float* at;  // null: what comes next is not asked for
    int64_t apart;    // from one panel to the next
    int64_t lines;    // of each for four inputs

    inline __attribute__((always_inline)) void ask() {
        if (!at) return;
        for (int64_t i = 0; i < lines; i++, at += PANEL)
            UNROLL for (int p = 0; p < P; p++) __builtin_prefetch(at + p * apart, 0, 2);
    }
};

// The inputs from `from` to `to` of R rows and P panels; y holds the sums of those before, and in the end those of all.
template <int R, int P>
static void panel_tile(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, int64_t from, int64_t to, float* y, int64_t stride,
    int32_t how, FloatsAhead<P>& ahead) {
    const float* weights = (const float*)w.data + (panel * x.columns + from) * PANEL;
    const float* inputs = x.floats + row * x.columns;
    constexpr int V = P * VECTORS;
    Floats total[R][V] = {};
    if (from > 0)
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int v = 0; v < V; v++) total[r][v] = load(y + r * stride + v * WIDE);
    int64_t k = from;
#if defined(__aarch64__)
    for (; k + 4 <= to; k += 4, weights += 4 * PANEL) {  // one load for four inputs of a row
        Floats given[R];
        UNROLL for (int r = 0; r < R; r++) given[r] = load(inputs + r * x.columns + k);
        if (R == 4) __builtin_prefetch(inputs + k / 4 % 4 * x.columns + k / 16 * 16 + 32, 0, 3);  // a row's in its turn
        one_input<R, 0>(total, weights, given);
        one_input<R, 1>(total, weights + PANEL, given);
        one_input<R, 2>(total, weights + 2 * PANEL, given);
        one_input<R, 3>(total, weights + 3 * PANEL, given);
    }
#endif
    for (; k < to; k++, weights += PANEL) {
        if (VECTORS == 1 && k % 4 == 0) ahead.ask();
        Floats some[V];
        UNROLL for (int v = 0; v < V; v++)
            some[v] = load(weights + v / VECTORS * x.columns * PANEL + v % VECTORS * WIDE);
        UNROLL for (int r = 0; r < R; r++) {
            const Floats input = all(inputs[r * x.columns + k]);
            UNROLL for (int v = 0; v < V; v++) total[r][v] = add_product(total[r][v], some[v], input);
        }
    }
    if (to < x.columns) {
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int v = 0; v < V; v++) store(y + r * stride + v * WIDE, total[r][v]);
        return;
    }
    finish<R, V>(total, w, panel * PANEL, y, stride, how);
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

// Panels of floats that a tile has: where one is a single vector, three, so that there are as many sums as registers.
constexpr int TOGETHER = VECTORS == 1 ? 3 : 1, PAIR = TOGETHER > 2 ? 2 : 1;

// Inputs of panels of floats that many rows are multiplied with before the next: a level-one cache has room for them.
constexpr int64_t INPUTS = VECTORS == 1 ? 192 : 768;

// How many rows the next tile of a ready panel has, of so many that are left.
#if defined(__aarch64__)
constexpr int READY_ROWS = 5, READY_VECTORS = 2, WIDE_ROWS = 4;
INLINE int ready_rows(int64_t left) {  // fives and fours where that comes out
    const int64_t rest = left - 5;
    if (rest >= 12 || rest == 0 || rest == 4 || rest == 5 || rest == 8 || rest == 9 || rest == 10) return 5;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}
#else
constexpr int READY_ROWS = LEGATO_BYTES == 64 ? 8 : 4, READY_VECTORS = 1, WIDE_ROWS = VECTORS == 1 ? 8 : 6;
INLINE int ready_rows(int64_t left) { return left >= READY_ROWS ? READY_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1; }
#endif

// The same of a BROAD panel.
template <int R, int V>
static void broad_tile(
    const Matrix& w, int64_t panel, int offset, const Rows& x, int64_t row, float* y, int64_t stride, int32_t how,
    const Ahead& ahead) {
    constexpr int64_t codes = PANEL * BROAD_GROUP, size = codes + PANEL * sizeof(float);
    const int64_t groups = x.columns / BROAD_GROUP;
    const uint8_t* block = (const uint8_t*)w.data + panel * groups * size;
    const int8_t* inputs = x.codes + row * x.columns;
    const float* of_inputs = x.scales + row * groups;
    Floats total[R][V] = {};
    for (int64_t g = 0; g < groups; g++, block += size) {
        ahead.ask(g);
        Ints whole[R][V];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) whole[r][v] = sum_start();
        const uint8_t* at = block + offset * 4;
        for (int part = 0; part < BROAD_GROUP / 16; part++, at += 4 * PANEL * 4, inputs += 16) {
            Inputs given[R];
            UNROLL for (int r = 0; r < R; r++) given[r] = load_inputs(inputs + r * x.columns);
            four<R, V, 0>(whole, at, given);
            four<R, V, 1>(whole, at + PANEL * 4, given);
            four<R, V, 2>(whole, at + 2 * PANEL * 4, given);
            four<R, V, 3>(whole, at + 3 * PANEL * 4, given);
        }
        const float* scales = (const float*)(block + codes) + offset;
        UNROLL for (int v = 0; v < V; v++) {
            const Floats scale = load(scales + v * WIDE);
            UNROLL for (int r = 0; r < R; r++)
                total[r][v] += sum_to_floats(whole[r][v]) * (scale * of_inputs[r * groups + g]);
        }
    }
    finish<R, V>(total, w, panel * PANEL + offset, y + offset, stride, how);
}

// A BYTES or NIBBLES matrix without minimums as a BROAD one.
static void broaden(const Matrix& w, uint8_t* to) {
    constexpr int64_t codes = PANEL * BROAD_GROUP, size = codes + PANEL * sizeof(float), parts = BROAD_GROUP / GROUP;
    for (int64_t panel = 0; panel < w.rows / PANEL; panel++) {
        const ReadyPanel ready = made_ready(w, panel);
        for (int64_t g = 0; g < w.columns / BROAD_GROUP; g++, to += size) {
            const float* scales = ready.scales + g * parts * PANEL;
            for (int64_t output = 0; output < PANEL; output++) {
                float largest = 0;  // of what the codes stand for
                for (int64_t k = 0; k < BROAD_GROUP; k++) {
                    const int8_t* part = (const int8_t*)ready.codes + (g * parts + k / GROUP) * ready.block;
                    const float number = part[k % GROUP / 4 * PANEL * 4 + output * 4 + k % 4] * scales[k / GROUP * PANEL + output];
                    largest = std::max(largest, std::abs(number));
                }
                const float inverse = largest > 0 ? 127.f / largest : 0.f, scale = largest / 127.f * w.factor;
                for (int64_t k = 0; k < BROAD_GROUP; k++) {
                    const int8_t* part = (const int8_t*)ready.codes + (g * parts + k / GROUP) * ready.block;
                    const float number = part[k % GROUP / 4 * PANEL * 4 + output * 4 + k % 4] * scales[k / GROUP * PANEL + output];
                    ((int8_t*)to)[k / 4 * PANEL * 4 + output * 4 + k % 4] = (int8_t)std::lrint(number * inverse);
                }
                std::memcpy(to + codes + output * sizeof scale, &scale, sizeof scale);
            }
        }
    }
}

// A row of a BYTES or NIBBLES matrix as floats.
static void wide_row(const Matrix& w, int64_t row, float* to) {
    const int64_t panel = row / PANEL, output = row % PANEL, groups = w.columns / GROUP;
    const int64_t codes = PANEL * GROUP / (w.kind == NIBBLES ? 2 : 1);
    const int64_t size = codes + 2 * PANEL * (w.minimums ? 2 : 1);
    const uint8_t* block = (const uint8_t*)w.data + panel * groups * size;
    const int8_t* table = table_of(w);
    const auto half = [&](const uint8_t* at) {
        return from_halves((const uint16_t*)at + output / WIDE * WIDE)[output % WIDE] * w.factor;
    };
    for (int64_t g = 0; g < groups; g++, block += size, to += GROUP) {
        const float scale = half(block + codes), minimum = w.minimums ? half(block + codes + 2 * PANEL) : 0.f;
        for (int64_t k = 0; k < GROUP; k++) {
            const uint8_t* four = block + (w.kind == NIBBLES ? k / 8 : k / 4) * PANEL * 4 + output * 4;
            const int8_t code = w.kind == NIBBLES ? table[k % 8 < 4 ? four[k % 4] & 15 : four[k % 4] >> 4]
                                                  : (int8_t)four[k % 4];
            to[k] = code * scale + minimum;
        }
    }
}

template <int R>
INLINE void ready_panel_rows(
    const Matrix& w, const ReadyPanel& ready, int64_t panel, const Rows& x, int64_t row, float* y, int64_t stride,
    int32_t how, Ahead& ahead) {
    constexpr int V = READY_VECTORS;
    for (int offset = 0; offset < PANEL; offset += V * WIDE, ahead.first += LINE) {
        if (w.minimums) ready_tile<R, V, true>(w, ready, panel, offset, x, row, y, stride, how, ahead);
        else ready_tile<R, V, false>(w, ready, panel, offset, x, row, y, stride, how, ahead);
    }
}

template <int R>
INLINE void broad_panel_rows(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, float* y, int64_t stride, int32_t how, Ahead& ahead) {
    for (int offset = 0; offset < PANEL; offset += READY_VECTORS * WIDE, ahead.first += LINE)
        broad_tile<R, READY_VECTORS>(w, panel, offset, x, row, y, stride, how, ahead);
}

// What tiles of so many rows ask for, each in its turn.
static Ahead lines_ahead(const Matrix& w, int64_t panel, int64_t rows) {
    if (panel + 1 >= w.rows / PANEL || !narrow(w)) return {nullptr, 0, 0, 1};
    const int64_t group = group_of(w), codes = PANEL * group / (w.kind == NIBBLES ? 2 : 1);
    const int64_t size = codes + (w.kind == BROAD ? 4 : 2) * PANEL * (w.minimums ? 2 : 1);
    int64_t tiles = 0;
    for (int64_t left = rows; left > 0; left -= ready_rows(left)) tiles += PANEL / (READY_VECTORS * WIDE);
    return {(const uint8_t*)w.data + (panel + 1) * (w.columns / group) * size, size, 0, tiles * LINE};
}

// What comes behind some inputs of P panels, of which tiles of so many rows each ask for a share; few rows wait for
// memory anyway.
template <int P>
INLINE FloatsAhead<P> floats_ahead(const Matrix& w, int64_t panel, int64_t rows, int64_t from, int64_t to) {
    const int64_t tiles = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    const bool inside = to < w.columns;
    if (VECTORS > 1 || tiles < 2 || (!inside && (panel + 2 * P) * PANEL > w.rows)) return {nullptr, 0, 0};
    const float* at = (const float*)w.data + ((inside ? panel : panel + P) * w.columns + (inside ? to : 0)) * PANEL;
    return {at, w.columns * PANEL, (4 + tiles - 1) / tiles};
}

// The rows from `row` to `end` with some inputs of P panels of floats.
template <int P>
static void multiply_wide(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, int64_t end, int64_t from, int64_t to, float* y,
    int64_t stride, int32_t how) {
    FloatsAhead<P> ahead = floats_ahead<P>(w, panel, end - row, from, to);
    const auto tile = [&](auto rows) {
        panel_tile<rows, P>(w, panel, x, row, from, to, y + row * stride, stride, how, ahead);
        row += rows;
    };
    using std::integral_constant;
    if (WIDE_ROWS == 8 || end - row != 8)
        while (row + WIDE_ROWS <= end) tile(integral_constant<int, WIDE_ROWS>{});
    while (row + 4 <= end) tile(integral_constant<int, 4>{});
    if (row + 3 == end) tile(integral_constant<int, 3>{});
    if (row + 2 == end) tile(integral_constant<int, 2>{});
    if (row + 1 == end) tile(integral_constant<int, 1>{});
}

// The rows from `row` to `end` with one panel, or of floats `panels`.
static void multiply_panel(
    const Matrix& w, int64_t panel, int64_t panels, const Rows& x, int64_t row, int64_t end, float* y, int64_t stride,
    int32_t how) {
    if (w.kind == HALVES) return multiply_halves(w, panel, x, row, end, y, stride, how);
    Ahead ahead = lines_ahead(w, panel, end - row);
    if (w.kind == BROAD) {
        while (row < end) {
            const int rows = ready_rows(end - row);
            float* to = y + row * stride;
            if (rows == READY_ROWS) broad_panel_rows<READY_ROWS>(w, panel, x, row, to, stride, how, ahead);
            else if (rows == 4) broad_panel_rows<4>(w, panel, x, row, to, stride, how, ahead);
            else if (rows == 2) broad_panel_rows<2>(w, panel, x, row, to, stride, how, ahead);
            else broad_panel_rows<1>(w, panel, x, row, to, stride, how, ahead);
            row += rows;
        }
        return;
    }
    if (narrow(w) && end - row > 4) {
        const ReadyPanel ready = made_ready(w, panel);
        while (row < end) {
            const int rows = ready_rows(end - row);
            float* to = y + row * stride;
            if (rows == READY_ROWS) ready_panel_rows<READY_ROWS>(w, ready, panel, x, row, to, stride, how, ahead);
            else if (rows == 4) ready_panel_rows<4>(w, ready, panel, x, row, to, stride, how, ahead);
            else if (rows == 2) ready_panel_rows<2>(w, ready, panel, x, row, to, stride, how, ahead);
            else ready_panel_rows<1>(w, ready, panel, x, row, to, stride, how, ahead);
            row += rows;
        }
        return;
    }
    if (narrow(w)) {
        for (; row + 4 <= end; row += 4) narrow_rows<4>(w, panel, x, row, y + row * stride, stride, how);
        for (; row + 2 <= end; row += 2) narrow_rows<2>(w, panel, x, row, y + row * stride, stride, how);
        if (row < end) narrow_rows<1>(w, panel, x, row, y + row * stride, stride, how);
        return;
    }
    const int64_t parts = (x.columns + INPUTS - 1) / INPUTS, some = ((x.columns + parts - 1) / parts + 3) / 4 * 4;
    for (int64_t from = 0; from < x.columns; from += some) {
        const int64_t to = std::min(from + some, x.columns);
        if (panels == TOGETHER) multiply_wide<TOGETHER>(w, panel, x, row, end, from, to, y, stride, how);
        else if (panels == PAIR) multiply_wide<PAIR>(w, panel, x, row, end, from, to, y, stride, how);
        else multiply_wide<1>(w, panel, x, row, end, from, to, y, stride, how);
    }
}

// Rows that go through a matrix together, in whole tiles: a level-two cache has room for them.
INLINE int64_t rows_at_once(const Matrix& w) {
    return w.kind == HALVES ? 64 : narrow(w) ? 120 : VECTORS == 1 ? 128 : 60;
}
INLINE int64_t tile_rows(const Matrix& w) { return w.kind == HALVES ? 8 : narrow(w) ? READY_ROWS : WIDE_ROWS; }

// How many panels of floats the next tile has, of so many that are left: none is left alone where that can be.
INLINE int64_t together(int64_t left) {
    if (TOGETHER == 1) return 1;
    return left == 2 || left == 4 ? 2 : std::min<int64_t>(left, TOGETHER);
}

// All rows of x with the panels from `first` to `last`; y has `stride` floats a row, and room for whole panels.
static void multiply(
    const Matrix& w, const Rows& x, float* y, int64_t stride, int32_t how, int64_t first, int64_t last) {
    const int64_t some = rows_at_once(w);
    for (int64_t row = 0; row < x.count; row += some)
        for (int64_t panel = first, panels; panel < last; panel += panels) {
            panels = w.kind == PANELS ? together(last - panel) : 1;
            multiply_panel(w, panel, panels, x, row, std::min(row + some, x.count), y + panel * PANEL, stride, how);
        }
}
