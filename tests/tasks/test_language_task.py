"""The `lm` task with Transformers: defaults, packing, scoring, going on from a model."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Packed, Windows
from legato.errors import ConfigError, DataError, LegatoError
from legato.folders import model_folder
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model
from legato.registry import MODELS, TASKS
from legato.runs.config import check, dump, settings_for
from legato.runs.train import plan_of
from legato.tasks.lm.job import LanguageJob
from tiny_published import gpt2_folder, write
from tiny_runs import small, write_text

TINY = {"model": "gpt2", "model__heads": 2, "data__window": 16, "model__dropout": 0.1, "train__steps": 6}


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    return small(folder, **{**TINY, **changes})


def job_of(settings: dict[str, Any]) -> Any:
    config = check(settings_for("lm", settings))
    return TASKS.get("lm").prepare(plan_of(config, torch.device("cpu")), lambda text: None)


def train(folder: Path, out: str, **changes: Any) -> Any:
    return legato.train("lm", tiny(folder, **changes), out=str(folder / out), quiet=True)


# --- settings --------------------------------------------------------------------------------------


def test_a_transformer_reads_packed_windows_and_its_places_are_as_many() -> None:
    config = check(settings_for("lm", {"data.train": "a.txt", "model": "gpt2"}))
    assert (config.data.batching, config.data.window, config.model.length) == ("packed", 256, 256)  # type: ignore[attr-defined]
    assert (config.train.lr, config.train.weight_decay) == (1e-3, 0.1)


@pytest.mark.parametrize(
    ("given", "window", "length"),
    [({"data.window": "32"}, 32, 32), ({"model.length": "64"}, 64, 64), ({"model.length": "1024"}, 256, 1024)],
)
def test_window_and_length_follow_each_other(given: dict[str, Any], window: int, length: int) -> None:
    config = check(settings_for("lm", {"data.train": "a.txt", "model": "gpt2", **given}))
    assert (config.data.window, config.model.length) == (window, length)  # type: ignore[attr-defined]


def test_recurrent_models_keep_their_streams() -> None:
    config = check(settings_for("lm", {"data.train": "a.txt"}))
    assert (config.data.batching, config.data.window, config.train.weight_decay) == ("streams", 64, 0.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__window": 64, "model__length": 32}, r"data\.window=64 is more than model\.length=32"),
        ({"data__batching": "streams"}, r"data\.batching=streams carries a state, which model=gpt2 does not have"),
        ({"data__stride": 17}, r"data\.stride=17 would skip tokens"),
    ],
)
def test_what_a_transformer_cannot_read_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        job_of(tiny(tmp_path, **changes))
    assert "\n" not in str(refused.value)


def test_a_recurrent_model_cannot_keep_documents_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.batching=packed keeps documents apart, which model=lstm cannot"):
        job_of(small(tmp_path, data__batching="packed"))


# --- batches ---------------------------------------------------------------------------------------


def test_one_document_has_no_borders_and_several_have(tmp_path: Path) -> None:
    one = job_of(tiny(tmp_path))
    assert isinstance(one.batches, Windows)
    assert one.batches.at(0).inputs.document_ids is None
    rows = [json.dumps({"text": line}) for line in (tmp_path / "train.txt").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    several = job_of(tiny(tmp_path, data__train=str(tmp_path / "rows.jsonl")))
    assert isinstance(several.batches, Packed)
    batch = several.batches.at(0)
    assert batch.inputs.ids.shape == batch.inputs.document_ids.shape == (8, 16)


def test_a_packed_document_is_read_as_if_it_stood_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": f"{'ab' * n}."}) for n in range(1, 60)))
    job = job_of(tiny(tmp_path, data__train=str(tmp_path / "rows.jsonl"), model__dropout=0))
    config = check(settings_for("lm", tiny(tmp_path, data__window=16, model__dropout=0)))
    torch.manual_seed(0)
    model = MODELS.get("gpt2")(config.model, job.sizes).eval()
    batch = next(b for b in map(job.batches.at, range(9)) if (b.inputs.document_ids[:, -1] > 0).any())
    row = int((batch.inputs.document_ids[:, -1] > 0).nonzero()[0])
    last = batch.inputs.document_ids[row] == batch.inputs.document_ids[row, -1]
    alone = Batch(Inputs(batch.inputs.ids[row][last][None]))
    torch.testing.assert_close(model(batch).hidden[row][last], model(alone).hidden[0])


# --- training, scoring -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_gpt_learns_is_scored_and_writes(tmp_path: Path) -> None:
    result = train(tmp_path, "run", train__steps=40, train__lr=0.01)
    assert result.metrics["valid.loss"] < 2.8
    model = legato.load(result.run)
    scores = model.evaluate(test=str(tmp_path / "valid.txt"))
    assert scores["loss"] == pytest.approx(result.metrics["valid.loss"], rel=1e-5)
    assert {"perplexity", "word_perplexity", "bits_per_byte"} <= set(scores)
    assert model.evaluate(test=str(tmp_path / "valid.txt"), stride=1)["loss"] != scores["loss"]
    with pytest.raises(ConfigError, match=r"data\.window=99 is more than the model's longest text=16"):
        model.evaluate(test=str(tmp_path / "valid.txt"), window=99)


def test_a_valid_text_shorter_than_a_batch_is_enough(tmp_path: Path) -> None:
    settings = tiny(tmp_path, train__steps=2)
    write_text(tmp_path / "valid.txt", lines=1, seed=5)
    legato.train("lm", settings, out=str(tmp_path / "run"), quiet=True)


# --- from=MODEL ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("from")
    train(folder, "first", train__steps=20)
    return folder


def go_on(trained: Path, tmp_path: Path, **changes: Any) -> Any:
    settings = small(tmp_path, train__steps=4, **changes)
    kept = {
        k: v
        for k, v in settings.items()
        if not k.startswith(("model", "tokenizer")) or k.replace(".", "__") in changes
    }
    return legato.train("lm", {**kept, "from": str(trained / "first")}, out=str(tmp_path / "second"), quiet=True)


def test_a_run_goes_on_from_a_model_with_its_weights_and_tokenizer(trained: Path, tmp_path: Path) -> None:
    first = load_model(trained / "first" / "best")
    result = go_on(trained, tmp_path, train__lr=1e-12, model__dropout=0)
    second = load_model(result.run / "best")
    assert second.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    assert second.module.config.layers == first.module.config.layers
    for name, weight in first.module.state_dict().items():
        torch.testing.assert_close(second.module.state_dict()[name], weight)
    assert second.module.config.dropout == second.module.stack.shape.dropout_attention == 0
    assert second.about["from"] == str(first.folder)


def test_the_model_that_a_run_began_with_may_move(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "first" / "best", tmp_path / "first")
    result = go_on(tmp_path, tmp_path)
    (tmp_path / "first").rename(tmp_path / "moved")
    with pytest.raises(LegatoError, match="first"):
        legato.train(resume=str(result.run), **{"train.steps": 6}, quiet=True)
    again = legato.train(resume=str(result.run), **{"from": str(tmp_path / "moved"), "train.steps": 6}, quiet=True)
    assert again.steps == 6


@pytest.mark.parametrize("model", ["lstm", "window"])
def test_models_that_carry_a_state_go_on_too(model: str, tmp_path: Path) -> None:
    first = legato.train("lm", small(tmp_path, model=model, train__steps=8), out=str(tmp_path / "first"), quiet=True)
    second = go_on(tmp_path, tmp_path, train__lr=1e-12, train__samples=1)
    assert second.metrics["valid.loss"] == pytest.approx(first.metrics["valid.loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["bert", "seq2seq"])
def test_models_that_do_not_write_on_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"model={name} reads"):
        job_of({"data.train": str(write_text(tmp_path / "a.txt")), "model": name})


def test_such_a_run_resumes_and_refuses_another_tokenizer(trained: Path, tmp_path: Path) -> None:
    result = go_on(trained, tmp_path)
    again = legato.train(resume=str(result.run), **{"train.steps": 6}, quiet=True)
    assert again.steps == 6
    other = tmp_path / "other"
    shutil.copytree(trained / "first" / "best", other)
    spec = json.loads((other / "tokenizer.json").read_text())
    vocabulary = spec["model"]["vocab"]
    a, b = list(vocabulary)[-2:]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (other / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((other / "config.json").read_text())
    del config["legato"]["tokens"]  # or the folder itself would be refused
    write(other / "config.json", config)
    with pytest.raises(DataError, match="has not the tokenizer that"):
        legato.train(resume=str(result.run), **{"from": str(other), "train.steps": 8}, quiet=True)


def test_the_settings_of_such_a_run_repeat_it(trained: Path) -> None:
    given = {"data.train": "a.txt", "from": str(trained / "first"), "model.dropout": 0.3}
    config = check(settings_for("lm", given))
    assert dump(config)["from"] == str(trained / "first")
    assert check(dump(config)) == config


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        (
            "lm",
            {"model.layers": 5},
            r"model\.layers=5 is not what from=.* holds, which is 1; of model",
        ),
        ("lm", {"model": "lstm"}, r"holds a model 'gpt2'; leave out model=lstm"),
        ("lm", {"tokenizer": "word"}, r"brings its own tokenizer; leave out tokenizer=…"),
        ("translation", {}, r"translation cannot go on from a model yet"),
    ],
)
def test_what_goes_against_the_model_is_refused(
    trained: Path, task: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(settings_for(task, {"data.train": "a.txt", "from": str(trained / "first"), **given}))


# --- models that others made -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaMA folder as others publish it: texts begin with one mark and end with another, rows to spare."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("published")
    letters = {
        token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz \n"])
    }
    library = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    library.add_special_tokens(["<s>", "</s>", "<unk>"])
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_published_model_is_scored_as_its_makers_would(published: Path, tmp_path: Path) -> None:
    import transformers

    text = "the cat sat on a mat\n"
    (tmp_path / "t.txt").write_text(text)
    found = legato.load(published).evaluate(test=str(tmp_path / "t.txt"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(published)
    ids = transformers.AutoTokenizer.from_pretrained(published)(text, return_tensors="pt").input_ids
    assert ids[0, 0] == 1
    with torch.no_grad():
        loss = float(theirs(ids, labels=ids).loss)
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["tokens"] == len(text)


def test_a_run_goes_on_from_a_published_model_and_leaves_its_like(published: Path, tmp_path: Path) -> None:
    settings = small(tmp_path, train__steps=3, data__window=16)
    kept = {k: v for k, v in settings.items() if not k.startswith(("model", "tokenizer"))}
    result = legato.train("lm", {**kept, "from": str(published)}, out=str(tmp_path / "run"), quiet=True)
    model = legato.load(result.run)
    assert model.module.vocabulary == 40
    assert model.prompt_ids("ab")[0] == 1
    again = model.evaluate(test=str(tmp_path / "valid.txt"))
    assert again["loss"] == pytest.approx(result.metrics["valid.loss"], rel=1e-4)


def test_published_documents_are_packed_between_their_own_marks(published: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": "ab" * (n % 9)}) for n in range(1, 60)))
    settings = {"data.train": str(tmp_path / "rows.jsonl"), "from": str(published), "data.window": 16}
    batch = job_of({**settings, "train.batch_tokens": 64}).batches.at(0)
    assert (batch.inputs.ids == 1).any()
    assert not (batch.inputs.ids == 2).any()
    assert (batch.targets == 2).any()
    assert not (batch.targets == 1).any()


def test_what_ended_a_published_models_texts_ends_them_still(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "theirs")
    write(folder / "generation_config.json", {"eos_token_id": [0, 285]})
    settings = small(tmp_path, train__steps=2, data__window=16)
    kept = {k: v for k, v in settings.items() if not k.startswith(("model", "tokenizer"))}
    run = legato.train("lm", {**kept, "from": str(folder)}, out=str(tmp_path / "run"), quiet=True).run
    assert json.loads((run / "best" / "generation_config.json").read_text())["eos_token_id"] == [0, 285]
    assert load_model(run / "best").ends == (0, 285)


def test_the_model_that_a_run_begins_with_is_let_go(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[weakref.ref[Any]] = []
    held = []
    validate, read = LanguageJob.validate, model_folder.read_model

    def reading(place: str, *, sketched: bool, **more: Any) -> Loaded:
        loaded = read(place, sketched=sketched, **more)
        assert all(tensor.is_meta for tensor in loaded.module.parameters())
        begun.append(weakref.ref(loaded.module))
        return loaded

    def spy(job: LanguageJob, model: Any) -> dict[str, float]:
        gc.collect()
        held.append(begun[0]() is not None)
        return validate(job, model)

    monkeypatch.setattr("legato.runs.train.read_model", reading)
    monkeypatch.setattr(LanguageJob, "validate", spy)
    go_on(trained, tmp_path)
    assert len(begun) == 1  # its weights are read once
    assert held
    assert not any(held)


def test_how_much_a_score_sees_is_told_and_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = legato.load(gpt2_folder(tmp_path / "m", length=64))
    (tmp_path / "t.txt").write_text("the cat sat on the mat\n" * 20)
    scores = model.evaluate(test=str(tmp_path / "t.txt"))
    assert (scores["context"], scores["stride"]) == (64, 32)
    monkeypatch.setattr("legato.tasks.lm.job.CONTEXT", 24)
    scores = model.evaluate(test=str(tmp_path / "t.txt"))
    assert (scores["context"], scores["stride"]) == (24, 12)
    scores = model.evaluate(test=str(tmp_path / "t.txt"), window=60, stride=5)
    assert (scores["context"], scores["stride"]) == (60, 5)


@pytest.mark.parametrize("length", ["long", "-1", "1" * 5000, 2.5, "²"])
def test_a_length_that_is_none_is_named_as_the_setting_that_it_is(length: object) -> None:
    with pytest.raises(ConfigError, match=r"model\.length"):
        legato.train("lm", {"data.train": "train.txt", "model": "gpt2", "model.length": length}, quiet=True)
