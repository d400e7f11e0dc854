"""Tables that could be misread without a word, and are refused instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.data.formats.labelled import read_labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.errors import ConfigError, DataError
from legato.runs.config import check, settings_for


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("head", ["label,text", "text,label"])
def test_a_comma_outside_quotation_marks_is_named(tmp_path: Path, head: str) -> None:
    file = written(tmp_path, "a.csv", f"{head}\npos,fine\npos,good, really good\n")
    with pytest.raises(DataError, match=r"a.csv, row 2 \(line 3\): 3 fields under 2 columns; put what holds commas"):
        read_labelled(file)


def test_rows_that_a_lone_quotation_mark_swallows_are_named(tmp_path: Path) -> None:
    rows = "".join(f"text {n},pos\n" for n in range(300))
    file = written(tmp_path, "a.csv", f'text,label\n"b,neg\n{rows}he said hi",neg\n')
    with pytest.raises(DataError, match=r"a field goes on for 302 lines in the row that begins at line 2; is a quot"):
        read_labelled(file)


def test_a_number_that_is_none_spoils_no_scale(tmp_path: Path) -> None:
    file = written(tmp_path, "a.tsv", "text\tscore\na\t0.5\nb\t1.5\nc\tnan\n")
    with pytest.raises(DataError, match=r"a.tsv, line 4: the label 'nan' is not a number"):
        Labels.of(read_labelled(file)).encode(read_labelled(file))


def test_texts_that_are_all_needed_are_not_held_out(tmp_path: Path) -> None:
    file = written(tmp_path, "a.tsv", "text\tlabel\n" + "a\tx\nb\ty\n" * 10)
    with pytest.raises(DataError, match="none of its 2 different texts can be held out for validation"):
        hold_out_rows(read_labelled(file), 0.1)


def test_one_column_is_not_both_text_and_label(tmp_path: Path) -> None:
    file = written(tmp_path, "a.tsv", "text\tlabel\na\tx\n")
    with pytest.raises(DataError, match=r"data.columns names 'text' twice"):
        read_labelled(file, columns=["text", "text"])


def test_an_object_is_no_label(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"text": "a", "label": {"x": 1}}\n')
    with pytest.raises(DataError, match="the label is an object"):
        Labels.of(read_labelled(file))


def test_a_text_that_is_missing_is_said_so(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"text": null, "label": "x"}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 1: 'text' is missing"):
        read_labelled(file, columns=["text", "label"])


@pytest.mark.parametrize(
    "given", [{"adapt": "bitfit", "adapt.rank": 4}, {"adapt": "full", "adapt.targets": ["query"]}]
)
def test_what_only_lora_has_is_refused_elsewhere(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"belongs to adapt=lora; adapt=\w+ has no use for it"):
        check(settings_for("lm", {"data.train": "x.txt", **given}))


def test_rows_a_step_are_for_tasks_that_have_rows() -> None:
    with pytest.raises(ConfigError, match=r"lm fills its batches by tokens; train.batch_rows is for tagging, "):
        check(settings_for("lm", {"data.train": "x.txt", "train.batch_rows": 8}))
