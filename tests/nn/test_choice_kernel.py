"""What a search takes of logits by the C++ library, against `Chooser._taken`, its plain twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from legato.decoding.candidates import Chooser
from legato.decoding.options import SearchOptions
from legato.nn.kernels.choice import take_best
from legato.nn.kernels.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


def chooser_of(width: int, **more: object) -> Chooser:
    beams = {"search": "beam", "beams": width} if width > 1 else {}
    return Chooser(SearchOptions(**beams), ends=[], suppress=(), **more)  # type: ignore[arg-type]


def both(
    chooser: Chooser, logits: torch.Tensor, scores: torch.Tensor, forbidden: list[int]
) -> tuple[np.ndarray, ...]:
    banned = torch.tensor(forbidden, dtype=torch.long)
    before = logits.clone()
    found = take_best(logits, scores.numpy(), banned, chooser.normalised)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)  # they stay what they are
    assert found is not None
    picks = chooser._taken(before.contiguous(), scores, banned, None)
    return found, torch.stack([part.float() for part in picks]).numpy()


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    possible = expected[3] > -np.inf
    np.testing.assert_array_equal(found[3] > -np.inf, possible)
    for part in (0, 1):  # of what nobody takes the token is open
        np.testing.assert_array_equal(found[part][possible], expected[part][possible])
    for part in (2, 3):
        np.testing.assert_allclose(found[part][possible], expected[part][possible], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.isfinite(found[4]), np.isfinite(expected[4]))


@pytest.mark.parametrize("forbidden", [[], [0, 3, 4]])
@pytest.mark.parametrize("vocabulary", [5, 67, 1003, 5000])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_it_takes_what_the_plain_way_takes(width: int, vocabulary: int, forbidden: list[int]) -> None:
    torch.manual_seed(0)
    logits = (5 * torch.randn(3 * width, vocabulary + 7))[:, :vocabulary]
    scores = torch.randn(3, width)
    scores[1, -1] = -torch.inf
    assert_same(*both(chooser_of(width), logits, scores, forbidden))


@pytest.mark.parametrize("width", [1, 3])
def test_of_equal_scores_the_lower_row_and_token_is_taken(width: int) -> None:
    torch.manual_seed(0)
    logits = torch.randint(0, 3, (2 * width, 700)).float()
    found, expected = both(chooser_of(width), logits, torch.zeros(2, width), [])
    np.testing.assert_array_equal(found[:2], expected[:2])


def test_fewer_tokens_than_candidates_are_all_there_are() -> None:
    assert_same(*both(chooser_of(4), torch.randn(8, 2), torch.zeros(2, 4), []))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("width", [1, 2])
def test_what_is_not_finite_shows(width: int, bad: float, normalised: bool) -> None:
    logits = torch.randn(4 * width, 300)
    logits[0, 299], logits[width, 0] = bad, bad
    logits[2 * width : 3 * width] = -torch.inf
    found, expected = both(chooser_of(width, normalised=normalised), logits, torch.zeros(4, width), [])
    np.testing.assert_array_equal(np.isfinite(found[4, :, 0]), [False, False, False, True])
    np.testing.assert_array_equal(np.isfinite(found[4]), np.isfinite(expected[4]))


def test_log_probabilities_are_taken_as_they_are() -> None:
    logits = torch.randn(4, 300)
    assert_same(*both(chooser_of(2, normalised=True), logits, torch.zeros(2, 2), [7]))


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_log_probabilities_are_pytorchs(scale: float) -> None:
    torch.manual_seed(0)
    logits = scale * torch.randn(5, 1003)
    logits[2, 0] = -torch.inf
    found = take_best(logits, np.zeros((5, 1), dtype=np.float32), torch.empty(0, dtype=torch.long), False)
    assert found is not None
    expected = logits.log_softmax(-1).amax(-1)
    # What is subtracted from a logit is as exact as a float of its size.
    torch.testing.assert_close(torch.from_numpy(found[2, :, 0]), expected, rtol=1e-5, atol=2e-6 * max(1, scale / 3))


def test_other_widths_and_devices_are_left_to_pytorch() -> None:
    assert take_best(torch.zeros(1, 9).double(), np.zeros((1, 1), np.float32), torch.empty(0).long(), False) is None
