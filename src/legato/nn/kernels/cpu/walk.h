// New tokens through all blocks of a decoder, and the readout: what all threads do, with barriers between.
#pragma once

#include <omp.h>

#include "low_rank.h"
#include "threads.h"
#include "tokens.h"

// Room that a thread keeps between calls.
struct Room {
    std::vector<float> floats;
    std::vector<int8_t> bytes;
    size_t taken_floats = 0, taken_bytes = 0;

    Rows rows(int64_t count, int64_t columns) {
        const int64_t groups = columns / GROUP + 1;
        return {count, columns, some(count * columns), codes(count * columns), some(count * groups), some(count * groups)};
    }
    // First all that is wanted is counted, then it is given: nothing moves after that.
    float* some(int64_t count) {
        taken_floats += (count + 15) / 16 * 16;
        return floats.size() >= taken_floats ? floats.data() + taken_floats - (count + 15) / 16 * 16 : nullptr;
    }
    int8_t* codes(int64_t count) {
        taken_bytes += (count + 63) / 64 * 64;
        return bytes.size() >= taken_bytes ? bytes.data() + taken_bytes - (count + 63) / 64 * 64 : nullptr;
    }
};

// The most ranks of an adapter of any of a stack's matrices.
static int64_t most_ranks(const Stack& stack) {
    int64_t most = stack.readout.ranks;
    for (const Block* block = stack.blocks; block < stack.blocks + stack.layers; block++)
        for (const Matrix* w : {&block->qkv, &block->attention_output, &block->query, &block->cross_output, &block->inner, &block->outer})
            most = std::max<int64_t>(most, w->ranks);
    return most;
}

static Workspace laid_out(Room& room, const Stack& stack, const Step& step, const NewTokens& tokens, int threads) {
    room.taken_floats = room.taken_bytes = 0;
    const int64_t rows = step.rows, heads = (int64_t)stack.heads * stack.head_width;
    const int64_t seen = tokens.deepest;
    int64_t longest = room_of_scores(seen) * (stack.heads / stack.kv_heads);
    if (stack.cross)
        for (int64_t i = 0; i < rows / step.rows_of_source; i++)
            longest = std::max(longest, room_of_scores(step.source_lengths[i]));
    if (tokens.together) longest = std::max(longest, (HeadPanels::room(stack.head_width, seen) + 15) / 16 * 16);
    Workspace w;
    w.x = room.rows(rows, stack.width);
    w.normed = room.rows(rows, stack.width);
    w.context = room.rows(rows, heads);
    w.units = room.rows(rows, stack.units);
    w.qkv = room.some(rows * (stack.heads + 2 * stack.kv_heads) * stack.head_width + 64);
    w.inner = room.some(rows * stack.units * (stack.gated ? 2 : 1) + 64);
    w.added = room.some(rows * stack.width + 64);
    w.scores = room.some(threads * longest);
    w.longest = longest;
    w.seen = seen;
    w.ranks = step.adapters ? most_ranks(stack) : 0;
    w.low = room.some(rows * w.ranks);
    return w;
}

// What every thread does, with barriers where all must have finished.
class Walk {
  public:
    Walk(const Stack& stack, const Step& step, NewTokens& tokens, Workspace& work, Barrier& barrier, Taking (&takings)[2])
        : stack(stack), step(step), tokens(tokens), work(work), barrier(barrier), takings(takings) {}

    void run() {
        const Share mine = share_of(tokens.pieces.size());
        for (int64_t i = mine.first; i < mine.last; i++)
            if (Piece& piece = tokens.pieces[i]; piece.slots) piece.in_order = NewTokens::is_in_order(piece);
        each_row([&](int64_t row) {
            std::copy_n(step.embedded + row * stack.width, stack.width, work.x.floats + row * stack.width);
            ready(stack.blocks[0].attention_norm, stack.blocks[0].qkv, row);
        });
        for (int32_t layer = 0; layer < stack.layers; layer++) {
            const Block& block = stack.blocks[layer];
            const bool last = layer + 1 == stack.layers;
            self_attention(block, layer, last);
            if (stack.cross) {
                after(block.attention_norm, block.cross_norm, block.query);
                cross_attention(block, layer);
                after(block.cross_norm, block.feedforward_norm, block.inner);
            } else {
                after(block.attention_norm, block.feedforward_norm, block.inner);
            }
            feed_forward(block);
            after(block.feedforward_norm, last ? stack.norm : stack.blocks[layer + 1].attention_norm,
                  last ? stack.readout : stack.blocks[layer + 1].qkv);
        }
        product(stack.readout, input(), step.logits, stack.readout.rows, NONE);
    }

  private:
    const Stack& stack;
    const Step& step;
    NewTokens& tokens;
    Workspace& work;
    Barrier& barrier;
    Taking (&takings)[2];  // of what is shared now, and of what is next
    int shared = 0;
    int64_t rows = step.rows;  // that are read: all new tokens, in the last block those that logits are made of

    template <typename Do>
    void each_row(Do act) {
        const Share mine = share_of(rows);
        for (int64_t row = mine.first; row < mine.last; row++) act(row);
        barrier.wait();
    }

