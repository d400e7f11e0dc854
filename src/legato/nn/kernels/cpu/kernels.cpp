// What Python calls where a model is used: plain functions of plain data (nn/kernels/library.py).
#include <omp.h>

#include <algorithm>
#include <vector>

#include "choice.h"
#include "encoder.h"
#include "low_rank.h"
#include "products.h"
#include "stack.h"
#include "threads.h"

namespace {

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

// Whether there are enough new tokens of a row for laying out the keys that they see.
bool in_panels(const Stack& stack, const Step& step) { return step.tokens >= 8 && stack.head_width % PANEL == 0; }

// The most ranks of an adapter of any of a stack's matrices.
int64_t most_ranks(const Stack& stack) {
    int64_t most = stack.readout.ranks;
    for (const Block* block = stack.blocks; block < stack.blocks + stack.layers; block++)
        for (const Matrix* w : {&block->qkv, &block->attention_output, &block->query, &block->cross_output, &block->inner, &block->outer})
            most = std::max<int64_t>(most, w->ranks);
    return most;
}

Workspace laid_out(Room& room, const Stack& stack, const Step& step, int threads) {
    room.taken_floats = room.taken_bytes = 0;
    const int64_t rows = step.rows, heads = (int64_t)stack.heads * stack.head_width;
    int64_t longest = step.column + step.tokens;
    const int64_t seen = longest;
    if (stack.cross)
        for (int64_t i = 0; i < rows / step.rows_of_source; i++)
            longest = std::max<int64_t>(longest, step.source_lengths[i]);
    longest = (longest + 31) / 16 * 16;
    if (in_panels(stack, step)) longest = std::max(longest, HeadPanels::room(stack.head_width, seen));
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
    Walk(const Stack& stack, const Step& step, Workspace& work, Barrier& barrier, Taking (&takings)[2])
        : stack(stack), step(step), work(work), barrier(barrier), takings(takings) {}

    void run() {
        each_row([&](int64_t row) {
            std::copy_n(step.embedded + row * stack.width, stack.width, work.x.floats + row * stack.width);
            ready(stack.blocks[0].attention_norm, stack.blocks[0].qkv, row);
        });
        for (int32_t layer = 0; layer < stack.layers; layer++) {
            const Block& block = stack.blocks[layer];
            self_attention(block, layer);
            if (stack.cross) {
                after(block.attention_norm, block.cross_norm, block.query);
                cross_attention(block, layer);
                after(block.cross_norm, block.feedforward_norm, block.inner);
            } else {
                after(block.attention_norm, block.feedforward_norm, block.inner);
            }
            feed_forward(block);
            const bool last = layer + 1 == stack.layers;
            after(block.feedforward_norm, last ? stack.norm : stack.blocks[layer + 1].attention_norm,
                  last ? stack.readout : stack.blocks[layer + 1].qkv);
        }
        if (step.tokens > 1) keep_last(stack.readout);
        product(stack.readout, last(), step.logits, stack.readout.rows, NONE);
    }

  private:
    const Stack& stack;
    const Step& step;
    Workspace& work;
    Barrier& barrier;
    Taking (&takings)[2];  // of the product that is made, and of the next
    int products = 0;

    template <typename Do>
    void each_row(Do act) {
        const Share mine = share_of(step.rows);
        for (int64_t row = mine.first; row < mine.last; row++) act(row);
        barrier.wait();
    }

    void product(const Matrix& w, const Rows& x, float* y, int64_t stride, int32_t activation) {
        const bool adapted = step.adapters && w.ranks;
        if (adapted) lower_rows(w, x);
        Taking& taking = takings[products++ % 2];
        if (omp_get_thread_num() == 0) takings[products % 2].begin(omp_get_num_threads());  // nobody is there yet
        taking.each(w.rows / PANEL, TOGETHER, [&](int64_t first, int64_t last) {
            multiply(w, x, y, stride, adapted ? NONE : activation, first, last);
            if (adapted) raise_rows(w, x.count, y, stride, activation, first * PANEL, last * PANEL);
        });
        barrier.wait();
    }

    // Whose a row is, of all tokens or of those that logits are made of.
    const LowRank& adapter_of(const Matrix& w, int64_t row, int64_t count) const {
        return w.adapters[step.adapters[row * (step.rows / count)]];
    }

    // Of each row that has an adapter A x.
    void lower_rows(const Matrix& w, const Rows& x) {
        const int64_t pieces = w.ranks / RANKS;
        const Share mine = share_of(x.count * pieces);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / pieces, rank = item % pieces * RANKS;
            const LowRank& own = adapter_of(w, row, x.count);
            if (rank < own.rank)
                lower(own.down + rank * x.columns, x.floats + row * x.columns, x.columns, work.low + row * work.ranks + rank);
        }
        barrier.wait();
    }

