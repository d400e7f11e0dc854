// Attention of many queries of a head, some at a time: its keys are laid out in panels, its values read where they lie.
#pragma once

#include "lookback.h"
#include "products.h"

template <int HALF, int... I>
INLINE void exchange(Floats& one, Floats& other, std::integer_sequence<int, I...>) {
    const Ints low = {(I & HALF ? WIDE + I - HALF : I)...}, high = {(I & HALF ? WIDE + I : I + HALF)...};
    const Floats first = __builtin_shuffle(one, other, low);
    other = __builtin_shuffle(one, other, high);
    one = first;
}

// WIDE vectors whose lanes become vectors.
template <int HALF = WIDE / 2>
INLINE void transpose(Floats (&x)[WIDE]) {
    UNROLL for (int i = 0; i < WIDE; i++)
        if (!(i & HALF)) exchange<HALF>(x[i], x[i + HALF], std::make_integer_sequence<int, WIDE>{});
    if constexpr (HALF > 1) transpose<HALF / 2>(x);
}

struct HeadPanels {
    static constexpr int64_t QUERIES = 24;  // at a time
    static constexpr int64_t STRETCH = 64;  // keys whose values stay in a level-one cache
    static constexpr int SUMS = LEGATO_BYTES == 32 ? 12 : 24;  // for which there are registers
    const int64_t size;
    float *keys, *queries, *scores;
    int64_t* places;  // of the values
    const float* values = nullptr;
    int64_t length = 0, padded = 0;  // of the keys that are laid out

    static int64_t whole(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

    // Floats that so many keys of a head of that size, a multiple of PANEL, need.
    static int64_t room(int64_t size, int64_t longest) {
        return whole(longest) * (size + sizeof(int64_t) / sizeof(float)) + QUERIES * (size + whole(longest));
    }

    // `room` is that of whole vectors.
    HeadPanels(int64_t size, int64_t longest, float* room)
        : size(size), keys(room), queries(keys + whole(longest) * size), scores(queries + QUERIES * size),
          places((int64_t*)(scores + QUERIES * whole(longest))) {}

    // So many keys and values, of which number s lies `at(s)`.
    template <typename Where>
    void lay_out(const float* key, const float* value, int64_t count, Where at) {
        length = count, padded = whole(count), values = value;
        for (int64_t s = 0; s < count; s++) places[s] = at(s);
        for (int64_t first = 0; first < padded; first += WIDE) {
            float* to = keys + first / PANEL * PANEL * size + first % PANEL;
            const int64_t there = std::min<int64_t>(WIDE, length - first);
            for (int64_t i = 0; i < size; i += WIDE) {
                Floats some[WIDE] = {};
                if (there == WIDE)
                    UNROLL for (int s = 0; s < WIDE; s++) some[s] = load(key + places[first + s] + i);
                else
                    for (int64_t s = 0; s < there; s++) some[s] = load(key + places[first + s] + i);
                transpose(some);
                UNROLL for (int j = 0; j < WIDE; j++) store(to + (i + j) * PANEL, some[j]);
            }
        }
    }

    // softmax(q Kᵀ / √size) V of `count` queries, of which number i sees `seen(i)`, no fewer than the one before.
    template <typename Which>
    void attend(const float* query, int64_t stride, int64_t count, float* to, int64_t to_stride, Which seen) {
        const Matrix k{PANELS, (int32_t)padded, (int32_t)size, 0, keys, nullptr, nullptr, 1.f, 0, nullptr};
        const float scale = 1.f / std::sqrt((float)size);
        for (int64_t from = 0; from < count; from += QUERIES, query += QUERIES * stride, to += QUERIES * to_stride) {
            const int64_t some = std::min(QUERIES, count - from);
            const Seen chunk{seen(from).first / PANEL * PANEL, whole(seen(from + some - 1).last)};
            for (int64_t row = 0; row < some; row++)
                for (int64_t i = 0; i < size; i++) queries[row * size + i] = query[row * stride + i] * scale;
            const Rows asked{some, size, queries, nullptr, nullptr, nullptr};
            multiply(k, asked, scores, padded, NONE, chunk.first / PANEL, chunk.last / PANEL);
            for (int64_t row = 0; row < some; row++) softmax(scores + row * padded, seen(from + row), chunk);
            for (int64_t first = chunk.first; first < chunk.last; first += STRETCH) {
                const auto last = [&](int64_t row) { return std::min(first + STRETCH, seen(from + row).last); };
                if (first > chunk.first) add_all<true>(first, some, last, to, to_stride);
                else add_all<false>(first, some, last, to, to_stride);
            }
        }
    }

  private:
    // Of scores that are seen; the others of `chunk`, whole panels, weigh nothing.
    static void softmax(float* scores, Seen seen, Seen chunk) {
        const int64_t begin = seen.first / PANEL * PANEL, end = whole(seen.last);
        std::fill(scores + begin, scores + seen.first, -INFINITY);
        std::fill(scores + seen.last, scores + end, -INFINITY);
        Floats most = load(scores + begin);
        for (int64_t s = begin + WIDE; s < end; s += WIDE) most = larger(most, load(scores + s));
        float largest = most[0];
        UNROLL for (int i = 1; i < WIDE; i++) largest = most[i] > largest ? most[i] : largest;
        Floats sums = all(0.f);
        for (int64_t s = begin; s < end; s += PANEL) {
            Floats weights[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) weights[v] = (load(scores + s + v * WIDE) - largest) * LOG2_E;
            small_powers_of_two(weights);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                sums += weights[v];
                store(scores + s + v * WIDE, weights[v]);
            }
        }
        const float inverse = 1.f / sum(sums);
        for (int64_t s = begin; s < end; s += WIDE) store(scores + s, load(scores + s) * inverse);
        std::fill(scores + chunk.first, scores + begin, 0.f);
        std::fill(scores + end, scores + chunk.last, 0.f);
    }

