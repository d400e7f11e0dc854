// Products of rows with a matrix of half-precision numbers: some processors multiply twice as many of them at a time.
//
// The longer a sum the more of its last bits are lost, and half-precision numbers have eleven. So 32 inputs are
// summed in registers, eight such sums in memory, and what 256 inputs come to is added to a float. What is lost is
// 1e-3 of a product's size; with bfloat16 inputs and sums of floats it is 2.3e-3. Beyond 65,504 a sum is infinite, as
// is a number that goes into it, and whatever that is added to is infinite or NaN to the end.
#pragma once

#include "matrix.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)

constexpr bool MULTIPLIES_HALVES = true;
// Inputs of a sum in registers, of one of halves in memory, and of a panel that is in a level-one cache.
constexpr int64_t HALF_CHAIN = 32, HALF_SUMS = 256, HALF_PART = 1024;

typedef float16x8_t Halves;
constexpr int HALF_WIDE = 8;

INLINE Halves load(const uint16_t* from) { return vreinterpretq_f16_u16(vld1q_u16(from)); }
INLINE void store(uint16_t* to, Halves what) { vst1q_u16(to, vreinterpretq_u16_f16(what)); }

// Floats as halves; a multiple of eight.
static void to_halves(const float* from, uint16_t* to, int64_t count) {
    for (int64_t i = 0; i < count; i += HALF_WIDE) {
        const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
        store(to + i, vcvt_high_f16_f32(low, vld1q_f32(from + i + 4)));
    }
}

// One input of some rows with a panel, added to its sums. As instructions: GCC would copy an input to all places of a
// register before. Several in a statement: between statements GCC moves sums about. Eight rows are two statements,
// since one cannot name as many registers.
template <int PLACE>
INLINE void add_rows(Halves (&sums)[8], Halves w, const Halves (&x)[8]) {
    asm("fmla %0.8h, %8.8h, %9.h[%17]\n fmla %1.8h, %8.8h, %10.h[%17]\n"
        "fmla %2.8h, %8.8h, %11.h[%17]\n fmla %3.8h, %8.8h, %12.h[%17]\n"
        "fmla %4.8h, %8.8h, %13.h[%17]\n fmla %5.8h, %8.8h, %14.h[%17]\n"
        "fmla %6.8h, %8.8h, %15.h[%17]\n fmla %7.8h, %8.8h, %16.h[%17]\n"
        : "+&w"(sums[0]), "+&w"(sums[1]), "+&w"(sums[2]), "+&w"(sums[3]), "+&w"(sums[4]), "+&w"(sums[5]),
          "+&w"(sums[6]), "+&w"(sums[7])
        : "w"(w), "x"(x[0]), "x"(x[1]), "x"(x[2]), "x"(x[3]), "x"(x[4]), "x"(x[5]), "x"(x[6]), "x"(x[7]), "i"(PLACE));
}

template <int PLACE>
INLINE void add_panel(Halves (&left)[8], Halves (&right)[8], Halves w, Halves v, const Halves (&x)[8]) {
    add_rows<PLACE>(left, w, x);
    add_rows<PLACE>(right, v, x);
}

template <int PLACE>
INLINE void add_panel(Halves (&left)[4], Halves (&right)[4], Halves w, Halves v, const Halves (&x)[4]) {
    asm("fmla %0.8h, %8.8h, %10.h[%14]\n fmla %4.8h, %9.8h, %10.h[%14]\n"
        "fmla %1.8h, %8.8h, %11.h[%14]\n fmla %5.8h, %9.8h, %11.h[%14]\n"
        "fmla %2.8h, %8.8h, %12.h[%14]\n fmla %6.8h, %9.8h, %12.h[%14]\n"
        "fmla %3.8h, %8.8h, %13.h[%14]\n fmla %7.8h, %9.8h, %13.h[%14]\n"
        : "+&w"(left[0]), "+&w"(left[1]), "+&w"(left[2]), "+&w"(left[3]), "+&w"(right[0]), "+&w"(right[1]),
          "+&w"(right[2]), "+&w"(right[3])
        : "w"(w), "w"(v), "x"(x[0]), "x"(x[1]), "x"(x[2]), "x"(x[3]), "i"(PLACE));
}

template <int PLACE>
INLINE void add_panel(Halves (&left)[2], Halves (&right)[2], Halves w, Halves v, const Halves (&x)[2]) {
    asm("fmla %0.8h, %4.8h, %6.h[%8]\n fmla %2.8h, %5.8h, %6.h[%8]\n"
        "fmla %1.8h, %4.8h, %7.h[%8]\n fmla %3.8h, %5.8h, %7.h[%8]\n"
        : "+&w"(left[0]), "+&w"(left[1]), "+&w"(right[0]), "+&w"(right[1])
        : "w"(w), "w"(v), "x"(x[0]), "x"(x[1]), "i"(PLACE));
}

template <int PLACE>
INLINE void add_panel(Halves (&left)[1], Halves (&right)[1], Halves w, Halves v, const Halves (&x)[1]) {
    asm("fmla %0.8h, %2.8h, %4.h[%5]\n fmla %1.8h, %3.8h, %4.h[%5]\n"
        : "+&w"(left[0]), "+&w"(right[0])
        : "w"(w), "w"(v), "x"(x[0]), "i"(PLACE));
}

