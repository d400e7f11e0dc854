// Whole texts through all blocks of an encoder, every token seeing every other of its text: what nn/transformer.py's
// Stack does without a cache. Tokens of all texts stand in one long row without padding. A thread takes some sixty of
// them through everything that looks at each token alone, while they are in its cache, and whole heads of attention.
#pragma once

#include <atomic>
#include <memory>

#include "heads.h"
#include "stack.h"
#include "threads.h"

struct Texts {
    int64_t count, tokens;
    const int64_t* starts;  // (count + 1,): the first token of each, and where the last one ends
    const float* embedded;  // (tokens, width)
    float* hidden;          // (tokens, width)
};

// Memory that is not set to anything.
struct Floor {
    std::unique_ptr<float[]> floats;
    std::unique_ptr<int8_t[]> codes;
    std::unique_ptr<float[]> scales;
    std::unique_ptr<uint16_t[]> halves;

    Rows rows(int64_t count, int64_t columns, bool wide, bool narrow, bool half) {
        const int64_t groups = columns / GROUP;
        if (wide) floats.reset(new float[count * columns + PANEL]);
        if (narrow) {
            codes.reset(new int8_t[count * columns]);
            scales.reset(new float[2 * count * groups]);
        }
        if (half) halves.reset(new uint16_t[count * columns]);
        float* sums = narrow ? scales.get() + count * groups : nullptr;
        return {count, columns, floats.get(), codes.get(), scales.get(), sums, halves.get()};
    }
};

class Encoding {
  public:
    Encoding(const Stack& stack, const Texts& texts, int threads)
        : stack(stack), texts(texts), heads((int64_t)stack.heads * stack.head_width),
          stride(heads + 2 * (int64_t)stack.kv_heads * stack.head_width), qkv(new float[texts.tokens * stride]),
          context(new float[texts.tokens * heads]), taken(new std::atomic<int64_t>[2 * stack.layers + 1]) {
        const int64_t most = rows_at_once(stack.blocks[0].inner), shares = (texts.tokens + most - 1) / most;
        tile = tile_rows(stack.blocks[0].inner);
        tiles = (texts.tokens + tile - 1) / tile;
        pieces = std::min((shares + threads - 1) / threads * threads, tiles);
        for (int64_t i = 0; i < 2 * stack.layers + 1; i++) taken[i] = 0;
        for (int64_t i = 0; i < texts.count; i++) longest = std::max(longest, texts.starts[i + 1] - texts.starts[i]);
        longest = (longest + PANEL - 1) / PANEL * PANEL;
    }

    // What every thread does.
    void run() {
        Piece piece(*this);
        each(0, pieces, [&](int64_t i) {
            const int64_t first = begin(i), rows = begin(i + 1) - first;
            std::copy_n(texts.embedded + first * stack.width, rows * stack.width, texts.hidden + first * stack.width);
            piece.at(first, rows);
            piece.project(stack.blocks[0]);
        });
        Heads some(*this);
        for (int32_t layer = 0; layer < stack.layers; layer++) {
            each(2 * layer + 1, texts.count * stack.heads, [&](int64_t i) { some.attend(i / stack.heads, i % stack.heads); });
            const bool last = layer + 1 == stack.layers;
            each(2 * layer + 2, pieces, [&](int64_t i) {
                piece.at(begin(i), begin(i + 1) - begin(i));
                piece.rest(stack.blocks[layer]);
                if (!last) piece.project(stack.blocks[layer + 1]);
                else if (stack.norm.kind != NO_NORM) piece.norm_of_all(stack.norm);
            });
        }
    }

  private:
    const Stack& stack;
    const Texts& texts;
    const int64_t heads, stride;
    const std::unique_ptr<float[]> qkv, context;  // (tokens, stride), (tokens, heads)
    const std::unique_ptr<std::atomic<int64_t>[]> taken;
    int64_t tile, tiles, pieces, longest = 0;
    Barrier barrier;

    int64_t begin(int64_t piece) const { return std::min(tiles * piece / pieces * tile, texts.tokens); }

    // Whoever is free takes the next, until all are done.
    template <typename Do>
    void each(int64_t stage, int64_t count, Do act) {
        for (int64_t i; (i = taken[stage].fetch_add(1, std::memory_order_relaxed)) < count;) act(i);
        barrier.wait();
    }

    // Some tokens, and a thread's room for what is made of them.
    struct Piece {
        Encoding& all;
        const Stack& stack;
        Floor floor_of_input, floor_of_context, floor_of_units;
        Rows input, mixed, units;
        std::unique_ptr<float[]> inner, added;
        float* x = nullptr;  // (rows, width), in place
        int64_t first = 0, rows = 0;

        explicit Piece(Encoding& all) : all(all), stack(all.stack) {
            bool wide = false, bytes = false, half = false;
            for (int32_t layer = 0; layer < stack.layers; layer++)
                for (const Matrix* w : {&stack.blocks[layer].qkv, &stack.blocks[layer].attention_output,
                                        &stack.blocks[layer].inner, &stack.blocks[layer].outer})
                    (narrow(*w) ? bytes : w->kind == HALVES ? half : wide) = true;
            const int64_t most = (all.tiles + all.pieces - 1) / all.pieces * all.tile;
            input = floor_of_input.rows(most, stack.width, true, bytes, half);
            mixed = floor_of_context.rows(most, all.heads, false, bytes, half);
            units = floor_of_units.rows(most, stack.units, wide || stack.gated, bytes, half);
            if (stack.gated) inner.reset(new float[most * 2 * stack.units]);
            else if (bytes || half) inner.reset(new float[most * BROAD_GROUP]);
            added.reset(new float[most * stack.width]);
        }

