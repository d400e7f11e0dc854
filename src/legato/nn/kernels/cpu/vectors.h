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

INLINE float sum(Floats x) {
    float total = 0;
    UNROLL for (int i = 0; i < WIDE; i++) total += x[i];
    return total;
}

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }

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
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    const __m512i none = _mm512_setzero_si512();
    __m512i turned = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), none, (__m512i)x);
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, _mm512_abs_epi8((__m512i)w), turned);
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

// What a table of sixteen bytes says of numbers below 16; without one they stand for themselves.
INLINE Bytes look_up(const int8_t* table, Bytes numbers) {
    if (!table) return numbers;
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

// eˣ, right to about 1e-7 of itself; 0 where it would be smaller than a float.
INLINE Floats exponential(Floats x) {
    x = x < -87.f ? all(-87.5f) : x;
    x = x > 88.f ? all(88.f) : x;
    const float big = 12582912.f;  // 1.5 · 2^23: adding and taking it away rounds
    Floats turns = (x * 1.44269504f + big) - big;
    Floats rest = x - turns * 0.693359375f + turns * 2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.f;
    Ints exponent = (__builtin_convertvector(turns, Ints) + 127) << 23;
    Floats power;
    std::memcpy(&power, &exponent, sizeof power);
    return x < -87.f ? all(0.f) : y * power;
}

// 1 / (1 + e⁻ˣ)
INLINE Floats sigmoid(Floats x) { return 1.f / (1.f + exponential(-x)); }

// The error function (Abramowitz and Stegun 1964, 7.1.26), right to 2e-7.
INLINE Floats error_function(Floats x) {
    Floats size = x < 0.f ? -x : x;
    Floats t = 1.f / (1.f + 0.3275911f * size);
    Floats y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    Floats value = 1.f - y * exponential(-size * size);
    return x < 0.f ? -value : value;
}
