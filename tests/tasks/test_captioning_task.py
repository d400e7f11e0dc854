"""Captioning: any encoder of pictures with any decoder learns it; what is written, scored, resumed and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.formats.captions import read_captions
from legato.errors import ConfigError, FolderError, LegatoError
from legato.models.clip import CLIPConfig
from legato.models.seq2seq import Seq2SeqConfig
from legato.models.vit import ViTConfig
from legato.registry import TASKS
from legato.runs.config import check, part_inside, settings_for
from legato.runs.train import plan_of
from tiny_pictures import SIDE, TINY_CAPTIONER, captioned, count_decoded, pixels, write_jsonl, write_picture
from tiny_runs import read_metrics, weights_digest, write_text

CPU = torch.device("cpu")
LEARNED = {"train.steps": 60, "train.lr": 0.02, "train.label_smoothing": 0.0, "train.validate_every": 30}
DECODERS: dict[str, dict[str, Any]] = {
    "without attention": {"model.attention": "none"},
    "fed": {"model.input_feeding": "true", "model.cell": "gru"},
    "gated": {"model.context_gate": "true", "model.attention_penalty": 0.1, "model.attention": "mlp"},
    "transformer": {"model": "transformer", "model.heads": 2, "model.length": 16},
    "resnet": {
        "model.encoder": "resnet",
        "model.encoder.image": SIDE,
        "model.encoder.stem": "3x3",
        "model.encoder.embedding": 4,
        "model.encoder.widths": [4, 8],
        "model.encoder.depths": [1, 1],
    },
}


def settings(table: str, **changes: Any) -> dict[str, Any]:
    data = {"data.train": table, "data.valid": table}
    given = {**TINY_CAPTIONER, **data, **{key.replace("__", "."): value for key, value in changes.items()}}
    if given["model.encoder"] == "resnet":
        given = {key: value for key, value in given.items() if not key.startswith("model.encoder.")} | {
            key: value for key, value in changes.items() if key.startswith("model.encoder.")
        }
    return given


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captioner that knows red from blue, `run`, and its table."""
    folder = tmp_path_factory.mktemp("captions")
    legato.train("captioning", settings(captioned(folder), **LEARNED), out=folder / "run", quiet=True)
    return folder


def test_it_learns_what_to_say(home: Path) -> None:
    held = legato.load(home / "run")
    said = held.predict([pixels("red", 77), pixels("blue", 78)])
    assert "red" in said[0]
    assert "blue" in said[1]
    scores = held.evaluate(test=str(home / "captions.jsonl"))
    assert scores["bleu_1"] > 80
    assert scores["captions"] == scores["pictures"] == 12
    assert scores["cider"] > 0
    assert held.about["plain"] is True
    assert set(said[0]) <= set("abcdefghijklmnopqrstuvwxyz ")  # learned as it is scored


