"""What a model's predictions are in Python, what objects show of themselves, and how wrong calls are answered."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import legato
import tiny_reviews
from legato.api import TrainedRun
from legato.config import nested
from legato.decoding import SearchOptions
from legato.decoding.options import SearchSettings
from legato.errors import LegatoError
from legato.model import Model
from legato.runs import train as runs
from legato.runs.compare import Comparison, ComparisonEntry
from legato.runs.config import RunConfig, check
from legato.tasks.predictions import Answer, Prediction, Predictions
from tiny_runs import small

TEXTS = ["a merry film and song", "a grim story and play"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predictions")


@pytest.fixture(scope="module")
def reviewer(home: Path) -> Model:
    settings = tiny_reviews.settings(home, train__steps=30)
    return legato.train("classification", settings, out=home / "reviews", quiet=True).model


@pytest.fixture(scope="module")
def several(home: Path) -> Model:
    """A model of several labels at once."""
    table = home / "several.tsv"
    table.write_text("text\tlabel\n" + "a b\ta;b\na c\ta\nb c\tb;c\nc a\ta;c\n" * 6)
    settings = {**tiny_reviews.SMALL, "data.train": str(table), "data.kind": "multilabel", "train.steps": 2}
    return legato.train("classification", settings, out=home / "labels", quiet=True).model


@pytest.fixture(scope="module")
def run(home: Path) -> TrainedRun:
    return legato.train("lm", small(home, train__steps=2), out=home / "lm", quiet=True)


@pytest.fixture(scope="module")
def writer(run: TrainedRun) -> Model:
    return run.model


def test_predictions_come_as_texts_or_as_objects_with_all_else(reviewer: Model) -> None:
    plain, predictions = reviewer.predict(TEXTS), reviewer.predict(TEXTS, probabilities=True)
    assert plain == [prediction.text for prediction in predictions] == [str(each) for each in predictions]
    assert reviewer.predict(TEXTS[0]) == plain[0]
    assert reviewer.predict(TEXTS[0], probabilities=True) == predictions[0] == reviewer.predictions(TEXTS)[0]
    first = predictions[0]
    assert first.as_json()["answers"][0] == {
        **{name: getattr(first, name) for name in ("text", "score", "probability", "probabilities")}
    }
    assert first.label == first.text
    assert first.probability == max(first.probabilities.values())


def test_nbest_answers_are_in_a_prediction_as_in_a_list(reviewer: Model) -> None:
    (prediction,) = reviewer.predict(TEXTS[:1], nbest=2, probabilities=True)
    assert reviewer.predict(TEXTS[:1], nbest=2) == [[answer.label for answer in prediction.answers]]
    assert sum(answer.probability for answer in prediction.answers) == pytest.approx(1)
    assert repr(prediction).endswith(", 2 answers)")


def test_probabilities_stand_in_the_order_of_labels(reviewer: Model, several: Model) -> None:
    assert reviewer.labels == ["bad", "good"]
    table = reviewer.predict_proba(np.array(TEXTS))
    shares = [prediction.probabilities for prediction in reviewer.predictions(TEXTS)]
    assert table.tolist() == [[share["bad"], share["good"]] for share in shares]
    assert reviewer.predict_proba(TEXTS[0]).tolist() == pytest.approx(table[0].tolist())
    assert reviewer.predict_proba([]).shape == (0, 2)
    assert several.labels == ["a", "b", "c"]
    assert several.predict_proba(["a b", "c"]).shape == (2, 3)
    assert several.predict("a b", probabilities=True).labels is not None


def test_only_classifiers_have_labels(writer: Model) -> None:
    for ask in (lambda: writer.labels, lambda: writer.predict_proba("a")):
        with pytest.raises(LegatoError, match="is a model for lm and has no classes, so it has no labels"):
            ask()


def test_predictions_become_a_table(reviewer: Model) -> None:
    pytest.importorskip("pandas")
    table = reviewer.predictions([*TEXTS, " "], nbest=2).to_pandas()
    assert table.index.tolist() == [0, 0, 1, 1, 2]
    assert table["probabilities.good"].iloc[0] == reviewer.predict_proba(TEXTS)[0, 1]
    assert table["problem"].iloc[-1] == "the text is empty"


def test_a_table_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(LegatoError, match="a table needs pandas: pip install pandas"):
        Predictions([]).to_pandas()


def test_a_prediction_names_its_places_in_the_input() -> None:
    entity = {"type": "PER", "text": "Anna", "start": 0, "end": 4, "words": [0, 1], "probability": 0.9}
    tagged = Prediction("Anna ran", [Answer("Anna/B-PER ran/O", -0.1, {"entities": [entity]})])
    assert tagged.spans == [entity]
    assert repr(tagged) == "Prediction('Anna/B-PER ran/O', score=-0.1, 1 spans)"
    place = {"probability": 0.8, "start": 9, "end": 13}
    assert Prediction("Who?\tIt is Anna", [Answer("Anna", 0.8, place)]).spans == [{"text": "Anna", **place}]
    assert Prediction("a", [Answer("good", 0.8)]).spans == Prediction("a").spans == []


def test_a_prediction_is_copied_and_says_what_it_lacks() -> None:
    prediction = Prediction("a", [Answer("good", 0.9, {"probability": 0.9})])
    assert pickle.loads(pickle.dumps(prediction)) == copy.deepcopy(prediction) == prediction
    assert "probability" in dir(prediction)
    with pytest.raises(AttributeError, match="no 'probabilty'; did you mean 'probability'"):
        _ = prediction.probabilty
    failed = Prediction(" ", problem="the text is empty")
    assert repr(failed) == "Prediction(problem='the text is empty')"
    with pytest.raises(LegatoError, match="the text is empty"):
        _ = failed.label


def test_methods_that_write_name_every_option_of_the_search() -> None:
    fields = {name: field.default for name, field in SearchOptions.model_fields.items()}
    assert list(SearchSettings.__annotations__) == list(fields)
    for method in (Model.generate, Model.chat, Model.stream):
        named = inspect.signature(method).parameters
        assert {name: named[name].default for name in fields} == fields
        assert ">>>" in (method.__doc__ or "")


def test_public_methods_say_what_they_do() -> None:
    for name, method in inspect.getmembers(Model, callable):
        assert name.startswith("_") or method.__doc__, name


def test_objects_show_themselves_in_one_short_line(
    reviewer: Model, writer: Model, run: TrainedRun, home: Path
) -> None:
    trace = writer.trace("the cat")
    entry = ComparisonEntry("lstm", check(nested(small(home, task="lm"))), results=[run])
    comparison = Comparison([entry], home, home / "compare.png")
    shown = [
        *(reviewer, writer.loaded, writer.tokenizer, trace, trace["lstm.0.hidden"]),
        *(reviewer.predict(TEXTS, probabilities=True), run, comparison, entry),
        writer.hypotheses(["a"], SearchOptions()),
    ]
    for one in shown:
        assert " at 0x" not in repr(one)
        assert len(repr(one)) < 700, repr(one)
        assert "\n" not in repr(one)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a number to predict": (lambda m: m.reviewer.predict(5), "give a text or a list of texts, not 5"),
    "nothing to predict": (lambda m: m.reviewer.predict(None), "give a text or a list of texts, not None"),
    "a list of nothing": (lambda m: m.reviewer.predict([None]), "text 1 is no text: None"),
    "a dict": (lambda m: m.reviewer.predict({"a": 1}), "'a' is 1, and a dict of columns has a list for each"),
    "a set": (lambda m: m.reviewer.predict({"a"}), "give a text or a list of texts, not {'a'}"),
    "an array of one text": (
        lambda m: m.reviewer.predict(np.array("a")),
        "give a text or a list of texts, not array",
    ),
    "an array of numbers": (lambda m: m.reviewer.predict(np.array([1.5])), "text 1 is no text: 1.5"),
    "a table": (lambda m: m.reviewer.predict(np.array([["a", "b"]])), "one column of texts, not a table of shape"),
    "one text as a list": (lambda m: m.reviewer.predictions("abc"), "give a list of texts, not 'abc'"),
    "an option's name": (lambda m: m.reviewer.predict("a", nbst=2), "did you mean 'nbest'"),
    "an option of others": (lambda m: m.reviewer.predict("a", beams=2), "has no option 'beams'"),
    "an option's value": (lambda m: m.reviewer.predict("a", nbest="x"), "nbest=x is not a whole number"),
    "an empty text": (lambda m: m.reviewer.predict_proba(["a b", " "]), "text 2: the text is empty"),
    "an object as prompt": (lambda m: m.writer.generate(prompt=object()), "a prompt is a text or a list of tokens"),
    "a prompt among texts": (lambda m: m.writer.generate(["a", 5]), "a prompt is a text or a list of tokens, not 5"),
    "a search's option": (lambda m: m.writer.generate("x", max_token=5), "did you mean 'max_tokens'"),
    "a search's value": (lambda m: m.writer.generate("x", stop=5), "stop=5 is not a list"),
    "an option of a stream": (lambda m: m.writer.stream("x", max_token=5), "did you mean 'max_tokens'"),
    "a talk to no talker": (lambda m: m.writer.chat(5), "has no chat template"),
    "a trace of nothing": (lambda m: m.writer.trace(None), "reads text, and NoneType is none"),
    "a layer alone": (
        lambda m: m.writer.trace("the", layers=5),
        r"layers= is a list of numbers, such as \[0\], not 5",
    ),
    "no expression": (lambda m: m.writer.trace("the", only=5), "'5' is no regular expression"),
    "no tensor's name": (lambda m: m.writer.trace("the")[5], "this trace has no '5'; there is"),
    "a number to embed": (lambda m: m.writer.embed(5), "give a list of texts, not 5"),
    "one text's tokens": (lambda m: m.writer.embed_tokens("abc"), "give a list of texts, not 'abc'"),
    "a size of batches": (lambda m: m.writer.embed("a", batch_size="x"), "a batch needs at least one text, not 'x'"),
    "a layer's number": (lambda m: m.writer.embed("a", layers=5), "there is no layers=5"),
    "lines to search": (lambda m: m.writer.search("a", 5), "give a list of texts, not 5"),
    "a number to classify": (lambda m: m.writer.classify([5], ["a", "b"]), "text 1 is no text: 5"),
    "labels of no list": (lambda m: m.writer.classify("x", 5), "labels=5 is not a list"),
    "a model's number": (lambda m: legato.load(5), "a model is a name, such as 'runs/x', not 5"),
    "no model": (lambda m: legato.load(None), "a model is a name, such as 'runs/x', not None"),
    "no device": (lambda m: legato.load(m.writer.folder, device=None), "device=None is not a device"),
    "an array as device": (lambda m: legato.load(m.writer.folder, np.array([1, 2])), "is not a device"),
    "a width's number": (lambda m: legato.load(m.writer.folder, "cpu", dtype=5), "dtype=5: there is auto"),
    "bits as a number": (lambda m: legato.load(m.writer.folder, quantize=8), "quantize=8: there is int4, int8"),
    "a task's number": (lambda m: legato.train(5), "a task, a recipe or a YAML file is a name, such as 'lm', not 5"),
    "settings of a word": (
        lambda m: legato.train("lm", "abc", train="a.csv"),
        "settings are a dict, such as .*, not 'abc'",
    ),
    "a file beside the task": (lambda m: legato.train("lm", "a.csv"), "there is no file a.csv"),
    "the file before the task": (lambda m: legato.train("a.csv", "lm"), "there is no file a.csv"),
    "numbers as data": (lambda m: legato.train("lm", data=[1]), "row 1 is 1; the forms are"),
    "an array of rates": (lambda m: legato.train("lm", lr=np.array([1, 2])), r"train.lr=\[1 2\] is not a number"),
    "a model to build": (lambda m: legato.train("lm", model=m.writer), "a trained model to go on from is from_="),
    "a number to compare": (lambda m: legato.compare(5), "give a task or a list of tasks, not 5"),
    "numbers to compare": (lambda m: legato.compare([5]), "is a name, such as 'lm', not 5"),
    "a comparison's settings": (lambda m: legato.compare("lm", "abc"), "settings are a dict"),
    "a number to index": (
        lambda m: legato.index(5, out=m.out),
        "documents= takes names of files or a table in memory, not int",
    ),
    "numbers to index": (lambda m: legato.index([5], out=m.out), "row 1 is 5; the forms are"),
    "a place for an index": (lambda m: legato.index([], out=5), "is a name, such as 'runs/x', not 5"),
    "words as a size": (lambda m: legato.index([], out=m.out, chunk_size="a"), "are whole words, not"),
    "a column's number": (lambda m: legato.index([], out=m.out, column=5), "column= names a table's column"),
    "no index": (lambda m: legato.open_index(None), "is a name, such as 'runs/x', not None"),
    "a question to nothing": (lambda m: legato.ask(None, "q", m.writer), "is a name, such as 'runs/x', not None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_ends_in_one_line_that_says_what_to_do(
    name: str, reviewer: Model, writer: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = WRONG[name]
    with pytest.raises(LegatoError, match=message):
        call(SimpleNamespace(reviewer=reviewer, writer=writer, out=tmp_path / "index"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_training_goes_on_from_a_model_that_is_loaded(reviewer: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: RunConfig, display: object, tables: object) -> None:
        raise LegatoError(str(config.start_from))

    monkeypatch.setattr(runs, "start_run", refuse)
    with pytest.raises(LegatoError, match=str(reviewer.folder)):
        legato.train("classification", train="a.csv", from_=reviewer)
