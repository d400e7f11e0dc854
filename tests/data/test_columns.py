"""Tagged words from columns, CoNLL-U and tables, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.tagged_text import read_tagged
from legato.data.sources.files import FileOptions
from legato.errors import DataError

CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP I-PER\n"
CONLLU = (
    "# sent_id = 1\n# text = don't go\n"
    "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_\n"
    "2.1\tever\tever\tADV\tRB\t_\t_\t_\t_\t_\n"
    "3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
)


def put(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def read(folder: Path, name: str, text: str, **how: Any) -> list[tuple[list[str], list[str]]]:
    found = read_tagged(put(folder, name, text), **how)
    return [(sentence.words, sentence.tags) for sentence in found.sentences]


def test_of_columns_the_first_and_the_last_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "eng.train", CONLL) == [(["EU", "rejects"], ["I-ORG", "O"]), (["Peter"], ["I-PER"])]


def test_others_are_read_where_they_are_named(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", CONLL, tag="2")[0] == (["EU", "rejects"], ["NNP", "VBZ"])
    assert read(tmp_path, "a.txt", CONLL, word=2, tag=3)[1] == (["NNP"], ["I-NP"])


def test_a_gzip_and_windows_newlines_are_no_different(tmp_path: Path) -> None:
    plain = read(tmp_path, "a.conll", CONLL)
    assert read(tmp_path, "a.conll.gz", CONLL.replace("\n", "\r\n")) == plain


def test_tabs_part_columns_where_there_are_any(tmp_path: Path) -> None:
    assert read(tmp_path, "a.tsv", "New York\tLOC\nis\tO\n") == [(["New York", "is"], ["LOC", "O"])]


def test_of_conllu_only_words_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a.conllu", CONLLU) == [(["do", "n't", "go"], ["AUX", "PART", "VERB"])]
    assert read(tmp_path, "b.conllu.gz", CONLLU, tag="XPOS") == [(["do", "n't", "go"], ["VBP", "RB", "VB"])]
    assert read(tmp_path, "c.conllu", CONLLU, tag="8", word="lemma") == [
        (["do", "not", "go"], ["aux", "advmod", "root"])
    ]
    assert read_tagged(put(tmp_path, "d.txt", CONLLU), FileOptions(format="conllu")).columns == ("form", "upos")


def test_rows_of_two_lists(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]},
        {"id": 2, "tokens": [], "ner_tags": []},
    ]
    text = "\n".join(map(json.dumps, rows))
    assert read(tmp_path, "a.jsonl", text) == [(["EU", "rejects"], ["B-ORG", "O"])]
    assert read(tmp_path, "a.csv", "words,tags\nEU rejects,B-ORG O\n") == [(["EU", "rejects"], ["B-ORG", "O"])]


def test_lines_are_remembered(tmp_path: Path) -> None:
    found = read_tagged(put(tmp_path, "a.txt", CONLL))
    assert found.where(found.sentences[1]) == f"{tmp_path}/a.txt, line 7"
    assert found.words == 3


def test_content_has_a_hash_of_its_own(tmp_path: Path) -> None:
    first = read_tagged(put(tmp_path, "a.txt", CONLL))
    assert first.sha256 == read_tagged(put(tmp_path, "b.txt", CONLL)).sha256
    assert first.sha256 != read_tagged(put(tmp_path, "c.txt", CONLL), tag="2").sha256
    assert first.select([0]).sha256 != first.sha256
    assert len(first.select([0]).sentences) == 1


@pytest.mark.parametrize(
    ("name", "text", "how", "parts"),
    [
        ("a.txt", "EU NNP O\nrejects O\n", {}, ["a.txt, line 2", "2 columns where the file has 3", "rejects"]),
        ("a.txt", "EU NNP O\nrejects\n", {"tag": 3}, ["a.txt, line 2", "1 column where column 3 is read"]),
        ("a.txt", "EU O\nNew York O\n", {}, ["a.txt, line 2", "3 columns where the file has 2"]),
        ("a.txt", "EU rejects\tO\n\tO\n", {}, ["a.txt, line 2", "the word is empty"]),
        ("a.txt", "EU\nrejects\n", {}, ["a.txt, line 1", "one column"]),
        ("a.txt", CONLL, {"tag": "ner"}, ["data.tag", "number from 1", "ner"]),
        ("a.txt", CONLL, {"tag": 0}, ["data.tag=0", "counted from 1"]),
        ("a.txt", CONLL, {"tag": 9}, ["a.txt has 4 columns, so there is no column 9"]),
        ("a.txt", "", {}, ["a.txt is empty"]),
        ("a.txt", "-DOCSTART- O\n\n", {}, ["a.txt holds no sentence"]),
        ("a.conllu", "1\tdo\tdo\n", {}, ["a.conllu, line 1", "3 columns, where CoNLL-U has 10"]),
        ("a.conllu", CONLLU, {"tag": "upso"}, ["data.tag=upso", "did you mean 'upos'?"]),
        ("a.jsonl", '{"words": ["a", "b", "c"], "tags": ["X", "Y"]}', {}, ["a.jsonl, line 1", "3 words but 2 tags"]),
        ("a.jsonl", '{"words": ["a", ""], "tags": ["X", "Y"]}', {}, ["a.jsonl, line 1", "empty"]),
        ("a.jsonl", '{"words": {"a": 1}, "tags": ["X"]}', {}, ["a.jsonl, line 1", "'words' is no list of words"]),
        ("a.jsonl", '{"words": ["a"], "y": ["X"]}', {}, ["say which are the tags", "data.tag=y"]),
        ("a.txt", CONLL, {"files": FileOptions(format="conlu")}, ["there is no format 'conlu'", "conllu"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, name: str, text: str, how: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(DataError) as refused:
        read_tagged(put(tmp_path, name, text), **how)
    for part in parts:
        assert part in str(refused.value)


def test_a_name_with_a_dot_is_a_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_tagged("eng.trian", FileOptions(root=str(tmp_path)))
