"""CTC's say in a decoder's search, against all paths one by one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.decoding.speech.ctc_prefix import UNLIKELY, JointScores

BLANK, EOS, TOKENS = 3, 2, (0, 1)  # of frames; the decoder's end is no token that CTC says
LENGTH = 5


def frames(seed: int) -> tuple[Tensor, Tensor]:
    """Log probabilities of two rows, the second shorter, with large ones in its padding."""
    draw = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(2, LENGTH, 4, generator=draw)).log_softmax(-1)
    lengths = torch.tensor([LENGTH, int(torch.randint(0, LENGTH, (1,), generator=draw))])
    log_probs[1, int(lengths[1]) :] = 7.0
    return log_probs, lengths


def said(row: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of tokens that frames (T, V) may say."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(row.shape[1]), repeat=row.shape[0]):
        tokens = tuple(token for token, _ in itertools.groupby(path) if token != BLANK)
        found[tokens] = found.get(tokens, 0.0) + math.exp(
            sum(float(frame[token]) for frame, token in zip(row.double(), path, strict=True))
        )
    return found


def log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def conditional(every: dict[tuple[int, ...], float], prefix: tuple[int, ...], token: int) -> float:
    """log p(token | prefix): of what begins so, what goes on so; the end is EOS."""

    def begun(tokens: tuple[int, ...]) -> float:
        return sum(value for line, value in every.items() if line[: len(tokens)] == tokens)

    whole = every.get(prefix, 0.0) if token == EOS else begun((*prefix, token))
    return max(UNLIKELY, log(whole) - log(begun(prefix))) if whole else UNLIKELY


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.lists(st.sampled_from(TOKENS), max_size=3), st.booleans())
def test_the_next_token_is_that_of_all_paths(seed: int, prefix: list[int], step_by_step: bool) -> None:
    log_probs, lengths = frames(seed)
    joint = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=1.0)
    logits = torch.zeros(2, 3)
    for count in range(len(prefix)) if step_by_step else ():
        joint(logits, [prefix[:count]] * 2, [0, 1])
    found = joint(logits, [prefix] * 2, [0, 1])
    for row in range(2):
        every = said(log_probs[row, : int(lengths[row])])
        possible = any(line[: len(prefix)] == tuple(prefix) for line in every)
        for token in (*TOKENS, EOS):
            wanted = conditional(every, tuple(prefix), token) if possible else UNLIKELY
            assert float(found[row, token]) == pytest.approx(wanted, abs=1e-4)


def test_weights_are_those_of_a_log_linear_mixture() -> None:
    log_probs, lengths = frames(3)
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    alone, decoder, both = (
        JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=weight)(logits, [[0], []], [0, 1])
        for weight in (1.0, 0.0, 0.3)
    )
    assert decoder == pytest.approx(logits.log_softmax(-1), abs=1e-5)
    likely = alone > UNLIKELY
    assert both[likely] == pytest.approx((0.7 * decoder + 0.3 * alone)[likely], abs=1e-4)


def test_rows_that_come_in_another_order_are_found_again() -> None:
    log_probs, lengths = frames(4)
    lengths = torch.tensor([LENGTH, LENGTH])
    log_probs = log_probs.log_softmax(-1)
    logits = torch.zeros(4, 3)
    joint = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=1.0)
    joint(logits, [[], [], [], []], [0, 0, 1, 1])
    order: tuple[list[list[int]], list[int]] = ([[1], [0], [1], [1]], [1, 0, 0, 1])
    fresh = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=1.0)
    assert joint(logits, *order) == pytest.approx(fresh(logits, *order), abs=1e-5)


def test_only_what_the_decoder_thinks_likely_is_looked_at() -> None:
    log_probs, lengths = frames(5)
    logits = torch.tensor([[2.0, 0.0, -3.0]] * 2)
    found = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=0.5, choices=1)(logits, [[], []], [0, 1])
    assert float(found[0, 1]) == UNLIKELY
    assert float(found[0, 0]) > UNLIKELY
    assert float(found[0, EOS]) > UNLIKELY


def test_rows_that_have_ended_cost_nothing_and_others_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, lengths = frames(6)
    joint = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=1.0)
    fresh = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=1.0)
    logits = torch.zeros(2, 3)
    wanted = fresh(logits, [[1, 0], [0]], [0, 1])[0]
    joint(logits, [[], []], [0, 1])
    joint(logits, [[1], [EOS]], [0, 1])
    monkeypatch.setattr(joint, "_from_nothing", None)
    assert joint(logits, [[1, 0], [EOS, 0]], [0, 1])[0] == pytest.approx(wanted, abs=1e-5)


def test_what_is_not_finite_stays_so() -> None:
    log_probs, lengths = frames(7)
    logits = torch.tensor([[0.0, torch.nan, 0.0], [0.0, 1.0, 0.0]])
    found = JointScores(log_probs, lengths, blank=BLANK, eos=EOS, weight=0.5)(logits, [[], []], [0, 1])
    assert found[0].isnan().all()
    assert found[1].isfinite().all()
