// Attention with dropout on its weights, forward and back, for training: softmax(Q Kᵀ / √K) ∘ mask · V. Scores are
// made for some queries at a time and made again on the way back, so that no (T, S) matrix is ever there; what is
// masked costs nothing where later tokens are not seen, or those of other texts. Weights that are dropped are drawn
// by place (random.h).
//
//     forward    P = exp(s QKᵀ - L)   O = (P ∘ mask / keep) V                      L: the logarithm of the sum
//     back       dV = (P ∘ mask / keep)ᵀ dO    dP = (dO Vᵀ) ∘ mask / keep   dS = P ∘ (dP - rowsum(dO ∘ O))
//                dQ = s dS K                   dK = s dSᵀ Q
//
// On the way back scores stand with a row for each key, so that only one of their forms must be turned.
#pragma once

#include <omp.h>

#include "tiles.h"

struct Strides {
    int64_t row, head, place;  // in numbers
};

struct Attention {
    int64_t rows, heads, kv_heads, queries, keys, size;
    const void *query, *key, *value;
    Strides query_at, key_at, value_at;
    const float* mask;     // (rows, keys), added to the scores, or none
    const int32_t* first;  // (rows, queries): the first key that each sees, where `causal`; it never falls; or none
    float scale;
    int32_t causal;
    Dropout dropout;
    void* context;  // (rows, queries, heads, size)
    float* sums;    // (rows, heads, queries): logarithms of base 2
    const void* slope;
    Strides slope_at;
    void *query_slope, *key_slope, *value_slope;    // (rows, places, heads, size)
    int64_t query_slope_stride, key_slope_stride;  // from a place to the next, of values' as of keys'
};

// 2ˣ as in `small_powers_of_two`, and 0 where that is smaller than any number worth having.
template <int COUNT>
INLINE void weights_of(Floats (&x)[COUNT]) {
    Ints there[COUNT];
    UNROLL
    for (int v = 0; v < COUNT; v++) there[v] = ~(Ints)(x[v] < -80.f);
    small_powers_of_two(x);
    UNROLL
    for (int v = 0; v < COUNT; v++) x[v] = as_floats(as_bits(x[v]) & there[v]);
}

// What is masked has this score: whole numbers of it still have logarithms.
constexpr float UNSEEN = -1e30f;

template <typename Kind, typename Number>
class Attending {
    typedef typename Kind::Element Element;

  public:
    explicit Attending(const Attention& task)
        : task(task),
          serves(task.heads / task.kv_heads),
          size(filled_up(task.size, Kind::STEP)),
          keys(filled_up(task.keys, Kind::STEP)),
          base_two(task.scale * LOG2_E) {}

