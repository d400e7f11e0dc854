"""Vectors of words from text files, and back."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from legato.data.formats.vector_files import initialise_embedding, read_vectors, save_vectors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError
from legato.models.base import SequenceModel, Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.window import WindowConfig, WindowModel

GLOVE = "the 1 2 3\ncat -0.5 0.25 1e-3\n. . . 7 8 9\nlondon 4 5 6\n"


def write(folder: Path, text: str, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


class Model(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(words, width)

    @property
    def token_table(self) -> nn.Module | None:
        return self.embedding


def vocabulary(text: str = "the cat saw London and LONDON\n") -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="word"), [text])


def begin(path: Path, width: int = 3) -> tuple[Model, Tokenizer, list[str]]:
    tokenizer = vocabulary()
    said: list[str] = []
    model = Model(tokenizer.size, width)
    initialise_embedding(model, tokenizer, path, said.append)
    return model, tokenizer, said


# --- reading -----------------------------------------------------------------------------------------


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    read = read_vectors(write(tmp_path, GLOVE), ["cat", "dog"])
    assert list(read.found) == ["cat"]
    np.testing.assert_allclose(read.found["cat"], [-0.5, 0.25, 1e-3])
    assert (read.width, read.lines) == (3, 4)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
@pytest.mark.parametrize("header", ["", "4 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])  # word2vec's own program leaves a space at the end
def test_files_of_both_kinds_and_packed_ones_say_the_same(tmp_path: Path, name: str, header: str, end: str) -> None:
    path = write(tmp_path, header + GLOVE.replace("\n", end), name)
    read = read_vectors(path, ["the", ". . .", "."])
    assert {word: row.tolist() for word, row in read.found.items()} == {"the": [1, 2, 3], ". . .": [7, 8, 9]}


def test_a_first_name_with_spaces_does_not_change_the_width(tmp_path: Path) -> None:
    read = read_vectors(write(tmp_path, "new york 1 2\ncat 3 4\n"), ["new york", "cat"])
    assert read.width == 2
    assert read.found["new york"].tolist() == [1, 2]


def test_of_a_word_that_is_there_twice_the_first_counts(tmp_path: Path) -> None:
    assert read_vectors(write(tmp_path, "a 1 2\na 3 4\n"), ["a"]).found["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("the 1 2 3\ncat 1 2\n", "line 2: 2 numbers after 'cat', where 3 should be"),
        ("3 3\nthe 1 2 3\ncat 1 2 3 x 5\n", "line 3: 5 numbers after 'cat', where 3 should be"),
        ("the 1 2 3\ncat 1 two 3\n", "line 2: 'two' is no number"),
        ("the 1 2 3\ncat 1 nan 3\n", "line 2: a number that is not finite"),
        ("just words here\n", "line 1: no vector"),
        ("4 3\n", "holds no vectors"),
        ("", "holds no vectors"),
        ("2 3\nthe \0\1\2\3\n", "line 2: binary numbers"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=told) as problem:
        read_vectors(path, ["the", "cat"])
    assert str(path) in str(problem.value)


def test_a_missing_file_a_folder_and_half_a_gzip_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_vectors(tmp_path / "none.txt", ["a"])
    with pytest.raises(DataError, match="is a folder"):
        read_vectors(tmp_path, ["a"])
    whole = gzip.compress(GLOVE.encode() * 50)
    (tmp_path / "half.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated"):
        read_vectors(tmp_path / "half.gz", ["a"])
    (tmp_path / "none.gz").write_bytes(b"the 1 2 3\n")
    with pytest.raises(DataError, match="not a gzip"):
        read_vectors(tmp_path / "none.gz", ["a"])


# --- beginning with them -----------------------------------------------------------------------------


def test_rows_become_their_vectors_and_lower_case_helps_out(tmp_path: Path) -> None:
    model, tokenizer, said = begin(write(tmp_path, GLOVE))
    weight = model.embedding.weight.detach()
    assert weight[tokenizer.id_of("cat")].tolist() == pytest.approx([-0.5, 0.25, 1e-3])
    assert weight[tokenizer.id_of("London")].tolist() == [4, 5, 6]
    assert weight[tokenizer.id_of("LONDON")].tolist() == [4, 5, 6]
    # the, cat, saw, London, and, LONDON, <unk>: the end mark is no word
    assert said == [f"vectors: {tmp_path / 'vectors.txt'} has 4 of 7 words (57.1%), 2 of those in lower case only"]


def test_an_exact_form_goes_before_a_lower_cased_one(tmp_path: Path) -> None:
    model, tokenizer, _ = begin(write(tmp_path, "london 1 1 1\nLondon 2 2 2\n"))
    assert model.embedding.weight[tokenizer.id_of("London")].tolist() == [2, 2, 2]
    assert model.embedding.weight[tokenizer.id_of("LONDON")].tolist() == [1, 1, 1]


def test_words_without_a_vector_are_as_large_as_the_others(tmp_path: Path) -> None:
    model, tokenizer, _ = begin(write(tmp_path, "the 0.01 0.02 0.03\ncat 0.03 0.01 0.02\n"))
    weight = model.embedding.weight.detach()
    others = [i for i in range(tokenizer.size) if i not in (tokenizer.id_of("the"), tokenizer.id_of("cat"))]
    spread = weight[others].pow(2).mean().sqrt()
    assert float(spread) == pytest.approx((14e-4 / 3) ** 0.5, rel=1e-4)


def test_the_body_of_a_model_with_a_head_is_found(tmp_path: Path) -> None:
    tokenizer = vocabulary()
    body = WindowModel(WindowConfig(embedding=3, width=4, around=True), Sizes(tokenizer.size))
    whole = ModelWithHead(body, HeadSpec(kind="classes", outputs=2))
    initialise_embedding(whole, tokenizer, write(tmp_path, GLOVE), lambda _: None)
    assert body.embedding.weight[tokenizer.id_of("the")].tolist() == [1, 2, 3]


def test_vectors_of_another_width_say_which_setting_helps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vectors of 3 numbers, but .* has 8; set model\.embedding=3"):
        begin(write(tmp_path, GLOVE), width=8)


def test_pieces_have_no_vectors_of_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["abc"])
    with pytest.raises(ConfigError, match="set tokenizer=word"):
        initialise_embedding(Model(tokenizer.size, 3), tokenizer, write(tmp_path, GLOVE), lambda _: None)


def test_a_file_of_other_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no word of the vocabulary"):
        begin(write(tmp_path, "chat 1 2 3\n"))


def test_a_model_without_an_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no embedding of words"):
        initialise_embedding(SequenceModel(None, Sizes(2)), vocabulary(), write(tmp_path, GLOVE), lambda _: None)


# --- writing -----------------------------------------------------------------------------------------

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
@given(rows=st.lists(st.lists(floats, min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_to_the_same_bits(tmp_path: Path, name: str, rows: list[list[float]]) -> None:
    words = ["the", "new york", "é", "3"][: len(rows)]
    table = np.array(rows, dtype=np.float32)
    save_vectors(tmp_path / name, words, torch.from_numpy(table))
    read = read_vectors(tmp_path / name, words)
    np.testing.assert_array_equal(np.stack([read.found[word] for word in words]), table)


@pytest.mark.parametrize("word", ["", "a\nb", " a", "a "])
def test_a_name_that_could_not_be_read_back_is_not_written(tmp_path: Path, word: str) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        save_vectors(tmp_path / "v.txt", [word], np.ones((1, 2)))


def test_words_and_vectors_must_be_as_many(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do not go with"):
        save_vectors(tmp_path / "v.txt", ["a"], np.ones((2, 2)))
