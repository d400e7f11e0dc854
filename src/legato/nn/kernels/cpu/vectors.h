// The machine's vectors, and the few operations on them that compilers do not find by themselves.
//
// Everything here has the same meaning on every machine; what differs is how wide a vector is and how a product of
// bytes is made. A machine without such instructions takes the plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LEGATO_BYTES 64
#elif defined(__AVX2__)
#define LEGATO_BYTES 32
#else
#define LEGATO_BYTES 16
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// Of a function whose long sums shall be mixed by the compiler's own order, which products of tiles are better without.
#if defined(__aarch64__)
#define SCHEDULED __attribute__((optimize("schedule-insns")))
#else
#define SCHEDULED
#endif

constexpr int WIDE = LEGATO_BYTES / 4;  // floats of a vector

typedef float Floats __attribute__((vector_size(LEGATO_BYTES)));
typedef int32_t Ints __attribute__((vector_size(LEGATO_BYTES)));

INLINE Floats load(const float* from) {
    Floats found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

INLINE void store(float* to, Floats what) { std::memcpy(to, &what, sizeof what); }

INLINE Floats all(float value) { return Floats{} + value; }

// 1.5 · 2^23: what is added to it is rounded to a whole number, and stands in its last bits.
constexpr float ROUNDING = 12582912.f;
constexpr int32_t ROUNDING_BITS = 0x4B400000;

INLINE Floats as_floats(Ints bits) {
    Floats found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

INLINE Ints as_bits(Floats x) {
    Ints found;
    std::memcpy(&found, &x, sizeof found);
    return found;
}

INLINE float sum(Floats x) {
#if defined(__aarch64__)
    return vaddvq_f32((float32x4_t)x);
#else
    float total = 0;
    UNROLL for (int i = 0; i < WIDE; i++) total += x[i];
    return total;
#endif
}

// total + a · b, rounded once. Left to itself a compiler may round twice where it has few sums to make, and a row's
// numbers would depend on how many rows are multiplied with it.
INLINE Floats add_product(Floats total, Floats a, Floats b) {
#if defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)total, (float32x4_t)a, (float32x4_t)b);
#elif defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)total);
#elif defined(__FMA__) && defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)total);
#else
    return total + a * b;
#endif
}

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// The largest of its numbers, and NaN where one is.
INLINE float largest_of(Floats x) {
#if defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)x);
#else
    float largest = x[0];
    bool missing = false;
    UNROLL for (int i = 0; i < WIDE; i++) {
        largest = x[i] > largest ? x[i] : largest;
        missing |= x[i] != x[i];
    }
    return missing ? NAN : largest;
#endif
}

// The larger one's size, and NaN where one is. Where `most` is NaN, neither is larger.
INLINE Floats larger_size(Floats most, Floats x) {
#if defined(__aarch64__)
    return (Floats)vmaxq_f32((float32x4_t)most, vabsq_f32((float32x4_t)x));
#else
    const Floats size = x < 0.f ? -x : x;
    return (size <= most) | (most != most) ? most : size;
#endif
}

// 1 / x, of numbers that are not tiny, right to 1e-7 of itself.
INLINE Floats inverse_of(Floats x) {
#if defined(__aarch64__)
    float32x4_t y = vrecpeq_f32((float32x4_t)x);
    y = vmulq_f32(y, vrecpsq_f32((float32x4_t)x, y));
    return (Floats)vmulq_f32(y, vrecpsq_f32((float32x4_t)x, y));
#elif defined(__AVX512F__)
    const Floats y = (Floats)_mm512_rcp14_ps((__m512)x);  // a division of sixteen floats takes as long as ten products
    return y + y * (1.f - x * y);
#else
    return 1.f / x;
#endif
}

// Sums of products of bytes, below 2^22 in size: where they start, and what they are as floats. An Arm core converts
// one vector in two cycles and subtracts four, so there a sum starts as the bits of a float, and counts in its last.
#if defined(__ARM_NEON)
constexpr int32_t SUM_START = ROUNDING_BITS;
INLINE Floats sum_to_floats(Ints x) { return as_floats(x) - ROUNDING; }
#else
constexpr int32_t SUM_START = 0;
INLINE Floats sum_to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
#endif

INLINE Ints sum_start() {
    static const Ints start = Ints{} + SUM_START;
    Ints sum;
#if defined(__aarch64__)
    asm volatile("ldr %q0, %1" : "=w"(sum) : "Q"(start));  // loads are free beside products, copies are not
#else
    sum = start;
#endif
    return sum;
}

// Half-precision numbers to floats.
INLINE Floats from_halves(const uint16_t* from) {
#if defined(__ARM_NEON)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#elif defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    Floats found;
    for (int i = 0; i < WIDE; i++) {
        uint32_t bits = from[i], exponent = bits >> 10 & 31, fraction = bits & 1023;
        float size = exponent ? std::ldexp(1024.f + fraction, (int)exponent - 25) : std::ldexp((float)fraction, -24);
        found[i] = bits >> 15 ? -size : size;
    }
    return found;
#endif
}

typedef int8_t Bytes __attribute__((vector_size(LEGATO_BYTES)));

INLINE Bytes load_bytes(const void* from) {
    Bytes found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

// The lowest byte of each of COUNT numbers.
template <int COUNT>
INLINE void store_bytes(int8_t* to, const Ints* what) {
#if defined(__aarch64__)
    UNROLL for (int i = 0; i < COUNT / 16; i++, what += 4) {
        const int16x8_t low = vuzp1q_s16((int16x8_t)what[0], (int16x8_t)what[1]);
        const int16x8_t high = vuzp1q_s16((int16x8_t)what[2], (int16x8_t)what[3]);
        vst1q_s8(to + 16 * i, vuzp1q_s8((int8x16_t)low, (int8x16_t)high));
    }
#else
    for (int i = 0; i < COUNT; i++) to[i] = (int8_t)what[i / WIDE][i % WIDE];
#endif
}

// Sixteen bytes of inputs, and in each of WIDE places the sum of four products of weights with the four bytes at `PLACE`
// of them is added. No input is -128.
#if defined(__ARM_FEATURE_DOTPROD)
typedef int8x16_t Inputs;
INLINE Inputs load_inputs(const int8_t* from) { return vld1q_s8(from); }
template <int PLACE>
INLINE Ints add_products(Ints total, Bytes w, Inputs x) {
    return (Ints)vdotq_laneq_s32((int32x4_t)total, (int8x16_t)w, x, PLACE);
}
#else
typedef const int8_t* Inputs;
INLINE Inputs load_inputs(const int8_t* from) { return from; }
template <int PLACE>
INLINE Ints add_products(Ints total, Bytes w, Inputs from) {
    int32_t four;
    std::memcpy(&four, from + 4 * PLACE, 4);
    Bytes x = (Bytes)(Ints{} + four);
#if defined(__AVX512BW__)
    const __m512i none = _mm512_setzero_si512(), size = _mm512_abs_epi8((__m512i)w);
    __m512i turned = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), none, (__m512i)x);
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, size, turned);
#else
    return total + (Ints)_mm512_madd_epi16(_mm512_maddubs_epi16(size, turned), _mm512_set1_epi16(1));
#endif
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)x, (__m256i)w));
    return total + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int i = 0; i < WIDE; i++)
        for (int j = 0; j < 4; j++) total[i] += (int32_t)w[4 * i + j] * x[4 * i + j];
    return total;
