// Random draws that are a function of where they are: of a seed, a row and a place in it. Any thread makes any of
// them, in any order, and the way back makes them again where it needs them.
#pragma once

#include "vectors.h"

typedef uint32_t Words __attribute__((vector_size(LEGATO_BYTES)));

// Two numbers of 32 bits in which rows differ (the finisher of splitmix64).
struct RowKey {
    uint32_t first, second;

    RowKey(uint64_t seed, uint64_t row) {
        uint64_t x = seed + (row + 1) * 0x9E3779B97F4A7C15u;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
        x = (x ^ x >> 27) * 0x94D049BB133111EBu;
        x ^= x >> 31;
        first = (uint32_t)x;
        second = (uint32_t)(x >> 32);
    }
};

// A number of 32 bits, or a vector of them: a place in a row, scrambled with what the row is.
template <typename Word>
INLINE Word drawn(Word place, Word first, Word second) {
    Word x = place * 0x9E3779B9u + first;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) + second;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

// What is dropped: draws below a threshold. What is kept is multiplied by `scale`, so that the mean stays.
struct Dropout {
    uint64_t seed;
    uint32_t threshold;
    float scale;
};

INLINE Words all_words(uint32_t value) { return Words{} + value; }

// first, first + 1, …
INLINE Words places_from(uint32_t first) {
    static constexpr uint32_t COUNTED[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Words places;
    std::memcpy(&places, COUNTED, sizeof places);
    return places + first;
}

// x where the draw is kept, 0 elsewhere.
INLINE Floats kept_of(Floats x, Words draw, uint32_t threshold) {
    return as_floats((Ints)(draw >= all_words(threshold)) & as_bits(x));
}
