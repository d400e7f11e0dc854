"""Several files of one source: lists, patterns, and folders of texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.data.formats.labelled import read_labelled
from legato.data.formats.questions import read_questions
from legato.data.formats.tagged_text import read_tagged
from legato.data.formats.text import read_text
from legato.data.formats.text_pairs import read_pairs
from legato.data.sources.files import FileOptions
from legato.data.sources.patterns import source_files
from legato.data.splits import SplitData
from legato.errors import DataError
from legato.tasks.table_inputs import read_inputs
from tiny_questions import squad


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "b.csv").write_text("label,text\nbad,two and more\n")
    (tmp_path / "a.csv").write_text("text,label\none and more,good\n")
    (tmp_path / "whole.tsv").write_text("text\tlabel\none and more\tgood\ntwo and more\tbad\n")
    return tmp_path


def test_a_pattern_names_files_in_order_and_a_list_in_its_own(parts: Path) -> None:
    assert source_files("*.csv", str(parts)) == ["a.csv", "b.csv"]
    assert source_files(["b.csv", "a.csv"], str(parts)) == ["b.csv", "a.csv"]
    (parts / "[1].csv").write_text("x")
    assert source_files("[1].csv", str(parts)) == ["[1].csv"]
    with pytest.raises(DataError, match=r"no file matches nix\*\.csv; correct the pattern, or name a file"):
        source_files("nix*.csv")


def test_a_pattern_that_takes_in_another_splits_file_is_refused(parts: Path) -> None:
    data = SplitData(train="*.csv", valid="b.csv", root=str(parts))
    with pytest.raises(DataError, match=r"b\.csv is in data\.train and in data\.valid"):
        data.read(lambda source, split, train: source)


def test_several_tables_read_as_one_file_of_their_rows(parts: Path) -> None:
    table = read_labelled(str(parts / "whole.tsv"))
    for source in (str(parts / "?.csv"), [str(parts / "a.csv"), str(parts / "b.csv")]):
        rows = read_labelled(source)
        assert rows.sha256 == table.sha256
        assert rows.where(1) == f"{parts}/b.csv, line 2"
        assert rows.select([1]).where(0) == f"{parts}/b.csv, line 2"


def test_a_file_with_other_columns_is_named(parts: Path) -> None:
    (parts / "c.csv").write_text("text,gold\nthree,bad\n")
    with pytest.raises(
        DataError, match=r"c\.csv has no column 'label'; it has text and gold|c\.csv has no column 'label'"
    ):
        read_labelled(str(parts / "?.csv"))


def test_several_tables_are_pairs_and_two_texts_are_aligned(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text(f"{name} dog\tein Hund {name}\n")
        (tmp_path / f"{name}.txt").write_text(f"{name} dog\n")
    assert read_pairs(["a.tsv", "b.tsv"], FileOptions(root=str(tmp_path))).sources == ["a dog", "b dog"]
    assert read_pairs(str(tmp_path / "*.tsv")).targets == ["ein Hund a", "ein Hund b"]
    assert read_pairs(["a.txt", "b.txt"], FileOptions(root=str(tmp_path))).targets == ["b dog"]


def test_several_texts_are_documents(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one\n")
    (tmp_path / "2.txt").write_text("two\n")
    assert read_text(str(tmp_path / "*.txt")).documents == ["one\n", "two\n"]


def test_several_files_of_tags_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "1.conll").write_text("EU B-ORG\n")
    (tmp_path / "2.conll").write_text("dogs O\nrun O\n")
    text = read_tagged(str(tmp_path / "*.conll"))
    assert [sentence.words for sentence in text.sentences] == [["EU"], ["dogs", "run"]]
    assert text.where(text.sentences[1], 1) == f"{tmp_path}/2.conll, line 2"
    (tmp_path / "3.conll").write_text("dogs NNS O\n")
    with pytest.raises(
        DataError, match=r"3\.conll: words and tags are the columns 1 and 3, and in .*1\.conll 1 and 2"
    ):
        read_tagged(str(tmp_path / "*.conll"))


def test_several_files_of_questions_are_of_one_kind(tmp_path: Path) -> None:
    for name in ("a", "b"):
        squad(tmp_path / f"{name}.json", 2)
    one = read_questions(str(tmp_path / "a.json"))
    assert len(read_questions(str(tmp_path / "?.json")).questions) == 2 * len(one.questions)
    (tmp_path / "c.csv").write_text("question,context,answer\nwho,a dog,dog\n")
    with pytest.raises(DataError, match=r"c\.csv is a table, and .*a\.json is SQuAD's JSON"):
        read_questions([str(tmp_path / "a.json"), str(tmp_path / "c.csv")])


def test_a_folder_of_texts_has_a_folder_for_each_class(tmp_path: Path) -> None:
    for label, name, text in (("pos", "2", "fine film"), ("neg", "1", "dull film"), ("pos", "1", "merry film")):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{name}.txt").write_text(text + "\n")
    rows = read_labelled(str(tmp_path))
    assert list(zip(rows.texts, rows.labels, strict=True)) == [
        ("dull film", "neg"),
        ("merry film", "pos"),
        ("fine film", "pos"),
    ]
    assert rows.where(2) == f"{tmp_path}/pos/2.txt, line 1"
    assert read_inputs(str(tmp_path)).names == ["neg/1.txt", "pos/1.txt", "pos/2.txt"]
    (tmp_path / "pos" / "3.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"pos/3\.txt, line 1 is empty"):
        read_labelled(str(tmp_path))


def test_a_folder_with_slots_is_read_for_classes_and_for_tags(tmp_path: Path) -> None:
    (tmp_path / "seq.in").write_text("to Boston\nfrom Rome\n")
    (tmp_path / "seq.out").write_text("O B-city\nO B-city\n")
    (tmp_path / "label").write_text("flight\nfare\n")
    rows = read_labelled(str(tmp_path))
    assert (rows.texts, rows.labels) == (["to Boston", "from Rome"], ["flight", "fare"])
    assert [sentence.tags for sentence in read_tagged(str(tmp_path)).sentences] == [["O", "B-city"]] * 2
    assert read_inputs(str(tmp_path)).texts == ["to Boston", "from Rome"]
    (tmp_path / "seq.out").write_text("O B-city\nO\n")
    with pytest.raises(DataError, match=r"line 2: seq\.in has 2 words, seq\.out 1 tag; mend the line"):
        read_tagged(str(tmp_path))
    (tmp_path / "label").write_text("flight\n")
    with pytest.raises(DataError, match=r"seq\.in has 2 lines and .*label 1; give each sentence a line in both"):
        read_labelled(str(tmp_path))
