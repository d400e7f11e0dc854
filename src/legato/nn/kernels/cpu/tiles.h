// Products of small matrices for attention in training: of floats in vectors, or of bfloat16 in the tiles of AMX.
//
// C (m, n) = A (m, k) B (k, n), all in forms that lie ready: A row by row, B as each kind wants it, C floats row by
// row. Their sizes are multiples of STEP, filled up with zeros.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "random.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define LEGATO_TILES 1
#else
#define LEGATO_TILES 0
#endif

struct Free {
    void operator()(void* room) const { std::free(room); }
};

// Memory on whole lines of cache, not set to anything.
template <typename T>
using Lines = std::unique_ptr<T[], Free>;

template <typename T>
static Lines<T> lines(int64_t count) {
    return Lines<T>((T*)std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64));
}

INLINE int64_t filled_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

INLINE float as_float(float x) { return x; }
INLINE float as_float(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// The nearest bfloat16 of each, in its low half.
INLINE Words narrowed(Floats x) {
#if defined(__AVX512BF16__) && LEGATO_BYTES == 64
    return (Words)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    const Words bits = (Words)as_bits(x), rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16,
                missing = (Words)(x != x);
    return (missing & 0x7FC0u) | (~missing & rounded);
#endif
}

typedef uint16_t Shorts __attribute__((vector_size(LEGATO_BYTES / 2)));
INLINE void store_narrow(uint16_t* to, Floats x) {
#if defined(__AVX512BF16__) && LEGATO_BYTES == 64
    const Shorts shorts = (Shorts)_mm512_cvtneps_pbh((__m512)x);
#else
    const Shorts shorts = __builtin_convertvector(narrowed(x), Shorts);
#endif
    std::memcpy(to, &shorts, sizeof shorts);
}

INLINE Floats read(const float* from) { return load(from); }
INLINE Floats read(const uint16_t* from) {
    Shorts found;
    std::memcpy(&found, from, sizeof found);
    return as_floats((Ints)(__builtin_convertvector(found, Words) << 16));
}
INLINE void write(float* to, Floats x) { store(to, x); }
INLINE void write(uint16_t* to, Floats x) { store_narrow(to, x); }

// Each kind of number as each.
INLINE void put(float* to, float x) { *to = x; }
INLINE void put(float* to, uint16_t x) { *to = as_float(x); }
INLINE void put(uint16_t* to, uint16_t x) { *to = x; }
INLINE void put(uint16_t* to, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    *to = x != x ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Some rows of numbers, in a matrix that is filled up with zeros to (full, across).
template <typename Number>
struct Given {
    const Number* from;
    int64_t stride, rows, columns, full, across;

    const Number* row(int64_t i) const { return from + i * stride; }
};

// As they are.
template <typename Number, typename Element>
static void in_rows(const Given<Number>& given, Element* to) {
    for (int64_t i = 0; i < given.rows; i++, to += given.across) {
        const Number* from = given.row(i);
        int64_t k = 0;
        for (; k + WIDE <= given.columns; k += WIDE)
            if constexpr (std::is_same_v<Number, Element>) std::copy_n(from + k, WIDE, to + k);
            else write(to + k, read(from + k));
        for (; k < given.columns; k++) put(to + k, from[k]);
        std::fill_n(to + given.columns, given.across - given.columns, Element(0));
    }
    std::fill_n(to, (given.full - given.rows) * given.across, Element(0));
}

// Columns as rows: (across, full).
template <typename Number, typename Element>
static void in_columns(const Given<Number>& given, Element* to) {
    constexpr int64_t SOME = 16;
    for (int64_t first = 0; first < given.full; first += SOME) {
        const int64_t count = std::min(SOME, given.rows - first);
        for (int64_t k = 0; k < given.across; k++) {
            Element* column = to + k * given.full + first;
            if (k >= given.columns || count <= 0) {
                std::fill_n(column, SOME, Element(0));
            } else if (count == SOME) {
                const Number* from = given.row(first) + k;
                UNROLL
                for (int64_t i = 0; i < SOME; i++) put(column + i, from[i * given.stride]);
            } else {
                for (int64_t i = 0; i < SOME; i++) put(column + i, i < count ? given.row(first + i)[k] : Number(0));
            }
        }
    }
}

// Vectors of floats. B lies in panels of 16 columns, one after the other: rows of a wide matrix would be in one
// another's way in a cache.
struct Wide {
    typedef float Element;
    static constexpr int64_t STEP = 16;

    static void begin() {}
    static void end() {}

    // As B, (full, across).
    template <typename Number>
    static void right(const Given<Number>& given, float* to) {
        for (int64_t i = 0; i < given.full; i++)
            for (int64_t k = 0; k < given.across; k += 16) {
                float* panel = to + k * given.full + i * 16;
                const int64_t count =
                    i < given.rows ? std::max<int64_t>(std::min<int64_t>(given.columns - k, 16), 0) : 0;
                const Number* from = given.row(i) + k;
                if (count == 16) UNROLL
                for (int64_t n = 0; n < 16; n++) panel[n] = as_float(from[n]);
                else for (int64_t n = 0; n < 16; n++) panel[n] = n < count ? as_float(from[n]) : 0.f; }
    }

    // Turned, as B: (across, full).
    template <typename Number>
    static void turned(const Given<Number>& given, float* to) {
        for (int64_t first = 0; first < given.full; first += 16)
            for (int64_t k = 0; k < given.across; k++) {
                float* panel = to + first * given.across + k * 16;
                const Number* from = given.row(first) + k;
                const int64_t count = k < given.columns ? given.rows - first : 0;
                if (count >= 16) UNROLL
                for (int64_t n = 0; n < 16; n++) panel[n] = as_float(from[n * given.stride]);
                else for (int64_t n = 0; n < 16; n++) panel[n] = n < count ? as_float(from[n * given.stride]) : 0.f; }
    }

    // Of two rows of B, the first an even one, what stands at a column.
    INLINE void write_right(float* b, int64_t row, int64_t column, int64_t deep, Floats one, Floats two) {
        float* to = b + column / 16 * deep * 16 + row * 16 + column % 16;
        store(to, one);
        store(to + 16, two);
    }

    static void multiply(const float* a, int64_t a_row, const float* b, int64_t deep, float* c, int64_t c_row,
                         int64_t m, int64_t n, int64_t k, bool add) {
        int64_t j = 0;
        for (; j + PANELS * 16 <= n; j += PANELS * 16)
            columns<PANELS>(a, a_row, b + j * deep, deep * 16, c + j, c_row, m, k, add);
        for (; j < n; j += 16) columns<1>(a, a_row, b + j * deep, deep * 16, c + j, c_row, m, k, add);
    }

  private:
    static constexpr int VECTORS = 16 / WIDE, PANELS = VECTORS >= 4 ? 1 : VECTORS == 2 ? 1 : 4, ROWS = 6;

    template <int P>
    static void columns(const float* a, int64_t a_row, const float* b, int64_t panel, float* c, int64_t c_row,
                        int64_t m, int64_t k, bool add) {
        int64_t i = 0;
        for (; i + ROWS <= m; i += ROWS) some<ROWS, P>(a + i * a_row, a_row, b, panel, c + i * c_row, c_row, k, add);
        for (; i + 4 <= m; i += 4) some<4, P>(a + i * a_row, a_row, b, panel, c + i * c_row, c_row, k, add);
        for (; i < m; i++) some<1, P>(a + i * a_row, a_row, b, panel, c + i * c_row, c_row, k, add);
    }

    template <int R, int P>
    INLINE void some(const float* a, int64_t a_row, const float* b, int64_t panel, float* c, int64_t c_row, int64_t k,
                     bool add) {
        constexpr int V = P * VECTORS;
        Floats sums[R][V];
        UNROLL
        for (int r = 0; r < R; r++) UNROLL
        for (int v = 0; v < V; v++) sums[r][v] = add ? load(c + r * c_row + v * WIDE) : Floats{};
        for (int64_t i = 0; i < k; i++) {
            Floats right[V];
            UNROLL
            for (int v = 0; v < V; v++) right[v] = load(b + v / VECTORS * panel + i * 16 + v % VECTORS * WIDE);
            UNROLL
            for (int r = 0; r < R; r++) {
                const Floats left = all(a[r * a_row + i]);
                UNROLL
                for (int v = 0; v < V; v++) sums[r][v] = add_product(sums[r][v], left, right[v]);
            }
        }
        UNROLL
        for (int r = 0; r < R; r++) UNROLL
        for (int v = 0; v < V; v++) store(c + r * c_row + v * WIDE, sums[r][v]);
    }
};

// Tiles: of A 16 rows of 32 numbers, of B 16 pairs of rows of 16 numbers, side by side; of C 16 by 16 floats. Panels
// of B, 16 columns each, lie one after the other. Where a processor has no tiles, the same numbers in plain loops.
struct Tiles {
    typedef uint16_t Element;
    static constexpr int64_t STEP = 32;

    // Pairs of rows, 16 columns of them after the other.
    template <typename Number>
    static void right(const Given<Number>& given, uint16_t* to) {
        for (int64_t i = 0; i < given.full; i += 2)
            for (int64_t k = 0; k < given.across; k += 16) {
                uint16_t* pairs = to + k * given.full + i * 16;
                const int64_t rows = std::min<int64_t>(given.rows - i, 2);
                if (k + 16 <= given.columns && rows == 2) {
                    const Number *one = given.row(i) + k, *two = given.row(i + 1) + k;
                    UNROLL
                    for (int64_t n = 0; n < 16; n++) {
                        put(pairs + 2 * n, one[n]);
                        put(pairs + 2 * n + 1, two[n]);
                    }
                } else {
                    for (int64_t n = 0; n < 32; n++)
                        put(pairs + n,
                            n % 2 < rows && k + n / 2 < given.columns ? given.row(i + n % 2)[k + n / 2] : Number(0));
                }
            }
    }

    // The same of columns: pairs that were side by side already.
    template <typename Number>
    static void turned(const Given<Number>& given, uint16_t* to) {
        for (int64_t first = 0; first < given.full; first += 16)
            for (int64_t k = 0; k < given.across; k += 2) {
                uint16_t* pairs = to + first * given.across + k * 16;
                if (first + 16 <= given.rows && k + 2 <= given.columns) {
                    const Number* from = given.row(first) + k;
                    UNROLL
                    for (int64_t n = 0; n < 16; n++) {
                        put(pairs + 2 * n, from[n * given.stride]);
                        put(pairs + 2 * n + 1, from[n * given.stride + 1]);
                    }
                } else {
                    for (int64_t n = 0; n < 32; n++) {
                        const bool there = first + n / 2 < given.rows && k + n % 2 < given.columns;
                        put(pairs + n, there ? given.row(first + n / 2)[k + n % 2] : Number(0));
                    }
                }
            }
    }

    INLINE void write_right(uint16_t* b, int64_t row, int64_t column, int64_t deep, Floats one, Floats two) {
        const Words pairs = narrowed(one) | narrowed(two) << 16;
        std::memcpy(b + column / 16 * deep * 16 + row * 16 + column % 16 * 2, &pairs, sizeof pairs);
    }

    static void multiply(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t deep, float* c, int64_t c_row,
                         int64_t m, int64_t n, int64_t k, bool add) {
        for (int64_t j = 0; j < n; j += 32)
            for (int64_t i = 0; i < m; i += 32)
                four(a + i * a_row, a_row, b + j * deep, deep * 16, c + i * c_row + j, c_row, k, add);
    }

#if LEGATO_TILES
    static bool allowed() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }  // to use the tiles' memory

    static void begin() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, unused[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } shape;
        _tile_loadconfig(&shape);
    }
    static void end() { _tile_release(); }

  private:
    INLINE void four(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t panel, float* c, int64_t c_row,
                     int64_t k, bool add) {
        if (add) {
            _tile_loadd(0, c, c_row * 4);
            _tile_loadd(1, c + 16, c_row * 4);
            _tile_loadd(2, c + 16 * c_row, c_row * 4);
            _tile_loadd(3, c + 16 * c_row + 16, c_row * 4);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t i = 0; i < k; i += 32) {
            _tile_loadd(4, a + i, a_row * 2);
            _tile_loadd(6, b + i * 16, 64);
            _tile_loadd(5, a + 16 * a_row + i, a_row * 2);
            _tile_loadd(7, b + panel + i * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c, c_row * 4);
        _tile_stored(1, c + 16, c_row * 4);
        _tile_stored(2, c + 16 * c_row, c_row * 4);
        _tile_stored(3, c + 16 * c_row + 16, c_row * 4);
    }
#else
    static bool allowed() { return false; }
    static void begin() {}
    static void end() {}

  private:
    static void four(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t panel, float* c, int64_t c_row,
                     int64_t k, bool add) {
        for (int64_t i = 0; i < 32; i++)
            for (int64_t j = 0; j < 32; j++) {
                float sum = add ? c[i * c_row + j] : 0.f;
                const uint16_t *left = a + i * a_row, *right = b + j / 16 * panel + j % 16 * 2;
                for (int64_t x = 0; x < k; x++) sum += as_float(left[x]) * as_float(right[x / 2 * 32 + x % 2]);
                c[i * c_row + j] = sum;
            }
    }
#endif
};
