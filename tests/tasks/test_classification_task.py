"""Classification: every model that reads a text learns it, of every kind of label, from scratch and from a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.errors import ConfigError, DataError, LegatoError
from legato.nn.state import Output
from legato.registry import TASKS
from legato.runs.config import check, settings_for, with_defaults
from legato.runs.train import plan_of
from legato.tasks.classification.classifier import losses, parts_of
from thinned import some
from tiny_reviews import settings, write_pairs, write_reviews
from tiny_runs import read_metrics, weights_digest

MODELS: dict[str, dict[str, Any]] = {
    "window": {},
    "elman": {},
    "gru": {"model.layers": 1},
    "lstm": {"model.layers": 1, "head.pool": "attention"},
    "bert": {"model.heads": 2, "model.layers": 1, "train.lr": 0.01},
    "gpt2": {"model.heads": 2, "model.layers": 1, "tokenizer.size": 300, "train.lr": 0.005},
    "llama": {"model.heads": 2, "model.layers": 1, "tokenizer.size": 300, "train.lr": 0.005},
}


def trained(folder: Path, **changes: Any) -> legato.Model:
    legato.train("classification", settings(folder, **changes), out=folder / "run", quiet=True)
    return legato.load(folder / "run")


@pytest.fixture(scope="module")
def reviewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows merry from sad."""
    folder = tmp_path_factory.mktemp("reviewer")
    trained(folder, model__layers=1)
    return folder


@pytest.mark.parametrize("model", some([*MODELS], ["window", "lstm", "bert", "llama"]))
def test_every_model_that_reads_a_text_learns_classes(model: str, tmp_path: Path) -> None:
    held = trained(tmp_path, model=model, **MODELS[model])
    assert held.task == "classification"
    assert held.about["labels"] == ["bad", "good"]
    assert held.predict(["a merry film and song", "a grim story and play"]) == ["good", "bad"]
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "valid"]
    assert lines[-1]["accuracy"] > 0.9


def test_a_prediction_has_the_probabilities_of_all_classes(reviewer: Path) -> None:
    found = legato.load(reviewer / "run").predictions(["a lovely book and film"], nbest=2)[0]
    assert [answer.text for answer in found.answers] == ["good", "bad"]
    shares = found.answers[0].more["probabilities"]
    assert shares["good"] == found.answers[0].score
    assert sum(shares.values()) == pytest.approx(1)


def test_a_prediction_does_not_depend_on_its_neighbours(reviewer: Path) -> None:
    held = legato.load(reviewer / "run")
    texts = ["a lovely book", "a grim and sad and weak and dull story and a play", "film"]
    together = [found.answers[0].score for found in held.predictions(texts)]
    alone = [held.predictions([text])[0].answers[0].score for text in texts]
    assert together == pytest.approx(alone, abs=1e-5)


def test_an_empty_text_has_a_problem_and_the_others_answers(reviewer: Path) -> None:
    first, second = legato.load(reviewer / "run").predictions(["  ", "a fine film"])
    assert first.problem == "the text is empty"
    assert second.answers


def test_evaluation_gives_scores_and_what_went_wrong(reviewer: Path) -> None:
    scores = legato.load(reviewer / "run").evaluate(test=str(reviewer / "valid.tsv"))
    assert scores["accuracy"] > 0.9
    assert scores["texts"] == 20
    assert "scikit-learn" in scores["f1_signature"]
    titles = [title.split(",")[0] for title, _, _ in scores["details"]]
    assert titles == ["confusion", "scores per class", "worst errors"]
    json.dumps(scores)


def test_evaluation_puts_the_plain_model_beside_it(reviewer: Path) -> None:
    held = legato.load(reviewer / "run")
    tables = {"test": str(reviewer / "valid.tsv"), "train": str(reviewer / "train.tsv")}
    assert held.evaluate(**tables, baseline=True)["baseline_accuracy"] > 0.9
    with pytest.raises(ConfigError, match=r"set data\.train=FILE"):
        held.evaluate(test=tables["test"], baseline=True)


