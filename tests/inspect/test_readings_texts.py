"""What a model computed of a text, where its task reads texts its own way: pairs, words, masks, tags of languages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import made_once

from legato.errors import DataError, LegatoError
from legato.inspect.trace import stream_of
from legato.model import Model
from legato.nn.capture import record
from tiny_pictures import pixels, write_picture
from tiny_sounds import write_sounds

SHAPE = {"model__layers": 1, "model__heads": 2}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": ("classification", {}),
    "pairs": ("classification", {"model": "bert", "tokenizer": "word", **SHAPE}),
    "questions": ("qa", {}),
    "words": ("tagging", {}),
    "masks": ("mlm", {}),
    "trees": ("parsing", {}),
    "languages": ("translation", {"data__directions": ["en-de", "de-en"]}),
    "elmo": ("lm", {"model": "elmo", "tokenizer": "word"}),
}


def changed(name: str, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, where an example's are not all of them."""
    if name == "pairs":
        rows = [f"the dog {word}\tit {word} and ran\t{word}\n" for word in ("barks", "sleeps") * 8]
        (folder / "pairs.tsv").write_text("first\tsecond\tlabel\n" + "".join(rows))
        given |= {"data.train": str(folder / "pairs.tsv"), "data.valid": str(folder / "pairs.tsv")}
        given["data.columns"] = ["first", "second", "label"]
    if name == "languages":
        given |= {f"data.{part}": str(folder / "data" / file) for part, file in PARTS.items()}
    return given


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    return made_once(tmp_path_factory, RUNS, changed)


PARTS = {"train": "train.{}", "valid": "val.{}"}


def same_as_predicted(model: Model, given: Any, beginning: str = "") -> tuple[str, ...]:
    """The names of the first stream's positions, where what is computed of them is what `predict` computes."""
    trace = model.trace(given)
    with record() as seen:
        model.predict([given])
    names = [name for name in trace if name.startswith(beginning) and name.endswith("hidden")]
    assert names
    for name in names:
        steps = [step[0].numpy() for step in seen[name]]
        whole = steps[0] if seen.axes[name] == ("row", "position", "unit") else np.stack(steps)
        whole = whole[::-1] if ".reverse." in name else whole
        np.testing.assert_allclose(trace[name].values, whole, atol=1e-5)
    return next(iter(trace.positions.values())).names


def test_a_pair_is_read_with_what_separates_it(trained: Callable[[str], Model]) -> None:
    names = same_as_predicted(trained("pairs"), "the dog barks\tit sleeps")
    assert names == ("[CLS]", " the", " dog", " barks", "[SEP]", " it", " sleeps", "[SEP]")
    with pytest.raises(DataError, match="this model reads pairs: write two texts with a tab between them"):
        trained("pairs").trace("the dog barks")
    with pytest.raises(DataError, match="one text of the pair is empty"):
        trained("pairs").trace("the dog barks\t ")
    assert len(same_as_predicted(trained("texts"), "a gem of a film")) > 4


def test_a_question_is_read_with_its_context(trained: Callable[[str], Model]) -> None:
    names = same_as_predicted(trained("questions"), "who ran?\tthe dog ran off")
    assert len(names) > 6
    with pytest.raises(DataError, match="there is no text to find the answer in"):
        trained("questions").trace("who ran?")
    with pytest.raises(DataError, match=r"the text is read in \d+ windows, and one is looked at; shorten it"):
        trained("questions").trace("who ran?\t" + "the dog ran off " * 500)


def test_a_tagger_reads_words(trained: Callable[[str], Model]) -> None:
    assert len(same_as_predicted(trained("words"), "EU rejects German call.")) == 5


def test_what_is_hidden_is_read_as_a_mask(trained: Callable[[str], Model]) -> None:
    names = same_as_predicted(trained("masks"), "the dog <mask>")
    assert names[-2:] == ("[MASK]", "[SEP]")
    assert "[MASK]" not in trained("masks").trace("the dog").positions["input"].names


def test_a_parser_reads_words(trained: Callable[[str], Model]) -> None:
    names = same_as_predicted(trained("trees"), "the dog sees cats.", "encoder")
    assert "".join(names).startswith("the dog sees cats .")


def test_a_source_may_begin_with_the_tag_of_a_language(trained: Callable[[str], Model]) -> None:
    model = trained("languages")
    names = same_as_predicted(model, ">>de<< a dog", "encoder")
    assert names[0] == ">>de<<"
    assert len(names) == 4
    for written in (None, "ein Hund"):
        with pytest.raises(LegatoError, match="say which, with --to de"):
            model.trace("a dog", written=written)


def test_what_reads_from_the_end_stands_where_its_words_do(trained: Callable[[str], Model]) -> None:
    model = trained("elmo")
    one, other = (model.trace(text) for text in ("the dog runs", "a dog runs"))
    for name, differs in (("forward.0.hidden", [0, 1, 2]), ("backward.0.hidden", [0])):
        far = np.abs(one[name].values - other[name].values).max(1)
        assert np.flatnonzero(far > 1e-7).tolist() == differs, name


def test_a_file_that_is_no_text_is_refused(trained: Callable[[str], Model], tmp_path: Path) -> None:
    write_sounds(tmp_path)
    picture, sound = write_picture(tmp_path / "a.png"), tmp_path / "0.wav"
    for name in ("texts", "masks", "trees"):
        for given, kind in ((picture, "picture"), (sound, "sound")):
            with pytest.raises(DataError, match=rf"is a {kind}, but this model reads text; give it a text"):
                trained(name).trace(str(given))
        with pytest.raises(DataError, match="this model reads text, and ndarray is none"):
            trained(name).trace(pixels("red"))


def test_the_longest_beginning_of_a_name_says_its_stream() -> None:
    streams = {"encoder": "source", "encoder.head": "query", "": "target"}
    found = {name: stream_of(name, streams) for name in ("encoder.0.x", "encoder.head.x", "encoders.0", "decoder.0")}
    assert list(found.values()) == ["source", "query", "target", "target"]
