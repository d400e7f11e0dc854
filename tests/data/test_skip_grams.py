"""Words and the words near them: windows, subsampling, negatives; batches as a function of the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches_compared import same
from legato.data.batching.batch import IGNORE
from legato.data.batching.skip_grams import SkipGrams, chances, noise
from legato.errors import DataError

END, UNKNOWN, V = 0, 1, 12


def text(seed: int = 0, size: int = 400) -> Any:
    draw = np.random.default_rng(seed)
    return draw.choice(V, size, p=np.array([3, 1, 6, 5, 4, 3, 2, 2, 1, 1, 1, 1]) / 30).astype(np.uint16)


def made(ids: Any = None, **changes: Any) -> SkipGrams:
    ids = text() if ids is None else ids
    how = {"end": END, "left_out": [UNKNOWN], "rows": 16, "window": 3, "subsample": 0.0, "seed": 3, **changes}
    return SkipGrams(ids, np.bincount(ids, minlength=V), **how)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200), st.integers(0, 5))
def test_a_batch_is_a_function_of_the_step(step: int, before: int) -> None:
    one, other = made(subsample=1e-2), made(subsample=1e-2)
    other.at(before)
    left, right = one.at(step), other.at(step)
    assert same(left, right)
    assert left.tokens == right.tokens == int((left.targets != IGNORE).sum())  # type: ignore[union-attr]


def test_epochs_differ() -> None:
    batches = made()
    assert (batches.at(0).inputs.ids != batches.at(batches.steps_per_epoch).inputs.ids).any()


def lines_of(ids: Any) -> list[list[int]]:
    lines: list[list[int]] = [[]]
    for index in ids.tolist():
        if index == END:
            lines.append([])
        elif index != UNKNOWN:
            lines[-1].append(index)
    return lines


def test_windows_are_those_of_a_loop_over_words() -> None:
    ids = text()
    # Every window that there is, word by word: what a batch holds must be among them, nearest words always.
    wide, near = [], []
    for line in lines_of(ids):
        for place, word in enumerate(line):
            wide.append((word, line[max(0, place - 3) : place], line[place + 1 : place + 4]))
            near.append((word, line[max(0, place - 1) : place], line[place + 1 : place + 2]))
    batches = made(ids)
    seen = 0
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.targets is not None
        for word, row in zip(batch.inputs.ids[:, 0].tolist(), batch.targets.tolist(), strict=True):
            before, after = [w for w in row[:3] if w != IGNORE], [w for w in row[3:] if w != IGNORE]
            reach = max(len(before), len(after))
            assert any(
                word == w
                and before == left[len(left) - len(before) :]
                and after == right[: len(after)]
                and min(reach, len(left)) == len(before)
                and min(reach, len(right)) == len(after)
                for w, left, right in wide
            )
            assert any(word == w and before[-1:] == left and after[:1] == right for w, left, right in near)
            seen += 1
    assert seen == batches.steps_per_epoch * 16


def test_every_word_comes_once_an_epoch() -> None:
    ids = text()
    batches = made(ids, rows=1)
    words = [int(batches.at(step).inputs.ids[0, 0]) for step in range(batches.steps_per_epoch)]
    known = [int(i) for i in ids if i not in (END, UNKNOWN)]
    assert sorted(words) == sorted(known)


def test_frequent_words_stay_with_the_published_chance() -> None:
    counts = np.array([9000, 900, 100])
    kept = chances(counts, 0.01)
    for found, share in zip(kept, (0.9, 0.09, 0.01), strict=True):
        assert found == pytest.approx(min(1.0, (np.sqrt(share / 0.01) + 1) * 0.01 / share))
    assert (chances(counts, 0.0) == 1).all()


def test_subsampling_leaves_out_as_many_as_it_says() -> None:
    ids = text(size=20000)
    batches = made(ids, subsample=1e-2)
    batches.at(0)
    chance = chances(np.bincount(ids, minlength=V), 1e-2)
    chance[[END, UNKNOWN]] = 0
    assert len(batches._kept) == pytest.approx(chance[ids].sum(), rel=0.05)


def test_negatives_follow_the_counts_to_three_quarters() -> None:
    ids = text(size=5000)
    batches = made(ids, rows=2048)
    drawn = np.concatenate([batches.at(step).negatives.numpy().ravel() for step in range(20)])  # type: ignore[union-attr]
    weights = np.bincount(ids, minlength=V).astype(float) ** 0.75
    weights[[END, UNKNOWN]] = 0
    assert np.bincount(drawn, minlength=V) / len(drawn) == pytest.approx(weights / weights.sum(), abs=0.01)
    assert not {END, UNKNOWN} & set(drawn.tolist())


def test_rounding_leaves_no_gap_for_a_word_that_is_left_out() -> None:
    sums = noise(np.array([5, 7, 3, 0]), [0])
    assert np.searchsorted(sums, np.nextafter(1.0, 0), side="right") == 2


def test_a_text_of_unknown_words_is_refused() -> None:
    with pytest.raises(DataError, match="no word but unknown ones"):
        made(np.array([0, 1, 1, 0, 1]))
    with pytest.raises(DataError, match="holds no two known words"):
        made(np.array([0, 1, 5, 0, 1]))


def test_batches_are_as_large_as_the_text_allows() -> None:
    assert made(rows=10**6).rows == 64 * (int(np.isin(text(), [END, UNKNOWN], invert=True).sum()) // 64)
    assert made(rows=100).rows == 64
    assert made(rows=10).rows == 10