def test_pairs_are_read_together(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train.tsv", 200, 1)
    write_pairs(tmp_path / "valid.tsv", 30, 2)
    held = trained(tmp_path, model="bert", model__layers=1, model__heads=2, train__steps=5, train__validate_every=5)
    assert held.about["pair"] is True
    one, lone = held.predictions(["a sad film\ta grim song", "a sad film"])
    assert one.answers[0].text in ("0", "1")
    assert lone.problem == "this model reads pairs: write two texts with a tab between them"
    write_reviews(tmp_path / "single.tsv")
    with pytest.raises(ConfigError, match=r"the model reads pairs, .* set data\.columns=\[FIRST,SECOND,LABEL\]"):
        held.evaluate(test=str(tmp_path / "single.tsv"))


def test_numbers_are_guessed_on_their_scale(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train.tsv", 120, 1, scale=True)
    write_pairs(tmp_path / "valid.tsv", 30, 2, scale=True)
    held = trained(tmp_path, model__layers=1, data__baseline="true")
    assert held.about["kind"] == "regression"
    found = held.predictions(["a merry film and song\ta fine book and play"])[0].answers[0]
    assert found.more["value"] == pytest.approx(2.5, abs=0.7)
    result = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert result["valid.spearman"] > 0.8
    assert "valid.baseline_spearman" in result


def test_a_text_may_have_several_labels(tmp_path: Path) -> None:
    lines = [
        f"a {mood} {thing}\t{';'.join(part for part in (mood, thing) if part in ('merry', 'film'))}\n"
        for mood in ("merry", "sad")
        for thing in ("film", "song")
    ] * 10
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_text("text\tlabels\n" + "".join(lines))
    held = trained(tmp_path, model__layers=1, data__kind="multilabel")
    assert held.about["labels"] == ["film", "merry"]
    assert held.predict(["a merry film", "a sad film", "a sad song"]) == ["film;merry", "film", ""]
    assert held.evaluate(test=str(tmp_path / "valid.tsv"))["micro_f1"] > 0.9


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path) -> None:
    wanted = settings(tmp_path, train__steps=12, train__validate_every=6, train__schedule="constant", train__warmup=0)
    legato.train("classification", wanted, out=tmp_path / "all", quiet=True)
    legato.train("classification", {**wanted, "train.steps": 6}, out=tmp_path / "half", quiet=True)
    legato.train(resume=tmp_path / "half", settings={"train.steps": 12}, quiet=True)
    assert weights_digest(tmp_path / "half")["last"] == weights_digest(tmp_path / "all")["last"]


def test_it_goes_on_from_a_model_and_from_another_classifier(reviewer: Path, tmp_path: Path) -> None:
    wanted = {k: v for k, v in settings(reviewer).items() if not k.startswith("model")}
    wanted = {**wanted, "train.steps": 2, "train.lr": 1e-6, "from": str(reviewer / "run")}
    legato.train("classification", wanted, out=tmp_path / "more", quiet=True)
    # The same classes: the head goes on, too, so that almost nothing has changed.
    first, more = (
        legato.load(run).predictions(["a dull play"])[0].answers[0] for run in (reviewer / "run", tmp_path / "more")
    )
    assert more.score == pytest.approx(first.score, abs=1e-2)


def test_an_embedding_begins_with_vectors_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("merry 1 1 1 1\nsad -1 -1 -1 -1\n")
    held = trained(
        tmp_path,
        **{"data.vectors": "vectors.txt", "data.root": str(tmp_path), "model.embedding": 4, "model.tied": "false"},
        train__lr=1e-9,
        train__steps=1,
    )
    assert held.tokenizer.name == "word"
    row = held.module.body.embedding.weight[held.tokenizer.id_of("merry")]  # type: ignore[index,union-attr]
    torch.testing.assert_close(row, torch.ones(4))


def test_filled_up_rows_teach_nothing() -> None:
    logits = torch.randn(3, 2)
    classes = losses("classes", logits, torch.tensor([0, 1, -100]))
    values = losses("regression", logits[:, :1], torch.tensor([1.0, 2.0, torch.nan]))
    several = losses("multilabel", logits, torch.tensor([[1.0, 0.0], [0.0, 0.0], [torch.nan, torch.nan]]))
    for found in (classes, values, several):
        assert found.shape == (3,)
        assert found[2] == 0
        assert (found[:2] > 0).all()


def test_accumulation_changes_the_rounding_alone(tmp_path: Path) -> None:
    config = check(settings_for("classification", settings(tmp_path, model__dropout=0, head__dropout=0)))
    job = TASKS.get("classification").prepare(plan_of(config, torch.device("cpu")), lambda text: None)
    from legato.models.model_with_head import ModelWithHead
    from legato.registry import MODELS as REGISTERED

    torch.manual_seed(0)
    model = ModelWithHead(REGISTERED.get("lstm")(config.model, job.sizes), job.head)
    batch = job.batches.at(0)
    whole = job.loss(model, batch, None).total
    parts = [job.loss(model, part, None).total for part in batch.split(3)]
    torch.testing.assert_close(sum(parts), whole)


def test_a_share_is_held_out_where_no_table_is_given(tmp_path: Path) -> None:
    said: list[str] = []
    config = check(settings_for("classification", settings(tmp_path, data__valid=None)))
    job = TASKS.get("classification").prepare(plan_of(config, torch.device("cpu")), said.append)
    assert not set(job.data["train"].texts) & set(job.data["valid"].texts)
    assert "data.train: reading 'sentence' as text and 'label' as label" in said
    assert any(line.startswith("the model will see: ") for line in said)


def test_a_class_with_one_example_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    train = write_reviews(tmp_path / "train.tsv")
    write_reviews(tmp_path / "valid.tsv")
    train.write_text(train.read_text() + "an odd film\todd\n")
    config = check(settings_for("classification", settings(tmp_path)))
    TASKS.get("classification").prepare(plan_of(config, torch.device("cpu")), said.append)
    assert f"note: the class 'odd' has one example alone ({train}, line 62), too few to be learned" in said


def test_trained_models_learn_in_small_steps_and_little_of_them_in_larger_ones() -> None:
    task, lora = TASKS.get("classification"), {"from": "a folder", "adapt": {"name": "lora"}}
    assert with_defaults(task, {})["model"] == {"bidirectional": True, "name": "lstm"}
    assert with_defaults(task, {"model": {"name": "bert"}})["tokenizer"] == {"name": "wordpiece", "masked": True}
    assert with_defaults(task, {"from": "a folder"})["train"]["lr"] == 5e-5
    assert with_defaults(task, lora)["train"]["lr"] == 1e-3


def test_a_tab_parts_a_pair_only_where_pairs_are_read() -> None:
    assert parts_of("a\tb", True) == (["a", "b"], None)
    assert parts_of("a\tb", None) == (["a", "b"], None)
    assert parts_of("a\tb", False) == (["a\tb"], None)
    assert parts_of("a", None) == (["a"], None)
    assert parts_of("a\t ", True)[1] == "one text of the pair is empty"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.train": None}, "'data.train' is needed"),
        ({"data.metric": "spearman"}, r"data\.metric=spearman is not measured for classes"),
        ({"data.columns": ["sentence"]}, r"data\.columns names 1 of them"),
        ({"data.columns": ["sentence", "second", "label"]}, "has no column 'second'"),
        ({"data.kind": "regression"}, "is not a number, as data.kind=regression needs"),
        ({"data.labels": ["good"]}, r"the label 'bad' is not in data\.labels=\[good\]"),
        ({"data.labels": [True, False]}, "put quotes around each name"),
        ({"model": "transformer"}, "reads one text and writes another"),
        ({"head.crf": "true"}, r"head\.crf=true is for tagging"),
        ({"train.head_lr": 0}, r"train\.head_lr=0 should be greater than 0"),
        ({"model": "bert", "model.length": 32, "data.max_length": 64}, r"max_length=64 is more than the 32 tokens"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=said) as problem:
        legato.train("classification", {**settings(tmp_path), **changes}, out=tmp_path / "run", quiet=True)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_label_that_training_lacks_counts_as_wrong_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = settings(tmp_path)
    (tmp_path / "valid.tsv").write_text("sentence\tlabel\na fine film\tgood\na film\tso-so\nfine film\tso-so\n")
    result = legato.train("classification", wanted, out=tmp_path / "run")
    said = "data.valid has labels unknown to the model, in 2 of 3 rows: 'so-so' (2); they count as wrong"
    assert f"note: {said}\n" in capsys.readouterr().err
    assert result.metrics["valid.accuracy"] <= 1 / 3
    assert result.metrics["valid.loss"] > 0
    with pytest.warns(UserWarning, match=r"data\.test has labels unknown to the model, in 2 of 3 rows: 'so-so'"):
        scores = legato.load(result.run, device="cpu").evaluate(test=str(tmp_path / "valid.tsv"))
    assert scores["accuracy"] == result.metrics["valid.accuracy"]
    assert scores["loss"] == pytest.approx(result.metrics["valid.loss"])


@pytest.mark.slow
def test_a_label_that_training_lacks_is_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    (tmp_path / "odd.tsv").write_text("sentence\tlabel\na fine film\tgood\na film\tso-so\n")
    said = r"odd\.tsv, line 3: the label 'so-so' is not among those learned, which are 'bad', 'good'"
    strict = {**wanted, "data.unseen_labels": "refuse"}
    with pytest.raises(DataError, match=said):
        legato.train("classification", {**strict, "data.valid": str(tmp_path / "odd.tsv")}, quiet=True)
    run = legato.train("classification", strict, out=tmp_path / "run", quiet=True).run
    with pytest.raises(DataError, match=said):  # as in training
        legato.load(run, device="cpu").evaluate(test=str(tmp_path / "odd.tsv"))


def test_samples_and_preview_name_classes_that_the_data_numbers(tmp_path: Path) -> None:
    said: list[str] = []
    write_reviews(tmp_path / "train.tsv", seed=1, labels=("0", "1"))
    write_reviews(tmp_path / "valid.tsv", 20, seed=2, labels=("0", "1"))
    config = check(settings_for("classification", settings(tmp_path, data__labels=["sour", "sweet"])))
    job = TASKS.get("classification").prepare(plan_of(config, torch.device("cpu")), said.append)
    assert job.labels == ["sour", "sweet"]
    assert said[-1].endswith(("→ sour", "→ sweet"))


def test_numbers_stand_for_the_classes_of_the_model_that_it_goes_on_from(reviewer: Path, tmp_path: Path) -> None:
    """As in evaluation; without that the head that knows them would be thrown away."""
    write_reviews(tmp_path / "train.tsv", seed=1, labels=("0", "1"))
    write_reviews(tmp_path / "valid.tsv", 20, seed=2, labels=("0", "1"))
    wanted = {k: v for k, v in settings(tmp_path).items() if not k.startswith("model")}
    config = check(settings_for("classification", {**wanted, "from": str(reviewer / "run")}))
    said: list[str] = []
    job = TASKS.get("classification").prepare(plan_of(config, torch.device("cpu")), said.append)
    assert job.labels == ["bad", "good"]
    assert "data.train: its numbers stand for the model's classes: 0 is 'bad', 1 is 'good'" in said


def test_a_head_that_is_thrown_away_is_told(
    reviewer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_reviews(tmp_path / "train.tsv", seed=1, labels=("sour", "sweet"))
    write_reviews(tmp_path / "valid.tsv", 20, seed=2, labels=("sour", "sweet"))
    wanted = {k: v for k, v in settings(tmp_path, train__steps=1).items() if not k.startswith("model")}
    legato.train("classification", {**wanted, "from": str(reviewer / "run")}, out=tmp_path / "run")
    told = "note: the head is a new one: it knew 'bad', 'good', and the data has 'sour', 'sweet'"
    assert told in " ".join(capfd.readouterr().err.split())


def test_a_rare_class_counts_as_much_as_a_frequent_one(tmp_path: Path) -> None:
    table = tmp_path / "train.tsv"
    table.write_text("sentence\tlabel\n" + "a fine film\tgood\n" * 30 + "a dull film\tbad\n" * 10)
    plain, balanced = (
        check(settings_for("classification", settings(tmp_path, data__class_weights=how, data__valid=str(table))))
        for how in ("none", "balanced")
    )
    jobs = [TASKS.get("classification").prepare(plan_of(c, torch.device("cpu")), print) for c in (plain, balanced)]
    assert jobs[0].weights is None
    torch.testing.assert_close(jobs[1].weights, torch.tensor([2.0, 2 / 3]))  # 40 / (2 · 10) and 40 / (2 · 30)

    class Even(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return Output(hidden=torch.zeros(batch.rows, 1, 1), logits=torch.zeros(batch.rows, 2))

    losses_of = [job.loss(Even(), job.batches.at(0), None) for job in jobs]
    batch = jobs[1].batches.at(0)
    share = sum(float(jobs[1].weights[label]) for label in batch.labels.tolist()) / batch.rows
    assert float(losses_of[1].total) == pytest.approx(float(losses_of[0].total) * share)
    assert float(losses_of[1].reported) == pytest.approx(float(losses_of[0].reported))
    write_pairs(tmp_path / "scale.tsv", scale=True)
    changes = {"data.train": str(tmp_path / "scale.tsv"), "data.valid": None, "data.class_weights": "balanced"}
    with pytest.raises(ConfigError, match=r"data\.class_weights=balanced is for classes"):
        legato.train("classification", settings(tmp_path) | changes, out=tmp_path / "run", quiet=True)


def test_a_model_that_gives_one_answer_always_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    legato.train("classification", settings(tmp_path, train__steps=1, train__lr=1e-9), out=tmp_path / "run")
    told = " ".join(capfd.readouterr().err.split())
    assert "to every valid text; train longer, or change train.lr" in told


def test_a_language_model_is_no_classifier(tmp_path: Path) -> None:
    from tiny_runs import small

    legato.train("lm", small(tmp_path, train__steps=2), out=tmp_path / "lm", quiet=True)
    loaded = legato.load(tmp_path / "lm").loaded
    with pytest.raises(LegatoError, match="holds no classifier"):
        TASKS.get("classification").predict(loaded, ["a"], TASKS.get("classification").Options())