        void at(int64_t from, int64_t count) {
            first = from;
            rows = input.count = mixed.count = units.count = count;
            x = all.texts.hidden + first * stack.width;
        }

        // What a sublayer reads: x, with the norm before it where norms come first.
        const Rows& ready(const Norm& norm, const Matrix& reader) {
            for (int64_t row = 0; row < rows; row++) {
                float* to = input.floats + row * stack.width;
                if (stack.norm_first) normalise(norm, x + row * stack.width, to, stack.width);
                else std::copy_n(x + row * stack.width, stack.width, to);
            }
            return narrowed(input, reader);
        }

        const Rows& narrowed(Rows& from, const Matrix& reader) {
            if (narrow(reader)) narrow_for(reader, from, 0, rows * (from.columns / group_of(reader)));
            if (reader.kind == HALVES) to_halves(from.floats, from.halves, rows * from.columns);
            return from;
        }

        void project(const Block& block) {
            float* to = all.qkv.get() + first * all.stride;
            multiply(block.qkv, ready(block.attention_norm, block.qkv), to, all.stride, NONE, 0, all.stride / PANEL);
        }

        void rest(const Block& block) {
            mixed.floats = all.context.get() + first * all.heads;
            leave(block.attention_output, narrowed(mixed, block.attention_output), block.attention_norm);
            const Rows& from = ready(block.feedforward_norm, block.inner);
            if (stack.gated) gate(block, from);
            else if (block.outer.kind == BROAD) narrow_units<BROAD_GROUP>(block, from);
            else if (narrow(block.outer)) narrow_units<GROUP>(block, from);
            else if (block.outer.kind == HALVES) half_units(block, from);
            else multiply(block.inner, from, units.floats, stack.units, stack.activation, 0, stack.units / PANEL);
            leave(block.outer, units, block.feedforward_norm);
        }

        // A group of units at a time, which are brought to bytes as soon as they are there.
        template <int SIZE>
        void narrow_units(const Block& block, const Rows& from) {
            const int64_t groups = stack.units / SIZE;
            for (int64_t g = 0; g < groups; g++) {
                const int64_t panel = g * (SIZE / PANEL);
                float* to = inner.get() - panel * PANEL;  // where `multiply` adds the panel's place again
                multiply(block.inner, from, to, SIZE, stack.activation, panel, panel + SIZE / PANEL);
                for (int64_t row = 0; row < rows; row++)
                    narrow_group<SIZE>(inner.get() + row * SIZE, units.codes + row * stack.units + g * SIZE,
                                       units.scales + row * groups + g, units.sums + row * groups + g);
            }
        }

        // Some units at a time, while they are in a level-one cache.
        void half_units(const Block& block, const Rows& from) {
            for (int64_t unit = 0; unit < stack.units; unit += BROAD_GROUP) {
                const int64_t count = std::min<int64_t>(BROAD_GROUP, stack.units - unit);
                multiply(block.inner, from, inner.get() - unit, BROAD_GROUP, stack.activation, unit / PANEL,
                         (unit + count) / PANEL);
                for (int64_t row = 0; row < rows; row++)
                    to_halves(inner.get() + row * BROAD_GROUP, units.halves + row * stack.units + unit, count);
            }
        }

        void gate(const Block& block, const Rows& from) {
            const int64_t count = stack.units;
            multiply(block.inner, from, inner.get(), 2 * count, NONE, 0, 2 * count / PANEL);
            activate(inner.get(), 2 * count, rows, count, stack.activation);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t i = 0; i < count; i += WIDE) {
                    const float* gates = inner.get() + row * 2 * count + i;
                    store(units.floats + row * count + i, load(gates) * load(gates + count));
                }
            narrowed(units, block.outer);
        }

        // A sublayer's last product, and the way around it.
        void leave(const Matrix& w, const Rows& from, const Norm& norm) {
            const int64_t width = stack.width;
            multiply(w, from, added.get(), width, NONE, 0, width / PANEL);
            for (int64_t i = 0; i < rows * width; i++) x[i] += added[i];
            if (!stack.norm_first) norm_of_all(norm);
        }

        void norm_of_all(const Norm& norm) {
            for (int64_t row = 0; row < rows; row++)
                normalise(norm, x + row * stack.width, x + row * stack.width, stack.width);
        }
    };

    // A thread's room for the attention of one head of one text.
    struct Heads {
        Encoding& all;
        const int64_t size, serves;
        std::unique_ptr<float[]> room;
        HeadPanels panels;

        explicit Heads(Encoding& all)
            : all(all), size(all.stack.head_width), serves(all.stack.heads / all.stack.kv_heads),
              room(new float[HeadPanels::room(size, all.longest)]), panels(size, all.longest, room.get()) {}

        void attend(int64_t text, int64_t head) {
            const int64_t first = all.texts.starts[text], length = all.texts.starts[text + 1] - first;
            const float* query = all.qkv.get() + first * all.stride + head * size;
            const float* key = all.qkv.get() + first * all.stride + (all.stack.heads + head / serves) * size;
            panels.lay_out(key, key + all.stack.kv_heads * size, length, [&](int64_t s) { return s * all.stride; });
            panels.attend(query, all.stride, length, all.context.get() + first * all.heads + head * size, all.heads,
                          [&](int64_t) { return Seen{0, length}; });
        }
    };
};
