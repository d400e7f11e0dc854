"""Scores by the source's length, and what a wider beam writes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import legato
from legato.data.processors import Processors
from legato.errors import ConfigError, DataError, LegatoError
from legato.evaluation.translation import translation_scores
from legato.inspect.lengths import beam_sweep, repeated_ngrams, scores_by_length
from legato.model import Model
from legato.tasks.predictions import Answer, Prediction

QUICK: dict[str, Any] = {
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
    "model.width": 16,
    "model.layers": 1,
    "train.steps": 30,
    "train.lr": 0.01,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("lengths")
    toy = {"data.train": "toy:copy", "data.toy.count": 400, "data.toy.length": [1, 6], "data.toy.valid_count": 20}
    own = {"model": "transformer", "model.heads": 2, "model.length": 32, "train.batch_tokens": 256}
    legato.train("translation", {**QUICK, **toy, **own}, out=folder / "t", quiet=True)
    return legato.load(folder / "t", "cpu")


PAIRS = [(text, text) for text in ("a b c d", "b", "c a", "d d a b c", "e f", "a b c d e f g")]


def stub(texts: list[str]) -> Any:
    """A model that writes what it is told, the worse the wider its beam."""

    def predictions(sources: list[str], beams: int = 1, **options: Any) -> list[Prediction]:
        more = {"logprob": -2.0 / beams, "finished": beams < 4}
        found = [Prediction(source, [Answer(text, -1.0, more)]) for source, text in zip(sources, texts, strict=False)]
        found[-1] = Prediction(sources[-1], [], "too long") if beams == 8 else found[-1]
        return found

    loaded = SimpleNamespace(
        module=SimpleNamespace(is_encoder_decoder=True), processors=SimpleNamespace(others={}), folder="stub"
    )
    return SimpleNamespace(loaded=loaded, predictions=predictions)


def test_each_pair_is_in_the_bucket_of_its_source() -> None:
    references = [target for _, target in PAIRS]
    written = [*references[:3], "wrong all of it", *references[4:]]
    found = scores_by_length(stub(written), PAIRS, [1, 2, 5])
    assert [(each.name, each.count) for each in found] == [("1–1", 1), ("2–2", 2), ("3–5", 2), ("6+", 1)]
    assert [each.words for each in found] == [1, 2, 4.5, 7]
    apart = translation_scores([written[0], written[3]], [references[0], references[3]])
    assert (found[2].bleu, found[2].chrf, found[2].ratio) == (
        apart["bleu"],
        apart["chrf"],
        apart["hypothesis_ratio"],
    )
    assert found[3].chrf == pytest.approx(100)
    letters = scores_by_length(stub(written), PAIRS, [3], length=len)
    assert [(each.name, each.count) for each in letters] == [("1–3", 3), ("4+", 3)]
    assert [each.name for each in scores_by_length(stub(["x"]), [("", "x"), ("a", "a")][:1], [4])] == ["1–4"]


def test_a_sweep_says_what_each_width_gives() -> None:
    written = ["a b c d a b c d a", "b", "c a", "d d a b c", "e f", "a b c d e f g"]
    one, four, eight = beam_sweep(stub(written), PAIRS, [1, 4, 8])
    assert (one.beams, one.logprob, one.score, one.finished, one.unread) == (1, -2, -1, 1, 0)
    assert (four.logprob, four.finished) == (-0.5, 0)
    assert one.repeated == pytest.approx(2 / 12)
    assert one.ratio == pytest.approx(26 / 21)
    assert eight.unread == 1
    assert eight.chrf < one.chrf
    assert eight.seconds >= 0


def test_repeated_ngrams_are_counted_in_each_text_by_itself() -> None:
    assert repeated_ngrams(["a b c d", "a b c d"]) == 0
    assert repeated_ngrams(["a a a a a a"]) == pytest.approx(2 / 3)
    assert repeated_ngrams(["a b", ""]) == 0
    assert repeated_ngrams([]) == 0
    assert repeated_ngrams(["x x", "y"], order=1) == pytest.approx(1 / 3)


def test_scores_are_those_of_an_evaluation(model: Model, tmp_path: Any) -> None:
    for side, name in enumerate(("src", "tgt")):
        (tmp_path / f"x.{name}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    test = [str(tmp_path / "x.src"), str(tmp_path / "x.tgt")]
    for found in beam_sweep(model, PAIRS, [1, 3]):
        scores = model.evaluate(test=test, beams=found.beams)
        assert (found.bleu, found.chrf) == pytest.approx((scores["bleu"], scores["chrf"]))
        assert found.ratio == pytest.approx(scores["hypothesis_ratio"])
        assert found.logprob < 0
    (all_of_them,) = scores_by_length(model, PAIRS, [60], beams=3)
    assert all_of_them.bleu == pytest.approx(found.bleu)
    assert all_of_them.count == len(PAIRS)


def test_a_source_beyond_the_model_counts_as_nothing(model: Model) -> None:
    long = ("a " * 50, "a")
    (found,) = beam_sweep(model, [*PAIRS, long], [1])
    assert found.unread == 1
    with pytest.raises(DataError, match="writes nothing of these sources, the first since 51 tokens, more than"):
        beam_sweep(model, [long], [1])
    with pytest.raises(DataError, match="writes nothing of these sources, the first since they are empty"):
        scores_by_length(model, [(" ", "a")])


def test_what_cannot_be_swept_is_said(model: Model, tmp_path: Any) -> None:
    with pytest.raises(DataError, match="there are no pairs to translate"):
        scores_by_length(model, [])
    with pytest.raises(DataError, match="there are no pairs to translate"):
        beam_sweep(model, [])
    for edges in ([], [0, 5], [5, 5], [9, 4]):
        with pytest.raises(LegatoError, match="do not increase from 1 on"):
            scores_by_length(model, PAIRS, edges)
    with pytest.raises(LegatoError, match="no widths of the beam"):
        beam_sweep(model, PAIRS, [])
    with pytest.raises(ConfigError, match="beams"):
        beam_sweep(model, PAIRS, [0])
    (tmp_path / "t.txt").write_text("a b c\n" * 100, encoding="utf-8")
    text = {"data.train": str(tmp_path / "t.txt"), "tokenizer": "word", "model": "lstm", "data.valid_share": 0.3}
    legato.train(
        "lm", {**QUICK, **text, "train.steps": 1, "train.batch_tokens": 64, "data.window": 16}, out=tmp_path / "l"
    )
    with pytest.raises(LegatoError, match="writes no text of another"):
        beam_sweep(legato.load(tmp_path / "l", "cpu"), PAIRS)
    seeing = SimpleNamespace(loaded=replace(model.loaded, processors=Processors(others={"image": None})))  # type: ignore[dict-item]
    with pytest.raises(LegatoError, match="writes no text of another"):
        scores_by_length(seeing, PAIRS)