def test_what_a_validation_scores_is_decoded_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = count_decoded(monkeypatch)
    plan = plan_of(check(settings_for("captioning", settings(str(home / "captions.jsonl"), data__scored=5))), CPU)
    job: Any = TASKS.get("captioning").prepare(plan, lambda _: None)
    assert len(decoded) == 24
    assert len(job.valid) == len(job.valid_pixels) == 5
    for (row,), found in job.valid_pixels.scored(1):
        assert torch.equal(found, job.pixels["valid"].take(np.array([12 * row // 5])))


def test_beams_and_lengths_are_options(home: Path) -> None:
    held = legato.load(home / "run")
    several = held.predictions([home / "0.png"], beams=4, nbest=3)[0]
    assert len({answer.text for answer in several.answers}) == 3
    assert several.input == str(home / "0.png")
    assert len(held.predict(home / "0.png", max_tokens=1).split()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_reads_pictures(home: Path, tmp_path: Path, name: str) -> None:
    changes = {"train.steps": 2, "train.validate_every": 2, **DECODERS[name]}
    given = settings(str(home / "captions.jsonl"), **changes)
    legato.train("captioning", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert isinstance(held.predict(home / "0.png", max_tokens=4), str)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if line["kind"] == "valid"]
    assert losses
    assert all(loss == loss for loss in losses)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    changes = {
        "data.augment.flip": "true",
        "data.augment.crop": 0.5,
        "train.schedule": "constant",
        "train.samples": 0,
    }
    given = settings(str(home / "captions.jsonl"), **changes)
    legato.train("captioning", given, out=tmp_path / "whole", quiet=True)
    legato.train("captioning", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


def test_every_caption_is_learned_beside_its_own_picture(home: Path) -> None:
    config = check(settings_for("captioning", settings(str(home / "captions.jsonl"))))
    said: list[str] = []
    job = TASKS.get("captioning").prepare(plan_of(config, torch.device("cpu")), said.append)
    data, seen = read_captions(str(home / "captions.jsonl")), []
    for step in range(job.batches.steps_per_epoch):
        batch = job.batches.at(step)
        for row, ids in enumerate(batch.inputs.token_ids):
            number = next(n for n in range(12) if torch.equal(batch.source.values[row], job.pixels["train"].kept[n]))
            length = len(ids) if batch.inputs.lengths is None else int(batch.inputs.lengths[row])
            seen.append((number, job.tokenizer.decode(ids[1:length].tolist())))
    plain = [text.lower().rstrip(".") for each in data.captions for text in each]
    assert sorted(seen) == sorted((number // 2, text) for number, text in enumerate(plain))
    assert any("12 train, 12 valid pictures of 8 × 8 pixels" in line for line in said)
    assert said[-1] == "the model will see: 0.png → a red square"


@pytest.mark.slow
def test_captions_may_stay_as_they_are(home: Path, tmp_path: Path) -> None:
    given = settings(str(home / "captions.jsonl"), **{"data.plain": "false", "train.steps": 1})
    legato.train("captioning", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.about["plain"] is False
    names = [held.tokenizer.token_name(number) for number in range(held.tokenizer.size)]
    assert any(name.startswith("A") for name in names)


@pytest.mark.slow
def test_scenes_need_no_file(tmp_path: Path) -> None:
    scenes = {"data.train": "toy:scenes", "data.scenes.count": 8, "data.scenes.valid_count": 2}
    scenes |= {"data.scenes.size": 32, "train.steps": 1, "model.encoder": "vit", "model.width": 8}
    small = {"model.encoder.width": 8, "model.encoder.layers": 1, "model.encoder.heads": 2}
    given = {key: value for key, value in TINY_CAPTIONER.items() if not key.startswith("model.encoder")}
    legato.train("captioning", {**given, **scenes, **small}, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.loaded.processors.others["image"].shape == (32, 32)
    assert held.evaluate(test="toy:scenes", scenes={"test_count": 3})["pictures"] == 3


def test_an_encoder_that_nobody_names_is_a_convolutional_network(home: Path) -> None:
    config: Any = check(settings_for("captioning", {"data.train": str(home / "captions.jsonl")})).model
    assert (config.name, config.encoder.name) == ("seq2seq", "resnet")
    named = {"data.train": "toy:scenes", "model.encoder": "vit", "model.encoder.width": 32}
    config = check(settings_for("captioning", named)).model
    assert (config.encoder.width, config.encoder.image, config.encoder.patch) == (32, 64, 8)


def test_what_is_said_of_batches_and_steps_counts(home: Path) -> None:
    table = {"data.train": str(home / "captions.jsonl")}
    usual = check(settings_for("captioning", table)).train
    assert (usual.batch_rows, usual.epochs, usual.steps) == (64, 20, None)
    chosen = check(settings_for("captioning", {**table, "train.batch_tokens": 512, "train.steps": 9})).train
    assert (chosen.batch_rows, chosen.batch_tokens, chosen.epochs, chosen.steps) == (None, 512, None, 9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "lstm"}, "model=lstm reads no source, which captioning has; use seq2seq or transformer"),
        ({"model": "vit"}, "model=vit reads no source, which captioning has"),
        ({"model.encoder": "lstm"}, "lstm reads no pictures; use"),
        ({"model.encoder": "vitt"}, "there is no model 'vitt'; did you mean 'vit'"),
        ({"model.encoder.patchh": 3}, r"unknown key 'model\.encoder\.patchh'"),
    ],
)
def test_a_model_that_reads_no_pictures_is_one_line(home: Path, change: dict[str, Any], said: str) -> None:
    given = {"data.train": str(home / "captions.jsonl"), **change}
    with pytest.raises(ConfigError, match=said):
        check(settings_for("captioning", given))


def test_a_part_of_a_model_is_meant_where_it_has_one() -> None:
    assert part_inside(Seq2SeqConfig(encoder=ViTConfig()), "encoder") == "encoder"
    assert part_inside(CLIPConfig(), "encoder") == "vision"
    assert part_inside(Seq2SeqConfig(encoder=ViTConfig()), "vision") == "encoder"
    assert part_inside(Seq2SeqConfig(), "vision") is None
    assert part_inside(CLIPConfig(), "text") == "text"
    assert part_inside(Seq2SeqConfig(), "encoder") is None  # it translates
    assert part_inside(ViTConfig(), "encoder") is None


def test_a_model_of_texts_is_no_captioner_to_go_on_from(home: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "t.txt")
    texts = {"data.train": str(tmp_path / "t.txt"), "data.valid": str(tmp_path / "t.txt"), "device": "cpu"}
    small = {"model.width": 8, "model.layers": 1, "train.steps": 1, "data.window": 8, "train.batch_tokens": 64}
    legato.train("lm", {**texts, **small, "model": "lstm"}, out=tmp_path / "lm", quiet=True)
    given = {"data.train": str(home / "captions.jsonl"), "from": str(tmp_path / "lm"), "device": "cpu"}
    with pytest.raises((ConfigError, FolderError), match="reads no source, which captioning has"):
        legato.train("captioning", given, out=tmp_path / "no", quiet=True)


def test_a_picture_alone_cannot_be_held_out(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png")
    table = write_jsonl(tmp_path / "t.jsonl", [{"image": "0.png", "caption": "a red square"}])
    given = {**TINY_CAPTIONER, "data.train": table}
    with pytest.raises(LegatoError, match=r"has one picture, too few to hold any out; give data\.valid"):
        legato.train("captioning", given, out=tmp_path / "run", quiet=True)


def test_where_it_looked_is_told_for_each_word(home: Path) -> None:
    from legato.tasks.captioning.captioner import Captioner

    captioner = Captioner.of(legato.load(home / "run").loaded)
    tokens = captioner.tokenizer.encode("a red square").tolist()
    looks = captioner.looks(torch.from_numpy(pixels("red")), tokens)
    assert looks.shape == (len(tokens) + 1, 1 + (SIDE // 4) ** 2)  # the end, too; a state for the whole, and the grid
    torch.testing.assert_close(looks.sum(-1), torch.ones(len(looks)))
