"""word2vec from text to neighbours: what stands near the same words becomes alike."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.formats.vector_files import read_vectors
from legato.errors import ConfigError, DataError, LegatoError
from legato.evaluation.word2vec import analogy_scores, similarity_scores
from legato.folders.exports import export
from legato.models.bert import BertConfig, BertModel

TOPICS = {"sea": ["boat", "fish", "wave", "sail"], "farm": ["cow", "plough", "barn", "hay"]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines about the sea and lines about a farm; the words of one stand near each other."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    lines = [" ".join(draw.choices(TOPICS[draw.choice(["sea", "farm"])], k=6)) for _ in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(corpus: Path, **changes: Any) -> dict[str, Any]:
    small = {
        "data.train": str(corpus),
        "model.width": 8,
        "train.batch_tokens": 128,
        "train.epochs": 4,
        "train.lr": 0.05,
        "data.subsample": 0,
        "train.tensorboard": False,
        "device": "cpu",
    }
    return {**small, **{key.replace("__", "."): value for key, value in changes.items()}}


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "w"
    return legato.train("word2vec", settings(corpus), out=str(out), quiet=True).run


@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
def test_words_of_a_topic_become_neighbours(mode: str, corpus: Path, tmp_path: Path) -> None:
    result = legato.train("word2vec", settings(corpus, model__mode=mode), out=str(tmp_path / "w"), quiet=True)
    assert result.metrics["valid.loss"] < 6 * np.log(2)  # what a model gives that knows nothing
    model = legato.load(tmp_path / "w", "cpu")
    for words in TOPICS.values():
        for word in words:
            assert set(model.predict(word, nbest=3)) == set(words) - {word}


def test_a_prediction_has_cosines_and_sums_of_words_are_understood(run: Path) -> None:
    model = legato.load(run, "cpu")
    (found,) = model.predictions(["boat"], nbest=2)
    vectors = model.module.embedding.weight
    index, near = (model.tokenizer.id_of(word) for word in ("boat", found.answers[0].text))
    cosine = torch.cosine_similarity(vectors[index], vectors[near], dim=0).detach()
    assert found.answers[0].more["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    assert set(model.predict("boat - fish + wave", nbest=1)) != {"boat"}
    assert model.predictions(["submarine"])[0].problem == "'submarine' is no word of the model's vocabulary"
    assert "there is no word" in str(model.predictions(["+ -"])[0].problem)


def test_the_same_vector_stands_for_a_word_in_every_text(run: Path) -> None:
    model = legato.load(run, "cpu")
    assert np.array_equal(model.embed("boat"), model.embed("boat boat"))


def test_senses_share_one_vector_here_and_have_two_where_context_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "senses.py"
    spec = importlib.util.spec_from_file_location("senses", example)
    assert spec is not None
    assert spec.loader is not None
    senses = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(senses)
    with pytest.raises(LegatoError, match="does not know 'die'"):
        senses.main([str(run)])
    types = legato.load(run, "cpu")
    monkeypatch.setattr(senses.legato, "load", lambda place: types)
    three = ("boat fish", "wave fish sail", "cow fish hay")
    monkeypatch.setattr(senses, "SENSES", {"fish": three})
    capsys.readouterr()
    senses.main(["types"])
    assert "same 1.00  other 1.00  types" in capsys.readouterr().out
    torch.manual_seed(0)
    types.loaded.module = BertModel(BertConfig(layers=1, width=8, heads=2), types.module.sizes).eval()
    assert senses.word_senses(types, "fish", three).cosines.min() < 0.9999


def test_a_run_resumes_to_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    whole = settings(corpus, train__epochs=None, train__steps=6, train__validate_every=3, train__schedule="constant")
    legato.train("word2vec", {**whole, "train.steps": 3}, out=str(tmp_path / "a"), quiet=True)
    legato.train(None, {"resume": str(tmp_path / "a"), "train.steps": 6}, quiet=True)
    legato.train("word2vec", whole, out=str(tmp_path / "b"), quiet=True)
    one, other = (legato.load(tmp_path / name / "last", "cpu").module.embedding.weight for name in ("a", "b"))
    assert torch.equal(one, other)


def test_vectors_go_to_a_text_file_and_back(run: Path, tmp_path: Path) -> None:
    path = export(run, "vectors", out=tmp_path / "v.txt")
    model = legato.load(run, "cpu")
    assert path.read_text().splitlines()[0] == "8 8"
    found = read_vectors(path, ["boat", "cow", "<eos>"]).found
    assert set(found) == {"boat", "cow"}
    assert np.array_equal(
        found["boat"], model.module.embedding.weight[model.tokenizer.id_of("boat")].detach().numpy()
    )
    with pytest.raises(LegatoError, match="is there already"):
        export(run, "vectors", out=path)


def test_analogies_and_likeness_are_scored(run: Path, tmp_path: Path) -> None:
    likeness = tmp_path / "likeness.tsv"
    likeness.write_text("a\tb\tscore\nboat\tfish\t9\ncow\thay\t8.5\nboat\thay\t1\nboat\tspaceship\t3\n")
    analogies = tmp_path / "analogies.txt"
    analogies.write_text(": topic\nboat fish wave sail\ncow hay spaceship barn\n")
    model = legato.load(run, "cpu")
    scores = model.evaluate(similarity=str(likeness), analogies=str(analogies))
    assert scores["similarity_spearman"] > 0
    assert scores["similarities_known"] == 0.75
    assert scores["analogies_known"] == 0.5
    assert scores["analogy_accuracy"] in (0.0, 1.0)
    json.dumps(scores)


def test_an_analogy_is_the_nearest_word_to_the_difference(tmp_path: Path) -> None:
    vectors = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0.9, 1], [-1, 0, 0]])
    names = ["man", "king", "woman", "queen", "cow"]
    (tmp_path / "a.txt").write_text("man king woman queen\nman king woman cow\n")
    find = {name: number for number, name in enumerate(names)}.get
    assert analogy_scores(vectors, find, tmp_path / "a.txt")["analogy_accuracy"] == 0.5
    (tmp_path / "s.txt").write_text("man king 3\nman cow 1\nman woman 2\n")
    assert similarity_scores(vectors, find, tmp_path / "s.txt")["similarity_spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": "lstm"}, "model=lstm is more than those"),
        ({"data.train": None}, "'data.train' is needed"),
        ({"tokenizer.min_count": 10**6}, "no word but unknown ones"),
        ({"model.mode": "glove"}, "model.mode=glove"),
    ],
)
def test_bad_settings_are_one_line(changes: dict[str, Any], line: str, corpus: Path, tmp_path: Path) -> None:
    given = {**settings(corpus), **changes}
    given = {key: value for key, value in given.items() if not (changes.get("model") and key == "model.width")}
    with pytest.raises((ConfigError, DataError), match=line) as caught:
        legato.train("word2vec", given, out=str(tmp_path / "w"), quiet=True)
    assert "\n" not in str(caught.value)


def test_bad_files_of_analogies_are_one_line(run: Path, tmp_path: Path) -> None:
    model = legato.load(run, "cpu")
    bad = tmp_path / "bad.txt"
    bad.write_text("boat fish wave\n")
    with pytest.raises(DataError, match=r"bad.txt, line 1: 3 words"):
        model.evaluate(analogies=str(bad))
    bad.write_text("boat fish 3\nboat wave\n")
    with pytest.raises(DataError, match=r"bad.txt, line 2: not two words and a score"):
        model.evaluate(similarity=str(bad))
    with pytest.raises(ConfigError, match=r"'data.test' is needed"):
        model.evaluate()
