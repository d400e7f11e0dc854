"""Classifying by prompting: label scores are those of whole forward passes, whatever is shared; what fits is kept."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.folders.model_folder import save_model
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS
from legato.tasks.classification.prompting import (
    LabelPrompt,
    Prompter,
    PromptOptions,
    label_scores,
    read_shots,
)

TOKENIZER = Tokenizer.train(
    TokenizerConfig(name="bpe", size=300),
    ["Text: a good film\nLabel: good\n\nText: bad\nLabel: very bad indeed\n"] * 9,
)
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 2, "heads": 2, "length": 200},
    "llama": {"layers": 2, "heads": 2, "kv_heads": 1, "length": 200},
    "lstm": {"layers": 2},
    "window": {"context": 5},
}
SHOTS = (("a good film", "good"), ("what a bore, very bad", "very bad indeed"), ("fine", "good"))
LABELS = ("good", "very bad indeed", "so so")


def loaded(name: str, **changes: Any) -> Loaded:
    torch.manual_seed(0)
    kind: type[SequenceModel] = MODELS.get(name)
    module = kind(validate(kind.Config, {"name": name, "width": 16, **SIZES[name], **changes}), Sizes(TOKENIZER.size))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return Loaded(Path("m"), module.eval(), Processors(TOKENIZER), "lm")


def asked(held: Loaded, **options: Any) -> Prompter:
    return Prompter(held, validate(PromptOptions, {"labels": LABELS, **options}))


@torch.no_grad()
def scores_one_by_one(model: SequenceModel, prompts: Sequence[LabelPrompt]) -> torch.Tensor:
    """log P of every label behind every prompt by whole forward passes, one for each label."""
    scores = torch.zeros(len(prompts), len(prompts[0].labels))
    for row, prompt in enumerate(prompts):
        for number, label in enumerate(prompt.labels):
            ids = torch.tensor([[*prompt.ids, *label]], device=model.device)
            hidden = model(Batch(Inputs(ids[:, :-1]))).hidden[0, len(prompt.ids) - 1 :]
            logp = model.readout(hidden).float().log_softmax(-1)
            scores[row, number] = logp.gather(1, ids[0, len(prompt.ids) :, None]).sum().cpu()
    return scores


@pytest.mark.parametrize("shots", [(), SHOTS], ids=["zero", "few"])
@pytest.mark.parametrize("name", SIZES)
def test_scores_are_those_of_whole_forward_passes(name: str, shots: Any) -> None:
    held = loaded(name)
    prompter = asked(held, shots=shots)
    texts = ["a film", "", "a very long film that is not good at all", "é\tü"]
    prompts = [prompter.prompt(text, len(shots)) for text in texts]
    torch.testing.assert_close(
        label_scores(held.module, prompts), scores_one_by_one(held.module, prompts), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("tokens", [1, 120, 10**6])
def test_how_many_are_read_together_changes_nothing(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held = loaded("gpt2")
    prompter = asked(held, shots=SHOTS)
    prompts = [prompter.prompt("film " * count, 3) for count in (1, 7, 3, 1)]
    wanted = label_scores(held.module, prompts)
    monkeypatch.setattr("legato.tasks.classification.prompting.TOKENS", tokens)
    torch.testing.assert_close(label_scores(held.module, prompts), wanted, rtol=1e-4, atol=1e-4)


def test_examples_are_read_once_for_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    held = loaded("gpt2")
    prompter = asked(held, shots=SHOTS)
    prompts = [prompter.prompt("film " * count, 3) for count in (1, 7, 3, 1)]
    read: list[tuple[int, ...]] = []
    prefill = held.module.prefill
    monkeypatch.setattr(
        held.module,
        "prefill",
        lambda inputs, state: read.append(tuple(inputs.token_ids.shape)) or prefill(inputs, state),
    )
    monkeypatch.setattr("legato.tasks.classification.prompting.TOKENS", 1)
    label_scores(held.module, prompts)
    (_, shared), *rest = read
    assert len(rest) == 4
    assert shared >= 40
    assert [width for _, width in rest] == sorted(len(prompt.ids) - shared for prompt in prompts)


def test_a_prompt_is_the_examples_and_the_text_and_every_label_goes_on_from_it() -> None:
    prompter = asked(loaded("lstm"), shots=SHOTS[:2], template="{text} It was {label}.")
    prompt = prompter.prompt("{label} film", 2)
    for label, ids in zip(LABELS, prompt.labels, strict=True):
        assert TOKENIZER.decode([*prompt.ids, *ids]) == (
            "a good film It was good.\n\nwhat a bore, very bad It was very bad indeed.\n\n{label} film It was "
            + label
        )
    pair = asked(loaded("lstm"), template="{first}? {second}! {label}").prompt("a\tb", 0)
    assert TOKENIZER.decode([*pair.ids, *pair.labels[0]]) == "a? b! good"


def test_probabilities_are_over_the_labels() -> None:
    prompter = asked(loaded("gpt2"), nbest=2)
    (found,) = prompter.predict(["a film"])
    shares = found.answers[0].more["probabilities"]
    assert list(shares) == list(LABELS)
    assert sum(shares.values()) == pytest.approx(1)
    assert [answer.text for answer in found.answers] == sorted(shares, key=lambda label: -shares[label])[:2]
    scores = scores_one_by_one(prompter.loaded.module, [prompter.prompt("a film", 0)])[0]
    assert list(shares.values()) == pytest.approx(scores.softmax(0).tolist(), abs=1e-5)


def test_normalised_scores_are_means_over_a_labels_tokens() -> None:
    prompter = asked(loaded("gpt2"), normalize=True)
    prompt = prompter.prompt("a film", 0)
    scores = scores_one_by_one(prompter.loaded.module, [prompt])[0] / torch.tensor([len(x) for x in prompt.labels])
    shares = prompter.predict(["a film"])[0].answers[0].more["probabilities"]
    assert list(shares.values()) == pytest.approx(scores.softmax(0).tolist(), abs=1e-5)


def test_calibrated_a_text_that_says_nothing_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tasks.classification.prompting.SAYS_NOTHING", ("N/A",))
    (found,) = asked(loaded("gpt2"), calibrate=True, shots=SHOTS).predict(["N/A"])
    assert list(found.answers[0].more["probabilities"].values()) == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_as_many_examples_as_fit_are_kept_and_it_is_said() -> None:
    held = loaded("gpt2", length=48)
    prompter = asked(held, shots=SHOTS * 4)
    with pytest.warns(UserWarning, match=r"reads 48 tokens at most: 2 of 2 texts have fewer than the 12 examples"):
        found = prompter.predict(["a film", "bad"])
    assert all(len(prediction.answers) == 1 for prediction in found)
    prompt = prompter._fitting("bad", found[0])
    assert prompt is not None
    assert 0 < prompt.shots < 12

    def length(shots: int) -> int:
        tried = prompter.prompt("bad", shots)
        return len(tried.ids) + max(map(len, tried.labels)) - 1

    assert length(prompt.shots) <= 48 < length(prompt.shots + 1)


def test_a_text_that_does_not_fit_alone_has_a_problem() -> None:
    (short, long) = asked(loaded("gpt2", length=30)).predict(["a film", "film " * 60])
    assert short.problem is None
    assert "but the model reads 30 at most" in str(long.problem)


def test_calibrating_keeps_within_the_models_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tasks.classification.prompting.SAYS_NOTHING", ("a text that says nothing", "N/A"))
    shots = SHOTS[:2]
    room = asked(loaded("gpt2"), shots=shots)
    prompt = room.prompt("a", 2)
    exact = len(prompt.ids) + max(map(len, prompt.labels)) - 1  # "a" has just room behind the examples
    (found,) = asked(loaded("gpt2", length=exact), shots=shots, calibrate=True).predict(["a"])
    assert found.problem is None
    assert sum(found.answers[0].more["probabilities"].values()) == pytest.approx(1)


def test_many_labels_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held = loaded("gpt2")
    prompter = asked(held)
    prompts = [prompter.prompt(f"film {number}", 0) for number in range(6)]
    wanted = label_scores(held.module, prompts)
    rows: list[int] = []
    start = held.module.start
    monkeypatch.setattr(held.module, "start", lambda count, *rest: rows.append(count) or start(count, *rest))
    monkeypatch.setattr("legato.tasks.classification.prompting.KEPT", 40)
    torch.testing.assert_close(label_scores(held.module, prompts), wanted, rtol=1e-4, atol=1e-4)
    assert len(rows) > 1


# --- examples from files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "text\tlabel\na film\tgood\nbad\tso so\n"),
        ("a.tsv", "label\tsentence\ngood\ta film\nso so\tbad\n"),
        ("a.tsv", "a film\tgood\nbad\tso so\n"),
        ("a.txt", "a film\tgood\nbad\tso so\n"),
        ("a.csv", 'text,label\n"a film",good\nbad,so so\n'),
        ("a.csv", 'text,label\n"a film","good"\n"bad",so so\n'),
        ("a.jsonl", '{"text": "a film", "label": "good"}\n{"text": "bad", "label": "so so"}\n'),
    ],
)
def test_examples_from_files(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.warns(UserWarning, match=rf"{name}: reading .* as text and .* as label"):
        assert read_shots(str(tmp_path / name)) == [("a film", "good"), ("bad", "so so")]
    with pytest.warns(UserWarning, match="reading"):
        prompter = Prompter(loaded("lstm"), PromptOptions(shots=str(tmp_path / name)))
    assert prompter.labels == ["good", "so so"]


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("good\ta film to see twice\nbad\twhat a bore it is\ngood\tsuch a fine story\nbad\tgrim and dull\n", None),
        ("0\tfilm\n1\tbore\n", None),
        ("good\tfilm\nso so\tbore\n", LABELS),
    ],
    ids=["by content", "by numbers", "by the labels"],
)
def test_labels_may_stand_first_in_a_file_without_a_header(content: str, labels: Any, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.warns(UserWarning, match="reading column 2 as text and column 1 as label, no header"):
        shots = read_shots(str(tmp_path / "a.tsv"), labels)
    assert shots == [tuple(reversed(line.split("\t"))) for line in content.splitlines()]


@pytest.mark.parametrize("columns", [(3, 1), ("said", "rank")])
def test_columns_of_examples_can_be_named(columns: tuple[str | int, ...], tmp_path: Path) -> None:
    header = "rank\tid\tsaid\n" if columns[0] == "said" else ""
    (tmp_path / "a.tsv").write_text(f"{header}good\t7\ta film\nbad\t8\tbore\n")
    assert read_shots(str(tmp_path / "a.tsv"), columns=columns) == [("a film", "good"), ("bore", "bad")]


def test_a_name_for_no_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("rank\tsaid\tmore\tother\ngood\ta\tb\tc\n")
    with pytest.raises(DataError, match="has no column 'rnk'; did you mean 'rank'"):
        read_shots(str(tmp_path / "a.tsv"), columns=["said", "rnk"])
    with pytest.raises(ConfigError, match="--columns names 1 of them; say --columns TEXT,LABEL"):
        read_shots(str(tmp_path / "a.tsv"), columns=["said"])
    with pytest.raises(DataError, match="say which are text and label: --columns TEXT,LABEL") as told:
        read_shots(str(tmp_path / "a.tsv"))
    assert "data." not in str(told.value).partition("; ")[2]


@pytest.mark.filterwarnings("ignore:.*reading")
def test_bad_examples_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\na film\tgood\nbad\tgod\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 3: the label 'god' is none of --labels; did you mean 'good'"):
        read_shots(str(file), ["good", "bad"])
    file.write_text("text\tlabel\na film\tgood\n\tgood\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 3: an example needs a text and a label"):
        read_shots(str(file))


@pytest.mark.filterwarnings("ignore:.*reading")
def test_quotes_in_examples_are_read_as_the_kind_of_file_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\n"gem" of a film\tgood\n5" too long\tbad\n')
    assert read_shots(str(tmp_path / "a.tsv")) == [('"gem" of a film', "good"), ('5" too long', "bad")]
    (tmp_path / "a.csv").write_text('text,label\n"a ""gem"", really",good\n"two\nlines","bad, very"\n')
    assert read_shots(str(tmp_path / "a.csv")) == [('a "gem", really', "good"), ("two\nlines", "bad, very")]
    (tmp_path / "b.csv").write_text('text,label\n"a gem,good\nbad,bad\n')
    with pytest.raises(DataError, match=r"b\.csv, line \d+: .*is a quotation mark missing"):
        read_shots(str(tmp_path / "b.csv"))


@pytest.mark.filterwarnings("ignore:.*reading")
def test_an_example_without_a_label_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a film", "label": "good"}\n{"text": "bad", "label": null}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: an example needs a text and a label"):
        read_shots(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"labels": "good"}, "at least two"),
        ({"labels": None}, "at least two"),
        ({"labels": "good,,bad"}, "a label is empty"),
        ({"labels": "good,bad,good"}, "'good' is given twice"),
        ({"template": "Text: {text}"}, "needs {text}, and {label} behind it"),
        ({"template": "{label}: {text}"}, "needs {text}, and {label} behind it"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line.replace("{", r"\{").replace("}", r"\}")):
        asked(loaded("lstm"), **options)


def test_a_model_that_reads_both_ways_is_refused() -> None:
    with pytest.raises(ConfigError, match="m does not continue texts"):
        asked(loaded("lstm", bidirectional=True))


def test_a_file_is_scored_as_a_classifier_would_be(tmp_path: Path) -> None:
    file = str(tmp_path / "test.tsv")
    Path(file).write_text("text\tlabel\n" + "a film that is good\tgood\nbad film this is\tso so\n" * 4)
    held = loaded("gpt2")
    scores = asked(held, labels=("good", "so so")).score(file)
    found = asked(held, labels=("good", "so so")).predict(["a film that is good", "bad film this is"])
    right = [a.answers[0].text == b for a, b in zip(found, ("good", "so so"), strict=True)]
    assert scores["accuracy"] == np.mean(right)
    assert scores["details"]
    with pytest.warns(UserWarning, match=r"test\.tsv has labels unknown to the model, in 4 of 8 rows: 'so so'"):
        assert asked(held, labels=("good", "bad")).score(file)["accuracy"] <= 0.5
    with pytest.raises(DataError, match=r"test\.tsv, line 2: the label 'good' is not among those learned"):
        asked(held, labels=("yes", "no")).score(file)


# --- from Python -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", loaded("gpt2").module, Processors(TOKENIZER), task="lm", about={}, card="")
    return tmp_path / "m"


def test_from_python(folder: Path) -> None:
    model = legato.load(folder, "cpu")
    assert model.classify("a film", ["good", "bad"]) in ("good", "bad")
    several = model.classify(["a film", "bad"], ["good", "bad"], shots=[("x", "good")], calibrate=True)
    assert len(several) == 2
    with pytest.raises(LegatoError, match="text 1: with a label it has"):
        model.classify("film " * 300, ["good", "bad"])
    table = folder.parent / "test.tsv"
    table.write_text("text\tlabel\na film\tgood\n" + "film " * 300 + "\tbad\n")
    assert 0 <= model.classify_file(str(table), labels=["good", "bad"])["accuracy"] <= 1


def test_the_example_draws_each_shot_once_and_scores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "few_shots.py"
    spec = importlib.util.spec_from_file_location("few_shots", example)
    assert spec is not None
    assert spec.loader is not None
    few_shots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(few_shots)
    rows = [(f"text {number}", "ab"[number % 3 == 0]) for number in range(9)]
    drawn = few_shots.draw(rows, ["a", "b"], 6, seed=1)
    assert len(set(drawn)) == 6
    assert sorted(label for _, label in drawn) == ["a"] * 3 + ["b"] * 3
    assert len(few_shots.draw(rows, ["a", "b"], 99, seed=1)) == 9
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("text\tlabel\n" + "a film that is good\t1\nbad film this is\t0\n" * 3)
    test.write_text("text\tlabel\na good film\t1\nso bad\t0\n")
    words = ["few_shots", str(folder), str(train), str(test), "--shots", "0,2", "--labels", "bad,good"]
    monkeypatch.setattr("sys.argv", words)
    few_shots.main()
    assert "  2 examples: accuracy" in capsys.readouterr().out
    test.write_text("text\tlabel\na good film\t7\nso bad\t0\n")
    with pytest.raises(SystemExit, match=r"has the label '7', which .*train\.tsv lacks"):
        few_shots.main()
