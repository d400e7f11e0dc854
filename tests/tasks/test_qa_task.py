"""The qa task on questions that a small model learns: who did it, and when."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.batching.examples import collate_examples
from legato.data.batching.qa_windows import QuestionReader
from legato.data.formats.questions import read_questions
from legato.data.text.text_reader import TextReader
from legato.errors import ConfigError, DataError, LegatoError
from legato.evaluation.qa import span_scores
from legato.tasks.qa.answerer import Answerer, Candidate, ScoredSpans, span_losses
from tiny_questions import SMALL, context, squad

LEARN = {"train.epochs": 6, "train.lr": 0.005, "data.window": 48, "data.stride": 16}


def train(folder: Path, **changes: Any) -> Any:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return legato.train("qa", {**SMALL, **LEARN, **given}, out=folder, quiet=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of questions, and a run on those of which some have no answer, `home/silent`."""
    home = tmp_path_factory.mktemp("qa")
    squad(home / "plain.json", 20, 6, seed=1)
    squad(home / "silent.json", 20, 9, silent=True, seed=2)
    squad(home / "test.json", 4, 6, silent=True, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        train(home / "silent", data__train=home / "silent.json")
    return home


def test_a_recurrent_model_learns_to_answer_or_to_say_that_it_cannot(home: Path) -> None:
    metrics = json.loads((home / "silent" / "result.json").read_text())["metrics"]
    assert metrics["valid.f1"] > 90
    assert metrics["valid.unanswerable_exact_match"] > 80
    model = legato.load(home / "silent")
    answers = model.predict(
        [
            "Who did it?\tnobody saw it. Clara did it in 1945. all went well.",
            "When was it?\tnobody saw it. Clara did it in 1945. all went well.",
            "Who did it?\tall went well. it was done in 1806. rain fell on the town.",
        ]
    )
    assert answers == ["Clara", "1945", ""]


def test_an_answer_far_into_a_long_text_is_found(home: Path) -> None:
    before = "rain fell on the town. " * 30
    text = before + "Emil did it in 1871. " + "nobody saw it. " * 30
    (found,) = legato.load(home / "silent").predictions([f"When was it?\t{text}"])
    assert found.answers[0].text == "1871"
    assert text[found.answers[0].more["start"] : found.answers[0].more["end"]] == "1871"


def test_the_threshold_is_chosen_on_the_validation_questions_and_kept(home: Path) -> None:
    about = json.loads((home / "silent" / "best" / "config.json").read_text())["legato"]
    assert about["threshold"] == about["metrics"]["threshold"]
    assert legato.load(home / "silent").evaluate(test=str(home / "test.json"))["threshold"] == about["threshold"]


def test_evaluation_tells_scores_and_the_worst_errors(home: Path) -> None:
    scores = legato.load(home / "silent").evaluate(test=str(home / "test.json"))
    assert scores["questions"] == 48
    assert scores["f1"] > 80
    assert {"exact_match", "loss", "answerable_f1", "unanswerable_exact_match", "signature"} <= set(scores)
    titles = [title for title, _, _ in scores["details"]]
    assert titles == ["answered", "worst errors"]
    for _, columns, rows in scores["details"]:
        assert all(len(row) == len(columns) for row in rows)


def test_a_threshold_out_of_reach_always_answers_and_a_low_one_never_does(home: Path) -> None:
    model, test = legato.load(home / "silent"), str(home / "test.json")
    assert model.evaluate(test=test, threshold=1e6)["unanswerable_exact_match"] == 0
    assert model.evaluate(test=test, threshold=-1e6)["unanswerable_exact_match"] == 100


def test_what_always_answers_is_scored_so_and_this_is_said(home: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", data__train=home / "plain.json", train__steps=2)
    model, test = legato.load(tmp_path / "run"), str(home / "test.json")
    with pytest.warns(UserWarning, match=r"^8 of 48 questions have no answer.*data\.threshold=0"):
        scores = model.evaluate(test=test)
    assert "threshold" not in scores
    assert scores["unanswerable_exact_match"] == 0
    asked = read_questions(test).questions
    said = model.predict([f"{question.question}\t{question.context}" for question in asked])
    found = span_scores(said, [question.rights for question in asked])
    assert {name: scores[name] for name in found} == pytest.approx(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is to be said of it then
        assert model.evaluate(test=test, threshold=0)["threshold"] == 0


def test_the_part_that_was_held_out_can_be_scored_again(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", data__train=home / "silent.json", data__test_share=0.1, train__steps=2)
    with pytest.warns(UserWarning, match="is split by article"):
        again = legato.load(tmp_path / "run").evaluate(test=str(home / "silent.json"), part="test")
    assert again["f1"] == pytest.approx(result.metrics["test.f1"])
    assert again["loss"] == pytest.approx(result.metrics["test.loss"], rel=1e-4)


def test_a_part_that_there_is_not(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.part=test: there is none"):
        legato.load(home / "silent").evaluate(test=str(home / "silent.json"), part="test")


def test_batching_never_changes_an_answer(home: Path) -> None:
    draw = random.Random(5)
    texts = [f"Who did it?\t{context(draw, filling)[0]}" for filling in (0, 1, 3, 9, 30)]
    model = legato.load(home / "silent")
    together = model.predictions(texts, nbest=3)
    for text, both in zip(texts, together, strict=True):
        (alone,) = model.predictions([text], nbest=3)
        assert [answer.text for answer in alone.answers] == [answer.text for answer in both.answers]
        assert [a.score for a in alone.answers] == pytest.approx([a.score for a in both.answers], abs=1e-4)


def test_what_cannot_be_read_is_said_and_the_rest_is_answered(home: Path) -> None:
    model = legato.load(home / "silent")
    bad = ["Who did it?", "\tsome text", "Who did it?\t ", "who? " * 60 + "\tAnna did it"]
    *problems, good = model.predictions([*bad, "Who did it?\tnobody saw it. Anna did it in 1806."])
    words = ["there is no text to find the answer in", "question is empty", "context is empty", "leaves no room"]
    for problem, word in zip(problems, words, strict=True):
        assert word in str(problem.problem)
    assert good.answers[0].text == "Anna"


def test_one_context_for_all_questions(home: Path) -> None:
    model = legato.load(home / "silent")
    text = "nobody saw it. Dora did it in 1914."
    assert model.predict(["Who did it?", "When was it?"], context=text) == ["Dora", "1914"]
    with pytest.raises(LegatoError, match="another one is given"):
        model.predict("Who did it?\tsome text", context=text)


@pytest.mark.parametrize(
    "model",
    [
        {"model": "bert", "model__heads": 2},
        {"model": "gpt2", "model__heads": 2},
        {"model": "lstm", "tokenizer": "word", "model__characters": 8},
        {"model": "window"},
        {"model": "gru", "head__layers": "mix", "head__lstm": 1, "head__width": 16},
    ],
    ids=["bert", "gpt2", "letters", "window", "mix"],
)
def test_every_model_that_reads_a_text_can_be_trained(home: Path, tmp_path: Path, model: dict[str, Any]) -> None:
    result = train(tmp_path / "run", data__train=home / "plain.json", train__steps=3, **model)
    assert result.metrics["valid.loss"] > 0
    answer = legato.load(tmp_path / "run").predict("Who did it?\tnobody saw it. Anna did it in 1806.")
    assert answer in "nobody saw it. Anna did it in 1806."


@pytest.mark.slow
def test_a_trained_encoder_goes_on_with_a_head_for_spans(home: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(context(random.Random(n))[0] for n in range(60)))
    small = {**SMALL, "train.batch_rows": None, "train.batch_tokens": 256, "train.steps": 2, "data.window": 64}
    legato.train("mlm", {**small, "data.train": text, "model.heads": 2}, out=tmp_path / "m", quiet=True)
    changes = {key: value for key, value in LEARN.items() if key != "train.lr"}
    given = {key: value for key, value in SMALL.items() if not key.startswith("model.")}
    words = {**given, **changes, "train.steps": 2, "data.train": home / "plain.json", "from": tmp_path / "m"}
    legato.train("qa", words, out=tmp_path / "q", quiet=True)
    found = legato.load(tmp_path / "q")
    assert found.task == "qa"
    assert found.predict("Who did it?\tAnna did it in 1806.") in "Anna did it in 1806."


# --- settings and data -------------------------------------------------------------------------------


def test_a_file_without_any_answer_is_refused(tmp_path: Path) -> None:
    rows = [{"question": "Who?", "context": f"text {n}", "answer": ""} for n in range(8)]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DataError, match="holds no answers"):
        train(tmp_path / "run", data__train=file)


def test_a_window_longer_than_the_model_is_refused(home: Path, tmp_path: Path) -> None:
    changes = {"model": "bert", "model__heads": 2, "model__length": 32}
    with pytest.raises(ConfigError, match=r"data\.window=48 is longer than the model's 32 tokens"):
        train(tmp_path / "run", data__train=home / "plain.json", **changes)


def test_a_short_model_reads_short_windows_also_when_its_run_goes_on(home: Path, tmp_path: Path) -> None:
    model = {"model": "bert", "model__heads": 2, "model__length": 32, "data__window": 384, "data__stride": 8}
    train(tmp_path / "run", data__train=home / "plain.json", train__steps=1, **model)
    again = legato.train(None, {"resume": tmp_path / "run", "train.steps": 2}, quiet=True)
    assert again.steps == 2
    assert json.loads((tmp_path / "run" / "best" / "config.json").read_text())["legato"]["window"] == 32


def test_a_crf_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for tagging"):
        train(tmp_path / "run", data__train=home / "plain.json", head__crf="true")


def test_smoothing_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label_smoothing is not for qa"):
        train(tmp_path / "run", data__train=home / "plain.json", train__label_smoothing=0.1)


def test_a_model_for_something_else_answers_no_questions(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "model"
    held = legato.load(home / "silent")
    held.loaded.module = held.loaded.module.body  # type: ignore[assignment]
    held.loaded.folder = folder
    with pytest.raises(LegatoError, match="has no head for spans"):
        held.predict("Who?\tAnna")


# --- equations ---------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_of_both_ends() -> None:
    row = collate_examples([_row((1, 2)), _row((0, 0))])
    logits = torch.zeros(2, 4, 2)
    logits[0, 1, 0] = logits[0, 2, 1] = 2.0
    first = -torch.log_softmax(torch.tensor([0.0, 2.0, 0.0, 0.0]), 0)[1]
    assert span_losses(logits, row).tolist() == pytest.approx([float(first), float(torch.tensor(4.0).log())])


def _row(span: tuple[int, int]) -> Any:
    from legato.data.batching.examples import Example

    return Example([1, 2, 3, 4], span=span)


def test_no_answer_ranks_by_the_threshold() -> None:
    found = ScoredSpans([Candidate("tea", 0, 3, 1.0), Candidate("milk", 5, 9, 0.0)], none=1.5)
    assert found.answer(None) == "tea"
    assert found.answer(0.4) == ""
    assert found.answer(0.6) == "tea"
    assert [candidate.text for candidate, _ in found.ranked(0.4)] == ["", "tea", "milk"]
    assert [candidate.text for candidate, _ in found.ranked(None)] == ["tea", "milk"]
    assert sum(share for _, share in found.ranked(0.4)) == pytest.approx(1)


def test_the_best_window_answers_and_the_least_sure_one_says_none() -> None:
    """Two windows of one question: the second holds the better span, and the lower score for none."""
    from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
    from legato.nn.state import Output

    tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["q abcdefghijklmnopqrst"])
    reader = QuestionReader(TextReader(tokenizer), window=16, stride=2)
    text = "abcdefghijklmnopqrst"

    class Table(torch.nn.Module):
        """Scores by letter: the answer is 'nop'."""

        device = torch.device("cpu")

        def forward(self, batch: Any) -> Output:
            letters = [[tokenizer.token(int(index)) for index in row] for row in batch.inputs.ids]
            starts = torch.tensor([[{"n": 5.0, "b": 2.0, "<eos>": 1.0}.get(c, 0.0) for c in row] for row in letters])
            ends = torch.tensor([[{"p": 5.0, "c": 2.0, "<eos>": -1.0}.get(c, 0.0) for c in row] for row in letters])
            starts[:, -1] += torch.tensor([0.0 if "n" in row else 4.0 for row in letters])
            return Output(batch.inputs.ids, logits=torch.stack([starts, ends], -1))

    windows = reader.windows([("q", text)])
    assert len(windows) > 1
    (found,) = Answerer(Table(), reader, 5).ask([text], windows)  # type: ignore[arg-type]
    assert (found.spans[0].text, found.spans[0].score) == ("nop", 10.0)
    (turned,) = Answerer(Table(), reader, 5).ask([text], windows[::-1])  # type: ignore[arg-type]
    assert found.none == turned.none == 0.0
    (short,) = Answerer(Table(), reader, 2).ask([text], windows)  # type: ignore[arg-type]
    assert len(short.spans[0].text) <= 2
