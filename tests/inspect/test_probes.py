"""Probes of layers: what is read, what is fitted, what is planted and found, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import legato
from legato.data.processors import Processors
from legato.errors import DataError, LegatoError
from legato.inspect import probes
from legato.inspect.probes import LabelledSentence, dependency_arcs, fit_probe, probe_layers, tagged_words
from legato.model import Model
from thinned import some

TREE = (
    "# text = Dogs don't chase\n"
    "1\tDogs\tdog\tNOUN\tNNS\t_\t4\tnsubj\t4:nsubj\t_\n"
    "2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t4:aux\t_\n"
    "3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t4:advmod\t_\n"
    "4\tchase\tchase\tVERB\tVB\t_\t0\troot\t0:root\t_\n"
    "4.1\tthem\tthey\tPRON\tPRP\t_\t_\t_\t4:obj\t_\n\n"
    "1\tCats\tcat\tNOUN\tNNS\t_\t0\troot\t0:root\t_\n\n"
)
NOUNS, VERBS = ("dog", "cat", "bird", "fish", "cow"), ("sees", "likes", "hears", "bites")
QUICK: dict[str, Any] = {
    "train.steps": 2,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
    "model.width": 16,
    "model.layers": 2,
    "train.batch_tokens": 64,
    "data.window": 16,
    "data.valid_share": 0.3,
    "tokenizer": "word",
}
RUNS: dict[str, dict[str, Any]] = {
    "bert": {"task": "mlm", "model.heads": 2},
    "gpt2": {"task": "lm", "model.heads": 2},
    "lstm": {"task": "lm", "model.embedding": 12},
    "elmo": {"task": "lm", "model.filters": 2, "model.reach": 3},
}


def sentences(count: int, seed: int) -> list[LabelledSentence]:
    """`the dog sees the cat`, with parts of speech."""
    draw = np.random.default_rng(seed)
    tags = ["DET", "NOUN", "VERB", "DET", "NOUN"]
    found = []
    for _ in range(count):
        words = ["the", draw.choice(NOUNS), draw.choice(VERBS), "the", draw.choice(NOUNS)]
        found.append(LabelledSentence([str(word) for word in words], [(n,) for n in range(5)], tags))
    return found


def arcs(given: list[LabelledSentence]) -> list[LabelledSentence]:
    """Of the same: subjects and objects, and their articles."""
    places: list[tuple[int, ...]] = [(1, 0), (2, 1), (4, 3), (2, 4)]
    return [LabelledSentence(each.words, places, ["det", "nsubj", "det", "obj"]) for each in given]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("probes")
    text = "".join(" ".join(each.words) + "\n" for each in sentences(60, 5))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    made = {}
    for name, given in RUNS.items():
        own = {key: value for key, value in given.items() if key != "task"} | {"model": name}
        own |= {"data.train": str(folder / "text.txt")}
        settings = {key: value for key, value in {**QUICK, **own}.items() if name != "elmo" or key != "data.window"}
        legato.train(given["task"], settings, out=folder / name, quiet=True)
        made[name] = legato.load(folder / name, "cpu")
    return made


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers: one knows words, one nothing, one the label, which is the word's place."""

    def states(loaded: Any, given: list[list[str]]) -> list[Any]:
        draw = np.random.default_rng(0)
        types = {word: number for number, word in enumerate(["the", *NOUNS, *VERBS])}
        found: list[Any] = []
        for words in given:
            noise = [0.1 * draw.normal(size=(len(words), 10)) for _ in range(3)]
            by_word, by_place = np.eye(10)[[types[word] for word in words]], np.eye(10)[: len(words)]
            found.append([by_word + noise[0], noise[1], by_place + noise[2]])
        return found

    monkeypatch.setattr(probes, "word_states", states)


def by_place(given: list[LabelledSentence]) -> list[LabelledSentence]:
    return [LabelledSentence(each.words, each.places, ["first", "b", "c", "d", "e"]) for each in given]


def test_a_layer_that_knows_labels_is_told_from_one_that_knows_words(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch)
    found = probe_layers(models["bert"], by_place(sentences(80, 0)), by_place(sentences(40, 1)))
    assert found.accuracy[2] == 1
    assert found.control[0] == 1  # a word's label is learned with the word
    assert found.accuracy[1] < 0.4
    assert found.control[2] < 0.9
    assert found.selectivity[2] > 0.1
    assert found.selectivity[0] < 0
    assert found.baseline == pytest.approx(0.2)
    assert found.weights is not None
    assert found.weights.argmax() == 2
    assert found.weights.sum() == pytest.approx(1)
    assert found.centre_of_gravity == pytest.approx(found.weights[1] + 2 * found.weights[2])
    assert found.mixes is not None
    assert found.mixes[0] == found.accuracy[0]
    assert found.mixes[2] > 0.95
    gains = np.diff(found.mixes)
    assert found.expected_layer == pytest.approx((gains[0] + 2 * gains[1]) / gains.sum())
    assert found.expected_layer > 1.8


def test_the_control_gives_each_word_one_label_as_often_as_there_are_such(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"w{number}" for number in range(4000)]
    target = probes._Targets([torch.zeros(4000, 1)], ["x"] * 4000, words, 0)
    labels = torch.tensor([0, 0, 0, 1] * 1000)
    first, again = probes._control(target, target, labels, 2, seed=3)
    assert torch.equal(first, again)
    assert float(first.double().mean()) == pytest.approx(0.25, abs=0.03)
    assert not torch.equal(first, probes._control(target, target, labels, 2, seed=4)[0])


