"""The built-in corpus: there without a download, in three parts that share nothing."""

from __future__ import annotations

import pytest

from legato.data.sources.corpora import MODULES, stdlib_corpus
from legato.data.sources.files import SPLITS
from legato.errors import DataError


def test_it_is_the_same_each_time() -> None:
    assert stdlib_corpus("train") == stdlib_corpus("train")


def test_no_document_is_in_two_splits() -> None:
    splits = [set(stdlib_corpus(split)) for split in SPLITS]
    assert splits[0].isdisjoint(splits[1])
    assert splits[0].isdisjoint(splits[2])
    assert splits[1].isdisjoint(splits[2])


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_holds_english_and_code(split: str) -> None:
    documents = stdlib_corpus(split)
    code = [document for document in documents if "\nimport " in document or "\nfrom " in document]
    assert code
    assert len(code) < len(documents)


def test_its_size_is_one_to_three_megabytes() -> None:
    total = sum(len(document) for split in SPLITS for document in stdlib_corpus(split))
    assert 1_000_000 < total < 3_000_000


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_held_out_split_is_about_a_twentieth(split: str) -> None:
    total = sum(len(document) for part in SPLITS for document in stdlib_corpus(part))
    assert 0.03 < sum(map(len, stdlib_corpus(split))) / total < 0.05


def test_modules_are_listed_in_order() -> None:
    assert list(MODULES) == sorted(MODULES)


def test_an_unknown_split_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match="did you mean 'valid'"):
        stdlib_corpus("vaild")
