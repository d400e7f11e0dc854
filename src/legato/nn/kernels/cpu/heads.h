// Attention of many queries of a head: its keys and values are laid out in panels, and met by some queries at a time.
#pragma once

#include "lookback.h"
#include "products.h"

struct HeadPanels {
    static constexpr int64_t QUERIES = 32;  // at a time
    const int64_t size;
    float *keys, *values, *queries, *scores;
    int64_t length = 0, padded = 0;  // of the keys that are laid out

    static int64_t whole(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

    // Floats that so many keys of a head of that size, a multiple of PANEL, need.
    static int64_t room(int64_t size, int64_t longest) {
        return 2 * whole(longest) * size + QUERIES * (size + whole(longest));
    }

    HeadPanels(int64_t size, int64_t longest, float* room)
        : size(size), keys(room), values(keys + whole(longest) * size), queries(values + whole(longest) * size),
          scores(queries + QUERIES * size) {}

    // So many keys and values, of which number s lies `at(s)`.
    template <typename Where>
    void lay_out(const float* key, const float* value, int64_t count, Where at) {
        length = count, padded = whole(count);
        for (int64_t panel = 0; panel < padded; panel += PANEL) {
            float* to = keys + panel * size;
            const int64_t there = std::min<int64_t>(PANEL, length - panel);
            if (there < PANEL) std::fill_n(to, PANEL * size, 0.f);
            for (int64_t s = 0; s < there; s++) {
                const float *from = key + at(panel + s), *beside = value + at(panel + s);
                for (int64_t i = 0; i < size; i++) to[i * PANEL + s] = from[i];
                for (int64_t i = 0; i < size; i += PANEL)
                    std::copy_n(beside + i, PANEL, values + i * padded + (panel + s) * PANEL);
            }
        }
        for (int64_t i = 0; i < size; i += PANEL)
            std::fill_n(values + i * padded + length * PANEL, (padded - length) * PANEL, 0.f);
    }

    // softmax(q Kᵀ / √size) V of `count` queries, of which number i sees `seen(i)`, no fewer than the one before.
    template <typename Which>
    void attend(const float* query, int64_t stride, int64_t count, float* to, int64_t to_stride, Which seen) {
        const Matrix k{PANELS, (int32_t)padded, (int32_t)size, 0, keys, nullptr, nullptr, 1.f, 0, nullptr};
        const Matrix v{PANELS, (int32_t)size, (int32_t)padded, 0, values, nullptr, nullptr, 1.f, 0, nullptr};
        const float scale = 1.f / std::sqrt((float)size);
        for (int64_t from = 0; from < count; from += QUERIES) {
            const int64_t some = std::min(QUERIES, count - from);
            for (int64_t row = 0; row < some; row++)
                for (int64_t i = 0; i < size; i++)
                    queries[row * size + i] = query[(from + row) * stride + i] * scale;
            const Rows asked{some, size, queries, nullptr, nullptr, nullptr};
            multiply(k, asked, scores, padded, NONE, 0, whole(seen(from + some - 1).last) / PANEL);
            for (int64_t row = 0; row < some; row++) softmax(scores + row * padded, seen(from + row));
            const Rows weights{some, padded, scores, nullptr, nullptr, nullptr};
            multiply(v, weights, to + from * to_stride, to_stride, NONE, 0, size / PANEL);
        }
    }

  private:
    // Of the scores that are seen; the others weigh nothing.
    void softmax(float* scores, Seen seen) const {
        const int64_t begin = seen.first / PANEL * PANEL, end = whole(seen.last);
        std::fill(scores, scores + seen.first, -INFINITY);
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
        std::fill(scores, scores + begin, 0.f);
        std::fill(scores + end, scores + padded, 0.f);
    }
};
