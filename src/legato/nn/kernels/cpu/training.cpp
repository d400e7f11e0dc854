// What Python calls in training: plain functions of plain data (nn/kernels/library.py).
#include "attention.h"
#include "elementwise.h"
#include "loss.h"
#include "residual.h"
#include "update.h"

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

// The same of x with a bias added (elementwise.h), and its slope.
void legato_biased_gelu(const BiasedGelu* task, int32_t narrow, int32_t tanh, int32_t threads) {
    const auto run = [&](auto of) {
        typedef decltype(of) Number;
        tanh ? biased_gelu<true, Number>(*task, threads) : biased_gelu<false, Number>(*task, threads);
    };
    narrow ? run(uint16_t()) : run(float());
}

void legato_losses(const Loss* task, int32_t narrow, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (task->rows * task->columns > CHUNK)
    for (int64_t row = 0; row < task->rows; row++)
        narrow ? losses_and_gradient<uint16_t>(*task, row) : losses_and_gradient<float>(*task, row);
}
// A residual sum and its norm (residual.h), forward or back. What is bfloat16: 1, the stream; 2, what is added; 4, what
// the norm leaves. A narrow stream is narrow throughout.
void legato_residual(const Residual* task, int32_t back, int32_t narrow, int32_t threads) {
    if (narrow & 1) residual<uint16_t, uint16_t, uint16_t>(*task, back, threads);
    else if (narrow == 0) residual<float, float, float>(*task, back, threads);
    else if (narrow == 2) residual<float, uint16_t, float>(*task, back, threads);
    else if (narrow == 4) residual<float, float, uint16_t>(*task, back, threads);
    else residual<float, uint16_t, uint16_t>(*task, back, threads);
}
// The sum of the squares of gradients, and AdamW's step (update.h).
double legato_squares(const Weights* tensors, int64_t count, int32_t threads) {
    return squares(tensors, count, threads);
}

void legato_adamw(const Update* task, int32_t threads) { adamw(*task, threads); }
}
