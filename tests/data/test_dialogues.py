"""Dialogues in the forms that people publish, and what is wrong with others, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.dialogues import hold_out_dialogues, read_dialogues
from legato.errors import DataError

HI = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
SHARED = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, HI[1]]


def jsonl(folder: Path, *rows: Any) -> str:
    path = folder / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": HI, "id": 7},
        {"conversations": SHARED},
        {"messages": PARTS},
        {"messages": json.dumps(HI)},
        {"prompt": "Hi", "completion": "Hello!"},
        {"prompt": HI[:1], "completion": HI[1:]},
        {"instruction": "Hi", "input": "", "output": "Hello!"},
        {"instruction": "Hi", "response": "Hello!"},
        {"question": "Hi", "answer": "Hello!", "id": 1},
        {"input": "Hi", "output": "Hello!"},
    ],
    ids=lambda row: "+".join(row),
)
def test_every_form_is_the_same_dialogue(row: Any, tmp_path: Path) -> None:
    assert read_dialogues(jsonl(tmp_path, row)).rows == [HI]


def test_what_an_instruction_is_about_stands_behind_it(tmp_path: Path) -> None:
    (row,) = read_dialogues(jsonl(tmp_path, {"instruction": "Translate.", "input": "dog", "output": "Hund"})).rows
    assert row[0]["content"] == "Translate.\ndog"


def test_a_system_message_comes_from_a_column_or_a_setting(tmp_path: Path) -> None:
    source = jsonl(tmp_path, {"question": "Hi", "answer": "Hello!", "system": "Be nice."})
    assert read_dialogues(source).rows[0][0] == {"role": "system", "content": "Be nice."}
    own = jsonl(tmp_path, {"messages": HI}, {"messages": [{"role": "system", "content": "Own."}, *HI]})
    rows = read_dialogues(own, system="Set.").rows
    assert [row[0]["content"] for row in rows] == ["Set.", "Own."]


@pytest.mark.parametrize(("ending", "between"), [("csv", ","), ("tsv", "\t")])
def test_tables_and_named_columns(ending: str, between: str, tmp_path: Path) -> None:
    path = tmp_path / f"d.{ending}"
    path.write_text(f"q{between}a\nHi{between}Hello!\n")
    assert read_dialogues(str(path), columns=["q", "a"]).rows == [HI]
    with pytest.raises(DataError, match=r"has the columns q, a, and none are known as a dialogue's; say which"):
        read_dialogues(str(path))


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"messages": [HI, HI]}), tmp_path / "d.parquet")
    assert read_dialogues(str(tmp_path / "d.parquet")).rows == [HI, HI]


def test_some_are_held_out_and_hashes_tell_them_apart(tmp_path: Path) -> None:
    rows = [{"question": f"q{number}", "answer": "a"} for number in range(10)]
    whole = read_dialogues(jsonl(tmp_path, *rows))
    kept, held = hold_out_dialogues(whole, 0.2).values()
    assert [len(part.rows) for part in (kept, held)] == [8, 2]
    assert kept.rows + held.rows == whole.rows
    assert len({whole.sha256, kept.sha256, held.sha256}) == 3
    with pytest.raises(DataError, match="has one dialogue, too few"):
        hold_out_dialogues(read_dialogues(jsonl(tmp_path, rows[0])), 0.2)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"messages": HI[:1]}, "line 2: nobody answers"),
        ({"messages": []}, "line 2: there are no messages"),
        ({"messages": "Hi"}, "line 2: 'Hi' is no list of messages"),
        ({"messages": [*HI, "Bye"]}, "line 2, message 3: not"),
        ({"messages": [{"role": "asistant", "content": "x"}]}, "no role 'asistant'; did you mean 'assistant'"),
        ({"messages": [HI[0], {"role": "assistant", "content": " "}]}, "line 2: an answer is empty"),
        ({"messages": [HI[0], {"role": "assistant", "content": None}]}, "its content is missing, not text"),
        ({"messages": [HI[0], {"role": "assistant", "content": [{"type": "image"}]}]}, "not image"),
        ({"messages": [HI[0], {"role": "assistant", "content": "\ud800"}]}, "line 2: half a surrogate"),
    ],
)
def test_bad_messages_are_one_line(row: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=line) as caught:
        read_dialogues(jsonl(tmp_path, {"messages": HI}, row))
    assert "d.jsonl, line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"question": "", "answer": "a"}, "line 2: 'question' is empty"),
        ({"question": "q", "answer": 3}, "line 2: 'answer' is a number, not text"),
        ({"question": "q", "answer": ""}, "line 2: 'answer' is empty"),
        ({"question": "q"}, "line 2: there is no 'answer'"),
    ],
)
def test_bad_pairs_are_one_line(row: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=line):
        read_dialogues(jsonl(tmp_path, {"question": "q", "answer": "a"}, row))