    // And s B of that, in some outputs, which are then complete.
    void raise_rows(
        const Matrix& w, int64_t count, float* y, int64_t stride, int32_t activation, int64_t first, int64_t last) {
        for (int64_t row = 0; row < count; row++)
            raise_outputs(adapter_of(w, row, count), work.low + row * work.ranks, y + row * stride, first, last);
        if (activation != NONE) activate(y + first, stride, count, last - first, activation);
    }

    // The rows that logits are made of.
    Rows last() {
        Rows rows = input();
        rows.count = step.rows / step.tokens;
        return rows;
    }

    // The last token of each row of the cache to the place of that row.
    void keep_last(const Matrix& reader) {
        if (omp_get_thread_num() == 0) {
            Rows rows = last();
            for (int64_t row = 0; row < rows.count; row++)
                std::copy_n(rows.floats + (row * step.tokens + step.tokens - 1) * stack.width, stack.width,
                            rows.floats + row * stack.width);
            if (narrow(reader)) narrow_for(reader, rows, 0, rows.count * (stack.width / group_of(reader)));
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

    void self_attention(const Block& block, int32_t layer) {
        product(block.qkv, input(), work.qkv, block.qkv.rows, NONE);
        const Share mine = share_of(step.rows * stack.kv_heads);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / stack.kv_heads, head = item % stack.kv_heads;
            take_in(block, layer, row, head);
            if (step.tokens == 1) look_back(block, layer, row, head);
        }
        barrier.wait();
        if (step.tokens > 1) {
            if (in_panels(stack, step)) look_back_together(block, layer);
            else
                for (int64_t item = mine.first; item < mine.last; item++)
                    look_back(block, layer, item / stack.kv_heads, item % stack.kv_heads);
            barrier.wait();
        }
        leave(block.attention_output, work.context);
    }

    int64_t stride() const { return (stack.heads + 2 * stack.kv_heads) * stack.head_width; }
    int64_t cached(int32_t layer, int64_t row, int64_t head) const {  // where a head of a token's row begins
        return layer * step.cache.layer + row / step.tokens * step.cache.row + head * step.cache.head;
    }
    int64_t column(int64_t row) const { return step.column + row % step.tokens; }
    int64_t first_seen(const Block& block, int64_t row) const {
        const int64_t first = step.first ? step.first[row / step.tokens] : 0;
        return block.window ? std::max<int64_t>(first, column(row) + 1 - block.window) : first;
    }

    // A token's key and value go into the cache, and the queries that share them are made ready.
    void take_in(const Block& block, int32_t layer, int64_t row, int64_t head) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads;
        float* query = work.qkv + row * stride() + head * serves * size;
        float* key = work.qkv + row * stride() + (stack.heads + head) * size;
        if (block.key_norm.kind != NO_NORM) normalise(block.key_norm, key, key, size);
        if (step.cos) rotate(key, step.cos + row * size, step.sin + row * size, size);
        const int64_t at = cached(layer, row, head) + column(row) * size;
        std::copy_n(key, size, step.cache.keys + at);
        std::copy_n(key + stack.kv_heads * size, size, step.cache.values + at);
        for (int64_t i = 0; i < serves; i++, query += size) {
            if (block.query_norm.kind != NO_NORM) normalise(block.query_norm, query, query, size);
            if (step.cos) rotate(query, step.cos + row * size, step.sin + row * size, size);
        }
    }

