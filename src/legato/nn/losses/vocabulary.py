"""The loss over a vocabulary, at once or chunk by chunk: then the logits of all tokens never lie in memory together.

    z = W h + b,   p = softmax(z),   L = (1 - ε) · -log p_y + ε · mean_v -log p_v

Label smoothing (ε > 0; Szegedy et al. 2016) gives the right token 1 - ε and spreads ε evenly over all.

Notable: the gradient with respect to the logits needs nothing but the logits, ∂L/∂z = p - (1 - ε) 1_y - ε/V. So
it is made in the forward pass, in the place of the logits and while they are there, and at once turned into the
gradients of h, W and b; the backward pass only scales those. Nothing is computed twice, and the memory is that
of one chunk, whatever the number of tokens. It asks the device for nothing and its shapes depend on its
arguments' alone, so a CUDA graph can record it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.errors import warn
from legato.nn.kernels import training as kernels
from legato.nn.kernels.cuda import has_kernels
from legato.nn.linear import product_dtype

# Logits held at once: with their gradient and in float32, some 10 bytes each on a GPU. Smaller chunks are slower:
# each takes one more pass over the gradient of the weights. So a GPU of much memory has larger ones (`chunk_size`).
CHUNK = {"cpu": 1 << 25, "cuda": 1 << 27}
ROOMY = 32  # GiB of a GPU: with 2 times as many a chunk is twice as large, with 4 times four times
# Logits from which they are made in chunks. Below it a CPU without our kernels loses as much as it gains; with them,
# and on a GPU, that is soon: gradients made in place mean fewer passes over them.
MANY = {"cpu": 1 << 25, "cuda": 1 << 22}
MANY_FOR_KERNELS = 1 << 18


def better_in_chunks(weight: Tensor, vocabulary: int, tokens: int) -> bool:
    """Whether the logits of so many tokens, products with `weight` (V padded, D), are better made chunk by chunk."""
    rows, width = weight.shape
    if rows > vocabulary >= 4 * width:
        return True  # cutting the padding off many logits, and putting it back in their gradient, takes longer
    many = MANY_FOR_KERNELS if kernels.supports(weight) else MANY.get(weight.device.type, MANY["cpu"])
    return tokens * rows > many


def chunk_size(device: torch.device) -> int:
    """Logits that are made at once there."""
    size = CHUNK.get(device.type, CHUNK["cpu"])
    if device.type != "cuda":
        return size
    times = torch.cuda.get_device_properties(device).total_memory // (ROOMY << 30)
    return size * (4 if times >= 4 else 2 if times >= 2 else 1)


def smoothed_nll(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed loss of `targets` (N,) under `logits` (N, V): with smoothed labels, and without.

    Label smoothing is of Szegedy et al. (2016).
    """
    if smoothing == 0.0:
        plain = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
        return plain, plain
    smoothed, plain = _log_probabilities(logits, targets, logits.shape[1], smoothing, torch.float32)[1]
    return smoothed, plain