#endif
}
#endif

// What a table of sixteen bytes says of numbers below 16.
INLINE Bytes look_up(const int8_t* table, Bytes numbers) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    return (Bytes)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)numbers);
#elif defined(__AVX512BW__)
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
    return (Bytes)_mm512_shuffle_epi8(all, (__m512i)numbers);
#elif defined(__AVX2__)
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return (Bytes)_mm256_shuffle_epi8(all, (__m256i)numbers);
#else
    for (int i = 0; i < LEGATO_BYTES; i++) numbers[i] = table[numbers[i] & 15];
    return numbers;
#endif
}

INLINE Bytes low_halves(Bytes x) { return x & 15; }
INLINE Bytes high_halves(Bytes x) {
    typedef uint8_t Plain __attribute__((vector_size(LEGATO_BYTES)));
    return (Bytes)((Plain)x >> 4);
}

constexpr float LOG2_E = 1.44269504f;

// eˣ, right to about 1e-7 of itself; 0 where it would be smaller than a float.
INLINE Floats exponential(Floats x) {
    x = x < -87.f ? all(-87.5f) : x;
    x = x > 88.f ? all(88.f) : x;
    const Floats rounded = x * LOG2_E + ROUNDING, turns = rounded - ROUNDING;
    Floats rest = x - turns * 0.693359375f + turns * 2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.f;
    const Floats power = as_floats((as_bits(rounded) + (127 - ROUNDING_BITS)) << 23);
    return x < -87.f ? all(0.f) : y * power;
}