    // Those queries meet what the cache has.
    void look_back(const Block& block, int32_t layer, int64_t row, int64_t head) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads, first = first_seen(block, row);
        const int64_t at = cached(layer, row, head) + first * size;
        float* scores = work.scores + omp_get_thread_num() * work.longest;
        for (int64_t i = head * serves; i < (head + 1) * serves; i++)
            attend(work.qkv + row * stride() + i * size, step.cache.keys + at, step.cache.values + at,
                   column(row) + 1 - first, size, scores, work.context.floats + (row * stack.heads + i) * size);
    }

    // The same of all tokens of a row, a head at a time.
    void look_back_together(const Block& block, int32_t layer) {
        const int64_t size = stack.head_width, serves = stack.heads / stack.kv_heads;
        HeadPanels panels(size, work.seen, work.scores + omp_get_thread_num() * work.longest);
        const Share mine = share_of(step.rows / step.tokens * stack.heads);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / stack.heads * step.tokens, head = item % stack.heads;
            const int64_t first = first_seen(block, row), at = cached(layer, row, head / serves) + first * size;
            panels.lay_out(step.cache.keys + at, step.cache.values + at, size, work.seen - first);
            panels.attend(work.qkv + row * stride() + head * size, stride(), step.tokens,
                          work.context.floats + (row * stack.heads + head) * size, stack.heads * size,
                          [&](int64_t i) { return Seen{first_seen(block, row + i) - first, column(row + i) + 1 - first}; });
        }
    }

    void cross_attention(const Block& block, int32_t layer) {
        const int64_t size = stack.head_width, stride = stack.heads * size;
        product(block.query, input(), work.qkv, stride, NONE);
        float* scores = work.scores + omp_get_thread_num() * work.longest;
        const Share mine = share_of(step.rows * stack.heads);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t row = item / stack.heads, head = item % stack.heads, source = row / step.rows_of_source;
            const int64_t at = layer * step.sources.layer + source * step.sources.row + head * step.sources.head;
            attend(work.qkv + row * stride + head * size, step.sources.keys + at, step.sources.values + at,
                   step.source_lengths[source], size, scores, work.context.floats + row * stride + head * size);
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
            const Share mine = share_of(step.rows * pieces);
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
            const Share mine = share_of(step.rows * (x.columns / group_of(w)));
            narrow_for(w, x, mine.first, mine.last);
            barrier.wait();
        }
        product(w, x, work.added, w.rows, NONE);
    }
};

}  // namespace

extern "C" {

// Whether the processor multiplies half-precision numbers: only then may a matrix be one of HALVES.
int32_t legato_multiplies_halves() { return MULTIPLIES_HALVES; }

// y (rows, N) = f(x (rows, K) Wᵀ + b)
void legato_linear(const Matrix* w, const float* x, int64_t rows, float* y, int32_t activation, int32_t threads) {
    const int64_t columns = w->columns, groups = columns / group_of(*w);
    static thread_local std::vector<int8_t> codes;
    static thread_local std::vector<float> scales;
    static thread_local std::vector<uint16_t> halves;
    Rows given{rows, columns, const_cast<float*>(x), nullptr, nullptr, nullptr};
    if (w->kind == HALVES) {
        halves.resize(rows * columns);
        to_halves(x, given.halves = halves.data(), rows * columns);
    }
    if (narrow(*w)) {
        codes.resize(rows * columns);
        scales.resize(2 * rows * groups);
        given.codes = codes.data();
        given.scales = scales.data();
        given.sums = scales.data() + rows * groups;
    }
#pragma omp parallel num_threads(threads)
    {
        if (narrow(*w)) {
            const Share mine = share_of(rows * groups);
            narrow_for(*w, given, mine.first, mine.last);
#pragma omp barrier
        }
        const Share mine = share_of(w->rows / PANEL);
        multiply(*w, given, y, w->rows, activation, mine.first, mine.last);
    }
}

void legato_choose(const Choice* choice, int32_t threads) {
    Choosing choosing(*choice);
    const int64_t rows = choice->groups * choice->width;
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) choosing.look_at(row);
    for (int64_t group = 0; group < choice->groups; group++) choosing.take(group);
}

// The rows of a narrow matrix in some places, (count, K), of the first `rows` that there are; 0 where one is no row.
int32_t legato_rows(const Matrix* w, const int64_t* places, int64_t count, int64_t rows, float* to) {
    for (int64_t i = 0; i < count; i++)
        if (places[i] < 0 || places[i] >= rows) return 0;
    for (int64_t i = 0; i < count; i++) wide_row(*w, places[i], to + i * w->columns);
    return 1;
}

// A narrow matrix without minimums, as many rows read it: (N/16, K/128) blocks of 2,112 bytes.
void legato_broaden(const Matrix* w, uint8_t* to) { broaden(*w, to); }

void legato_step(const Stack* stack, const Step* step, int32_t threads) {
    static thread_local Room room;
    laid_out(room, *stack, *step, threads);
    room.floats.resize(std::max(room.floats.size(), room.taken_floats));
    room.bytes.resize(std::max(room.bytes.size(), room.taken_bytes));
    Workspace work = laid_out(room, *stack, *step, threads);
    Barrier barrier;
    Taking takings[2];
    for (Taking& taking : takings) taking.begin(threads);
#pragma omp parallel num_threads(threads)
    Walk(*stack, *step, work, barrier, takings).run();
}

void legato_encode(const Stack* stack, const Texts* texts, int32_t threads) {
    Encoding encoding(*stack, *texts, threads);
#pragma omp parallel num_threads(threads)
    encoding.run();
}
}
