// What Python calls where a model is used: plain functions of plain data (nn/kernels/library.py).
#include <omp.h>

#include <algorithm>
#include <vector>

#include "choice.h"
#include "encoder.h"
#include "products.h"
#include "threads.h"
#include "walk.h"

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
    NewTokens tokens(*stack, *step);
    laid_out(room, *stack, *step, tokens, threads);
    room.floats.resize(std::max(room.floats.size(), room.taken_floats));
    room.bytes.resize(std::max(room.bytes.size(), room.taken_bytes));
    Workspace work = laid_out(room, *stack, *step, tokens, threads);
    Barrier barrier;
    Taking takings[2];
    for (Taking& taking : takings) taking.begin(threads);
#pragma omp parallel num_threads(threads)
    Walk(*stack, *step, tokens, work, barrier, takings).run();
}

void legato_encode(const Stack* stack, const Texts* texts, int32_t threads) {
    Encoding encoding(*stack, *texts, threads);
#pragma omp parallel num_threads(threads)
    encoding.run();
}
}
