"""The sampler: from logits to each row's next token, by the row's own parameters.

All rows of a batch are chosen for together, and a step does no more than its most demanding row needs (`Level`): to
take the best token asks for one pass over the logits, to draw among the most probable ones for a sort. What the
sampler reads lies on the model's device and nothing asks the host, so that a step may be recorded. Draws are a
function of the row's seed and of how many tokens it has written (`draws.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from legato.decoding.draws import uniform
from legato.decoding.row import Row
from legato.decoding.row_settings import ALL, SMALLEST, Level, filtered_by_row, level_of
from legato.decoding.scores import LARGE, best, min_p, repetition_penalty, top_k, top_p
from legato.nn.block_cache import upload
from legato.nn.kernels.choice import take_best
from legato.nn.kernels.cuda import has_kernels

NEVER: Final = 0  # kinds of tokens that may not be written (nn/kernels/cuda/choice.py)
NOT_FIRST: Final = 1
NOT_BEFORE: Final = 2  # so many tokens are written


class Parameters(NamedTuple):
    """What some rows ask of the sampler, a number for each row (M,)."""

    temperature: Tensor  # 0 takes the best token
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    min_tokens: Tensor  # int32
    seeds: Tensor
    written: Tensor  # tokens so far, int64
    seen: Tensor | None  # (M, V), tokens that a row has, where some row has a penalty

    def at(self, rows: Tensor | slice) -> Parameters:
        return Parameters(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


class Sampler:
    """Chooses the tokens of rows that have their parameters in places of a batch."""

    def __init__(
        self,
        rows: int,
        vocabulary: int,
        ends: Sequence[int],
        suppress: Sequence[int],
        suppress_first: Sequence[int],
        normalised: bool,
        device: torch.device,
    ) -> None:
        """`normalised`: what comes are log-probabilities, which need not sum to 1."""
        self.vocabulary, self.normalised, self.device = vocabulary, normalised, device
        self.levels = np.zeros(rows, dtype=np.int64)
        whole = torch.zeros(rows, dtype=torch.float32, device=device)
        numbers = torch.zeros(rows, dtype=torch.long, device=device)
        self.parameters = Parameters(
            temperature=whole.clone(),
            top_k=numbers.clone(),
            top_p=whole + 1,
            min_p=whole.clone(),
            penalty=whole + 1,
            min_tokens=numbers.int(),
            seeds=numbers.clone(),
            written=numbers.clone(),
            seen=None,
        )
        kinds = dict.fromkeys(ends, NOT_BEFORE)
        for token in suppress_first:
            kinds[token] = kinds.get(token, 0) | NOT_FIRST
        kinds |= dict.fromkeys(suppress, NEVER)
        self._barred = torch.tensor(sorted(kinds), dtype=torch.long, device=device)  # (F,)
        self._barred_by_case: dict[
            tuple[bool, bool], Tensor
        ] = {}  # by whether it is the first, and whether too early
        self._kinds = torch.tensor([kinds[token] for token in sorted(kinds)], dtype=torch.int32, device=device)

    def level(self, rows: Sequence[int]) -> Level:
        """What the most demanding of some rows needs."""
        return Level(int(self.levels[list(rows)].max(initial=0)))

    def enter(self, rows: Sequence[Row]) -> None:
        """Rows begin in their places, or go on where they were."""
        options, places_there = [row.options for row in rows], [row.place for row in rows]
        floats = np.array(
            [
                [
                    max(one.temperature, 1e-30) if one.drawn else 0.0 for one in options
                ],  # 0 where float32 cannot hold it
                [max(one.top_p, SMALLEST) for one in options],  # 0 would leave nothing
                [one.min_p for one in options],
                [one.repetition_penalty for one in options],
            ],
            dtype=np.float32,
        )
        numbers = np.array(
            [
                places_there,
                [min(one.top_k, ALL) for one in options],
                [one.min_tokens for one in options],
                [row.seed for row in rows],
                [row.launched for row in rows],
            ],
            dtype=np.int64,
        )
        temperature, top_p, min_p, penalty = upload(floats, self.device)
        places, top_k, min_tokens, these_seeds, counts = upload(numbers, self.device)
        mine = self.parameters
        for part, new in (
            (mine.temperature, temperature), (mine.top_p, top_p), (mine.min_p, min_p), (mine.penalty, penalty),
            (mine.top_k, top_k), (mine.min_tokens, min_tokens.int()), (mine.seeds, these_seeds),
            (mine.written, counts),
        ):  # fmt: skip
            part.index_copy_(0, places, new)
        self.levels[places_there] = [level_of(one) for one in options]
        for row in rows:
            if row.options.repetition_penalty != 1:
                self.see(row.place, row.tokens)

    def see(self, row: int, tokens: Sequence[int]) -> None:
        """A row has these tokens, which a repetition penalty asks for."""
        seen = self.parameters.seen
        if seen is None:
            seen = torch.zeros(len(self.levels), self.vocabulary, dtype=torch.bool, device=self.device)
            self.parameters = self.parameters._replace(seen=seen)
        seen[row] = False
        seen[row, upload(np.unique(np.asarray(tokens, dtype=np.int64)), self.device)] = True

    def move(self, places: Tensor, to: Tensor, rows: Sequence[int], places_of: Sequence[int]) -> None:
        """Rows go on in other places, which the device and the host each know."""
        for part in self.parameters:
            if part is not None:
                part.index_copy_(0, to, part[places])
        self.levels[list(places_of)] = self.levels[list(rows)]

    def __call__(self, logits: Tensor, how: Parameters, level: Level, allowed: Tensor | None = None) -> Tensor:
        """(5, M) numbers of logits (M, V): each row's token, 0, its log-probability under the model and as penalties
        shape it, and the log of the sum of all, finite where the logits are. Chosen is what is `allowed` (M, V).
        """
        if (
            allowed is None
            and level <= Level.DRAWN
            and logits.is_cuda
            and len(self._barred) <= 16
            and self._has_kernels
        ):
            from legato.nn.kernels.cuda import choice

            forbidden = choice.Forbidden(self._barred, self._kinds, how.min_tokens)
            seeds = how.seeds if level == Level.DRAWN else None
            return choice.choose(logits, how.written, forbidden, how.temperature, seeds)[:, :, 0]
        if allowed is None and level == Level.TAKEN and logits.shape[-1] >= LARGE:
            made = self._best_on_host(logits, how)
            if made is not None:
                return made
        raw = logits.float()
        total = 0 * raw.amax(-1, keepdim=True) if self.normalised else raw.logsumexp(-1, keepdim=True)  # (M, 1)
        shaped, shaped_total = raw, total
        if level == Level.PENALISED and how.seen is not None:
            shaped = repetition_penalty(raw, how.seen, how.penalty.unsqueeze(-1))
            shaped_total = shaped.logsumexp(-1, keepdim=True)
        if len(self._barred):
            shaped = shaped.index_copy(-1, self._barred, self._allowed(shaped, how))
        if allowed is not None:
            shaped = shaped.masked_fill(~allowed, -torch.inf)
        token = best(shaped, 1)[1]  # (M, 1)
        if level > Level.TAKEN:
            token = torch.where((how.temperature > 0).unsqueeze(-1), self._drawn(shaped, how, level), token)
        gain = shaped.gather(-1, token) - shaped_total
        # What may not be written adds −∞; its log-probability nobody asks for.
        logprob = raw.gather(-1, token) - total
        return torch.cat([token.float(), torch.zeros_like(total), logprob, gain, total], dim=1).t()

    def _best_on_host(self, logits: Tensor, how: Parameters) -> Tensor | None:
        """The same by the CPU's kernel, where it is one, and the same tokens are barred for all rows."""
        if not logits.is_cpu:
            return None
        written = how.written.numpy()
        early, first = written < how.min_tokens.numpy(), written == 0
        if early.any() != early.all() or first.any() != first.all():
            return None
        case = bool(first[0]), bool(early[0])
        if case not in self._barred_by_case:
            kinds = self._kinds
            barred = (kinds == NEVER) | ((kinds & NOT_FIRST > 0) & case[0]) | ((kinds & NOT_BEFORE > 0) & case[1])
            self._barred_by_case[case] = self._barred[barred]
        before = np.zeros((len(logits), 1), dtype=np.float32)
        made = take_best(logits, before, self._barred_by_case[case], self.normalised)
        return None if made is None else torch.from_numpy(made[:, :, 0])

    @property
    def _has_kernels(self) -> bool:
        return not self.normalised and has_kernels()

    def _allowed(self, logits: Tensor, how: Parameters) -> Tensor:
        """The logits of tokens that may be barred, (M, F), −∞ where they are."""
        kinds, written = self._kinds, how.written.unsqueeze(-1)
        barred = (kinds == NEVER) | ((kinds & NOT_FIRST > 0) & (written == 0))
        barred = barred | ((kinds & NOT_BEFORE > 0) & (written < how.min_tokens.unsqueeze(-1)))
        return logits.index_select(-1, self._barred).masked_fill(barred, -torch.inf)

    def _drawn(self, logits: Tensor, how: Parameters, level: Level) -> Tensor:
        """One token a row (M, 1): the first whose cumulative probability exceeds a uniform number."""
        divisor = torch.where(how.temperature > 0, how.temperature, 1.0).unsqueeze(-1)
        scaled = (logits - logits.amax(-1, keepdim=True)) / divisor
        if level >= Level.FILTERED:
            scaled = _filtered(scaled, how)
        reached = scaled.softmax(-1).cumsum(-1)  # (M, V)
        total = reached[:, -1:]
        # Below the sum as rounded, so that the token has a probability above 0.
        below = torch.nextafter(total, torch.zeros_like(total))
        aim = torch.minimum(uniform(how.seeds, how.written).unsqueeze(-1) * total, below)
        return torch.searchsorted(reached, aim, right=True).clamp(max=logits.shape[-1] - 1)


def _filtered(scaled: Tensor, how: Parameters) -> Tensor:
    """Logits (M, V), −∞ for what top-k, top-p and min-p leave out (`scores.filter_scores`)."""
    if scaled.is_cpu:  # where to ask costs nothing, and to sort the whole vocabulary much
        settings = list(zip(how.top_k.tolist(), how.top_p.tolist(), how.min_p.tolist(), strict=True))
        left = torch.empty_like(scaled)
        for k, p, share in set(settings):
            rows = torch.tensor([setting == (k, p, share) for setting in settings])
            left[rows] = min_p(top_p(top_k(scaled[rows], k), p), share)
        return left
    return filtered_by_row(scaled, how.top_k, how.top_p, how.min_p)
