// What a search takes of logits where it draws nothing: of each row the best tokens and log Σ eˣ, of each group of rows
// the best of those (decoding/candidates.py, `_taken`).
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

struct Choice {
    int64_t groups, width, stride, vocabulary;  // `width` rows a group, `stride` floats from one row to the next
    float* logits;
    const float* before;       // (groups, width), what each row has scored
    const int64_t* forbidden;  // tokens that nobody may write
    int64_t forbidden_count;
    int64_t normalised;  // whether logits are log-probabilities
    float* to;           // (5, groups, C): token, row, log-probability, gain, and what is finite where logits are
};

// A token or a candidate; of equal ones the first is the better.
struct Scored {
    float score;
    int64_t place;
    bool operator<(const Scored& other) const {
        return score > other.score || (score == other.score && place < other.place);
    }
};

// log Σ eˣ of numbers whose largest is known; NaN where one is.
static float log_sum_exp(const float* x, int64_t count, float largest) {
    constexpr int AT_ONCE = 4;
    Floats total[AT_ONCE] = {};
    int64_t i = 0;
    for (; i + AT_ONCE * WIDE <= count; i += AT_ONCE * WIDE) {
        Floats some[AT_ONCE];
        UNROLL for (int v = 0; v < AT_ONCE; v++) some[v] = (load(x + i + v * WIDE) - largest) * LOG2_E;
        small_powers_of_two(some);
        UNROLL for (int v = 0; v < AT_ONCE; v++) total[v] += some[v];
    }
    float whole = sum((total[0] + total[1]) + (total[2] + total[3]));
    for (; i < count; i++) whole += std::exp(x[i] - largest);
    return largest + std::log(whole);
}

// The k best of x, best first. Where there is NaN they may be others: log Σ eˣ tells of it.
static void find_best(const float* x, int64_t count, int64_t k, Scored* found) {
    for (int64_t i = 0; i < k; i++) found[i] = {-INFINITY, i};
    const auto enter = [&](int64_t place) {  // behind all that are as good, since they came before
        int64_t at = k - 1;
        for (; at > 0 && found[at - 1].score < x[place]; at--) found[at] = found[at - 1];
        found[at] = {x[place], place};
    };
    constexpr int AT_ONCE = 4, SOME = 4 * AT_ONCE * WIDE;
    int64_t i = 0;
    for (; i + SOME <= count; i += SOME) {
        Floats most[AT_ONCE];
        UNROLL for (int v = 0; v < AT_ONCE; v++) most[v] = load(x + i + v * WIDE);
        UNROLL for (int v = AT_ONCE; v < SOME / WIDE; v++)
            most[v % AT_ONCE] = larger(load(x + i + v * WIDE), most[v % AT_ONCE]);
        const Floats last = larger(larger(most[0], most[1]), larger(most[2], most[3]));
        if (largest_of(last) > found[k - 1].score)
            for (int64_t place = i; place < i + SOME; place++)
                if (x[place] > found[k - 1].score) enter(place);
    }
    for (; i < count; i++)
        if (x[i] > found[k - 1].score) enter(i);
}

class Choosing {
  public:
    explicit Choosing(const Choice& choice)
        : c(choice), each(c.width > 1 ? std::min(2 * c.width, c.vocabulary) : 1),
          count(c.width > 1 ? std::min(2 * c.width, c.width * c.vocabulary) : 1), found(c.groups * c.width * each),
          sums(c.groups * c.width) {}

    // The best of a row, with what is forbidden set aside meanwhile; the sum counts that, too: a score is a probability
    // under the model.
    void look_at(int64_t row) {
        float* x = c.logits + row * c.stride;
        Scored* best = found.data() + row * each;
        std::vector<float> aside(c.forbidden_count);
        for (int64_t i = 0; i < c.forbidden_count; i++) {
            aside[i] = x[c.forbidden[i]];
            x[c.forbidden[i]] = -INFINITY;
        }
        find_best(x, c.vocabulary, each, best);
        float largest = best[0].score;
        for (int64_t i = 0; i < c.forbidden_count; i++) {
            x[c.forbidden[i]] = aside[i];
            largest = aside[i] > largest ? aside[i] : largest;
        }
        if (c.normalised) {
            // 0, and not finite where a log-probability is not: one of them is NaN or +∞, or all are −∞.
            Floats odd = all(0.f);
            int64_t i = 0;
            for (; i + WIDE <= c.vocabulary; i += WIDE) odd = load(x + i) != load(x + i) ? all(NAN) : odd;
            float total = 0 * largest + sum(odd);
            for (; i < c.vocabulary; i++) total = x[i] != x[i] ? NAN : total;
            sums[row] = total;
        } else {
            sums[row] = log_sum_exp(x, c.vocabulary, largest);
        }
    }

    // What a group takes of the best of its rows.
    void take(int64_t group) const {
        const int64_t first = group * c.width, rows = c.width;
        float whole = 0;
        for (int64_t row = first; row < first + rows; row++) whole += sums[row];
        if (rows == 1) {
            const float logprob = found[first].score - sums[first];
            put(group, 0, found[first].place, 0, logprob, logprob, whole);
            return;
        }
        // In order of row and token, so that equal scores go to the lower one.
        std::vector<Scored> tokens(found.begin() + first * each, found.begin() + (first + rows) * each);
        std::vector<Scored> reached(tokens.size());
        for (int64_t row = 0; row < rows; row++) {
            const auto start = tokens.begin() + row * each;
            std::sort(start, start + each, [](const Scored& a, const Scored& b) { return a.place < b.place; });
            const float added = c.before[first + row] - sums[first + row];
            for (int64_t i = row * each; i < (row + 1) * each; i++) {
                const float key = tokens[i].score + added;
                reached[i] = {key == key ? key : -INFINITY, i};  // −∞ − −∞ of a group that is done
            }
        }
        std::partial_sort(reached.begin(), reached.begin() + count, reached.end());
        for (int64_t i = 0; i < count; i++) {
            const Scored& token = tokens[reached[i].place];
            const int64_t row = reached[i].place / each;
            const float logprob = token.score - sums[first + row];
            put(group, i, token.place, row, logprob, reached[i].score > -INFINITY ? logprob : -INFINITY, whole);
        }
    }

  private:
    const Choice& c;
    const int64_t each, count;  // candidates of a row, and of a group
    std::vector<Scored> found;
    std::vector<float> sums;

    void put(int64_t group, int64_t i, int64_t token, int64_t row, float logprob, float gain, float whole) const {
        const float made[] = {(float)token, (float)row, logprob, gain, whole};
        for (int64_t part = 0; part < 5; part++) c.to[(part * c.groups + group) * count + i] = made[part];
    }
};
