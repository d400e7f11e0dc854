"""CTC's searches and sums, against all paths one by one."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.decoding.speech.ctc import Fusion, align, alignable, frames_needed, greedy, log_likelihood, prefix_beam
from legato.errors import DataError, LegatoError, NotFiniteError

Labels = tuple[int, ...]
SEEDS = st.integers(0, 10_000)
EVERY = 200  # beams; more than there are sequences of tokens here


def frames(seed: int, rows: int, length: int, size: int) -> tuple[Tensor, Tensor]:
    """Log probabilities of rows of different lengths, with large ones in their padding."""
    draw = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(rows, length, size, generator=draw)).log_softmax(-1)
    lengths = torch.randint(0, length + 1, (rows,), generator=draw)
    lengths[0] = length
    log_probs[torch.arange(length) >= lengths[:, None]] = 7.0
    return log_probs, lengths


def collapse(path: Labels, blank: int) -> Labels:
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def paths(row: Tensor, blank: int) -> dict[Labels, list[tuple[float, Labels]]]:
    """Every path of frames (T, V), with its log probability, by what it says."""
    values, found = row.double().tolist(), defaultdict(list)
    for path in itertools.product(range(row.shape[1]), repeat=row.shape[0]):
        total = sum(line[token] for line, token in zip(values, path, strict=True))
        found[collapse(path, blank)].append((total, path))
    return found


def log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 5), st.integers(1, 3), st.data())
def test_a_wide_beam_finds_every_sequence_with_the_sum_over_its_paths(
    seed: int, length: int, size: int, data: st.DataObject
) -> None:
    blank = data.draw(st.integers(0, size - 1))
    log_probs, lengths = frames(seed, 3, length, size)
    found = prefix_beam(log_probs, lengths, blank, beams=EVERY)
    for row, transcripts in enumerate(found):
        sums = {
            labels: log_sum([p for p, _ in ways])
            for labels, ways in paths(log_probs[row, : lengths[row]], blank).items()
        }
        assert {tuple(one.tokens): one.logprob for one in transcripts} == pytest.approx(sums, abs=1e-6)
        assert len(transcripts) == len(sums)
        scores = [one.score for one in transcripts]
        assert scores == sorted(scores, reverse=True) == [one.logprob for one in transcripts]


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 5), st.integers(2, 3))
def test_the_sum_over_alignments_is_that_of_all_paths_and_of_the_loss(seed: int, length: int, size: int) -> None:
    log_probs, _ = frames(seed, 1, length, size)
    every = paths(log_probs[0], blank=0)
    wanted = [*every, (1,) * (length + 1)]  # and one that does not fit
    rows = log_probs.expand(len(wanted), -1, -1)
    lengths = torch.full((len(wanted),), length)
    found = log_likelihood(rows, lengths, wanted, blank=0)
    sums = [log_sum([p for p, _ in every[labels]]) for labels in every]
    torch.testing.assert_close(found[:-1], torch.tensor(sums), atol=1e-5, rtol=0)
    assert found[-1] == -math.inf
    for labels, one in zip(wanted, found, strict=True):
        loss = F.ctc_loss(
            log_probs.transpose(0, 1), torch.tensor([labels]), (length,), (len(labels),), reduction="sum"
        )
        torch.testing.assert_close(one, -loss)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 5), st.integers(2, 3), st.data())
def test_an_alignment_is_the_most_probable_path(seed: int, length: int, size: int, data: st.DataObject) -> None:
    blank = data.draw(st.integers(0, size - 1))
    log_probs, lengths = frames(seed, 3, length, size)
    every = [paths(row[:count], blank) for row, count in zip(log_probs, lengths, strict=True)]
    wanted = [data.draw(st.sampled_from(sorted(row))) for row in every]
    for row, found in enumerate(align(log_probs, lengths, wanted, blank)):
        total, path = max(every[row][wanted[row]])
        assert found.logprob == pytest.approx(total, abs=1e-5)
        groups, at = [], 0
        for token, group in itertools.groupby(path):
            size_of = len(list(group))
            groups += [(token, at, at + size_of - 1)] if token != blank else []
            at += size_of
        assert [(span.token, span.first, span.last) for span in found.spans] == groups
        for span in found.spans:
            said = log_probs[row, span.first : span.last + 1, span.token].sum()
            assert span.logprob == pytest.approx(float(said), abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(0, 5), st.integers(1, 3))
def test_greedy_reads_the_most_probable_path(seed: int, length: int, size: int) -> None:
    log_probs, lengths = frames(seed, 3, length, size)
    tokens, counts = greedy(log_probs, lengths, blank=0)
    for row, count in enumerate(lengths.tolist()):
        path = tuple(log_probs[row, :count].argmax(-1).tolist())
        assert tuple(tokens[row, : counts[row]].tolist()) == collapse(path, 0)
        assert not tokens[row, counts[row] :].any()


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.lists(st.integers(1, 2), max_size=5), st.integers(0, 5))
def test_what_fits_is_what_some_path_says(seed: int, tokens: list[int], length: int) -> None:
    assert alignable(length, tokens) == (tuple(tokens) in paths(torch.zeros(length, 3), blank=0))


def test_repeats_need_a_blank_between_them() -> None:
    assert frames_needed([]) == 0
    assert frames_needed([1, 1, 1, 2]) == 6
    assert alignable(3, [1, 1])
    assert not alignable(2, [1, 1])


def test_the_most_probable_sequence_need_not_be_that_of_the_best_path() -> None:
    log_probs = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()  # – – is .36; a is .4 · .4 + 2 · .24 = .64
    lengths = torch.tensor([2])
    assert greedy(log_probs, lengths, blank=0)[1].item() == 0
    top = prefix_beam(log_probs, lengths, blank=0, beams=2)[0][0]
    assert top.tokens == [1]
    assert math.exp(top.logprob) == pytest.approx(0.64)


def test_rows_of_a_batch_are_searched_as_if_alone() -> None:
    log_probs, lengths = frames(5, 4, 30, 12)
    together = prefix_beam(log_probs, lengths, blank=3, beams=4)
    for row, count in enumerate(lengths.tolist()):
        alone = prefix_beam(log_probs[row : row + 1, :count], lengths[row : row + 1], blank=3, beams=4)[0]
        assert [one.tokens for one in alone] == [one.tokens for one in together[row]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together[row]])


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_no_sequence_is_in_a_narrow_beam_twice_nor_more_probable_than_it_is(seed: int) -> None:
    log_probs, lengths = frames(seed, 2, 25, 4)
    for row, transcripts in enumerate(prefix_beam(log_probs, lengths, blank=0, beams=3, max_tokens=2)):
        tokens = [one.tokens for one in transcripts]
        assert len({tuple(line) for line in tokens}) == len(tokens)
        rows, counts = log_probs[row].expand(len(tokens), -1, -1), lengths[row].expand(len(tokens))
        sums = log_likelihood(rows, counts, tokens, blank=0)
        assert (torch.tensor([one.logprob for one in transcripts]) <= sums + 1e-4).all()


def test_a_prefix_that_leaves_the_beam_and_comes_back_is_the_same_one() -> None:
    """Its continuations may have stayed: they would be there twice."""
    log_probs = torch.randn(64, 30, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    for transcripts in prefix_beam(log_probs, torch.full((64,), 30), blank=0, beams=4):
        assert len({tuple(one.tokens) for one in transcripts}) == len(transcripts) == 4


def test_pruned_tokens_begin_nothing() -> None:
    log_probs = torch.tensor([[[0.5, 0.3, 0.2]] * 3]).log()
    lengths = torch.tensor([3])
    by_count = prefix_beam(log_probs, lengths, blank=0, beams=EVERY, max_tokens=1)[0]
    by_share = prefix_beam(log_probs, lengths, blank=0, beams=EVERY, min_logprob=math.log(0.25))[0]
    assert by_count == by_share
    assert {tuple(one.tokens) for one in by_count} == {(), (1,), (1, 1)}


def next_tokens(prefixes: list[list[int]]) -> Tensor:
    """A language model that remembers its prefix: of V = 3 tokens, with 0 as its end."""
    tables = [torch.randn(3, generator=torch.Generator().manual_seed(hash(tuple(one)) % 1000)) for one in prefixes]
    return torch.stack(tables).log_softmax(-1)


@pytest.mark.parametrize("end", [None, 0])
def test_fusion_adds_the_language_model_and_the_bonus_of_each_sequence(end: int | None) -> None:
    log_probs, lengths = frames(1, 3, 4, 3)
    fusion = Fusion(next_tokens, weight=0.7, length_bonus=0.4, end=end)
    plain = prefix_beam(log_probs, lengths, blank=0, beams=EVERY)
    fused = prefix_beam(log_probs, lengths, blank=0, beams=EVERY, fusion=fusion)
    for before, after in zip(plain, fused, strict=True):
        wanted = {}
        for one in before:
            terms = [next_tokens([one.tokens[:n]])[0, token] for n, token in enumerate(one.tokens)]
            terms += [] if end is None else [next_tokens([one.tokens])[0, end]]
            wanted[tuple(one.tokens)] = one.logprob + 0.7 * float(sum(terms)) + 0.4 * len(one.tokens)
        assert {tuple(one.tokens): one.score for one in after} == pytest.approx(wanted, abs=1e-5)
        assert [one.score for one in after] == pytest.approx(sorted(wanted.values(), reverse=True), abs=1e-5)


def test_a_language_model_is_asked_for_a_prefix_once_while_it_is_in_the_beam() -> None:
    asked: list[tuple[int, ...]] = []

    def count(prefixes: list[list[int]]) -> Tensor:
        asked.extend(tuple(one) for one in prefixes)
        return next_tokens(prefixes)

    log_probs, _ = frames(1, 1, 4, 3)
    prefix_beam(log_probs, torch.tensor([4]), blank=0, beams=EVERY, fusion=Fusion(count, weight=1.0))
    assert len(asked) == len(set(asked))
    assert () in asked


def test_tokens_that_a_language_model_forbids_are_not_written() -> None:
    def without_one(prefixes: list[list[int]]) -> Tensor:
        return torch.tensor([[0.0, -math.inf, 0.0]]).expand(len(prefixes), -1)

    log_probs, lengths = frames(2, 2, 4, 3)
    found = prefix_beam(log_probs, lengths, blank=0, beams=EVERY, fusion=Fusion(without_one, weight=0.5))
    assert all(1 not in one.tokens for row in found for one in row)
    assert any(2 in one.tokens for row in found for one in row)


def test_tokens_that_do_not_fit_their_frames_are_named() -> None:
    log_probs, lengths = frames(0, 2, 3, 3)
    lengths[1] = 2
    with pytest.raises(DataError, match=r"row 1: 2 tokens take 3 frames at least, and there are 2"):
        align(log_probs, lengths, [[1, 2], [1, 1]], blank=0)
    impossible = torch.tensor([[[0.0, -math.inf]]])
    with pytest.raises(DataError, match="row 0: its frames give these tokens a probability of 0"):
        align(impossible, torch.tensor([1]), [[1]], blank=0)


@pytest.mark.parametrize("tokens", [[[0]], [[3]], [[-1]], [[1], [2]]])
def test_what_are_no_tokens_of_the_frames_is_said(tokens: list[list[int]]) -> None:
    log_probs = torch.zeros(1, 2, 3)
    for function in (align, log_likelihood):
        with pytest.raises(LegatoError, match=r"no token to align|token sequences for"):
            function(log_probs, torch.tensor([2]), tokens, 0)


def test_frames_that_are_no_numbers_are_said() -> None:
    with pytest.raises(NotFiniteError, match="NaN"):
        prefix_beam(torch.full((1, 2, 3), math.nan), torch.tensor([2]), blank=0)


def test_no_frames_say_nothing() -> None:
    log_probs, lengths = torch.zeros(2, 0, 3), torch.zeros(2, dtype=torch.long)
    assert [[one.tokens for one in row] for row in prefix_beam(log_probs, lengths, blank=0)] == [[[]], [[]]]
    assert [(one.spans, one.logprob) for one in align(log_probs, lengths, [[], []], blank=0)] == [([], 0.0)] * 2
    assert greedy(log_probs, lengths, blank=0)[1].tolist() == [0, 0]
    assert log_likelihood(log_probs, lengths, [[], [1]], blank=0).tolist() == [0.0, -math.inf]
