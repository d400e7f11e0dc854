"""Pairs between several languages: directions, and a column that names the language."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.data.formats.text_pairs import read_pairs
from legato.data.sources import files
from legato.data.sources.files import FileOptions
from tiny_pair_files import both, complaint, put


@pytest.fixture
def languages(tmp_path: Path) -> str:
    for language, words in {"en": "one\ntwo\n", "de": "eins\nzwei\n", "fr": "un\ndeux\n"}.items():
        put(tmp_path, f"train.{language}", words)
    return str(tmp_path)


def test_directions_are_read_one_after_another_with_the_targets_language(languages: str) -> None:
    pairs = read_pairs("train.{}", FileOptions(root=languages), directions=["en-de", "de-en", "en-fr"])
    assert both(pairs)[::2] == [("one", "eins"), ("eins", "one"), ("one", "un")]
    assert pairs.tags == ["de", "de", "en", "en", "fr", "fr"]


def test_a_pair_of_several_directions_says_which_it_is_of(languages: str) -> None:
    pairs = read_pairs("train.{}", FileOptions(root=languages), directions=["en-de", "en-fr"])
    assert pairs.place(3) == "line 2 of en-fr"


def test_each_file_is_read_once(languages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    read = files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda path: seen.append(path.name) or read(path))  # type: ignore[func-returns-value]
    read_pairs("train.{}", FileOptions(root=languages), directions=["en-de", "de-en", "en-fr"])
    assert sorted(seen) == ["train.de", "train.en", "train.fr"]


@pytest.mark.parametrize("direction", ["ende", "en-", "-de", "en-de-fr", "en - de", ""])
def test_a_direction_that_is_none_is_named(languages: str, direction: str) -> None:
    message = complaint("train.{}", root=languages, directions=[direction])
    assert f"'{' '.join(direction.split())}' is no direction; write source-target, such as en-de" in message


def test_a_direction_named_twice_is_refused(languages: str) -> None:
    assert "'en-de' twice" in complaint("train.{}", root=languages, directions=["en-de", "en-fr", "en-de"])


@pytest.mark.parametrize("source", ["train.en", ["train.en", "train.de"]])
def test_directions_need_a_place_for_the_language(languages: str, source: str | list[str]) -> None:
    assert "has no {} for the language" in complaint(source, root=languages, directions=["en-de"])


def test_a_place_for_the_language_needs_directions() -> None:
    assert "data.directions=" in complaint("train.{}")


def test_files_of_directions_must_be_aligned(languages: str) -> None:
    put(Path(languages), "train.fr", "un\n")
    assert "line 2 of" in complaint("train.{}", root=languages, directions=["en-de", "en-fr"])


def test_a_column_may_hold_the_targets_language(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.csv", "source,target,lang\na,b,de\nc,d,fr\n"), tag_column="lang")
    assert (both(pairs), pairs.tags) == ([("a", "b"), ("c", "d")], ["de", "fr"])


@pytest.mark.parametrize(("tag", "expected"), [(1, ("b", "c")), (2, ("a", "c")), (3, ("a", "b"))])
def test_a_numbered_column_of_languages_is_not_taken_for_text(
    tmp_path: Path, tag: int, expected: tuple[str, str]
) -> None:
    assert both(read_pairs(put(tmp_path, "a.tsv", "a\tb\tc\n"), tag_column=tag)) == [expected]


def test_a_missing_language_is_named_with_its_line(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", "source,target,lang\na,b,de\nc,d, \n")
    assert f"{source}, line 3: 'lang' is empty" in complaint(source, tag_column="lang")
