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

from legato.decoding.options import SearchOptions
from legato.decoding.scores import best, filter_scores, log_sum_exp_, repetition_penalty, temperature

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


# The same on the model's device, the last (G, C) finite where the logits are.
Picks = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class SearchRandom:
    """The random numbers of every group, each a pure function of (seed, prompt, walk, step).

    So a prompt gets what it would get alone, wherever it stands in a batch and whatever stands beside it; one that
    is there twice gets the same twice, and others draw apart. `seeds` are (seed and prompt in one number, walk).
    Exactly so on a CPU; another device has a generator of its own for the noise of drawn beams.
    """

    def __init__(self, seeds: Sequence[tuple[int, int]], device: torch.device) -> None:
        self._walks = [np.random.default_rng(seed) for seed in seeds]
        self._noise = [torch.Generator(device) for _ in seeds]
        for generator, seed in zip(self._noise, seeds, strict=True):
            # One word: the CPU's generator reads no more than 32 bits of its seed.
            generator.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self._device = device

    def uniform(self, groups: Integers) -> Tensor:
        """A number in [0, 1) a group."""
        numbers = [self._walks[group].random(dtype=np.float32) for group in groups]
        return torch.tensor(numbers, device=self._device)[:, None]  # (G, 1)

    def gumbel(self, groups: Integers, size: int) -> Tensor:
        """−log(−log u), `size` of them a group."""
        drawn = [torch.rand(size, generator=self._noise[group], device=self._device) for group in groups]
        return torch.stack(drawn).log_().neg_().log_().neg_()  # (G, size)


class Chooser:
    """Turns logits into candidates, in the way that the options ask for."""

    def __init__(
        self,
        options: SearchOptions,
        ends: Sequence[int],
        suppress: Sequence[int],
        chance: SearchRandom,
        suppress_first: Sequence[int] = (),
        normalised: bool = False,
    ) -> None:
        """`normalised`: what comes are log-probabilities, which need not sum to 1."""
        self.options, self.normalised = options, normalised
        self.width = options.width
        self.chance = chance
        # What nobody may write, by whether it would be the first token, and by whether a hypothesis may end.
        self.forbidden = {
            (first, may_end): torch.tensor(
                sorted({*suppress, *(suppress_first if first else ()), *(() if may_end else ends)}), dtype=torch.long
            )
            for first in (True, False)
            for may_end in (True, False)
        }

    def __call__(
        self,
        logits: Tensor,  # (G · W, V)
        scores: Floats,  # (G, W)
        groups: Integers,  # (G,)
        seen: Tensor | None,  # (G · W, V), wanted where there is a repetition penalty
        allowed: Tensor | None,  # (G · W, V)
        may_end: bool,
        first: bool = False,
    ) -> Candidates:
        raw = logits.float()
        forbidden = self.forbidden[first, may_end].to(raw.device)
        before = torch.from_numpy(scores).to(raw.device)  # (G, W)
        if seen is None and allowed is None and not self.options.drawn:
            picks = self._taken(raw, before, forbidden)
        else:
            picks = self._chosen(raw, before, forbidden, groups, seen, allowed)
        # Float32 holds whole numbers exactly up to 2^24, more than any vocabulary.
        packed = torch.stack([part.float() for part in picks]).cpu().numpy()  # (5, G, C), the step's one wait
        return Candidates(
            tokens=packed[0].astype(np.int64),
            parents=packed[1].astype(np.int64),
            logprobs=packed[2],
            gains=packed[3],
            broken=~np.isfinite(packed[4, :, 0]),
        )

    def _taken(self, raw: Tensor, before: Tensor, forbidden: Tensor) -> Picks:
        """The best of every row, then the best of those: all that is vocabulary-sized is done in place.

        What `_chosen` takes, where it would draw nothing and shape nothing.
        """
        count, width = before.shape
        hidden = raw.index_select(-1, forbidden)  # (G · W, forbidden)
        raw.index_fill_(-1, forbidden, -torch.inf)
        # Twice the width, so that enough go on even when every row's best is an end.
        values, tokens = best(raw, 2 * width if width > 1 else 1)  # (G · W, C)
        # The sum counts what is forbidden: a score is a probability under the model.
        raw.index_copy_(-1, forbidden, hidden)
        largest = torch.cat([values[:, :1], hidden], dim=-1).amax(-1, keepdim=True)  # (G · W, 1)
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
        groups: Integers,
        seen: Tensor | None,
        allowed: Tensor | None,
    ) -> Picks:
        """The same for every option, from the scores of everything."""
        count, width = before.shape
        # Not finite exactly where some logit of the row is NaN or +∞, or all are −∞.
        total = 0 * raw.amax(-1, keepdim=True) if self.normalised else raw.logsumexp(-1, keepdim=True)  # (G · W, 1)
        shaped, shaped_total = raw, total
        if seen is not None:
            shaped = repetition_penalty(raw, seen, self.options.repetition_penalty)
            shaped_total = shaped.logsumexp(-1, keepdim=True)
        # The sum stays as it was without what is forbidden. In place: nobody picks these, so nobody asks for
        # their log-probability.
        shaped.index_fill_(-1, forbidden, -torch.inf)
        if allowed is not None:
            shaped = shaped.masked_fill(~allowed, -torch.inf)

        possible = None
        if width == 1:
            picked = self._walk(shaped, groups) if self.options.drawn else best(shaped, 1)[1]  # (G, 1)
        else:
            keys = (shaped + (before.view(-1, 1) - shaped_total)).view(count, -1)  # (G, W · V), scores of all
            if self.options.drawn:
                keys = self._drawn(keys, shaped, groups)
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

    def _drawn(self, scores: Tensor, shaped: Tensor, groups: Integers) -> Tensor:
        """Scores (G, W · V) with temperature, filters, and noise that makes the largest a fair draw."""
        left = filter_scores(shaped, self.options).reshape(scores.shape) > -torch.inf
        keys = temperature(scores, self.options.temperature) + self.chance.gumbel(groups, scores.shape[-1])
        return keys.masked_fill(~left, -torch.inf)

    def _walk(self, shaped: Tensor, groups: Integers) -> Tensor:
        """One token a row: the first whose cumulative probability exceeds a uniform number."""
        reached = filter_scores(shaped, self.options).softmax(-1).cumsum(-1)  # (G, V)
        total = reached[:, -1:]
        # Below the sum as rounded, so that the token found always has a probability above 0.
        below = torch.nextafter(total, torch.zeros_like(total))
        aim = torch.minimum(self.chance.uniform(groups) * total, below)  # (G, 1)
        found = torch.searchsorted(reached, aim, right=True)  # (G, 1)
        return found.clamp(max=shaped.shape[-1] - 1)
