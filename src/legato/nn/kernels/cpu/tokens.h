// The new tokens of a step, row by row, and where the keys of a row's tokens lie: in columns, or in blocks by a table.
#pragma once

#include <vector>

#include "heads.h"
#include "stack.h"

// New tokens of one row of a cache. A token's place is its column, or its position.
struct Piece {
    int64_t first, count;  // among those of the step
    int64_t before;        // the place of the first
    int64_t begin;         // the first place with a token
    int64_t base;          // where place 0 is, in floats; in blocks unused
    const int32_t* slots;  // by place; null: in columns
    bool ends;             // whether logits are made of the last
    bool in_order;         // whether the tokens of each block stand in it one behind the other
    int64_t task;          // the number of its first head among those of all pieces

    int64_t last() const { return before + count; }
};

// Keys and values of a row.
struct RowTokens {
    const int32_t* slots;
    int64_t base, row, width;
    bool in_order;

    RowTokens(const Piece& piece, const Step& step, int64_t width)
        : slots(piece.slots), base(piece.base), row(step.cache.row), width(width), in_order(piece.in_order) {}

    int64_t in_slot(int64_t slot) const { return slot / BLOCK * row + slot % BLOCK * width; }

    // Where a token's are, of the first head and layer.
    int64_t operator()(int64_t place) const { return slots ? in_slot(slots[place]) : base + place * width; }

    // `act(where, place, count)` for each stretch of the tokens that are seen; the next one is asked for meanwhile.
    template <typename Do>
    inline __attribute__((always_inline)) void each(const float* of, Seen seen, Do act) const {
        for (int64_t s = seen.first, count; s < seen.last; s += count) {
            count = slots ? stretch(s, seen.last - s) : seen.last - s;
            if (s + count < seen.last)
                for (int64_t i = 0; i < BLOCK * width; i += LINE / sizeof(float))
                    __builtin_prefetch(of + (*this)(s + count) + i, 0, 3);
            act(of + (*this)(s), s, count);
        }
    }

  private:
    // Tokens from `s` on that lie one behind the other.
    int64_t stretch(int64_t s, int64_t most) const {
        const int64_t there = std::min(most, BLOCK - slots[s] % BLOCK);
        if (in_order) return there;
        int64_t count = 1;
        while (count < there && slots[s + count] == slots[s] + count) count++;
        return count;
    }
};

constexpr int64_t SHALLOW = 64;  // tokens of a row that are met one by one

// All that a step reads.
class NewTokens {
  public:
    std::vector<Piece> pieces;
    int64_t ended = 0, tasks = 0, deepest = 0;  // rows that end; heads that are met; the most places of a row
    bool together = false;                      // whether some pieces are met in panels

    NewTokens(const Stack& stack, const Step& step) : stack(stack), step(step) {
        if (step.starts) in_blocks();
        else in_columns();
        for (Piece& piece : pieces) {
            piece.task = tasks;
            tasks += in_panels(piece) ? stack.heads : stack.kv_heads;
            together |= in_panels(piece);
            ended += piece.ends;
            deepest = std::max(deepest, piece.last());
        }
    }

    // Whether there are enough tokens, and enough keys that they see, for laying these out.
    bool in_panels(const Piece& piece) const {
        return piece.count >= 8 && piece.last() > SHALLOW && stack.head_width % PANEL == 0;
    }

    const Piece& of_task(int64_t task) const {
        return *(std::upper_bound(pieces.begin(), pieces.end(), task, [](int64_t t, const Piece& p) { return t < p.task; }) - 1);
    }
    const Piece& of_token(int64_t token) const {
        if (pieces.size() == (size_t)step.rows) return pieces[token];
        return *(std::upper_bound(pieces.begin(), pieces.end(), token, [](int64_t t, const Piece& p) { return t < p.first; }) - 1);
    }

    // The last token of the row that is number i among those that end: of the pieces only the last one may not.
    int64_t last_of_ended(int64_t i) const { return pieces[i].first + pieces[i].count - 1; }

    // Where the key of a new token goes, of the first head and layer.
    int64_t place_of(const Piece& piece, int64_t token) const {
        const RowTokens tokens(piece, step, stack.head_width);
        return step.starts ? tokens.in_slot(step.slots[step.from + token]) : tokens(piece.before + token - piece.first);
    }

    // Whether the blocks of a piece are as they mostly are, which its heads then need not look at.
    static bool is_in_order(const Piece& piece) {
        const int64_t last = piece.last();
        for (int64_t block = 0; block < last; block += BLOCK) {
            const int32_t* slots = piece.slots + block;
            const int64_t count = std::min(BLOCK, last - block);
            bool same = slots[0] % BLOCK == 0;
            for (int64_t i = 1; i < count; i++) same &= slots[i] == slots[0] + i;
            if (!same) return false;
        }
        return true;
    }

  private:
    const Stack& stack;
    const Step& step;

    void in_columns() {
        for (int64_t row = 0; row < step.rows / step.tokens; row++)
            pieces.push_back({row * step.tokens, step.tokens, step.column, step.first ? step.first[row] : 0,
                              row * step.cache.row, nullptr, true, true, 0});
    }

    void in_blocks() {
        const int64_t to = step.from + step.rows;
        for (int64_t row = 0; row < step.readers; row++) {
            const int64_t first = std::max<int64_t>(step.starts[row], step.from), last = std::min<int64_t>(step.starts[row + 1], to);
            if (first < last)
                pieces.push_back({first - step.from, last - first, step.positions[first], 0, 0, step.tables + row * step.capacity,
                                  last == step.starts[row + 1], false, 0});
        }
    }
};