    void forward(int32_t threads) {
        const int64_t sources = task.rows * task.kv_heads, blocks = (task.queries + FEW - 1) / FEW;
        const int64_t numbers = keys * size;
        Lines<Element> all_keys = lines<Element>(sources * numbers), all_values = lines<Element>(sources * numbers);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(dynamic)
            for (int64_t source = 0; source < sources; source++) {
                Kind::turned(of_source(task.key, task.key_at, source), all_keys.get() + source * numbers);
                Kind::right(of_source(task.value, task.value_at, source), all_values.get() + source * numbers);
            }
            Kind::begin();
            Forward room(*this);
#pragma omp for schedule(dynamic)
            for (int64_t item = 0; item < task.rows * task.heads * blocks; item++) {
                const int64_t heads = task.rows * task.heads, head = item % heads, block = blocks - 1 - item / heads;
                const int64_t source = head / task.heads * task.kv_heads + head % task.heads / serves;
                room.look(head, block * FEW, all_keys.get() + source * numbers, all_values.get() + source * numbers);
            }
            Kind::end();
        }
    }

    void backward(int32_t threads) {
#pragma omp parallel num_threads(threads)
        {
            Kind::begin();
            Backward room(*this);
#pragma omp for schedule(dynamic)
            for (int64_t source = 0; source < task.rows * task.kv_heads; source++) room.look(source);
            Kind::end();
        }
    }

  private:
    static constexpr int64_t FEW = 64;     // queries that are looked at together
    static constexpr int64_t BLOCK = 128;  // on the way back; and keys
    const Attention& task;
    const int64_t serves, size, keys;
    const float base_two;

    // The numbers of a head from the place `first` on, of `count` places, filled up to `full`.
    Given<Number> some(const void* from, const Strides& strides, int64_t head, int64_t heads, int64_t first,
                       int64_t count, int64_t full) const {
        const Number* start = (const Number*)from + head / heads * strides.row + head % heads * strides.head;
        return {start + first * strides.place, strides.place, count, task.size, full, size};
    }
    // The first key that a query of a head sees.
    int64_t first_seen(int64_t head, int64_t query) const {
        return task.first ? task.first[head / task.heads * task.queries + query] : 0;
    }
    Given<Number> of_source(const void* from, const Strides& strides, int64_t source) const {
        return some(from, strides, source, task.kv_heads, 0, task.keys, keys);
    }

    // A row of floats, multiplied, as the numbers that are asked for.
    INLINE void scaled(const float* from, float scale, int64_t count, Number* to) {
        int64_t i = 0;
        for (; i + WIDE <= count; i += WIDE) write(to + i, load(from + i) * scale);
        for (; i < count; i++) put(to + i, from[i] * scale);
    }

    struct Forward {
        const Attending& all;
        const Attention& task;
        Lines<Element> query, weights;  // (FEW, size), (FEW, keys)
        Lines<float> scores, context;   // (FEW, keys), (FEW, size)

        explicit Forward(const Attending& all)
            : all(all),
              task(all.task),
              query(lines<Element>(FEW * all.size)),
              weights(lines<Element>(FEW * all.keys)),
              scores(lines<float>(FEW * all.keys)),
              context(lines<float>(FEW * all.size)) {}

        void look(int64_t head, int64_t first, const Element* key, const Element* value) {
            const int64_t count = std::min(FEW, task.queries - first), full = filled_up(count, Kind::STEP);
            const int64_t last = task.causal ? std::min(task.keys, first + count) : task.keys;
            const int64_t start = all.first_seen(head, first) / Kind::STEP * Kind::STEP;
            const int64_t seen = filled_up(last, Kind::STEP) - start, size = all.size;
            in_rows(all.some(task.query, task.query_at, head, task.heads, first, count, full), query.get());
            Kind::multiply(query.get(), size, key + start * size, size, scores.get(), seen, full, seen, size, false);
            const float* mask = task.mask ? task.mask + head / task.heads * task.keys + start : nullptr;
            float scales[FEW];
            for (int64_t i = 0; i < full; i++) {
                float* mine = scores.get() + i * seen;
                Element* to = weights.get() + i * seen;
                if (i >= count) {
                    std::fill_n(to, seen, Element(0));
                    continue;
                }
                std::fill_n(mine, all.first_seen(head, first + i) - start, -INFINITY);
                const int64_t end = (task.causal ? std::min(last, first + i + 1) : last) - start;
                scales[i] = weigh(head * task.queries + first + i, start, mine, mask, end, seen, to);
            }
            Kind::multiply(weights.get(), seen, value + start * 16, all.keys, context.get(), size, full, size, seen,
                           false);
            Number* to = (Number*)task.context +
                         ((head / task.heads * task.queries + first) * task.heads + head % task.heads) * task.size;
            for (int64_t i = 0; i < count; i++)
                scaled(context.get() + i * size, scales[i], task.size, to + i * task.heads * task.size);
        }

        // A row's scores, of keys from `start` on, to weights that are not yet divided by their sum; what they are to
        // be multiplied by.
        float weigh(int64_t place, int64_t start, float* x, const float* mask, int64_t count, int64_t full,
                    Element* to) {
            constexpr int64_t ONCE = 4, TOGETHER = ONCE * WIDE;
            Floats most[ONCE], total[ONCE] = {};
            UNROLL
            for (int v = 0; v < ONCE; v++) most[v] = ::all(UNSEEN);
            int64_t i = 0;
            for (; i + TOGETHER <= count; i += TOGETHER) UNROLL
            for (int v = 0; v < ONCE; v++) {
                Floats score = load(x + i + v * WIDE) * all.base_two;
                if (mask) score += load(mask + i + v * WIDE);
                store(x + i + v * WIDE, score);
                most[v] = larger(most[v], score);
            }
            for (; i < full; i++) {
                x[i] = i < count ? x[i] * all.base_two + (mask ? mask[i] : 0.f) : UNSEEN;
                most[0][0] = x[i] > most[0][0] ? x[i] : most[0][0];
            }
            UNROLL
            for (int v = 1; v < ONCE; v++) most[0] = larger(most[0], most[v]);
            const float highest = largest_of(most[0]);
            const RowKey row(task.dropout.seed, place);
            const Words first = all_words(row.first), second = all_words(row.second);
            const uint32_t threshold = task.dropout.threshold;
            const int64_t near = filled_up(count, WIDE);
            const auto weigh_some = [&](int64_t at, auto& weight, auto& total) {
                constexpr int V = sizeof weight / sizeof *weight;
                UNROLL
                for (int v = 0; v < V; v++) weight[v] = load(x + at + v * WIDE) - highest;
                weights_of(weight);
                UNROLL
                for (int v = 0; v < V; v++) total[v] += weight[v];
                if (threshold) UNROLL
                for (int v = 0; v < V; v++)
                    weight[v] =
                        kept_of(weight[v], drawn(places_from(start + at + v * WIDE), first, second), threshold);
                UNROLL
                for (int v = 0; v < V; v++) write(to + at + v * WIDE, weight[v]);
            };
            Floats four[ONCE], one[1];
            for (i = 0; i + TOGETHER <= near; i += TOGETHER) weigh_some(i, four, total);
            for (; i < near; i += WIDE) weigh_some(i, one, total);
            std::fill_n(to + near, full - near, Element(0));
            const float summed = sum((total[0] + total[1]) + (total[2] + total[3]));
            task.sums[place] = highest + std::log2(summed);
            return task.dropout.scale / summed;
        }
    };

    struct Backward {
        const Attending& all;
        const Attention& task;
        const int64_t size, keys;
        Lines<Element> key, key_turned, value;                    // (keys, size), (size, keys), (keys, size)
        Lines<Element> query, query_turned, slope, slope_turned;  // of BLOCK queries
        Lines<Element> weights, changes, changes_right;           // (BLOCK keys, BLOCK queries)
        Lines<float> scores, pulls, query_slope, key_slope, value_slope;
        float sums[BLOCK], means[BLOCK];
        int64_t farthest;  // the latest first key of a query
        uint32_t firsts[BLOCK], seconds[BLOCK], reach[BLOCK];

        explicit Backward(const Attending& all)
            : all(all),
              task(all.task),
              size(all.size),
              keys(all.keys),
              key(lines<Element>(keys * size)),
              key_turned(lines<Element>(keys * size)),
              value(lines<Element>(keys * size)),
              query(lines<Element>(BLOCK * size)),
              query_turned(lines<Element>(BLOCK * size)),
              slope(lines<Element>(BLOCK * size)),
              slope_turned(lines<Element>(BLOCK * size)),
              weights(lines<Element>(BLOCK * BLOCK)),
              changes(lines<Element>(BLOCK * BLOCK)),
              changes_right(lines<Element>(BLOCK * BLOCK)),
              scores(lines<float>(BLOCK * BLOCK)),
              pulls(lines<float>(BLOCK * BLOCK)),
              query_slope(lines<float>(BLOCK * size)),
              key_slope(lines<float>(keys * size)),
              value_slope(lines<float>(keys * size)) {}

        void look(int64_t source) {
            in_rows(all.of_source(task.key, task.key_at, source), key.get());
            in_columns(all.of_source(task.key, task.key_at, source), key_turned.get());
            in_rows(all.of_source(task.value, task.value_at, source), value.get());
            std::fill_n(key_slope.get(), keys * size, 0.f);
            std::fill_n(value_slope.get(), keys * size, 0.f);
            const int64_t row = source / task.kv_heads;
            for (int64_t i = 0; i < all.serves; i++)
                for (int64_t first = 0; first < task.queries; first += BLOCK)
                    queries(row * task.heads + source % task.kv_heads * all.serves + i, first);
            const int64_t stride = task.key_slope_stride;
            leave(key_slope.get(), task.keys, all.task.scale, (Number*)task.key_slope,
                  row * task.keys * stride + source % task.kv_heads * task.size, stride);
            leave(value_slope.get(), task.keys, 1.f, (Number*)task.value_slope,
                  row * task.keys * stride + source % task.kv_heads * task.size, stride);
        }

        void leave(const float* from, int64_t count, float scale, Number* all_to, int64_t offset, int64_t stride) {
            for (int64_t i = 0; i < count; i++)
                scaled(from + i * size, scale, task.size, all_to + offset + i * stride);
        }

        // A block of queries with all keys that it sees.
        void queries(int64_t head, int64_t first) {
            const int64_t count = std::min(BLOCK, task.queries - first), full = filled_up(count, Kind::STEP);
            const Given<Number> asked = all.some(task.query, task.query_at, head, task.heads, first, count, full);
            const Given<Number> pulled = all.some(task.slope, task.slope_at, head, task.heads, first, count, full);
            Kind::right(asked, query.get());
            Kind::turned(asked, query_turned.get());
            Kind::right(pulled, slope.get());
            Kind::turned(pulled, slope_turned.get());
            const int64_t stride = task.heads * task.size;
            const int64_t offset =
                (head / task.heads * task.queries + first) * stride + head % task.heads * task.size;
            for (int64_t i = 0; i < full; i++) {
                const RowKey row(task.dropout.seed, head * task.queries + first + i);
                firsts[i] = row.first;
                seconds[i] = row.second;
                reach[i] = i < count ? all.first_seen(head, first + i) : 0;
                sums[i] = i < count ? task.sums[head * task.queries + first + i] : -UNSEEN;
                if (sums[i] < UNSEEN / 1e3f) sums[i] = -UNSEEN;  // it saw nothing
                means[i] = 0;
                const Number* context = (const Number*)task.context + offset + i * stride;
                if (i < count) means[i] = product(pulled.row(i), context, task.size);
            }
            std::fill_n(query_slope.get(), size * full, 0.f);
            const int64_t last = task.causal ? std::min(task.keys, first + count) : task.keys;
            const float* mask = task.mask ? task.mask + head / task.heads * task.keys : nullptr;
            farthest = all.first_seen(head, first + count - 1);
            for (int64_t from = reach[0] / Kind::STEP * Kind::STEP; from < last; from += BLOCK) {
                const int64_t seen = std::min(BLOCK, last - from), rows = filled_up(seen, Kind::STEP);
                Kind::multiply(key.get() + from * size, size, query_turned.get(), size, scores.get(), full, rows,
                               full, size, false);
                Kind::multiply(value.get() + from * size, size, slope_turned.get(), size, pulls.get(), full, rows,
                               full, size, false);
                for (int64_t i = 0; i < rows; i += 2) two_keys(first, full, from + i, i, rows, mask);
                Kind::multiply(weights.get(), full, slope.get(), full, value_slope.get() + from * size, size, rows,
                               size, full, true);
                Kind::multiply(changes.get(), full, query.get(), full, key_slope.get() + from * size, size, rows,
                               size, full, true);
                Kind::multiply(key_turned.get() + from, keys, changes_right.get(), rows, query_slope.get(), full,
                               size, full, rows, true);
            }
            Number* to = (Number*)task.query_slope +
                         (head / task.heads * task.queries + first) * task.query_slope_stride +
                         head % task.heads * task.size;
            for (int64_t i = 0; i < count; i++, to += task.query_slope_stride)
                for (int64_t k = 0; k < task.size; k++) put(to + k, query_slope.get()[k * full + i] * task.scale);
        }

        // Weights and their slopes, of two keys with all queries of the block.
        void two_keys(int64_t first, int64_t full, int64_t key, int64_t i, int64_t rows, const float* mask) {
            // Whether some of these queries do not see some of these keys.
            const bool edge = (task.causal && key + 1 > first) || key < farthest;
            if (!task.dropout.threshold)
                edge ? two_keys<true, false>(first, full, key, i, rows, mask)
                     : two_keys<false, false>(first, full, key, i, rows, mask);
            else
                edge ? two_keys<true, true>(first, full, key, i, rows, mask)
                     : two_keys<false, true>(first, full, key, i, rows, mask);
        }

        template <bool EDGE, bool DROPS>
        void two_keys(int64_t first, int64_t full, int64_t key, int64_t i, int64_t rows, const float* mask) {
            const float *score = scores.get() + i * full, *pull = pulls.get() + i * full, base_two = all.base_two;
            Element *change_to = changes.get() + i * full, *weight_to = weights.get() + i * full,
                    *right = changes_right.get();
            const uint32_t threshold = task.dropout.threshold;
            const float scale = task.dropout.scale;
            float added[2];
            for (int64_t r = 0; r < 2; r++) added[r] = key + r >= task.keys ? 2 * UNSEEN : mask ? mask[key + r] : 0.f;
            for (int64_t q = 0; q < full; q += WIDE) {
                Floats weight[2], change[2];
                const Floats sum = load(sums + q), mean = load(means + q);
                UNROLL
                for (int r = 0; r < 2; r++) {
                    weight[r] = load(score + r * full + q) * base_two + (added[r] - sum);
                    if (EDGE) {
                        const Words place = all_words(key + r), last = task.causal ? places_from(first + q) : place;
                        const Ints seen = (Ints)(last >= place) & (Ints)(words(reach + q) <= place);
                        weight[r] = as_floats((as_bits(weight[r]) & seen) | (as_bits(::all(UNSEEN)) & ~seen));
                    }
                }
                weights_of(weight);
                UNROLL
                for (int r = 0; r < 2; r++) {
                    Floats pulled = load(pull + r * full + q), kept = weight[r];
                    if (DROPS) {
                        const Words draw = drawn(all_words(key + r), words(firsts + q), words(seconds + q));
                        pulled = kept_of(pulled, draw, threshold) * scale;
                        kept = kept_of(kept, draw, threshold) * scale;
                    }
                    change[r] = weight[r] * (pulled - mean);
                    weight[r] = kept;
                }
                Kind::write_right(right, i, q, rows, change[0], change[1]);
                UNROLL
                for (int r = 0; r < 2; r++) {
                    write(change_to + r * full + q, change[r]);
                    write(weight_to + r * full + q, weight[r]);
                }
            }
        }

        INLINE Words words(const uint32_t* from) {
            Words found;
            std::memcpy(&found, from, sizeof found);
            return found;
        }

        INLINE float product(const Number* a, const Number* b, int64_t count) {
            float sums[16] = {}, total = 0;
            int64_t i = 0;
            for (; i + 16 <= count; i += 16) UNROLL
            for (int v = 0; v < 16; v++) sums[v] += as_float(a[i + v]) * as_float(b[i + v]);
            for (; i < count; i++) total += as_float(a[i]) * as_float(b[i]);
            UNROLL
            for (int v = 0; v < 16; v++) total += sums[v];
            return total;
        }
    };
};
