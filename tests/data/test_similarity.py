"""Pairs of texts: which columns are read, what is refused, and batches that follow from the step alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batches_compared import same
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, GroupBatches, collate_groups, flattened
from legato.data.formats.scored_pairs import (
    ScoredPairs,
    hold_out_scored_pairs,
    read_scored_pairs,
)
from legato.errors import DataError


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_columns_are_named_by_number(tmp_path: Path) -> None:
    file = write(tmp_path / "sts.csv", "main\tx\t5.000\tA man, dancing.\t A dance.\textra", "main\tx\t1.5\tb\tc")
    found = read_scored_pairs(file, columns=[4, 5, 3])
    assert found.groups == [("A man, dancing.", "A dance."), ("b", "c")]
    assert found.scores == [5.0, 1.5]
    assert found.lines == [1, 2]
    assert found.note == "column 4 as a text, column 5 as the other, column 3 as their score"


@pytest.mark.parametrize(
    ("header", "row", "scores", "negatives"),
    [
        ("sentence1\tsentence2\tscore", "a\tb\t0.5", [0.5], None),
        ("id\tanchor\tpositive\tnegative", "7\ta\tb\tc", None, ["c"]),
        ("query\tanswer", "a\tb", None, None),
        ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t702\t703\ta\tb", [1.0], None),
    ],
)
def test_usual_names_are_known(
    header: str, row: str, scores: list[float] | None, negatives: list[str] | None, tmp_path: Path
) -> None:
    found = read_scored_pairs(write(tmp_path / "pairs.txt", header, row))
    assert (found.first, found.second, found.scores, found.negatives) == (["a"], ["b"], scores, negatives)


def test_a_table_without_a_header_has_its_columns_in_order(tmp_path: Path) -> None:
    assert read_scored_pairs(write(tmp_path / "a.tsv", "a b\tc", "d\te")).groups == [("a b", "c"), ("d", "e")]
    assert read_scored_pairs(write(tmp_path / "b.tsv", "a\tb\tc", "d\te\tf")).negatives == ["c", "f"]
    assert read_scored_pairs(write(tmp_path / "c.csv", "a,b,1", "d,e,2")).scores == [1.0, 2.0]


@pytest.mark.parametrize("header", ["first\tsecond", "First\tSecond"])
def test_our_own_words_are_known(header: str, tmp_path: Path) -> None:
    assert read_scored_pairs(write(tmp_path / "a.tsv", header, "a\tb")).groups == [("a", "b")]


def test_words_above_texts_are_a_header_and_it_is_said(tmp_path: Path) -> None:
    lines = ["english\tparaphrase\tgrade", "a dog runs\tit runs\t2", "cats\ttwo cats\t1", "a b\tb\t0.5"]
    found = read_scored_pairs(write(tmp_path / "a.tsv", *lines))
    assert found.scores == [2, 1, 0.5]
    assert found.note == (
        "'english' as a text, 'paraphrase' as the other, 'grade' as their score, taking the first line for a header"
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["dog\thound", "cat\tkitten", "a big man\ta large man"],
        ["Rain!\tIt rains", "a dog runs\tit runs", "a cat\tthe cat"],
        ["dog\tdog", "a dog runs\tit runs", "a cat\tthe cat"],
    ],
)
def test_a_first_pair_of_short_texts_is_no_header(lines: list[str], tmp_path: Path) -> None:
    found = read_scored_pairs(write(tmp_path / "a.tsv", *lines))
    assert len(found) == 3
    assert "header" not in found.note


def test_a_csv_parted_by_semicolons_says_so(tmp_path: Path) -> None:
    found = read_scored_pairs(write(tmp_path / "a.csv", "first;second", "a, b;c"))
    assert found.groups == [("a, b", "c")]
    assert found.note == "'first' as a text, 'second' as the other, its columns separated by semicolons"


def test_json_and_gzip_are_read(tmp_path: Path) -> None:
    rows = [{"left": "a", "right": "b", "grade": 3}, {"left": "c", "right": "d", "grade": 1.5}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert read_scored_pairs(str(file)).scores == [3.0, 1.5]
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(b"a\tb\nc\td\n"))
    assert read_scored_pairs(str(tmp_path / "p.csv.gz")).second == ["b", "d"]


@pytest.mark.parametrize(
    ("name", "lines", "columns", "message"),
    [
        ("a.tsv", ["a\tb", "a\t "], None, "a.tsv, line 2: column 2 is empty"),
        ("a.tsv", ["sentence1\tsentence2", "\tb"], None, "a.tsv, line 2: 'sentence1' is empty"),
        ("a.csv", ["a", "b"], None, "a.csv has one column; pairs need two texts a row"),
        ("a.tsv", ["a\tb", "c"], None, "line 2"),
        (
            "a.tsv",
            ["sentence1\tsentence2\tscore", "a\tb\tmuch"],
            None,
            "line 2: the score is 'much', which is no num",
        ),
        ("a.tsv", ["a\tb\t1", "c\td\t2", "e\tf\tnan"], None, "line 3: the score is 'nan'"),
        ("a.tsv", ["x\ty\tz", "a\tb\t1", "c\td\t2"], None, "is that a header"),
        ("a.tsv", ["a\tb\tc\td"], None, "say which two are texts"),
        ("a.tsv", ["a\tb"], [1], "data.columns names 1 of them"),
        ("a.tsv", ["a\tb"], [1, 2, 3, 4], "data.columns names 4 of them"),
        ("a.tsv", ["a\tb"], ["x", "b"], "no column 'x'"),
        ("a.tsv", ["first\tsecond"], ["first", "second"], "holds no pairs"),
        ("a.csv", ['"a,b', "c,d"], None, "a.csv, line"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    name: str, lines: list[str], columns: list[str | int] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        read_scored_pairs(write(tmp_path / name, *lines), columns=columns)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def pairs(firsts: list[str]) -> ScoredPairs:
    return ScoredPairs(
        source="x", first=firsts, second=[f"{text}!" for text in firsts], lines=list(range(1, len(firsts) + 1))
    )


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=30), st.floats(0.01, 0.99))
def test_a_first_text_is_in_one_part_only(firsts: list[str], share: float) -> None:
    if len(set(firsts)) < 2:
        with pytest.raises(DataError, match="nothing can be held out"):
            hold_out_scored_pairs(pairs(firsts), share)
        return
    train, valid = hold_out_scored_pairs(pairs(firsts), share).values()
    assert len(train) + len(valid) == len(firsts)
    assert train.first
    assert valid.first
    assert not set(train.first) & set(valid.first)


def groups(count: int, texts: int = 2) -> list[list[Example]]:
    return [[Example([n + 1] * (1 + (n + k) % 5)) for k in range(texts)] for n in range(count)]


def test_a_batch_is_a_function_of_the_step() -> None:
    made = [GroupBatches(groups(23), BatchShape(batch_rows=5, seed=3), list(range(23))) for _ in range(2)]
    assert made[0].steps_per_epoch == 4
    for step in (9, 0, 9, 4):
        one, two = made[0].at(step), made[1].at(step)
        assert same(one, two)
        assert one.inputs.token_ids.shape[:2] == (5, 2)
        assert one.tokens == 5
    assert not torch.equal(
        made[0].at(0).inputs.ids[:, 0, 0], made[0].at(4).inputs.ids[:, 0, 0]
    )  # another epoch, another order


def test_an_epoch_has_no_row_twice() -> None:
    batches = GroupBatches(groups(20), BatchShape(batch_rows=4, seed=0))
    seen = torch.cat([batches.at(step).inputs.ids[:, 0, 0] for step in range(batches.steps_per_epoch)])
    assert sorted(seen.tolist()) == list(range(1, 21))


def test_a_batch_keeps_rows_together_when_it_is_split() -> None:
    batch = GroupBatches(groups(8, 3), BatchShape(batch_rows=8, seed=0), list(range(8))).at(0)
    parts = batch.split(3)
    assert [part.rows for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat([part.inputs.token_ids for part in parts]), batch.inputs.ids)
    assert [part.tokens for part in parts] == [3, 3, 2]
    for part in parts:
        assert part.labels is not None
        assert torch.equal(part.inputs.token_ids[:, 0, 0], part.labels.long() + 1)


def test_texts_lie_one_a_row_for_the_model() -> None:
    batch = collate_groups([[Example([1, 2]), Example([3])], [Example([4]), Example([5, 6, 7])]], pad=9, pad_to=4)
    flat = flattened(batch.inputs)
    assert flat.ids.tolist() == [[1, 2, 9, 9], [3, 9, 9, 9], [4, 9, 9, 9], [5, 6, 7, 9]]
    assert flat.lengths is not None
    assert flat.lengths.tolist() == [2, 1, 1, 3]
    assert batch.read == 7


def test_one_pair_is_not_enough() -> None:
    with pytest.raises(DataError, match="holds 1 pairs; give two at least"):
        GroupBatches(groups(1), BatchShape(batch_rows=2, seed=0))
