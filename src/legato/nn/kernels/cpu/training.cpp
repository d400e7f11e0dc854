// What Python calls in training: plain functions of plain data (nn/kernels/library.py).
#include "attention.h"
#include "elementwise.h"
#include "loss.h"

extern "C" {

// Whether there are tiles of bfloat16 (tiles.h); only then are they fast.
int32_t legato_multiplies_tiles() { return Tiles::allowed(); }

// Attention with dropout (attention.h): of floats, or of bfloat16 (`narrow`), whose products are then in tiles or
// not.
void legato_attention(const Attention* task, int32_t back, int32_t narrow, int32_t tiles, int32_t threads) {
    const auto run = [&](auto attending) { back ? attending.backward(threads) : attending.forward(threads); };
    if (!narrow) run(Attending<Wide, float>(*task));
    else if (!tiles) run(Attending<Wide, uint16_t>(*task));
    else run(Attending<Tiles, uint16_t>(*task));
}

// y (count,) = x with some numbers dropped: floats, or bfloat16.
void legato_dropout(const void* x, void* y, int64_t count, int32_t narrow, const Dropout* dropout, int32_t threads) {
    if (narrow) drop((const uint16_t*)x, (uint16_t*)y, count, *dropout, threads);
    else drop((const float*)x, (float*)y, count, *dropout, threads);
}

// y (count,) = gelu(x), or where there is a slope of that, x's.
void legato_gelu(const void* x, const void* slope, void* y, int64_t count, int32_t narrow, int32_t tanh,
                 int32_t threads) {
    const auto run = [&](const auto* from) {
        typedef std::remove_cv_t<std::remove_pointer_t<decltype(from)>> Number;
        const auto how = tanh ? gelu<true, Number> : gelu<false, Number>;
        how(from, (const Number*)slope, (Number*)y, count, threads);
    };
    narrow ? run((const uint16_t*)x) : run((const float*)x);
}

void legato_losses(const Loss* task, int32_t narrow, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (task->rows * task->columns > CHUNK)
    for (int64_t row = 0; row < task->rows; row++)
        narrow ? losses_and_gradient<uint16_t>(*task, row) : losses_and_gradient<float>(*task, row);
}
}
