// Attention of the few queries that share a head's keys, whose tokens lie in memory in stretches.
#pragma once

#include <utility>

#include "vectors.h"

// Which keys a query sees: those from `first` up to `last`.
struct Seen {
    int64_t first, last;
};

// Tokens one behind the other.
struct Straight {
    int64_t width;

    // `act(where, s, count)` for each stretch of the tokens that are seen, from number s on.
    template <typename Do>
    inline __attribute__((always_inline)) void each(const float* of, Seen seen, Do act) const {
        act(of + seen.first * width, seen.first, seen.last - seen.first);
    }
};

constexpr int KEYS = WIDE < 8 ? 8 : WIDE;  // that are met together

// Which lane of two vectors comes to lane i: of each sum of SIZE lanes the first half, or the other.
template <int SIZE>
constexpr int lane_of(int half, int i) {
    const int sum = i / (SIZE / 2);
    return sum % 2 * WIDE + sum / 2 * SIZE + half * (SIZE / 2) + i % (SIZE / 2);
}

template <int SIZE, int... I>
INLINE Floats sum_halves(Floats one, Floats other, std::integer_sequence<int, I...>) {
    const Ints low = {lane_of<SIZE>(0, I)...}, high = {lane_of<SIZE>(1, I)...};
    return __builtin_shuffle(one, other, low) + __builtin_shuffle(one, other, high);
}

// The sums of COUNT vectors' lanes, a lane of the first vector each.
template <int COUNT>
INLINE void sum_lanes(Floats* x) {
    if constexpr (COUNT > 1) {
        UNROLL for (int i = 0; i < COUNT / 2; i++)
            x[i] = sum_halves<COUNT>(x[i], x[i + COUNT / 2], std::make_integer_sequence<int, WIDE>{});
        sum_lanes<COUNT / 2>(x);
    }
}

// A query and KEYS keys, of which the last may stand for those that are not there.
template <bool ALL>
INLINE void meet(const float* query, const float* keys, int64_t count, int64_t width, float scale, float* scores) {
    const float* key[KEYS];
    UNROLL for (int c = 0; c < KEYS; c++) key[c] = keys + (ALL || c < count ? c : count - 1) * width;
    Floats total[KEYS] = {};
    int64_t i = 0;
    for (; i + WIDE <= width; i += WIDE) {
        const Floats some = load(query + i);
        UNROLL for (int c = 0; c < KEYS; c++) total[c] = add_product(total[c], some, load(key[c] + i));
    }
    UNROLL for (int c = 0; c < KEYS; c += WIDE) {
        sum_lanes<WIDE>(total + c);
        store(scores + c, total[c]);
    }
    for (; i < width; i++)
        for (int c = 0; c < KEYS; c++) scores[c] += query[i] * key[c][i];
    UNROLL for (int c = 0; c < KEYS; c += WIDE) store(scores + c, load(scores + c) * scale);
}

// V vectors of the sum of some values, each with its weight, on top of what is there.
template <int V>
INLINE void add_values(const float* values, int64_t count, int64_t width, const float* weights, float* to) {
    constexpr int PARTS = V > 4 ? 1 : 2;  // sums that do not wait for one another
    Floats total[PARTS][V] = {};
    UNROLL for (int v = 0; v < V; v++) total[0][v] = load(to + v * WIDE);
    int64_t s = 0;
    for (; s + PARTS <= count; s += PARTS)
        UNROLL for (int p = 0; p < PARTS; p++) {
            const Floats weight = all(weights[s + p]);
            UNROLL for (int v = 0; v < V; v++)
                total[p][v] = add_product(total[p][v], load(values + (s + p) * width + v * WIDE), weight);
        }
    for (; s < count; s++)
        UNROLL for (int v = 0; v < V; v++)
            total[0][v] = add_product(total[0][v], load(values + s * width + v * WIDE), all(weights[s]));
    UNROLL for (int v = 0; v < V; v++) store(to + v * WIDE, PARTS > 1 ? total[0][v] + total[PARTS - 1][v] : total[0][v]);
}

// Scores to weights, which are still to be divided by their sum.
static float weigh(float* scores, int64_t count) {
    float most = -INFINITY;
    int64_t s = 0;
    if (count >= WIDE) {
        Floats largest = load(scores);
        for (s = WIDE; s + WIDE <= count; s += WIDE) largest = larger(largest, load(scores + s));
        UNROLL for (int i = 0; i < WIDE; i++) most = largest[i] > most ? largest[i] : most;
    }
    for (; s < count; s++) most = scores[s] > most ? scores[s] : most;
    Floats sums = all(0.f);
    for (s = 0; s + WIDE <= count; s += WIDE) {
        const Floats weight = exponential(load(scores + s) - most);
        sums += weight;
        store(scores + s, weight);
    }
    float total = sum(sums);
    for (; s < count; s++) total += scores[s] = std::exp(scores[s] - most);
    return total;
}

// Floats that scores of a query with so many keys need.
INLINE int64_t room_of_scores(int64_t keys) { return (keys + KEYS + 15) / 16 * 16; }

// softmax(q Kᵀ / √width) V of some queries, one behind the other; `scores` has `room` floats for each.
template <typename Tokens>
static void attend(
    const float* query, int64_t queries, int64_t width, const float* keys, const float* values, const Tokens& tokens,
    Seen seen, float* scores, int64_t room, float* to) {
    const float scale = 1.f / std::sqrt((float)width);
    tokens.each(keys, seen, [&](const float* key, int64_t first, int64_t count) {
        for (int64_t q = 0; q < queries; q++) {
            float* own = scores + q * room + first - seen.first;
            int64_t s = 0;
            for (; s + KEYS <= count; s += KEYS)
                meet<true>(query + q * width, key + s * width, KEYS, width, scale, own + s);
            if (s < count) meet<false>(query + q * width, key + s * width, count - s, width, scale, own + s);
        }
    });
    for (int64_t q = 0; q < queries; q++) {
        float* own = scores + q * room;
        const float inverse = 1.f / weigh(own, seen.last - seen.first);
        for (int64_t s = 0; s < seen.last - seen.first; s++) own[s] *= inverse;
    }
    std::fill_n(to, queries * width, 0.f);
    tokens.each(values, seen, [&](const float* value, int64_t first, int64_t count) {
        for (int64_t q = 0; q < queries; q++) {
            const float* own = scores + q * room + first - seen.first;
            float* sums = to + q * width;
            int64_t i = 0;
            for (; i + 8 * WIDE <= width; i += 8 * WIDE) add_values<8>(value + i, count, width, own, sums + i);
            for (; i + 4 * WIDE <= width; i += 4 * WIDE) add_values<4>(value + i, count, width, own, sums + i);
            for (; i + WIDE <= width; i += WIDE) add_values<1>(value + i, count, width, own, sums + i);
            for (; i < width; i++)
                for (int64_t s = 0; s < count; s++) sums[i] += value[s * width + i] * own[s];
        }
    });
}
