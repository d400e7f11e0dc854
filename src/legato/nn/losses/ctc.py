"""The loss of connectionist temporal classification (Graves et al. 2006).

    −log p(y | x) = −log Σ over paths that say y of ∏_t p(path_t | x)

With y written as states, its tokens and a blank before, between and behind them, α_t(s) sums over the paths that are
in state s at frame t, up to there, and β_t(s) over the same, from there on:

    α_t(s) = p_t(s) (α_{t-1}(s) + α_{t-1}(s-1) + α_{t-1}(s-2))          s-2 where s is a token other than that one
    ∂ −log p(y | x) / ∂ log p_t(v) = − Σ over states s of v of α_t(s) β_t(s) / (p_t(s) p(y | x))

β is α of frames and states read backwards, so one pass makes both.

`F.ctc_loss` does this sooner, but waits for the device to say how long rows are, which a step that is recorded as a
CUDA graph cannot: there it is `RecordableCTC`. Such paths, and the search for y, are in decoding/speech/ctc.py.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE

LOW: Final = float("-inf")


def label_states(tokens: Tensor, blank: int) -> Tensor:
    """Tokens (B, N) with a blank before, between and behind them, (B, 2N + 1).

    >>> label_states(torch.tensor([[3, 3, 5]]), blank=0)
    tensor([[0, 3, 0, 3, 0, 5, 0]])
    """
    states = tokens.new_full((len(tokens), 2 * tokens.shape[1] + 1), blank)
    states[:, 1::2] = tokens
    return states


def may_skip_blank(states: Tensor, blank: int) -> Tensor:
    """Which states (B, S) follow the one before last, too: tokens other than that one.

    >>> may_skip_blank(torch.tensor([[0, 3, 0, 3, 0, 5, 0]]), blank=0).int()
    tensor([[0, 1, 0, 0, 0, 1, 0]], dtype=torch.int32)
    """
    skips = states != blank
    skips[:, 2:] &= states[:, 2:] != states[:, :-2]
    return skips


def ctc_nll(logits: Tensor, lengths: Tensor | None, targets: Tensor, blank: int) -> Tensor:
    """−log p(y | x) of each row, (B,): logits (B, T, V) of which `lengths` (B,) are a row's, targets (B, N) with
    IGNORE behind each row's. 0 where so many frames cannot say the targets."""
    rows, total = logits.shape[:2]
    if lengths is None:
        lengths = torch.full((rows,), total, device=logits.device)
    log_probs = logits.float().log_softmax(-1)  # (B, T, V)
    there = targets != IGNORE
    if logits.is_cuda and torch.cuda.is_current_stream_capturing():
        return recordable_ctc(log_probs, lengths, targets.masked_fill(~there, blank), there.sum(1), blank)
    at = torch.device("cpu") if logits.device.type == "mps" else logits.device  # MPS has no such kernel
    empty = lengths == 0  # rows that fill up a batch
    losses = F.ctc_loss(
        log_probs.transpose(0, 1).to(at),
        targets.masked_fill(~there, 0).to(at),
        lengths.clamp(min=1).to(at),
        there.sum(1).to(at),
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    return losses.to(logits.device).masked_fill(empty, 0)


def recordable_ctc(log_probs: Tensor, lengths: Tensor, tokens: Tensor, counts: Tensor, blank: int) -> Tensor:
    """The same of log probabilities (B, T, V) and tokens (B, N), `counts` (B,) of them a row's, then blanks; nobody
    waits for the device."""
    losses: Tensor = RecordableCTC.apply(log_probs, lengths, tokens, counts, blank)
    return losses


class RecordableCTC(torch.autograd.Function):
    """CTC's loss, and its gradient, which is made along with it."""

    @staticmethod
    def forward(
        context: Any, log_probs: Tensor, lengths: Tensor, tokens: Tensor, counts: Tensor, blank: int
    ) -> Tensor:
        rows, frames, _ = log_probs.shape
        lengths, counts = lengths.unsqueeze(1), counts.unsqueeze(1)  # (B, 1)
        states = label_states(tokens, blank)  # (B, S)
        times = torch.arange(frames, device=log_probs.device)  # (T,)
        places = torch.arange(states.shape[1], device=log_probs.device)  # (S,)
        from_end = (lengths - 1 - times).clamp(min=0)  # (B, T), each row backwards
        from_last = (2 * counts - places).clamp(min=0)  # (B, S)

        emitted = log_probs.gather(2, _wide(states, frames))  # (B, T, S)
        mirrored = emitted.gather(1, _tall(from_end, len(places))).gather(2, _wide(from_last, frames))
        both = _alphas(
            torch.cat([emitted, mirrored]).transpose(0, 1).contiguous(),
            torch.cat([states, states.gather(1, from_last)]),
            blank,
        ).transpose(0, 1)  # (2B, T, S)
        alpha, beta = both[:rows], both[rows:]

        at_end = alpha.gather(1, _tall((lengths - 1).clamp(min=0), len(places))).squeeze(1)  # (B, S)
        said = torch.logaddexp(
            at_end.gather(1, 2 * counts),
            at_end.gather(1, (2 * counts - 1).clamp(min=0)).masked_fill(counts == 0, LOW),
        )  # (B, 1)
        can = (said > LOW) & (lengths > 0)
        said = said.masked_fill(~can, 0)

        beta = beta.gather(1, _tall(from_end, len(places))).gather(2, _wide(from_last, frames))
        own = (times < lengths).unsqueeze(2) & (places <= 2 * counts).unsqueeze(1) & can.unsqueeze(2)  # (B, T, S)
        shares = (alpha + beta - emitted - said.unsqueeze(2)).masked_fill(~own, LOW).exp()
        gradient = torch.zeros_like(log_probs)
        gradient.scatter_add_(2, _wide(tokens, frames), shares[..., 1::2])  # 0 beyond a row's own
        gradient[..., blank] += shares[..., ::2].sum(-1)
        context.save_for_backward(gradient)
        return -said.squeeze(1)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return -gradient * above[0][:, None, None], None, None, None, None


def _alphas(emitted: Tensor, states: Tensor, blank: int) -> Tensor:
    """log α (T, B, S) of log probabilities (T, B, S) of `states` (B, S)."""
    frames, rows, count = emitted.shape
    jump = torch.zeros_like(emitted[0]).masked_fill(~may_skip_blank(states, blank), LOW)  # (B, S)
    padded = torch.full((frames, rows, count + 2), LOW, device=emitted.device, dtype=emitted.dtype)
    padded[0, :, 2:4] = emitted[0, :, :2]
    for t in range(1, frames):
        before = padded[t - 1]
        near = torch.logaddexp(before[:, 2:], before[:, 1:-1])
        torch.add(torch.logaddexp(near, before[:, :-2] + jump), emitted[t], out=padded[t, :, 2:])
    return padded[..., 2:]


def _wide(index: Tensor, frames: int) -> Tensor:
    """(B, S) for every frame, (B, T, S)."""
    return index.unsqueeze(1).expand(-1, frames, -1)


def _tall(index: Tensor, states: int) -> Tensor:
    """(B, T) for every state, (B, T, S)."""
    return index.unsqueeze(2).expand(-1, -1, states)