    // Values from `first` on with the weights of some queries, up to `last(row)`; MORE: on top of what is there.
    template <bool MORE, typename Last>
    void add_all(int64_t first, int64_t some, Last last, float* to, int64_t stride) const {
        int64_t i = 0;
        for (; i + 4 * WIDE <= size && SUMS > 12; i += 4 * WIDE) add_rows<SUMS / 4, 4, MORE>(0, first, some, last, i, to, stride);
        for (; i + 2 * WIDE <= size; i += 2 * WIDE) add_rows<SUMS / 2, 2, MORE>(0, first, some, last, i, to, stride);
        for (; i < size; i += WIDE) add_rows<SUMS / 2, 1, MORE>(0, first, some, last, i, to, stride);
    }

    // V vectors of R queries at a time, and of fewer for those that are left.
    template <int R, int V, bool MORE, typename Last>
    void add_rows(int64_t row, int64_t first, int64_t some, Last last, int64_t i, float* to, int64_t stride) const {
        for (; row + R <= some; row += R) add_tile<R, V, MORE>(row, first, last(row + R - 1), i, to + row * stride + i, stride);
        if constexpr (R > 1) add_rows<R / 2, V, MORE>(row, first, some, last, i, to, stride);
    }

    template <int R, int V, bool MORE>
    void add_tile(int64_t row, int64_t first, int64_t last, int64_t i, float* to, int64_t stride) const {
        if (first >= last) return;  // nothing more is seen
        const float* weights = scores + row * padded;
        Floats total[R][V] = {};
        if (MORE)
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int v = 0; v < V; v++) total[r][v] = load(to + r * stride + v * WIDE);
        for (int64_t s = first; s < last; s++) {
            const float* value = values + places[s] + i;
            Floats some[V];
            UNROLL for (int v = 0; v < V; v++) some[v] = load(value + v * WIDE);
            UNROLL for (int r = 0; r < R; r++) {
                const Floats weight = all(weights[r * padded + s]);
                UNROLL for (int v = 0; v < V; v++) total[r][v] = add_product(total[r][v], some[v], weight);
            }
        }
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int v = 0; v < V; v++) store(to + r * stride + v * WIDE, total[r][v]);
    }
};