    Taking& next_taking() {
        Taking& taking = takings[shared++ % 2];
        if (omp_get_thread_num() == 0) takings[shared % 2].begin(omp_get_num_threads());  // nobody is there yet
        return taking;
    }

    void product(const Matrix& w, const Rows& x, float* y, int64_t stride, int32_t activation) {
        const bool adapted = step.adapters && w.ranks;
        if (adapted) lower_rows(w, x);
        next_taking().each(w.rows / PANEL, TOGETHER, [&](int64_t first, int64_t last) {
            multiply(w, x, y, stride, adapted ? NONE : activation, first, last);
            if (adapted) raise_rows(w, x.count, y, stride, activation, first * PANEL, last * PANEL);
        });
        barrier.wait();
    }

    // Which of the new tokens a row is.
    int64_t token_of(int64_t row) const { return rows == step.rows ? row : tokens.last_of_ended(row); }

    const LowRank& adapter_of(const Matrix& w, int64_t row) const { return w.adapters[step.adapters[token_of(row)]]; }

    // Of each row that has an adapter A x.
    void lower_rows(const Matrix& w, const Rows& x) {
        const int64_t pieces = w.ranks / RANKS;
        const Share mine = share_of(x.count * pieces);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / pieces, rank = item % pieces * RANKS;
            const LowRank& own = adapter_of(w, row);
            if (rank < own.rank)
                lower(own.down + rank * x.columns, x.floats + row * x.columns, x.columns, work.low + row * work.ranks + rank);
        }
        barrier.wait();
    }

    // And s B of that, in some outputs, which are then complete.
    void raise_rows(
        const Matrix& w, int64_t count, float* y, int64_t stride, int32_t activation, int64_t first, int64_t last) {
        for (int64_t row = 0; row < count; row++)
            raise_outputs(adapter_of(w, row), work.low + row * work.ranks, y + row * stride, first, last);
        if (activation != NONE) activate(y + first, stride, count, last - first, activation);
    }

    // Only the rows go on that logits are made of.
    void keep_ended() {
        rows = tokens.ended;
        if (omp_get_thread_num() == 0)
            for (Rows* part : {&work.x, &work.normed, &work.context, &work.units}) {
                part->count = rows;
                if (part == &work.x || part == &work.context)
                    for (int64_t row = 0; row < rows; row++)
                        std::copy_n(part->floats + token_of(row) * part->columns, part->columns, part->floats + row * part->columns);
            }
        barrier.wait();
    }

    // What sublayers read: x with the norm before it, or x itself where norms come after.
    Rows& input() { return stack.norm_first ? work.normed : work.x; }

    // A row of x is complete: its norm, and its bytes where a narrow matrix reads it.
    void ready(const Norm& norm, const Matrix& reader, int64_t row) {
        const int64_t width = stack.width;
        if (stack.norm_first) {
            if (norm.kind != NO_NORM)
                normalise(norm, work.x.floats + row * width, work.normed.floats + row * width, width);
            else
                std::copy_n(work.x.floats + row * width, width, work.normed.floats + row * width);
        }
        if (narrow(reader)) {
            const int64_t groups = width / group_of(reader);
            narrow_for(reader, input(), row * groups, (row + 1) * groups);
        }
    }

    // A sublayer has left what is to be added.
    void after(const Norm& own, const Norm& next, const Matrix& reader) {
        const int64_t width = stack.width;
        each_row([&](int64_t row) {
            float *x = work.x.floats + row * width, *added = work.added + row * width;
            for (int64_t i = 0; i < width; i++) x[i] += added[i];
            if (!stack.norm_first) normalise(own, x, x, width);
            ready(next, reader, row);
        });
    }

    void self_attention(const Block& block, int32_t layer, bool last) {
        product(block.qkv, input(), work.qkv, block.qkv.rows, NONE);
        if (tokens.together) {  // heads that share keys may be met by several threads
            const Share mine = share_of(step.rows * stack.kv_heads);
            for (int64_t item = mine.first; item < mine.last; item++) {
                const int64_t token = item / stack.kv_heads;
                take_in(block, layer, tokens.of_token(token), token, item % stack.kv_heads);
            }
            barrier.wait();
        }
        next_taking().some_each(tokens.tasks, 1, [&](int64_t task, int64_t) {
            const Piece& piece = tokens.of_task(task);
            const int64_t head = task - piece.task;
            if (!tokens.in_panels(piece)) {
                for (int64_t i = 0; i < piece.count; i++) {
                    if (!tokens.together) take_in(block, layer, piece, piece.first + i, head);
                    if (!last || (piece.ends && i + 1 == piece.count)) look_back(block, layer, piece, i, head);
                }
            } else if (!last) {
                look_back_together(block, layer, piece, head);
            } else if (piece.ends && head < stack.kv_heads) {
                look_back(block, layer, piece, piece.count - 1, head);
            }
        });
        barrier.wait();
        if (last && tokens.ended < step.rows) keep_ended();
        leave(block.attention_output, work.context);
    }

    int64_t stride() const { return (stack.heads + 2 * stack.kv_heads) * stack.head_width; }
    int64_t cached(int32_t layer, int64_t head) const { return layer * step.cache.layer + head * step.cache.head; }
    Seen seen(const Block& block, const Piece& piece, int64_t i) const {
        const int64_t last = piece.before + i + 1;
        return {block.window ? std::max(piece.begin, last - block.window) : piece.begin, last};
    }

    // A token's key and value go into the cache, and the queries that share them are made ready.
    void take_in(const Block& block, int32_t layer, const Piece& piece, int64_t row, int64_t head) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads;
        float* query = work.qkv + row * stride() + head * serves * size;
        float* key = work.qkv + row * stride() + (stack.heads + head) * size;
        if (block.key_norm.kind != NO_NORM) normalise(block.key_norm, key, key, size);
        if (step.cos) rotate(key, step.cos + row * size, step.sin + row * size, size);
        const int64_t at = cached(layer, head) + tokens.place_of(piece, row);
        std::copy_n(key, size, step.cache.keys + at);
        std::copy_n(key + stack.kv_heads * size, size, step.cache.values + at);
        for (int64_t i = 0; i < serves; i++, query += size) {
            if (block.query_norm.kind != NO_NORM) normalise(block.query_norm, query, query, size);
            if (step.cos) rotate(query, step.cos + row * size, step.sin + row * size, size);
        }
    }

    // Those queries of token i meet what the cache has.
    void look_back(const Block& block, int32_t layer, const Piece& piece, int64_t i, int64_t head) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads, row = piece.first + i;
        const int64_t at = cached(layer, head), room = work.longest / serves;
        attend(work.qkv + row * stride() + head * serves * size, serves, size, step.cache.keys + at, step.cache.values + at,
               RowTokens(piece, step, size), seen(block, piece, i), work.scores + omp_get_thread_num() * work.longest, room,
               work.context.floats + (row * stack.heads + head * serves) * size);
    }

    // All tokens of a piece do, with one head.
    void look_back_together(const Block& block, int32_t layer, const Piece& piece, int64_t head) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads;
        const int64_t at = cached(layer, head / serves), first = seen(block, piece, 0).first;
        const RowTokens of_row(piece, step, size);
        HeadPanels panels(size, work.seen, work.scores + omp_get_thread_num() * work.longest);
        panels.lay_out(step.cache.keys + at, step.cache.values + at, piece.last() - first,
                       [&](int64_t s) { return of_row(first + s); });
        panels.attend(work.qkv + piece.first * stride() + head * size, stride(), piece.count,
                      work.context.floats + (piece.first * stack.heads + head) * size, stack.heads * size, [&](int64_t i) {
                          const Seen some = seen(block, piece, i);
                          return Seen{some.first - first, some.last - first};
                      });
    }

    void cross_attention(const Block& block, int32_t layer) {
        const int64_t size = stack.head_width, stride = stack.heads * size;
        product(block.query, input(), work.qkv, stride, NONE);
        float* scores = work.scores + omp_get_thread_num() * work.longest;
        const Share mine = share_of(rows * stack.heads);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / stack.heads, head = item % stack.heads, source = token_of(row) / step.rows_of_source;
            const int64_t at = layer * step.sources.layer + source * step.sources.row + head * step.sources.head;
            attend(work.qkv + row * stride + head * size, 1, size, step.sources.keys + at, step.sources.values + at,
                   Straight{size}, {0, step.source_lengths[source]}, scores, work.longest,
                   work.context.floats + row * stride + head * size);
        }
        barrier.wait();
        leave(block.cross_output, work.context);
    }

    void feed_forward(const Block& block) {
        const int64_t units = stack.units;
        float* inner = stack.gated ? work.inner : work.units.floats;
        product(block.inner, input(), inner, block.inner.rows, stack.gated ? NONE : stack.activation);
        if (stack.gated) {
            const int64_t pieces = (units + PANEL - 1) / PANEL;
            const Share mine = share_of(rows * pieces);
            for (int64_t item = mine.first; item < mine.last; item++) {
                const int64_t row = item / pieces, i = item % pieces * PANEL, count = std::min<int64_t>(PANEL, units - i);
                const float* from = inner + row * 2 * units + i;
                float gate[PANEL] = {}, up[PANEL] = {};
                std::copy_n(from, count, gate);
                std::copy_n(from + units, count, up);
                activate(gate, PANEL, 1, PANEL, stack.activation);
                UNROLL for (int v = 0; v < PANEL; v += WIDE) store(gate + v, load(gate + v) * load(up + v));
                std::copy_n(gate, count, work.units.floats + row * units + i);
            }
            barrier.wait();
        }
        leave(block.outer, work.units);
    }

    // A sublayer's last product.
    void leave(const Matrix& w, Rows& x) {
        if (narrow(w)) {
            const Share mine = share_of(rows * (x.columns / group_of(w)));
            narrow_for(w, x, mine.first, mine.last);
            barrier.wait();
        }
        product(w, x, work.added, w.rows, NONE);
    }
};
