"""Pairs of texts in two aligned files, what is tidied in them, and their hashes."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.data.formats.text_pairs import read_pairs, tidy
from legato.data.sources.files import FileOptions
from tiny_pair_files import both, complaint, put

# --- aligned files ---------------------------------------------------------------------------------


def test_two_aligned_files_are_pairs_line_by_line(tmp_path: Path) -> None:
    names = [put(tmp_path, "a.en", "one\ntwo\n"), put(tmp_path, "a.de.gz", "eins\nzwei\n")]
    pairs = read_pairs(names)
    assert both(pairs) == [("one", "eins"), ("two", "zwei")]
    assert pairs.lines == [1, 2]
    assert pairs.source == " + ".join(names)


def test_a_last_line_needs_no_newline(tmp_path: Path) -> None:
    pairs = read_pairs([put(tmp_path, "a.en", "one\ntwo"), put(tmp_path, "a.de", "eins\nzwei\n")])
    assert both(pairs) == [("one", "eins"), ("two", "zwei")]


def test_an_empty_line_in_the_middle_is_a_line(tmp_path: Path) -> None:
    pairs = read_pairs([put(tmp_path, "a.en", "one\n\nthree\n"), put(tmp_path, "a.de", "eins\nzwei\ndrei\n")])
    assert both(pairs) == [("one", "eins"), ("", "zwei"), ("three", "drei")]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e", "\x85"])
def test_only_a_newline_ends_a_line(tmp_path: Path, mark: str) -> None:
    pairs = read_pairs([put(tmp_path, "a.en", f"a{mark}b\nc\n"), put(tmp_path, "a.de", "x\ny\n")])
    assert pairs.targets == ["x", "y"]


def test_windows_newlines_end_lines_too(tmp_path: Path) -> None:
    pairs = read_pairs([put(tmp_path, "a.en", b"one\r\ntwo\r\n"), put(tmp_path, "a.de", "eins\nzwei\n")])
    assert both(pairs) == [("one", "eins"), ("two", "zwei")]


def test_names_lie_under_the_root(tmp_path: Path) -> None:
    put(tmp_path, "a.en", "one\n")
    put(tmp_path, "a.de", "eins\n")
    assert both(read_pairs(["a.en", "a.de"], FileOptions(root=str(tmp_path)))) == [("one", "eins")]


@pytest.mark.parametrize(("left", "right", "longer"), [(3, 2, "a.en"), (2, 3, "a.de")])
def test_files_of_different_lengths_are_told_with_where_they_part(
    tmp_path: Path, left: int, right: int, longer: str
) -> None:
    names = [put(tmp_path, "a.en", "x\n" * left), put(tmp_path, "a.de", "x\n" * right)]
    message = complaint(names)
    assert f"{names[0]} has {left} lines, {names[1]} {right}: line 3 of {tmp_path}/{longer} has no partner" in message


def test_many_lines_are_counted_with_commas(tmp_path: Path) -> None:
    message = complaint([put(tmp_path, "a.en", "x\n" * 1014), put(tmp_path, "a.de", "x\n" * 1013)])
    assert "has 1,014 lines" in message
    assert "line 1,014 of" in message


def test_a_missing_side_is_named_and_not_asked_of_the_hub(tmp_path: Path) -> None:
    put(tmp_path, "train.en", "x\n")
    message = complaint(["train.en", "train.de"], root=str(tmp_path))
    assert f"there is no file {tmp_path}/train.de" in message


def test_a_table_is_no_side_of_aligned_files(tmp_path: Path) -> None:
    names = [put(tmp_path, "a.en", "x\n"), put(tmp_path, "a.csv", "x\n")]
    assert "a.csv is a table; name it alone" in complaint(names)


@pytest.mark.parametrize("names", [["a.en"], ["a.en", "a.de", "a.fr"]])
def test_aligned_files_are_two(names: list[str]) -> None:
    assert f"[{', '.join(names)}] is not two files" in complaint(names)


def test_aligned_files_have_no_columns() -> None:
    assert "have no columns" in complaint(["a.en", "a.de"], columns=[1, 2])


# --- tidy text -------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tidy_text_holds_no_control_but_tab_and_newline(text: str) -> None:
    assert all(unicodedata.category(c) != "Cc" or c in "\t\n" for c in tidy(text))
    assert "\ufeff" not in tidy(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tidy_text_stays_as_it_is(text: str) -> None:
    assert tidy(tidy(text)) == tidy(text)


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 👍🏽 🇩🇪", "漢字かな", "e\u0301 \u0915\u094d\u0937", "a\tb\nc", "مرحبا\u200f", "a\u2028b"]
)
def test_any_script_and_emoji_are_tidy(text: str) -> None:
    assert tidy(text) == text


def test_texts_are_read_tidy_and_what_was_replaced_is_told(tmp_path: Path) -> None:
    pairs = read_pairs([put(tmp_path, "a.en", " one\x01two\x85\n"), put(tmp_path, "a.de", "eins\ufeff\u3000\n")])
    assert both(pairs) == [("one two", "eins")]
    assert pairs.note == "3 control characters replaced by a space"


# --- hashes ----------------------------------------------------------------------------------------


def test_the_hash_is_of_the_content_and_not_of_the_name(tmp_path: Path) -> None:
    tsv = read_pairs(put(tmp_path, "a.tsv", "a\tb\nc\td\n"))
    aligned = read_pairs([put(tmp_path, "a.en", "a\nc\n"), put(tmp_path, "a.de", "b\nd\n")])
    assert tsv.sha256 == aligned.sha256


@pytest.mark.parametrize("other", ["a\tb\ncd\t\n", "b\ta\nc\td\n", "c\td\na\tb\n", "a\tb\n"])
def test_other_pairs_have_another_hash(tmp_path: Path, other: str) -> None:
    one, two = put(tmp_path, "a.tsv", "a\tb\nc\td\n"), put(tmp_path, "b.tsv", other)
    assert read_pairs(one).sha256 != read_pairs(two).sha256


def test_tags_are_part_of_the_hash(tmp_path: Path) -> None:
    source = put(tmp_path, "a.tsv", "a\tb\tde\n")
    assert read_pairs(source).sha256 != read_pairs(source, tag_column=3).sha256