def chunked_nll(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocabulary: int,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss of `targets` (N,) given hidden states (N, D): with smoothed labels, and without.

    Rows of `weight` (V padded, D) and `bias` from `vocabulary` on are padding: no token has them, and they get no
    probability. Targets that are IGNORE count nothing. The second sum is for people to read; it has no gradient.
    """
    if not torch.is_grad_enabled():  # autograd would still say that gradients are wanted
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    size = chunk or chunk_size(hidden.device)
    parts = max(1, -(-targets.numel() * weight.shape[0] // size))
    parts = 1 << (parts - 1).bit_length()  # batches tend to be powers of two: then all chunks are alike
    rows = max(1, -(-targets.numel() // parts))
    total, plain = _ChunkedNll.apply(hidden, weight, bias, targets, vocabulary, smoothing, rows)
    return total, plain


class _ChunkedNll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        vocabulary: int,
        smoothing: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        inside = product_dtype(hidden)  # what the matrix products are made in, and what sums and softmax are:
        exact = torch.float64 if inside == torch.float64 else torch.float32
        wanted = ctx.needs_input_grad[:3]
        w = weight.to(inside)
        b = None if bias is None else bias.to(inside)
        like_hidden = torch.empty_like(hidden) if wanted[0] else None
        # Sums over chunks: in float32 at least, whatever the products are made in.
        unset = torch.empty_like if len(hidden) else torch.zeros_like  # the first chunk sets it
        like_weight = unset(weight, dtype=exact) if wanted[1] else None
        like_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and wanted[2] else None
        total = torch.zeros(2, dtype=exact, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                h = hidden[part].to(inside)
                logits = h @ w.t() if b is None else torch.addmm(b, h, w.t())  # (n, V padded)
                if not any(wanted):
                    total += _log_probabilities(logits, targets[part], vocabulary, smoothing, exact)[1]
                    continue
                sums, slope = _losses_and_slope(logits, targets[part], vocabulary, smoothing, exact)
                total += sums
                del logits
                # Ignored rows are struck out here, where rows are short, and not in `slope`.
                counted = (targets[part] != IGNORE).unsqueeze(1).to(inside)  # (n, 1)
                if like_hidden is not None:
                    torch.mul(slope @ w, counted, out=like_hidden[part])
                if like_weight is not None:
                    _add_product(like_weight, slope.t(), h * counted, first=start == 0)
                if like_bias is not None:
                    like_bias += (slope.t() @ counted).squeeze(1)
        ctx.save_for_backward(like_hidden, like_weight, like_bias)
        ctx.kinds = [None if x is None else x.dtype for x in (hidden, weight, bias)]
        smoothed, plain = total.unbind()
        plain = plain.clone()
        ctx.mark_non_differentiable(plain)
        return smoothed.clone(), plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        gradients = [
            None if gradient is None else (gradient * scale).to(kind)
            for gradient, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return (*gradients, None, None, None, None)


def _log_probabilities(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, V padded) of a chunk, and its two losses (2,), smoothed and plain."""
    if vocabulary < logits.shape[1]:
        logits[:, vocabulary:] = -torch.inf
    logp = F.log_softmax(logits, -1, dtype=exact)
    counted = (targets != IGNORE).unsqueeze(1)  # (n, 1)
    plain = -(logp.gather(1, targets.clamp(min=0).unsqueeze(1)) * counted).sum()
    if smoothing == 0.0:
        return logp, torch.stack([plain, plain])
    evenly = -(logp[:, :vocabulary].mean(1, keepdim=True) * counted).sum()
    return logp, torch.stack([(1 - smoothing) * plain + smoothing * evenly, plain])


def _gradient(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The losses of a chunk, and the smoothed one's gradient for its logits (n, V padded), ignored rows too."""
    logp, losses = _log_probabilities(logits, targets, vocabulary, smoothing, exact)
    slope = logp.exp_()
    index = targets.clamp(min=0).unsqueeze(1)
    slope.scatter_add_(1, index, torch.full_like(index, smoothing - 1.0, dtype=exact))
    if smoothing:
        slope[:, :vocabulary] -= smoothing / vocabulary
    return losses, slope.to(logits.dtype)


def _fused_gradient(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same, written so that a compiler makes one kernel of it: two passes over the logits, none in `exact`."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    real, right = columns < vocabulary, columns == targets.unsqueeze(1)
    z = torch.where(real, logits.to(exact), -torch.inf)
    norm = z.logsumexp(1, keepdim=True)
    counted = (targets != IGNORE).unsqueeze(1)  # (n, 1)
    plain = ((norm - torch.where(right, z, 0.0).sum(1, keepdim=True)) * counted).sum()
    slope = (z - norm).exp() - torch.where(right, 1.0 - smoothing, 0.0)
    if smoothing == 0.0:
        return torch.stack([plain, plain]), slope.to(logits.dtype)
    evenly = ((norm - torch.where(real, z, 0.0).sum(1, keepdim=True) / vocabulary) * counted).sum()
    slope = slope - torch.where(real, smoothing / vocabulary, 0.0)
    return torch.stack([(1 - smoothing) * plain + smoothing * evenly, plain]), slope.to(logits.dtype)


_kernel = _gradient


def _losses_and_slope(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    if logits.is_cuda and exact == torch.float32 and _in_one_kernel(logits.device.index or 0):
        from legato.nn.kernels.cuda.cross_entropy import losses_and_gradient

        return losses_and_gradient(logits, targets, vocabulary, smoothing, IGNORE), logits
    if logits.is_cpu and targets.dtype == torch.int64 and kernels.supports(logits):
        return kernels.losses_and_gradient(logits, targets, vocabulary, smoothing, IGNORE), logits
    return _kernel(logits, targets, vocabulary, smoothing, exact)


def compile_loss(on: bool = True) -> None:
    """From now on, let one kernel make a chunk's gradient of its logits: for those who compile their model, too."""
    global _kernel
    if not on:
        _kernel = _gradient
    elif _kernel is _gradient:
        _kernel = torch.compile(_fused_gradient, dynamic=False)


def _add_product(place: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """place += left @ right, the sum in the place's precision; the first one need not look at what is there."""
    if left.dtype == place.dtype:
        torch.addmm(place, left, right, beta=0 if first else 1, out=place)
    elif place.is_cuda and _adds_wide(place.device.index or 0):
        # The product is added while it is still in registers, and never rounded to what it was made of.
        torch.addmm(place, left, right, beta=0 if first else 1, out_dtype=place.dtype, out=place)
    elif first:
        place.copy_(left @ right)
    else:
        place += left @ right


_wide: dict[int, bool] = {}  # by the number of the GPU
_one: dict[int, bool] = {}


def _in_one_kernel(number: int) -> bool:
    """Whether our kernel makes a chunk's losses and gradient there, and rightly: tried once on each GPU."""
    if number not in _one:
        try:
            _one[number] = has_kernels() and _kernel_is_right(torch.device("cuda", number))
        except Exception as problem:  # Triton has errors of its own
            _one[number] = False
            reason = str(problem).strip().partition("\n")[0]
            warn(f"the loss goes without its kernel, which cannot be used: {reason}")
    return _one[number]


def _kernel_is_right(device: torch.device) -> bool:
    from legato.nn.kernels.cuda.cross_entropy import losses_and_gradient

    with torch.inference_mode(False):
        logits = torch.arange(3 * 80, device=device).view(3, 80).mul(0.37).sin()
        targets = torch.tensor([7, 0, 71], device=device)
        losses, slope = _gradient(logits.clone(), targets, 72, 0.1, torch.float32)
        found = losses_and_gradient(logits, targets, 72, 0.1, IGNORE)
        return torch.allclose(found, losses, rtol=1e-4) and torch.allclose(logits, slope, atol=1e-5)


def _adds_wide(number: int) -> bool:
    """Whether PyTorch adds narrow products to wide sums in one go, and rightly: tried once on each GPU."""
    if number not in _wide:
        device = torch.device("cuda", number)
        left = torch.arange(64 * 64, device=device).view(64, 64).mul(0.37).sin().bfloat16()
        place = torch.ones(64, 64, device=device)
        expected = left.float().t() @ left.float() + 1
        try:
            torch.addmm(place, left.t(), left, beta=1, out_dtype=torch.float32, out=place)
            _wide[number] = torch.allclose(place, expected, rtol=1e-2, atol=1e-2)
        except (RuntimeError, TypeError):  # not in this PyTorch
            _wide[number] = False
    return _wide[number]