template <int PLACE, bool FIRST, int R>
INLINE void one_input(Halves (&left)[R], Halves (&right)[R], const uint16_t* weights, const Halves (&x)[R]) {
    const Halves w = load(weights + PLACE * PANEL), v = load(weights + PLACE * PANEL + HALF_WIDE);
    if constexpr (FIRST) {
        UNROLL for (int r = 0; r < R; r++) asm("fmul %0.8h, %1.8h, %2.h[0]" : "=w"(left[r]) : "w"(w), "x"(x[r]));
        UNROLL for (int r = 0; r < R; r++) asm("fmul %0.8h, %1.8h, %2.h[0]" : "=w"(right[r]) : "w"(v), "x"(x[r]));
    } else {
        add_panel<PLACE>(left, right, w, v, x);
    }
}

// Eight inputs of R rows, the first of their sums or added to them.
template <bool FIRST, int R>
INLINE void eight_inputs(
    Halves (&left)[R], Halves (&right)[R], const uint16_t* weights, const uint16_t* inputs, int64_t columns) {
    Halves x[R];
    UNROLL for (int r = 0; r < R; r++) x[r] = load(inputs + r * columns);
    one_input<0, FIRST>(left, right, weights, x);
    one_input<1, false>(left, right, weights, x);
    one_input<2, false>(left, right, weights, x);
    one_input<3, false>(left, right, weights, x);
    one_input<4, false>(left, right, weights, x);
    one_input<5, false>(left, right, weights, x);
    one_input<6, false>(left, right, weights, x);
    one_input<7, false>(left, right, weights, x);
}

// A sum of halves is added to floats, where there are some, and is y.
INLINE void widen(Halves sum, const float* before, float* y) {
    float32x4_t low = vcvt_f32_f16(vget_low_f16(sum)), high = vcvt_high_f32_f16(sum);
    if (before) low += vld1q_f32(before), high += vld1q_f32(before + 4);
    vst1q_f32(y, low);
    vst1q_f32(y + 4, high);
}

// The inputs from `from` to `to` of R rows, added to what y holds of those before; the first are added to the bias.
template <int R>
static __attribute__((noinline)) void half_tile(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, int64_t from, int64_t to, float* y, int64_t stride) {
    const uint16_t* weights = (const uint16_t*)w.data + (panel * x.columns + from) * PANEL;
    const uint16_t* inputs = x.halves + row * x.columns;
    uint16_t kept[R * PANEL];
    for (int64_t k = from; k < to;) {
        const int64_t end = std::min((k / HALF_SUMS + 1) * HALF_SUMS, to), before_stride = k ? stride : 0;
        const float* before = k ? y : w.bias ? w.bias + panel * PANEL : nullptr;
        for (bool alone = true; k < end; alone = false) {
            Halves left[R], right[R];
            eight_inputs<true>(left, right, weights, inputs + k, x.columns);
            const int64_t last = std::min(k + HALF_CHAIN, end);
            for (k += 8, weights += 8 * PANEL; k < last; k += 8, weights += 8 * PANEL)
                eight_inputs<false>(left, right, weights, inputs + k, x.columns);
            if (!alone)
                UNROLL for (int r = 0; r < R; r++) {
                    left[r] = vaddq_f16(left[r], load(kept + r * PANEL));
                    right[r] = vaddq_f16(right[r], load(kept + r * PANEL + HALF_WIDE));
                }
            if (k < end)
                UNROLL for (int r = 0; r < R; r++) {
                    store(kept + r * PANEL, left[r]);
                    store(kept + r * PANEL + HALF_WIDE, right[r]);
                }
            else
                UNROLL for (int r = 0; r < R; r++) {
                    const float* of_row = before ? before + r * before_stride : nullptr;
                    widen(left[r], of_row, y + r * stride);
                    widen(right[r], of_row ? of_row + HALF_WIDE : nullptr, y + r * stride + HALF_WIDE);
                }
        }
    }
}

// The rows from `row` to `end` with one panel.
static void multiply_halves(
    const Matrix& w, int64_t panel, const Rows& x, int64_t row, int64_t end, float* y, int64_t stride, int32_t how) {
    for (int64_t from = 0; from < x.columns; from += HALF_PART) {
        const int64_t to = std::min(from + HALF_PART, x.columns);
        int64_t r = row;
        for (; r + 8 <= end; r += 8) half_tile<8>(w, panel, x, r, from, to, y + r * stride, stride);
        for (; r + 4 <= end; r += 4) half_tile<4>(w, panel, x, r, from, to, y + r * stride, stride);
        for (; r + 2 <= end; r += 2) half_tile<2>(w, panel, x, r, from, to, y + r * stride, stride);
        if (r < end) half_tile<1>(w, panel, x, r, from, to, y + r * stride, stride);
    }
    if (how != NONE) activate(y + row * stride, stride, end - row, PANEL, how);
}

#else

constexpr bool MULTIPLIES_HALVES = false;
static void to_halves(const float*, uint16_t*, int64_t) {}
static void multiply_halves(const Matrix&, int64_t, const Rows&, int64_t, int64_t, float*, int64_t, int32_t) {}

#endif
