"""Treebanks: trees from every kind of source."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.trees import read_trees
from legato.data.sources.files import FileOptions
from legato.errors import DataError

DOGS = "(S (NP (NNS dogs)) (VP (VBP chase) (NP (NNS cats))))"


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def put_zip(folder: Path, name: str, **members: str) -> str:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bank/", "")
        for member, content in members.items():
            archive.writestr(f"bank/{member}.mrg", content)
        archive.writestr("bank/README", "not a tree")
    return str(path)


def first_words(source: str | list[str], **settings: Any) -> list[str]:
    return [tree.words[0] for tree in read_trees(source, FileOptions(**settings)).trees]


def complaint(source: str | list[str], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_trees(source, FileOptions(**settings))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["a.mrg", "a.txt", "a.mrg.gz"])
def test_a_file_is_all_its_trees(tmp_path: Path, name: str):
    file = put(tmp_path, name, f"{DOGS}\n( (NP (NN b)) )\n")
    bank = read_trees(file)
    assert [tree.words for tree in bank.trees] == [["dogs", "chase", "cats"], ["b"]]
    assert bank.sources == [file]


def test_a_folder_is_all_its_mrg_files_in_order(tmp_path: Path):
    put(tmp_path, "wsj/02/b.mrg", "(X (Y third))")
    put(tmp_path, "wsj/01/a.mrg", "(X (Y first))")
    put(tmp_path, "wsj/01/b.MRG", "(X (Y second))")
    put(tmp_path, "wsj/README", "not a tree")
    assert first_words("wsj", root=str(tmp_path)) == ["first", "second", "third"]


def test_a_pattern_is_all_files_that_match_in_order(tmp_path: Path):
    for name in ("a_02.txt", "a_01.txt", "b_01.txt"):
        put(tmp_path, name, f"(X (Y {name}))")
    assert first_words("a_*.txt", root=str(tmp_path)) == ["a_01.txt", "a_02.txt"]
    assert first_words(str(tmp_path / "**" / "?_01.txt")) == ["a_01.txt", "b_01.txt"]


def test_files_in_a_zip_are_named_by_a_pattern(tmp_path: Path):
    put_zip(tmp_path, "bank.zip", a_2="(X (Y two))", a_1="(X (Y one))", b_1="(X (Y three))")
    bank = read_trees("bank.zip!bank/a_[0-9].mrg", FileOptions(root=str(tmp_path)))
    assert [tree.words for tree in bank.trees] == [["one"], ["two"]]
    assert bank.sources == [f"{tmp_path}/bank.zip!bank/{name}.mrg" for name in ("a_1", "a_2")]
    assert first_words("bank.zip!**/b_1.mrg", root=str(tmp_path)) == ["three"]


def test_a_star_stays_within_a_folder_of_the_zip_and_what_would_match_is_said(tmp_path: Path):
    file = put_zip(tmp_path, "bank.zip", a=DOGS, b=DOGS)
    wanted = "no file in it matches '*.mrg', but '**/*.mrg' matches 2; it has bank/README, bank/a.mrg, bank/b.mrg"
    assert complaint(f"{file}!*.mrg") == f"{file}: {wanted}"


@pytest.mark.parametrize(("names", "more"), [("ab", ""), ("abcde", " and 3 more")])
def test_what_matches_nothing_in_a_zip_is_told_with_a_few_names(tmp_path: Path, names: str, more: str):
    file = put_zip(tmp_path, "bank.zip", **dict.fromkeys(names, DOGS))
    there = f"bank/README, bank/a.mrg, bank/b.mrg{more}"
    assert complaint(f"{file}!wsj/*") == f"{file}: no file in it matches 'wsj/*'; it has {there}"


def test_an_empty_zip_is_said_to_be_empty(tmp_path: Path):
    file = tmp_path / "bank.zip"
    zipfile.ZipFile(file, "w").close()
    assert complaint(str(file)) == f"{file}: no file in it matches '**/*.mrg'; it is empty"


def test_a_zip_alone_is_all_its_mrg_files(tmp_path: Path):
    file = put_zip(tmp_path, "bank.zip", b="(X (Y two))", a="(X (Y one))")
    assert first_words(file) == ["one", "two"]


def test_a_list_joins_its_sources_as_they_come(tmp_path: Path):
    put(tmp_path, "a.mrg", "(X (Y one))")
    put_zip(tmp_path, "bank.zip", a="(X (Y two))")
    assert first_words(["bank.zip!bank/a.mrg", "a.mrg"], root=str(tmp_path)) == ["two", "one"]


def test_a_name_that_looks_like_a_pattern_is_the_file_if_there_is_one(tmp_path: Path):
    assert first_words(put(tmp_path, "a[1]!.mrg", "(X (Y one))")) == ["one"]


def test_the_hash_names_the_content_and_not_where_it_lies(tmp_path: Path):
    plain = read_trees(put(tmp_path, "a.mrg", DOGS)).sha256
    assert read_trees(put(tmp_path, "b.txt.gz", DOGS)).sha256 == plain
    assert read_trees(put_zip(tmp_path, "bank.zip", a=DOGS)).sha256 == plain
    assert read_trees(put(tmp_path, "c.mrg", DOGS + DOGS)).sha256 != plain


def test_another_encoding_can_be_asked_for(tmp_path: Path):
    file = put(tmp_path, "a.mrg", "(NP (NN café))".encode("latin-1"))
    assert first_words(file, encoding="latin-1") == ["café"]
    assert complaint(file).startswith(f"{file}, line 1: the byte at offset 11 is not utf-8")


def test_an_error_names_the_file_and_its_line(tmp_path: Path):
    file = put(tmp_path, "a.mrg", f"{DOGS}\n(S (NP\n")
    assert complaint(file).startswith(f"{file}, line 2: unbalanced bracket: 2 not closed")
    archive = put_zip(tmp_path, "bank.zip", a=DOGS, b="\n)")
    assert complaint(archive).startswith(f"{archive}!bank/b.mrg, line 2: unbalanced bracket")


def test_what_matches_nothing_is_an_error(tmp_path: Path):
    root = str(tmp_path)
    put(tmp_path, "folder/a.txt", DOGS)
    put_zip(tmp_path, "bank.zip", a=DOGS)
    assert complaint("a.mrg", root=root).startswith(f"there is no file {root}/a.mrg")
    assert complaint("*.mrg", root=root).startswith(f"no file matches {root}/*.mrg")
    assert complaint("folder", root=root).startswith(f"{root}/folder has no .mrg file in it")
    assert complaint("none.zip!a", root=root).startswith(f"there is no file {root}/none.zip")
    assert complaint([]).startswith("there is no source of trees")


def test_a_file_without_trees_is_an_error(tmp_path: Path):
    file = put(tmp_path, "a.mrg", " \n")
    assert complaint(file) == f"{file} holds no tree; give a file with trees in brackets"


def test_a_damaged_zip_is_an_error(tmp_path: Path):
    whole = Path(put_zip(tmp_path, "bank.zip", a=DOGS * 50)).read_bytes()
    cut = put(tmp_path, "cut.zip", whole[: len(whole) // 2])
    assert complaint(cut).startswith(f"{cut}: not a zip file, or damaged")
    at = whole.index(b"bank/a.mrg") + 20
    spoilt = put(tmp_path, "spoilt.zip", whole[:at] + bytes(8) + whole[at + 8 :])
    assert complaint(spoilt).startswith(f"{spoilt}!bank/a.mrg: not a zip file, or damaged")


def test_a_zip_with_thousands_of_folders_in_each_other_is_refused(tmp_path: Path):
    file = tmp_path / "deep.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/" * 20_000 + "b.mrg", DOGS)
    assert complaint(str(file)) == f"{file}: a file in it lies in more than 64 folders; unpack it"
