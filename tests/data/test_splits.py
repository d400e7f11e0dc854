"""Hashes of what is read, and rows that are held out: both stay as they are, for runs that go on later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.data.digests import chance
from legato.data.formats.dialogues import hold_out_dialogues, read_dialogues
from legato.data.formats.labelled import read_labelled
from legato.data.formats.labels import hold_out_rows
from legato.data.formats.question_splits import split_questions
from legato.data.formats.questions import read_questions
from legato.data.formats.scored_pairs import hold_out_scored_pairs, read_scored_pairs
from legato.data.formats.tagged_text import read_tagged
from legato.data.formats.text import hold_out, read_text
from legato.data.formats.text_pairs import hold_out_pairs, read_pairs
from legato.data.formats.trees import read_trees
from legato.data.sources.columns import Role
from legato.data.splits import SplitData, by_group, by_hash, by_order, completed
from legato.errors import DataError

ROWS = [(f"text número {i}", f"other {i % 7}", i % 3) for i in range(20)]
FILES = {
    "labelled.tsv": "sentence\tlabel\n" + "".join(f"{a}\t{c}\n" for a, _, c in ROWS),
    "scored.tsv": "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{c / 2}\n" for a, b, c in ROWS),
    "pairs.tsv": "source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b, _ in ROWS),
    "text.csv": "text\n" + "".join(f"{a}\n" for a, _, _ in ROWS),
    "dialogues.jsonl": "".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b, _ in ROWS),
    "questions.jsonl": "".join(
        json.dumps({"question": f"{a}?", "context": f"{b} {c}", "answer": b}) + "\n" for a, b, c in ROWS
    ),
    "tagged.txt": "".join(f"{a.split()[2]} B-X\nis O\n\n" for a, _, _ in ROWS),
    "trees.mrg": "(S (NP (NNS dogs)) (VP (VBP bark)))\n",
}


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str], str]:
    def write(name: str) -> str:
        (tmp_path / name).write_text(FILES[name], encoding="utf-8")
        return str(tmp_path / name)

    return write


def numbers(texts: Iterable[str]) -> list[int]:
    return [int(text.rstrip("?").split()[-1]) for text in texts]


@pytest.mark.parametrize(
    ("name", "read", "digest"),
    [
        ("labelled.tsv", read_labelled, "f9e42f645b1f0dfe"),
        ("scored.tsv", read_scored_pairs, "406515df72248d41"),
        ("pairs.tsv", read_pairs, "413526911fcb45ba"),
        ("text.csv", read_text, "e01b2ea4d0b0c615"),
        ("dialogues.jsonl", read_dialogues, "b68b9a862a616f11"),
        ("questions.jsonl", read_questions, "89684b6c910d03a9"),
        ("tagged.txt", read_tagged, "671e1e4f20c414f9"),
        ("trees.mrg", read_trees, "62006570acf810f5"),
    ],
)
def test_the_hash_of_a_file_stays_the_same_for_ever(
    put: Callable[[str], str], name: str, read: Callable[[str], Any], digest: str
) -> None:
    assert read(put(name)).sha256.startswith(digest)


def test_the_same_rows_are_held_out_for_ever(put: Callable[[str], str]) -> None:
    assert numbers(hold_out_rows(read_labelled(put("labelled.tsv")), 0.3)["valid"].texts) == [0, 5, 10, 11, 17, 19]
    scored = hold_out_scored_pairs(read_scored_pairs(put("scored.tsv")), 0.3)
    assert numbers(scored["valid"].first) == [0, 5, 10, 11, 17, 19]
    pairs = hold_out_pairs(read_pairs(put("pairs.tsv")), 0.2, 0.2)
    assert numbers(pairs["valid"].sources) == [0, 11, 19]
    assert numbers(pairs["test"].sources) == [1, 5, 10, 15, 17, 18]
    assert numbers(hold_out(read_text(put("text.csv")), 0.2)["valid"].documents) == [16, 17, 18, 19]
    dialogues = hold_out_dialogues(read_dialogues(put("dialogues.jsonl")), 0.2)["valid"]
    assert numbers(row[0]["content"] for row in dialogues.rows) == [16, 17, 18, 19]
    questions, _ = split_questions(read_questions(put("questions.jsonl")), "context", 0.2, 0.2)
    assert numbers(each.question for each in questions["valid"].questions) == [7, 10, 12, 15]
    assert numbers(each.question for each in questions["test"].questions) == [1, 8, 11, 13]


KEYS = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=60)


@pytest.mark.parametrize("split", [by_hash, by_group])
@given(keys=KEYS, valid=st.floats(0.01, 0.5), test=st.floats(0.01, 0.4))
def test_every_row_is_in_one_part_and_rows_of_a_key_are_in_the_same(
    split: Callable[..., dict[str, list[int]]], keys: list[str], valid: float, test: float
) -> None:
    if len(set(keys)) < 3:
        return
    parts = split(keys, {"valid": valid, "test": test})
    assert sorted(row for rows in parts.values() for row in rows) == list(range(len(keys)))
    assert all(parts[part] for part in ("train", "valid", "test"))
    homes = [{keys[row] for row in rows} for rows in parts.values()]
    assert sum(map(len, homes)) == len(set(keys))


@given(keys=KEYS, share=st.floats(0.01, 0.9))
def test_more_rows_move_no_others(keys: list[str], share: float) -> None:
    below = {key for key in keys if chance(key) < share}
    if not 0 < len(below) < len(set(keys)):
        return
    held = by_hash(keys, {"valid": share})["valid"]
    assert {keys[row] for row in held} == below


def test_what_is_kept_trains() -> None:
    keys = [str(number) for number in range(30)]
    parts = by_hash(keys, {"valid": 0.9}, kept=keys[:25], left=0)
    assert parts["train"][:25] == list(range(25))
    assert len(parts["valid"]) == 5


def test_the_last_rows_are_held_out_and_one_row_is_too_few() -> None:
    assert by_order(10, 0.25, "a.txt", "row") == {"train": range(8), "valid": range(8, 10)}
    with pytest.raises(DataError, match=r"a\.txt has one row, too few to hold any out; give data\.valid"):
        by_order(1, 0.5, "a.txt", "row")


def test_sources_are_read_in_order_with_the_training_part_at_hand() -> None:
    data = SplitData(train="a", test="c")
    found = data.read(lambda source, split, train: (source, split, train))  # type: ignore[arg-type, return-value]
    assert found == {"train": ("a", "train", None), "test": ("c", "test", ("a", "train", None))}
    assert list(completed(found, lambda train: {"train": train, "valid": train})) == ["train", "valid", "test"]


@pytest.mark.parametrize("source", ["builtin:stdlib", "toy:copy"])
def test_a_source_with_parts_of_its_own_is_validated_on_one(source: str) -> None:
    read = SplitData(train=source).read(lambda source, split, train: f"{source} {split}")
    assert read == {"train": f"{source} train", "valid": f"{source} valid"}


def test_a_role_is_known_by_names_alone_or_together() -> None:
    role = Role("texts", "first + second, text")
    assert role.find(["Second", "id", " First "]) == [" First ", "Second"]
    assert role.find(["second", "Text"]) == ["Text"]
    assert role.find(["second"]) == []
    assert role.find(["first", "second", "text"], count=1) == ["text"]
    assert role.knows("SECOND")
