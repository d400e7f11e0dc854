"""Instruction tuning: the loss is on answers alone, and what was learned is asked by the same template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, ExampleBatches, collate_examples
from legato.data.formats.dialogues import read_dialogues
from legato.data.text.tokenizers import Tokenizer
from legato.errors import ConfigError, DataError
from legato.folders.chat_template import ChatTemplate
from legato.folders.model_folder import load_model
from legato.tasks.chat.task import pad_answers, rows_of, template_of
from legato.tasks.lm.job import next_token_loss
from tiny_published import CHATML, END, gpt2_folder

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "It sat on\nthe mat, ünïcode."},
    {"role": "user", "content": "and the dog?"},
    {"role": "assistant", "content": "ran"},
]
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
FORGETS = (  # what was thought before is left out once others follow
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' and loop.last %}"
    "{{ 'hm ' }}{% endif %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
UNMARKED = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"


def jsonl(path: Path, *dialogues: Any) -> str:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in dialogues))
    return str(path)


def learned(row: Example, tokenizer: Tokenizer) -> list[str]:
    """The runs of tokens that are learned, as text with their marks."""
    assert row.positions is not None
    assert row.targets is not None
    runs: list[list[int]] = []
    before = None
    for place, token in zip(row.positions, row.targets, strict=True):
        if before is None or place != before + 1:
            runs.append([])
        runs[-1].append(token)
        before = place
    return [tokenizer.full_library.decode(run, skip_special_tokens=False) for run in runs]


def rows_with(template: str | None, folder: Path, max_length: int = 10**6) -> tuple[list[Example], Any]:
    loaded = load_model(gpt2_folder(folder / "m", template=template, length=128))
    data = read_dialogues(jsonl(folder / "d.jsonl", TURNS))
    chat = template_of(loaded.tokenizer, loaded)
    return rows_of(data, loaded.tokenizer, chat, max_length, print), loaded


# --- what is learned -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (CHATML, [["It sat on\nthe mat, ünïcode.<|im_end|>", "ran<|im_end|>"]]),
        (LLAMA2, [[f" It sat on\nthe mat, ünïcode. {END}", f" ran {END}"]]),
        (None, [[f"It sat on\nthe mat, ünïcode.{END}", f"ran{END}"]]),
        (FORGETS, [["hm It sat on\nthe mat, ünïcode.<|im_end|>"], ["hm ran<|im_end|>"]]),
        (UNMARKED, [["assistant: It sat on\nthe mat, ünïcode.\n", "assistant: ran\n"]]),
    ],
    ids=["chatml", "llama2", "plain", "forgets", "unmarked"],
)
def test_only_answers_are_learned_with_their_end_marks(template: Any, answers: Any, tmp_path: Path) -> None:
    rows, loaded = rows_with(template, tmp_path)
    assert [learned(row, loaded.tokenizer) for row in rows] == answers


@pytest.mark.parametrize("template", [CHATML, LLAMA2, None], ids=["chatml", "llama2", "plain"])
def test_rows_are_what_transformers_makes_of_dialogues(template: str | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rows, loaded = rows_with(template, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    how = {} if template else {"chat_template": loaded.tokenizer.template}
    ids = list(theirs.apply_chat_template(TURNS, return_dict=False, **how))
    assert rows[0].ids == ids[:-1]


def test_the_prompt_of_an_answer_is_what_stood_before_it_in_training(tmp_path: Path) -> None:
    rows, loaded = rows_with(None, tmp_path)
    prompt = loaded.tokenizer.encode_template(template_of(loaded.tokenizer, loaded).render(TURNS[:2]))
    first = rows[0].positions[0]  # type: ignore[index]
    assert rows[0].ids[: first + 1] == prompt


def test_long_dialogues_are_cut_and_those_without_an_answer_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole,), _ = rows_with(CHATML, tmp_path)
    first = whole.positions[0]  # type: ignore[index]
    (cut,), _ = rows_with(CHATML, tmp_path, max_length=first + 3)
    assert cut.ids == whole.ids[: first + 3]
    assert cut.targets == whole.targets[:3]  # type: ignore[index]
    assert f"1 of 1 dialogues are cut to {first + 3} tokens" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"no answer within 5 tokens; raise data\.window"):
        rows_with(CHATML, tmp_path, max_length=5)


def test_the_loss_is_that_of_the_answers_in_the_whole_text(tmp_path: Path) -> None:
    rows, loaded = rows_with(CHATML, tmp_path)
    batch = collate_examples([*rows, Example(rows[0].ids[:9], positions=[3], targets=[5])])
    with torch.no_grad():
        found = next_token_loss(loaded.module, batch)
        logp = loaded.module.readout(loaded.module(Batch(Inputs(batch.inputs.ids))).hidden).log_softmax(-1)
    wanted = -sum(
        logp[number, place, target]
        for number, row in enumerate([(rows[0].positions, rows[0].targets), ([3], [5])])
        for place, target in zip(*row, strict=True)  # type: ignore[arg-type]
    )
    assert batch.tokens == len(rows[0].positions or ()) + 1 == int((batch.targets != IGNORE).sum())  # type: ignore[union-attr]
    torch.testing.assert_close(found.total, wanted)


def test_batches_of_dialogues_come_in_few_shapes_with_the_same_loss(tmp_path: Path) -> None:
    (row,), loaded = rows_with(CHATML, tmp_path)
    assert row.positions is not None
    assert row.targets is not None
    longest = row.positions[-1] + 1
    cuts = [length for length in range(row.positions[0] + 1, longest + 1, 3) for _ in range(2)]
    rows = [Example(row.ids[:n], positions=[w for w in row.positions if w < n]) for n in cuts]
    for part in rows:
        part.targets = row.targets[: len(part.positions or ())]
    plain = ExampleBatches(rows, BatchShape(batch_tokens=256, seed=1))
    alike = ExampleBatches(pad_answers(rows, 32), BatchShape(batch_tokens=256, seed=1, pad_to=32, fixed_shape=True))

    def total(batches: ExampleBatches) -> tuple[float, int]:
        made = [batches.at(step) for step in range(batches.steps_per_epoch)]
        with torch.no_grad():
            losses = [float(next_token_loss(loaded.module, batch, smoothing=0.1).total) for batch in made]
        return sum(losses), sum(batch.tokens for batch in made)

    assert total(alike) == pytest.approx(total(plain), rel=1e-5)
    made = [alike.at(step) for step in range(alike.steps_per_epoch)]
    assert all(batch.fixed_shape for batch in made)
    assert (
        len({(batch.inputs.ids.shape, batch.positions.shape) for batch in made})
        < len({len(part.ids) for part in rows}) / 2
    )  # type: ignore[union-attr]


# --- runs ------------------------------------------------------------------------------------------

ANIMALS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack"}


def question(animal: str) -> list[dict[str, str]]:
    asked = {"role": "user", "content": f"what does the {animal} say"}
    return [asked, {"role": "assistant", "content": f"{ANIMALS[animal]}!"}]


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dialogues")
    turns = [question(a) for a in ANIMALS] * 3 + [question(a) + question(b) for a in ANIMALS for b in ANIMALS]
    return jsonl(folder / "d.jsonl", *turns)


def chat(dialogues: str, **changes: Any) -> dict[str, Any]:
    quick = {
        "data.train": dialogues,
        "data.valid": dialogues,
        "train.batch_rows": 4,
        "train.lr": 1e-2,
        "train.epochs": 10,
        "train.tensorboard": False,
        "train.samples": 1,
        "device": "cpu",
        "model.dropout": 0,
        "train.validate_every": 1000,
    }
    return {**quick, **{key.replace("__", "."): value for key, value in changes.items()}}


@pytest.mark.slow
def test_from_a_language_model_to_answers(dialogues: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = tmp_path / "a.txt"
    text.write_text("".join(f"User:\nwhat does the {a} say\nAssistant:\n{b}!\n" for a, b in ANIMALS.items()) * 20)
    window = {"model": "window", "model.width": 64, "model.context": 12, "tokenizer": "bpe", "tokenizer.size": 300}
    quick = {"data.train": str(text), "train.steps": 4, "train.batch_tokens": 64, "data.window": 8, "device": "cpu"}
    base = legato.train("lm", {**quick, **window}, out=str(tmp_path / "lm"), quiet=True).run
    settings = {**chat(dialogues, train__epochs=12), "from": str(base)}
    result = legato.train("chat", settings, out=str(tmp_path / "c"), quiet=True)
    assert result.metrics["valid.perplexity"] < 1.5
    model = legato.load(tmp_path / "c", "cpu")
    assert model.task == "chat"
    for animal, sound in ANIMALS.items():
        assert model.chat(f"what does the {animal} say", max_tokens=20) == f"{sound}!"
    assert model.predict("what does the cow say") == "moo!"
    asked = [*question("cat"), *question("dog")[:1]]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "c" / "best")
    made = theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert model.chat_ids(asked) == list(made)
    assert model.chat(asked, max_tokens=20) == "woof!"
    assert model.evaluate(test=dialogues)["loss"] == pytest.approx(result.metrics["valid.loss"], rel=1e-4)


@pytest.mark.slow
def test_a_model_that_talks_keeps_its_template_and_its_marks(dialogues: str, tmp_path: Path) -> None:
    base = gpt2_folder(tmp_path / "m", template=CHATML, length=96)
    settings = {**chat(dialogues, train__epochs=1), "from": str(base), "adapt": "lora"}
    legato.train("chat", settings, out=str(tmp_path / "c"), quiet=True)
    model = legato.load(tmp_path / "c", "cpu")
    assert model.loaded.chat is not None
    assert model.loaded.chat.source == CHATML
    # The end of a turn ends an answer, though the folder named another mark only.
    assert set(model.loaded.ends) == {model.tokenizer.id_of(END), model.tokenizer.id_of("<|im_end|>")}
    assert model.chat_ids("hello")[0] == model.tokenizer.id_of("<|im_start|>")


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_a_resumed_run_ends_in_the_same_bits(adapt: str, dialogues: str, tmp_path: Path) -> None:
    base = gpt2_folder(tmp_path / "m", template=CHATML, length=96)
    often = {"train.epochs": None, "train.steps": 9, "train.checkpoint_every": 3, "train.keep": 9}
    settings = {**chat(dialogues, model__dropout=0.3), **often, "from": str(base), "adapt": adapt}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    legato.train("chat", settings, out=str(whole), quiet=True)
    shutil.copytree(whole, cut)
    for step in (6, 9):
        shutil.rmtree(cut / "checkpoints" / f"step-{step}")
    (cut / "result.json").unlink()
    legato.train(resume=str(cut), quiet=True)
    one, two = (
        {file.relative_to(run): file.read_bytes() for file in run.glob("*/*.safetensors")} for run in (cut, whole)
    )
    assert len(one) == 2  # of best and last
    assert one == two


def test_what_is_read_is_cut_as_it_was_in_training(dialogues: str, tmp_path: Path) -> None:
    settings = chat(dialogues, data__window=40, model="gpt2", tokenizer="bpe", model__width=16, model__layers=1)
    settings |= {"model.heads": 2, "train.epochs": 1}
    result = legato.train("chat", settings, out=str(tmp_path / "c"), quiet=True)
    model = legato.load(tmp_path / "c", "cpu")
    assert model.module.max_length == 40  # as many positions as are trained
    assert model.evaluate(test=dialogues)["loss"] == pytest.approx(result.metrics["valid.loss"], rel=1e-4)
    free = {"model": "window", "model.context": 4, "model.width": 16}
    settings = {**{k: v for k, v in settings.items() if not k.startswith("model")}, **free}
    result = legato.train("chat", settings, out=str(tmp_path / "d"), quiet=True)
    told = legato.load(tmp_path / "d", "cpu").evaluate(test=dialogues)
    assert told["tokens"] == result.metrics["valid.tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tokenizer"), [("gpt2", "unigram"), ("window", "char"), ("llama", "bpe"), ("gpt2", "word")]
)
def test_models_learn_from_nothing_how_answers_look_and_end(
    model: str, tokenizer: str, dialogues: str, tmp_path: Path
) -> None:
    settings = chat(dialogues, model=model, tokenizer=tokenizer, model__width=32, model__layers=1, train__epochs=8)
    settings |= {"model.context": 12} if model == "window" else {"model.heads": 2}
    settings |= {"model.kv_heads": 2} if model == "llama" else {}
    legato.train("chat", settings, out=str(tmp_path / "c"), quiet=True)
    held = legato.load(tmp_path / "c", "cpu")
    answer = held.chat("what does the dog say", max_tokens=20).strip()
    assert answer.endswith("!")
    assert len(answer.split()) == 1


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": "bert"}, "model=bert does not continue texts"),
        ({"model.bidirectional": True, "model": "lstm"}, "model=lstm does not continue texts"),
        ({"data.train": None}, "'data.train' is needed"),
        ({"data.window": 4000, "model": "gpt2", "model.length": 64}, "data.window=4000 is more than the 64 tokens"),
        ({"data.columns": "[a,b]"}, "has no column 'a'"),
    ],
)
def test_bad_settings_are_one_line(changes: dict[str, Any], line: str, dialogues: str, tmp_path: Path) -> None:
    words = [f"{key}={'none' if value is None else value}" for key, value in {**chat(dialogues), **changes}.items()]
    from legato.runs.config import check, settings_for
    from legato.runs.train import start_run
    from legato.training.display import Display

    with pytest.raises((ConfigError, DataError), match=line) as caught:
        start_run(check(settings_for("chat", [*words, f"out={tmp_path / 'c'}"])), Display(quiet=True))
    assert "\n" not in str(caught.value)


def test_the_date_that_a_template_writes_is_always_the_same_to_learn_from() -> None:
    dated = ChatTemplate("{{ strftime_now('%Y-%m-%d') }} {% for m in messages %}{{ m.content }} {% endfor %}", "it")
    assert dated.answered(question("cat"))[0][0].startswith("2024-07-26 what")
    assert dated.render(question("cat")) > "2025"  # who asks is told today's


def test_a_dialogue_that_a_template_refuses_is_named(tmp_path: Path) -> None:
    data = read_dialogues(jsonl(tmp_path / "d.jsonl", TURNS))
    tokenizer = load_model(gpt2_folder(tmp_path / "m")).tokenizer
    refusing = ChatTemplate("{{ raise_exception('no system here') }}", "the template")
    with pytest.raises(DataError, match=r"d\.jsonl, line 1: the template refuses this dialogue: no system here"):
        rows_of(data, tokenizer, refusing, 99, print)
