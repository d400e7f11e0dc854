"""CTC's say in a decoder's search: joint scores of one pass (Watanabe et al. 2017, section III; Hori et al. 2017).

CTC gives every prefix g of tokens the probability ψ(g) that what is said begins with it, so it has a next token, too:

    p(c | g) = ψ(g c) / ψ(g)          p(end | g) = p(g) / ψ(g)

and a search that adds λ of its logarithm to 1 − λ of the decoder's, token by token, ends with

    score(y) = (1 − λ) log p_decoder(y | x) + λ log p_ctc(y | x)

A decoder alone may stop early, or say a passage again; CTC knows what is left of the frames.

With nonblank(t) and blank(t) the sums over paths that say g in the first t frames, and end in its last token or in a
blank, g c has

    φ(t)          = blank_g(t) + (0 if c is g's last token else nonblank_g(t))
    nonblank(t)   = (nonblank(t-1) + φ(t-1)) p_t(c)         ψ(g c) = Σ_t φ(t-1) p_t(c)
    blank(t)      = (blank(t-1) + nonblank(t-1)) p_t(–)

Both recurrences are linear, x(t) = (x(t-1) + a(t-1)) p_t, and so are sums: x(t) = P(t) Σ_{s≤t} a(s-1) / P(s-1), where
P(t) = p_1 … p_t. In logarithms all frames are one cumulative sum, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.decoding.scores import best

LOW: Final = float("-inf")
UNLIKELY: Final = -1e4  # log probability of what is not looked at, or cannot be said
CHOICES: Final = 40  # tokens, the decoder's most probable, that CTC is asked about


class PrefixSums(NamedTuple):
    """Of some prefixes, sums over their paths in the first 0 to T frames, in logarithms."""

    nonblank: Tensor  # (N, T + 1)
    blank: Tensor  # (N, T + 1)
    begun: Tensor  # (N,), log ψ


class JointScores:
    """Log-probabilities of what may follow, of the decoder and CTC together: a `LogitsProcessor`."""

    def __init__(
        self, log_probs: Tensor, lengths: Tensor, *, blank: int, eos: int, weight: float, choices: int = CHOICES
    ) -> None:
        """`log_probs` (B, T, V + 1) are CTC's, `lengths` (B,) of them a sound's; `weight` is λ."""
        if log_probs.device.type == "mps":  # which has no double precision
            log_probs = log_probs.cpu()
        self.log_probs = log_probs.double().clamp(min=UNLIKELY)
        self.lengths = lengths.to(log_probs.device)
        self.blank, self.eos, self.weight, self.choices = blank, eos, weight, choices
        self.silent = _cumulated(self.log_probs[..., blank])  # (B, T + 1), of blanks alone
        self.known: dict[tuple[int, tuple[int, ...]], int] = {}  # (prompt, prefix) to its place in …
        self.sums: PrefixSums | None = None  # … those of the step before, and of what they may grow by

    def __call__(self, logits: Tensor, written: list[list[int]], prompts: list[int]) -> Tensor:
        """(rows, V) of what each row has written; `prompts` are the numbers of their sounds."""
        decoder = logits.to(self.log_probs.device).double().log_softmax(-1)
        rows = torch.tensor(prompts, device=decoder.device)
        own = self._sums_of(written, prompts)
        ranked = decoder.index_fill(1, torch.tensor([self.eos], device=decoder.device), LOW)
        tokens = best(ranked, min(self.choices, logits.shape[1] - 1))[1]  # (rows, K)
        last = torch.tensor([line[-1] if line else self.blank for line in written], device=decoder.device)
        grown = self._grown(own, rows, last, tokens)
        self._keep(grown, written, prompts, tokens)

        ends = self.lengths[rows, None]  # (rows, 1)
        ended = torch.logaddexp(own.nonblank, own.blank).gather(1, ends).squeeze(1)  # log p(g)
        joint = torch.full_like(decoder, UNLIKELY)
        begun = grown.begun.view(tokens.shape) - own.begun[:, None]
        joint.scatter_(1, tokens, (1 - self.weight) * decoder.gather(1, tokens) + self.weight * begun)
        joint[:, self.eos] = (1 - self.weight) * decoder[:, self.eos] + self.weight * (ended - own.begun)
        # Where CTC has nothing to say of a prefix, −∞ − −∞, nothing follows from it.
        joint = joint.nan_to_num(UNLIKELY, neginf=UNLIKELY).clamp(min=UNLIKELY)
        broken = ~decoder.isfinite().all(-1, keepdim=True)
        return joint.masked_fill(broken, torch.nan).float().to(logits.device)

    def _sums_of(self, written: Sequence[Sequence[int]], prompts: Sequence[int]) -> PrefixSums:
        """Those of what each row has written."""
        if not any(written):
            return self._empty(torch.tensor(prompts, device=self.log_probs.device))
        if self.sums is None:
            return self._from_nothing(written, prompts)
        names = [(prompt, tuple(line)) for prompt, line in zip(prompts, written, strict=True)]
        places = torch.tensor([self.known.get(name, 0) for name in names], device=self.log_probs.device)
        found = PrefixSums(*(each[places] for each in self.sums))
        # A row that has ended waits for the others, and what is said of it counts for nothing.
        new = [row for row, name in enumerate(names) if name not in self.known and self.eos not in name[1]]
        if new:
            sums = self._from_nothing([written[row] for row in new], [prompts[row] for row in new])
            for old, made in zip(found, sums, strict=True):
                old[new] = made
        return found

    def _empty(self, rows: Tensor) -> PrefixSums:
        """Of the prefix without a token."""
        blank = self.silent[rows]
        return PrefixSums(torch.full_like(blank, LOW), blank, torch.zeros_like(blank[:, 0]))

    def _from_nothing(self, written: Sequence[Sequence[int]], prompts: Sequence[int]) -> PrefixSums:
        """The plain way to the same, token by token."""
        device = self.log_probs.device
        found = []
        for line, prompt in zip(written, prompts, strict=True):
            row = torch.tensor([prompt], device=device)
            sums, last = self._empty(row), self.blank
            for token in line:
                sums = self._grown(
                    sums, row, torch.tensor([last], device=device), torch.tensor([[token]], device=device)
                )
                last = token
            found.append(sums)
        return PrefixSums(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _grown(self, own: PrefixSums, rows: Tensor, last: Tensor, tokens: Tensor) -> PrefixSums:
        """Of prefixes (N,) of sounds `rows` that end in `last`, each with K `tokens` behind it: N · K of them."""
        choices = tokens.shape[1]
        frames = self.log_probs.shape[1]
        places = torch.arange(frames, device=tokens.device)
        said = self.log_probs[rows[:, None, None], places, tokens[..., None]]  # (N, K, T)
        either = torch.logaddexp(own.nonblank, own.blank)
        again = (tokens == last[:, None])[..., None]  # (N, K, 1)
        before = torch.where(again, own.blank[:, None], either[:, None])  # (N, K, T + 1), φ
        inside = places < self.lengths[rows, None]  # (N, T)
        entered = (before[..., :-1] + said).masked_fill(~inside[:, None], LOW)  # (N, K, T)
        nonblank = _recurrence(before, _cumulated(said))
        blank = _recurrence(nonblank, self.silent[rows, None].expand(-1, choices, -1))
        return PrefixSums(nonblank.flatten(0, 1), blank.flatten(0, 1), entered.logsumexp(-1).flatten())

    def _keep(
        self, grown: PrefixSums, written: Sequence[Sequence[int]], prompts: Sequence[int], tokens: Tensor
    ) -> None:
        self.sums, self.known = grown, {}
        choices = tokens.shape[1]
        for row, (line, prompt, own) in enumerate(zip(written, prompts, tokens.tolist(), strict=True)):
            for place, token in enumerate(own):
                self.known[prompt, (*line, token)] = row * choices + place


def _cumulated(logs: Tensor) -> Tensor:
    """log P of the first 0 to T of (…, T), (…, T + 1)."""
    return F.pad(logs.cumsum(-1), (1, 0))


def _recurrence(added: Tensor, product: Tensor) -> Tensor:
    """log x(t) of x(t) = (x(t-1) + a(t-1)) p_t and x(0) = 0: log a (…, T + 1), log P (…, T + 1)."""
    sums = (added - product)[..., :-1].logcumsumexp(-1)
    return torch.cat([torch.full_like(added[..., :1], LOW), sums + product[..., 1:]], dim=-1)
