"""One step's candidates: from logits to a few (row, token) pairs a group, taken or drawn.

A *group* is one search: one prompt, or one walk of several from the same prompt. It has `width` rows of
the batch, side by side. For row r with the cumulative score s_r and the next-token log-probabilities
log p(v | r),

- *taken* candidates are the largest s_r + log p(v | r);
- *drawn* candidates are sampled without replacement in proportion to exp((s_r + log p(v | r)) / T), from
  the tokens that top-k, top-p and min-p leave each row. Adding Gumbel noise to the exponents and taking the
  largest does that (Gumbel-top-k: Vieira 2014; Kool et al. 2019, §2.3). For one row s_r cancels: it is the
  random walk, and one uniform number on the cumulative distribution draws the same at a fraction of the cost.

The vocabulary-sized work stays on the model's device; what comes to the host is a few numbers a group, in
one copy a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.decoding.draws import gumbel, uniform
from legato.decoding.options import NEUTRAL, SearchOptions
from legato.decoding.row_settings import Level, RowSettings
from legato.decoding.scores import LARGE, best, filter_scores, log_sum_exp_, repetition_penalty, temperature
from legato.nn.kernels.choice import take_best
from legato.nn.kernels.cuda import has_kernels

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass
class Candidates:
    """What may come next, for each of G groups: C candidates in the order taken or drawn."""

    tokens: Integers  # (G, C)
    parents: Integers  # (G, C), the row within the group that each one continues
    logprobs: Floats  # (G, C), of the token alone, under the model
    gains: Floats  # (G, C), what it adds to the score of its parent, −∞ where it may not
    broken: NDArray[np.bool_]  # (G,), where the logits are not finite

    @classmethod
    def of(cls, packed: Floats) -> Candidates:
        """From what `Chooser` made, (5, G, C), on the host."""
        return cls(
            tokens=packed[0].astype(np.int64),
            parents=packed[1].astype(np.int64),
            logprobs=packed[2],
            gains=packed[3],
            broken=~np.isfinite(packed[4, :, 0]),
        )


# The same on the model's device, the last (G, C) finite where the logits are.
Picks = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Chooser:
    """Turns logits into candidates, in the way that the options ask for. Nothing in it asks the device."""

    def __init__(
        self,
        options: SearchOptions,
        ends: Sequence[int],
        suppress: Sequence[int],
        suppress_first: Sequence[int] = (),
        normalised: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        """`normalised`: what comes are log-probabilities, which need not sum to 1."""
        self.options, self.normalised = options, normalised
        self.width = options.width
        # Whether tokens are taken, or one drawn, of all there are, for which CUDA has kernels.
        whole = all(getattr(options, name) == value for name, value in NEUTRAL.items() if name != "temperature")
        self._able = not (normalised or (options.drawn and self.width > 1)) and has_kernels()
        self._quick = whole and self._able
        # What nobody may write, by whether it would be the first token, and by whether a hypothesis may end.
        self.forbidden = {
            (first, may_end): torch.tensor(
                sorted({*suppress, *(suppress_first if first else ()), *(() if may_end else ends)}),
                dtype=torch.long,
                device=device,
            )
            for first in (True, False)
            for may_end in (True, False)
        }
        self._least = torch.tensor([options.min_tokens], dtype=torch.int32, device=device)
        ending = set(ends) - set(suppress)
        # Of what is forbidden where nobody may end, what is an end and nothing worse, (forbidden,).
        self._ending = {
            first: torch.tensor([int(token) in ending - (set(suppress_first) if first else set())
                                 for token in self.forbidden[first, False].tolist()],
                                dtype=torch.bool, device=device)
            for first in (True, False)
        }  # fmt: skip

    def __call__(
        self,
        logits: Tensor,  # (G · W, V)
        scores: Tensor,  # (G, W)
        steps: Tensor,  # (G,), tokens that each group has written
        seeds: Tensor | None = None,  # (G,), wanted where tokens are drawn
        seen: Tensor | None = None,  # (G · W, V), wanted where there is a repetition penalty
        allowed: Tensor | None = None,  # (G · W, V)
        *,
        may_end: bool | None = None,  # None: where `steps` say so
        first: bool = False,
        rows: RowSettings | None = None,
        level: Level | None = None,
    ) -> Tensor:
        """Candidates as (5, G, C) numbers on the device, for `Candidates.of`.

        With `rows` each group, of one row, has settings of its own in place of the options', and `level` is the most
        that any of them needs. Float32 holds whole numbers exactly up to 2^24, more than any vocabulary.
        """
        if may_end is None:
            may_end = True if self.options.min_tokens == 0 else None
        forbidden = self.forbidden[first, may_end is True]
        drawn, quick = self.options.drawn, self._quick and seen is None
        if rows is not None:
            drawn, quick = level != Level.TAKEN, self._able and level in (Level.TAKEN, Level.DRAWN)
            seen = seen if level == Level.PENALISED else None
        if quick and logits.is_cuda and allowed is None:
            from legato.nn.kernels.cuda import choice

            kinds = self._ending[first].int() * 2 if may_end is None else torch.zeros_like(forbidden, dtype=torch.int32)
            barred = choice.Forbidden(forbidden, kinds, self._least)
            fits = len(forbidden) <= choice.MOST_FORBIDDEN
            if fits and self.width == 1:
                temperature = max(self.options.temperature, 1e-30) if rows is None else rows.temperature
                return choice.choose(logits, steps, barred, temperature, seeds if drawn else None)
            if fits and choice.fits_beams(logits.shape[-1], self.width):
                return choice.choose_beams(logits, scores, steps, barred)
        raw = logits.float()
        may: Tensor | None = None  # (G · W, forbidden), where what is forbidden is not, after all
        if may_end is None:
            grown = (steps >= self.options.min_tokens).repeat_interleave(self.width)  # (G · W,)
            may = grown.unsqueeze(-1) & self._ending[first]
        if seen is None and allowed is None and not drawn:
            picks = self._taken(raw, scores, forbidden, may)
        else:
            picks = self._chosen(raw, scores, forbidden, may, steps, seeds if drawn else None, seen, allowed, rows)
        return torch.stack([part.float() for part in picks])  # (5, G, C)

    def on_host(
        self, logits: Tensor, scores: Floats, *, may_end: bool | None = None, first: bool = False
    ) -> Floats | None:
        """The same by the CPU kernels, where logits are taken as they are; None where it cannot be."""
        if may_end is None or self.options.drawn or logits.shape[-1] < LARGE:
            return None
        return take_best(logits, scores, self.forbidden[first, may_end], self.normalised)

    def _taken(self, raw: Tensor, before: Tensor, forbidden: Tensor, may: Tensor | None) -> Picks:
        """The best of every row, then the best of those: all that is vocabulary-sized is done in place.

        What `_chosen` takes, where it would draw nothing and shape nothing.
        """
        count, width = before.shape
        hidden = raw.index_select(-1, forbidden) if len(forbidden) else None  # (G · W, forbidden)
        _forbid_(raw, forbidden, may)
        # Twice the width, so that enough go on even when every row's best is an end.
        values, tokens = best(raw, 2 * width if width > 1 else 1)  # (G · W, C)
        # The sum counts what is forbidden: a score is a probability under the model.
        largest = values[:, :1]
        if hidden is not None:
            raw.index_copy_(-1, forbidden, hidden)
            largest = torch.cat([largest, hidden], dim=-1).amax(-1, keepdim=True)  # (G · W, 1)
        # 0 of a log-probability, not finite where that is not.
        total = 0 * largest if self.normalised else log_sum_exp_(raw, largest)  # (G · W, 1)
        whole = total.view(count, width).sum(-1, keepdim=True)  # (G, 1), finite if each of them is
        logprobs = values - total  # (G · W, C)
        if width == 1:
            return tokens, torch.zeros_like(tokens), logprobs, logprobs, whole
        # In order of token, so that equal scores go to the lower one, of the lower row.
        tokens, order = tokens.sort(-1)
        keys = values.gather(-1, order) + (before.view(-1, 1) - total)  # (G · W, C)
        reached, picked = best(keys.view(count, -1), 2 * width)  # (G, C)
        tokens = tokens.view(count, -1).gather(-1, picked)
        logprobs = logprobs.gather(-1, order).view(count, -1).gather(-1, picked)
        # False too for the NaN (−∞ − −∞) of a group that is done.
        gains = logprobs.masked_fill(~(reached > -torch.inf), -torch.inf)
        return tokens, picked // values.shape[-1], logprobs, gains, whole.expand_as(picked)

    def _chosen(
        self,
        raw: Tensor,
        before: Tensor,
        forbidden: Tensor,
        may: Tensor | None,
        steps: Tensor,
        seeds: Tensor | None,
        seen: Tensor | None,
        allowed: Tensor | None,
        rows: RowSettings | None,
    ) -> Picks:
        """The same for every option, from the scores of everything."""
        count, width = before.shape
        # Not finite exactly where some logit of the row is NaN or +∞, or all are −∞.
        total = 0 * raw.amax(-1, keepdim=True) if self.normalised else raw.logsumexp(-1, keepdim=True)  # (G · W, 1)
        shaped, shaped_total = raw, total
        if seen is not None:
            penalty = self.options.repetition_penalty if rows is None else rows.penalty.unsqueeze(-1)
            shaped = repetition_penalty(raw, seen, penalty)
            shaped_total = shaped.logsumexp(-1, keepdim=True)
        # The sum stays as it was without what is forbidden. In place: nobody picks these, so nobody asks for
        # their log-probability.
        _forbid_(shaped, forbidden, may)
        if allowed is not None:
            shaped = shaped.masked_fill(~allowed, -torch.inf)

        possible = None
        if width == 1:
            picked = best(shaped, 1)[1] if seeds is None else self._walk(shaped, seeds, steps, rows)  # (G, 1)
        else:
            keys = (shaped + (before.view(-1, 1) - shaped_total)).view(count, -1)  # (G, W · V), scores of all
            if seeds is not None:
                keys = self._drawn(keys, shaped, seeds, steps)
            values, picked = best(keys, 2 * width)  # (G, C)
            possible = values > -torch.inf
        parents = picked // raw.shape[-1]  # (G, C)

        def of_picked(flat: Tensor, sums: Tensor) -> Tensor:
            """Log-probabilities of the picked tokens, from logits and their log-sum-exp."""
            return flat.reshape(count, -1).gather(-1, picked) - sums.view(count, width).gather(-1, parents)

        logprobs = of_picked(raw, total)  # (G, C)
        gains = logprobs if shaped is raw else of_picked(shaped, shaped_total)  # (G, C)
        if possible is not None:
            gains = gains.masked_fill(~possible, -torch.inf)
        whole = total.view(count, width).sum(-1, keepdim=True)  # (G, 1)
        return picked % raw.shape[-1], parents, logprobs, gains, whole.expand_as(picked)

    def _drawn(self, scores: Tensor, shaped: Tensor, seeds: Tensor, steps: Tensor) -> Tensor:
        """Scores (G, W · V) with temperature, filters, and noise that makes the largest a fair draw."""
        left = filter_scores(shaped, self.options).reshape(scores.shape) > -torch.inf
        keys = temperature(scores, self.options.temperature) + gumbel(seeds, steps, scores.shape[-1])
        return keys.masked_fill(~left, -torch.inf)

    def _walk(self, shaped: Tensor, seeds: Tensor, steps: Tensor, rows: RowSettings | None) -> Tensor:
        """One token a row: the first whose cumulative probability exceeds a uniform number."""
        left = filter_scores(shaped, self.options) if rows is None else rows.filtered(shaped)
        reached = left.softmax(-1).cumsum(-1)  # (G, V)
        total = reached[:, -1:]
        # Below the sum as rounded, so that the token found always has a probability above 0.
        below = torch.nextafter(total, torch.zeros_like(total))
        aim = torch.minimum(uniform(seeds, steps).unsqueeze(-1) * total, below)  # (G, 1)
        found = torch.searchsorted(reached, aim, right=True).clamp(max=shaped.shape[-1] - 1)  # (G, 1)
        if rows is None:
            return found
        return torch.where((rows.temperature > 0).unsqueeze(-1), found, best(shaped, 1)[1])


def _forbid_(logits: Tensor, tokens: Tensor, may: Tensor | None) -> None:
    """−∞ for these tokens (N,) in every row of (B, V), but where they `may` (B, N)."""
    if not len(tokens):
        return
    if may is None:
        logits.index_fill_(-1, tokens, -torch.inf)
    else:
        logits.index_copy_(-1, tokens, logits.index_select(-1, tokens).masked_fill(~may, -torch.inf))