@pytest.mark.parametrize("name", some([*RUNS], ["bert", "lstm"]))
def test_every_kind_of_model_is_probed(models: dict[str, Model], name: str) -> None:
    train, held_out = sentences(30, 0), sentences(15, 1)
    for given in ((train, held_out), (arcs(train), arcs(held_out))):
        found = probe_layers(models[name], *given)
        assert found.accuracy.shape == found.control.shape == (3,)
        assert found.accuracy.min() > found.baseline
        again = probe_layers(models[name], *given)
        np.testing.assert_array_equal(again.accuracy, found.accuracy)
        np.testing.assert_array_equal(again.control, found.control)
        assert (found.weights is None) == (name == "lstm")  # whose layers are 12, 16 and 12 wide
        if name == "lstm":
            assert found.centre_of_gravity is found.expected_layer is found.mixes is None
        else:
            assert found.centre_of_gravity is not None
            assert 0 < found.centre_of_gravity < 2
    assert found.labels == ["det", "nsubj", "obj"]
    assert found.examples == (120, 60)


def test_a_probe_is_logistic_regression() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(200, 6, generator=draw)
    labels = (features[:, :3] + torch.randn(200, 3, generator=draw)).argmax(1)
    mix, probe = fit_probe([features], labels, 3, ridge=0.05)
    peer = LogisticRegression(C=1 / (0.05 * 200), tol=1e-8).fit(features.numpy(), labels.numpy())
    with torch.no_grad():
        shares = probe(mix([features])).softmax(-1)
    np.testing.assert_allclose(shares, peer.predict_proba(features.numpy()), atol=5e-3)


def test_parts_of_speech_and_arcs_are_read_from_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(TREE, encoding="utf-8")
    first, second = tagged_words(str(path))
    assert first == LabelledSentence(
        ["Dogs", "do", "n't", "chase"], [(0,), (1,), (2,), (3,)], ["NOUN", "AUX", "PART", "VERB"]
    )
    assert tagged_words(str(path), "xpos")[1].labels == ["NNS"]
    first, second = dependency_arcs(str(path))
    assert first.places == [(3, 0), (3, 1), (3, 2)]
    assert first.labels == ["nsubj", "aux", "advmod"]
    assert second == LabelledSentence(["Cats"], [], [])
    path.write_text(TREE.replace("\t4\taux", "\t7\taux"), encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.conllu, line 4: the head '7' is no word's number"):
        dependency_arcs(str(path))
    columns = tmp_path / "b.txt"
    columns.write_text("EU B-ORG\nrejects O\n", encoding="utf-8")
    assert tagged_words(str(columns))[0].labels == ["B-ORG", "O"]


def test_the_word_of_a_pair_is_the_dependent(models: dict[str, Model]) -> None:
    (given,) = sentences(1, 0)
    found = probes._targets(models["bert"].loaded, arcs([given]), "train")
    assert found.words == [given.words[place] for place in (0, 1, 3, 4)]


def test_what_a_model_cannot_read_is_left_out_and_counted(models: dict[str, Model]) -> None:
    long = LabelledSentence(["the"] * 40, [(0,)], ["DET"])
    bare = LabelledSentence(["the", "dog"], [], [])  # without labels, so nobody misses it
    found = probe_layers(models["bert"], [*sentences(20, 0), long, bare], [long, *sentences(10, 1)])
    assert found.left_out == 2
    assert found.examples == (100, 50)
    with pytest.raises(DataError, match="held_out: every sentence is longer than"):
        probe_layers(models["bert"], sentences(20, 0), [long])


def test_labels_that_nobody_taught_are_wrong(models: dict[str, Model]) -> None:
    held_out = [LabelledSentence(each.words, each.places, ["NEW"] * 5) for each in sentences(5, 1)]
    found = probe_layers(models["gpt2"], sentences(20, 0), held_out)
    assert found.accuracy.tolist() == [0, 0, 0]
    assert found.baseline == 0
    assert found.expected_layer is None


def test_what_cannot_be_probed_is_said(models: dict[str, Model]) -> None:
    model, some = models["bert"], sentences(4, 0)
    with pytest.raises(DataError, match="train has no sentence with labels"):
        probe_layers(model, [], some)
    with pytest.raises(DataError, match="held_out has no sentence with labels"):
        probe_layers(model, some, [LabelledSentence(["a"], [], [])])
    same = [LabelledSentence(each.words, each.places, ["X"] * 5) for each in some]
    with pytest.raises(DataError, match="all labels to learn from are 'X'; there must be two at least"):
        probe_layers(model, same, some)
    with pytest.raises(DataError, match="train has labels of words and held_out of pairs"):
        probe_layers(model, some, arcs(some))
    with pytest.raises(DataError, match="train: some labels are of words and others of pairs"):
        probe_layers(model, [*some, *arcs(some)], some)
    for places in ([(0,), (7,)], [(0,)], [(0,), (0, 1)], [(), ()], [(0, 1, 1)] * 2):
        with pytest.raises(DataError, match="train, sentence 1 with labels: 2 labels of the places"):
            probe_layers(model, [LabelledSentence(["a", "b"], places, ["X", "Y"])], some)
    blind = replace(model.loaded, processors=Processors(others={"image": None}))  # type: ignore[dict-item]
    with pytest.raises(LegatoError, match="bert has no states of a text's words"):
        probe_layers(SimpleNamespace(loaded=blind), some, some)