// 2ˣ of numbers up to 0, right to 2e-7 of itself; 2⁻¹²⁶ below that, and NaN of NaN. Some vectors side by side, in the
// order in which none waits for another: the compiler keeps to it.
template <int COUNT>
INLINE void small_powers_of_two(Floats (&x)[COUNT]) {
    constexpr float START = ROUNDING + 127;  // so that the last bits of a rounded number are its float's exponent
    Floats rounded[COUNT], y[COUNT];
    UNROLL for (int v = 0; v < COUNT; v++) x[v] = x[v] < -126.f ? all(-126.f) : x[v];
    UNROLL for (int v = 0; v < COUNT; v++) rounded[v] = x[v] + START;
    UNROLL for (int v = 0; v < COUNT; v++) x[v] -= rounded[v] - START;
    UNROLL for (int v = 0; v < COUNT; v++) y[v] = x[v] * 1.32644118e-3f + 9.67141241e-3f;
    UNROLL for (int v = 0; v < COUNT; v++) y[v] = y[v] * x[v] + 5.55073358e-2f;
    UNROLL for (int v = 0; v < COUNT; v++) y[v] = y[v] * x[v] + 2.40222439e-1f;
    UNROLL for (int v = 0; v < COUNT; v++) y[v] = y[v] * x[v] + 6.93147004e-1f;
    UNROLL for (int v = 0; v < COUNT; v++) y[v] = y[v] * x[v] + 1.f;
    UNROLL for (int v = 0; v < COUNT; v++) x[v] = y[v] * as_floats(as_bits(rounded[v]) << 23);
}

// 1 / (1 + e⁻ˣ)
INLINE Floats sigmoid(Floats x) { return 1.f / (1.f + exponential(-x)); }

// The error function, right to 4e-7: an odd polynomial over an even one, up to 4, where it is 1 (as in Eigen and XLA).
INLINE Floats error_function(Floats x) {
    x = x > 4.f ? all(4.f) : x;
    x = x < -4.f ? all(-4.f) : x;
    const Floats square = x * x;
    Floats above = square * -2.72614225801306e-10f + 2.77068142495902e-08f;
    above = above * square - 2.10102402082508e-06f;
    above = above * square - 5.69250639462346e-05f;
    above = above * square - 7.34990630326855e-04f;
    above = above * square - 2.95459980854025e-03f;
    above = above * square - 1.60960333262415e-02f;
    Floats below = square * -1.45660718464996e-05f - 2.13374055278905e-04f;
    below = below * square - 1.68282697438203e-03f;
    below = below * square - 7.37332916720468e-03f;
    below = below * square - 1.42647390514189e-02f;
    return x * above * inverse_of(below);
}
