"""Pairs of texts: where they come from, what is left out, what is held out, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import sys
import types
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.pair_filters import Report, clean, filter_lengths
from legato.data.pairs import Pairs, hold_out_pairs, read_pairs, tidy
from legato.errors import DataError


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def both(pairs: Pairs) -> list[tuple[str, str]]:
    return list(zip(pairs.sources, pairs.targets, strict=True))


def complaint(source: str | list[str], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_pairs(source, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def pairs_of(*rows: tuple[str, str], tags: list[str] | None = None) -> Pairs:
    lines = list(range(1, len(rows) + 1))
    return Pairs("a.tsv", [source for source, _ in rows], [target for _, target in rows], lines, "", tags)


# --- aligned files ---------------------------------------------------------------------------------


def test_two_aligned_files_are_pairs_line_by_line(tmp_path: Path) -> None:
    names = [put(tmp_path, "a.en", "one\ntwo\n"), put(tmp_path, "a.de.gz", "eins\nzwei\n")]
    pairs = read_pairs(names)
    assert both(pairs) == [("one", "eins"), ("two", "zwei")]
    assert pairs.lines == [1, 2]
    assert pairs.source_name == " + ".join(names)


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
    assert both(read_pairs(["a.en", "a.de"], root=str(tmp_path))) == [("one", "eins")]


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


# --- tables ----------------------------------------------------------------------------------------


def test_a_tsv_without_header_is_its_first_two_columns(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.tsv", "Go.\tGeh.\tCC-BY\nHi.\tHallo!\tCC-BY\n"))
    assert both(pairs) == [("Go.", "Geh."), ("Hi.", "Hallo!")]
    assert (pairs.note, pairs.lines) == ("columns 1 and 2, no header", [1, 2])


@pytest.mark.parametrize(
    "header",
    [
        ("source", "target"),
        ("src", "tgt"),
        ("src", "trg"),
        ("Text", "Summary"),
        ("input", "output"),
        ("document", "summary"),
        ("article", "highlights"),
        ("wrong", "right"),
        ("en", "de"),
        ("EN", "DE"),
        ("eng", "deu"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_header_of_well_known_names_is_a_header(tmp_path: Path, name: str, header: tuple[str, str]) -> None:
    mark = "," if name == "a.csv" else "\t"
    pairs = read_pairs(put(tmp_path, name, mark.join(("id", *header)) + f"\n7{mark}a{mark}b\n"))
    assert both(pairs) == [("a", "b")]
    assert pairs.note == f"columns {header[0]} and {header[1]}"
    assert pairs.place(0) == "line 2"


@pytest.mark.parametrize("row", ["It\tEs", "No\tNein", "So\tAm", "en\tnichts", "go\tgeh"])
def test_short_words_are_no_header(tmp_path: Path, row: str) -> None:
    assert read_pairs(put(tmp_path, "a.tsv", row + "\nx\ty\n")).note == "columns 1 and 2, no header"


def test_well_known_names_tell_which_is_the_source(tmp_path: Path) -> None:
    assert both(read_pairs(put(tmp_path, "a.csv", "target,source\nb,a\n"))) == [("a", "b")]


def test_named_columns_are_taken_as_named(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.csv", "en,de,fr\na,b,c\n"), columns=["fr", "en"])
    assert both(pairs) == [("c", "a")]
    assert pairs.note == ""


def test_numbered_columns_have_no_header(tmp_path: Path) -> None:
    assert both(read_pairs(put(tmp_path, "a.tsv", "1\ten\tde\n"), columns=[3, 2])) == [("de", "en")]


def test_a_plain_ending_with_tabs_is_a_tsv_and_says_so(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "deu.txt.gz", "Go.\tGeh.\n"))
    assert both(pairs) == [("Go.", "Geh.")]
    assert pairs.note == "read as tsv, columns 1 and 2, no header"


def test_the_format_may_be_said(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "deu.txt", "Go.\tGeh.\n"), format="tsv")
    assert (both(pairs), pairs.note) == ([("Go.", "Geh.")], "columns 1 and 2, no header")


def test_one_text_without_tabs_is_no_pairs(tmp_path: Path) -> None:
    assert "give two aligned files" in complaint(put(tmp_path, "a.txt", "one\ntwo\n"))


def rows_of(*rows: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, rows))


def test_two_text_columns_of_json_are_a_pair(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.jsonl", rows_of({"n": 1, "question": "a", "answer": "b"})))
    assert both(pairs) == [("a", "b")]
    assert pairs.note == "columns question and answer"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_translation_object_is_a_pair(tmp_path: Path, kind: str) -> None:
    rows = [{"id": "1", "translation": {"de": "Hund", "en": "dog"}}]
    source = put(tmp_path, "a.jsonl", rows_of(*rows))
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        source = str(tmp_path / "a.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    pairs = read_pairs(source)
    assert both(pairs) == [("Hund", "dog")]
    assert pairs.note == "columns translation.de and translation.en"


def test_a_translation_can_be_turned_round(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", rows_of({"translation": {"de": "Hund", "en": "dog"}}))
    assert both(read_pairs(source, columns=["translation.en", "translation.de"])) == [("dog", "Hund")]


def test_parquet_counts_rows(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"en": ["a", None], "de": ["b", "c"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pairs = read_pairs(str(tmp_path / "a.parquet"))
    assert both(pairs) == [("a", "b"), ("", "c")]
    assert pairs.place(1) == "row 2"


def test_pairs_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(list[Any]):
        column_names = ("translation",)

        def __getitem__(self, key: Any) -> Any:
            row = {"translation": {"en": "dog", "fr": "chien"}}
            return row if isinstance(key, int) else [row[key]]

    calls = []

    def load_dataset(name: str, config: str, split: str) -> Rows:
        calls.append((name, config, split))
        return Rows([0])

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    pairs = read_pairs("owner/opus:en-fr", split="test")
    assert (both(pairs), calls) == ([("dog", "chien")], [("owner/opus", "en-fr", "test")])


@pytest.mark.parametrize(
    ("name", "content", "listed"),
    [
        ("a.jsonl", '{"a": "1", "b": "2", "c": "3"}', "a, b, c"),
        ("a.jsonl", '{"a": "1"}', "a"),
        ("a.tsv", "en\tde\tfr\n1\t2\t3\n", "en, de, fr"),
    ],
)
def test_columns_that_cannot_be_guessed_are_listed(tmp_path: Path, name: str, content: str, listed: str) -> None:
    assert f"has the columns {listed}; say which two" in complaint(put(tmp_path, name, content))


def test_a_row_of_one_column_is_numbered(tmp_path: Path) -> None:
    source = put(tmp_path, "a.tsv", "a\tb\nc d\ne\tf\n")
    assert f"{source}, row 2 (line 2): 1 field, so there is no column 2" in complaint(source)


def test_a_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", rows_of({"en": "a", "de": "b"}, {"en": "a", "de": 3}))
    assert f"{source}, line 2: 'de' is int, not text" in complaint(source)


def test_half_a_surrogate_pair_is_named_with_its_line(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", '{"en": "a", "de": "b"}\n{"en": "a", "de": "b\\ud800"}')
    assert f"{source}, line 2: half a surrogate pair at character 1" in complaint(source)


def test_a_table_without_rows_holds_no_pairs(tmp_path: Path) -> None:
    assert "holds no pairs" in complaint(put(tmp_path, "a.csv", "en,de\n"))


@pytest.mark.parametrize("columns", [["en"], ["en", "de", "fr"], []])
def test_a_pair_has_two_columns(tmp_path: Path, columns: list[str]) -> None:
    assert f"data.columns names {len(columns)} of them" in complaint(put(tmp_path, "a.csv", "en\n"), columns=columns)


# --- several directions ----------------------------------------------------------------------------


@pytest.fixture
def languages(tmp_path: Path) -> str:
    for language, words in {"en": "one\ntwo\n", "de": "eins\nzwei\n", "fr": "un\ndeux\n"}.items():
        put(tmp_path, f"train.{language}", words)
    return str(tmp_path)


def test_directions_are_read_one_after_another_with_the_targets_language(languages: str) -> None:
    pairs = read_pairs("train.{}", root=languages, directions=["en-de", "de-en", "en-fr"])
    assert both(pairs)[::2] == [("one", "eins"), ("eins", "one"), ("one", "un")]
    assert pairs.tags == ["de", "de", "en", "en", "fr", "fr"]


def test_a_pair_of_several_directions_says_which_it_is_of(languages: str) -> None:
    pairs = read_pairs("train.{}", root=languages, directions=["en-de", "en-fr"])
    assert pairs.place(3) == "line 2 of en-fr"


def test_each_file_is_read_once(languages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or read(path))  # type: ignore[func-returns-value]
    read_pairs("train.{}", root=languages, directions=["en-de", "de-en", "en-fr"])
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


# --- what is left out ------------------------------------------------------------------------------


def test_pairs_with_an_empty_side_are_left_out_and_told() -> None:
    pairs = pairs_of(("a", "b"), ("", "c"), ("d", " \t"), ("", ""), ("e", "f"))
    kept, report = clean(pairs)
    assert both(kept) == [("a", "b"), ("e", "f")]
    assert kept.lines == [1, 5]
    assert str(report) == (
        "left out 3 of 5 pairs: 2 empty on one side (first: line 2), 1 empty on both sides (line 4)"
    )


def test_nothing_left_out_is_told_too() -> None:
    assert str(clean(pairs_of(("a", "b"), ("c", "d")))[1]) == "kept all 2 pairs"


def test_clean_pairs_are_the_same_pairs() -> None:
    pairs = pairs_of(("a", "b"))
    assert clean(pairs)[0] is pairs


def test_cleaning_keeps_tags_beside_their_pairs() -> None:
    assert clean(pairs_of(("", "b"), ("c", "d"), tags=["de", "fr"]))[0].tags == ["fr"]


def test_pairs_of_which_none_is_left_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.tsv: no pair is left: left out 1 of 1 pairs: 1 empty on one side"):
        clean(pairs_of(("", "b")))


def test_long_and_lopsided_pairs_are_left_out_and_told() -> None:
    sources = [[0] * n for n in (5, 9, 3, 4, 2, 0)]
    targets = [[0] * n for n in (5, 1, 12, 30, 20, 4)]
    kept, report = filter_lengths(sources, targets, 25, 3.5, pairs_of(*[("a", "b")] * 6))
    assert kept == [0, 1]  # nine to one is lopsided, but short
    assert str(report) == (
        "left out 4 of 6 pairs: 1 without tokens on one side (line 6), 1 longer than 25 tokens (line 4), "
        "2 more than 3.5 times longer on one side (first: line 3)"
    )


def test_without_pairs_a_length_report_counts() -> None:
    assert "longer than 2 tokens (pair 2)" in str(filter_lengths([[1], [1, 2, 3]], [[1], [1]], 2)[1])


def test_without_limits_only_empty_ids_are_left_out() -> None:
    assert filter_lengths([[0] * 1000, []], [[0], [0]])[0] == [0]


def test_two_reports_read_as_one() -> None:
    pairs, first = clean(pairs_of(("", "b"), ("c", "d"), ("e", "f")))
    second = filter_lengths([[1], [1, 2, 3]], [[1], [1]], 2, None, pairs)[1]
    assert str(first + second) == (
        "left out 2 of 3 pairs: 1 empty on one side (line 1), 1 longer than 2 tokens (line 3)"
    )


def test_large_numbers_in_a_report_have_commas() -> None:
    pairs = replace(pairs_of(*[("a", "b")] * 3), lines=[1000, 2000, 3000])
    report = filter_lengths([[1], [1, 1], [1, 1]], [[1]] * 3, 1, None, pairs)[1]
    assert (
        str(Report(29000, report.reasons)) == "left out 2 of 29,000 pairs: 2 longer than 1 tokens (first: line 2,000)"
    )


# --- holding out -----------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from("abcuvwxyz")), min_size=1, max_size=40)


@given(rows=ROWS, valid=st.floats(0.01, 0.6), test=st.sampled_from([0.0, 0.2, 0.39]))
@settings(deadline=None)
def test_holding_out_never_splits_a_source_and_loses_nothing(
    rows: list[tuple[str, str]], valid: float, test: float
) -> None:
    pairs = pairs_of(*rows)
    if len(set(pairs.sources)) < 3:
        return
    parts = hold_out_pairs(pairs, valid, test)
    assert list(parts) == (["train", "valid", "test"] if test else ["train", "valid"])
    assert all(len(part) for part in parts.values())
    assert sorted(line for part in parts.values() for line in part.lines) == pairs.lines
    sides = [set(part.sources) for part in parts.values()]
    assert sum(map(len, sides)) == len(set.union(*sides))


@given(rows=ROWS, shuffled=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_holding_out_does_not_depend_on_the_order(rows: list[tuple[str, str]], shuffled: Any) -> None:
    other = list(rows)
    shuffled.shuffle(other)
    for tags in (None, ["de"] * len(rows)):
        if len({source for source, _ in rows}) < 4:
            return
        try:
            here = hold_out_pairs(pairs_of(*rows, tags=tags), 0.3)
        except DataError:
            return
        there = hold_out_pairs(pairs_of(*other, tags=tags), 0.3)
        assert sorted(both(here["valid"])) == sorted(both(there["valid"]))


@given(rows=ROWS)
@settings(deadline=None)
def test_a_pair_and_its_reverse_are_held_out_together(rows: list[tuple[str, str]]) -> None:
    turned = [(target, source) for source, target in rows]
    tags = ["de"] * len(rows) + ["en"] * len(rows)
    try:
        parts = hold_out_pairs(pairs_of(*rows, *turned, tags=tags), 0.4)
    except DataError:  # all of them translations of one another
        return
    held = set(both(parts["valid"]))
    assert held == {(target, source) for source, target in held}
    assert not held & set(both(parts["train"]))


def test_about_the_share_asked_for_is_held_out() -> None:
    parts = hold_out_pairs(pairs_of(*[(f"sentence {i}", "x") for i in range(4000)]), 0.1, 0.05)
    assert len(parts["valid"]) == pytest.approx(400, abs=60)
    assert len(parts["test"]) == pytest.approx(200, abs=45)


def test_several_directions_hold_out_about_the_share_too() -> None:
    rows = [(f"en {i}", f"de {i}") for i in range(2000)]
    turned = [(target, source) for source, target in rows]
    pairs = pairs_of(*rows, *turned, tags=["de"] * 2000 + ["en"] * 2000)
    assert len(hold_out_pairs(pairs, 0.1)["valid"]) == pytest.approx(400, abs=80)


def test_more_pairs_move_no_pair_from_one_part_to_another() -> None:
    rows = [(f"sentence {i}", "x") for i in range(500)]
    few, many = (hold_out_pairs(pairs_of(*rows[:count]), 0.2) for count in (250, 500))
    assert set(few["valid"].sources) < set(many["valid"].sources)
    assert set(few["train"].sources) < set(many["train"].sources)


def test_what_is_held_out_is_the_same_for_ever() -> None:
    # Written down: a test set must not change with the version of anything.
    parts = hold_out_pairs(pairs_of(*[(word, "x") for word in ("one", "two", "three", "four", "five")]), 0.3, 0.2)
    assert {name: part.sources for name, part in parts.items()} == {
        "train": ["three"],
        "valid": ["two", "four", "five"],
        "test": ["one"],
    }


def test_a_few_sources_still_give_every_part_one() -> None:
    parts = hold_out_pairs(pairs_of(("a", "x"), ("b", "x"), ("c", "x")), 0.001, 0.001)
    assert sorted(len(part) for part in parts.values()) == [1, 1, 1]


def test_too_few_sources_to_hold_out_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.tsv has 1 different source, too few to hold out valid"):
        hold_out_pairs(pairs_of(("a", "x"), ("a", "y")), 0.1)


def test_the_parts_say_what_they_are_part_of() -> None:
    parts = hold_out_pairs(pairs_of(("a", "x"), ("b", "x")), 0.1)
    assert [part.source_name for part in parts.values()] == ["a.tsv (train)", "a.tsv (valid)"]
