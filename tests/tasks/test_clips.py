"""Clips: how their frames are read, and that a model over them learns what moves, resumes and refuses in a line."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import legato
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.formats.picture_rows import clip_directions, read_labelled_pictures
from legato.data.image.clips import as_clip, clips_in
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.scenes import ScenesConfig
from legato.errors import DataError, LegatoError
from legato.folders.model_folder import load_model
from legato.models.base import Sizes
from legato.models.frames import FramesConfig, FramesModel
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from tiny_clips import animated, frames_of, write_clips
from tiny_pictures import SIDE, encoded, picture_model, write_jsonl, write_tar
from tiny_runs import weights_digest

ENCODER = {"model.encoder": "vit", "model.encoder.image": SIDE, "model.encoder.patch": 4, "model.encoder.width": 8}
ENCODER |= {"model.encoder.layers": 1, "model.encoder.heads": 2}
TINY: dict[str, Any] = {
    **ENCODER,
    "model": "frames",
    "model.width": 16,
    "data.frames": 3,
    "train.steps": 6,
    "train.batch_rows": 4,
    "train.validate_every": 3,
    "train.checkpoint_every": 3,
    "train.log_every": 1,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}


def shades(clip: Any, count: int) -> list[int]:
    """How light each frame is, in steps of the made ones."""
    return [round(float(np.asarray(frame).mean()) / 60) for frame in clip.frames(count)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows whether a clip becomes lighter."""
    folder = tmp_path_factory.mktemp("clips")
    write_clips(folder / "train")
    given = settings(folder, train__steps=30, train__lr=0.01, train__validate_every=15)
    legato.train("image-classification", given, out=folder / "run", quiet=True)
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    data = {"data.train": str(folder / "train"), "data.valid": str(folder / "train")}
    return {**TINY, **data, **{key.replace("__", "."): value for key, value in changes.items()}}


# --- frames ----------------------------------------------------------------------------------------


def test_frames_are_taken_evenly_and_a_still_picture_is_a_clip(tmp_path: Path) -> None:
    gif = tmp_path / "a.gif"
    gif.write_bytes(animated("up"))
    assert shades(as_clip(gif), 5) == [0, 1, 2, 3, 4]
    assert shades(as_clip(str(gif)), 3) == [0, 2, 4]
    assert shades(as_clip(animated("down", form="WEBP")), 2) == [3, 1]
    assert shades(as_clip(gif), 10) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert shades(as_clip(frames_of("up")), 5) == [0, 1, 2, 3, 4]
    assert shades(as_clip(np.stack([np.asarray(frame) for frame in frames_of("down")])), 5) == [4, 3, 2, 1, 0]
    assert len(set(shades(as_clip(encoded("red")), 4))) == 1


def test_a_folder_of_frames_is_in_the_order_of_their_numbers(home: Path) -> None:
    found = clips_in(home / "train" / "up")
    assert [clip.name for clip in found] == ["0", "1.webp", "2.gif", "3.webp"]
    for clip in found:
        assert shades(clip, 5) == [0, 1, 2, 3, 4]
    rows = read_labelled_pictures(str(home / "train"), clips=True)
    assert rows.texts[:2] == ["down/0", "down/1.webp"]
    assert (rows.labels[0], rows.unit, len(rows)) == ("down", "clip", 8)


def test_a_table_names_files_folders_lists_and_members(home: Path, tmp_path: Path) -> None:
    write_clips(tmp_path / "here", count=2)
    members = {f"walk/{number}.png": _png(frame) for number, frame in enumerate(frames_of("up"))}
    write_tar(tmp_path / "t.tar", members)
    values = ["here/up/1.webp", "here/up/0", [f"here/up/0/{n}.png" for n in range(8, 13)], "walk"]
    source = write_jsonl(tmp_path / "t.jsonl", [{"image": value, "label": "up"} for value in values])
    rows = read_labelled_pictures(source, clips=True)
    assert [shades(clip, 5) for clip in rows.pictures] == [[0, 1, 2, 3, 4]] * 4
    assert rows.texts[2] == "here/up/0/8.png … here/up/0/12.png"
    other = write_jsonl(
        tmp_path / "o.jsonl", [{"image": value, "label": "up"} for value in [*values[:3], "here/down/0"]]
    )
    assert read_labelled_pictures(other, clips=True).sha256 != rows.sha256


def _png(frame: Image.Image) -> bytes:
    file = io.BytesIO()
    frame.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"t\.jsonl, line 1: the clip has no frames"),
        (["a.png", None], r"t\.jsonl, line 1: there is no picture"),
        ("none.gif", r"t\.jsonl, line 1: there is no picture"),
        ("empty", "empty holds no frames; those end in .jpg"),
    ],
)
def test_a_clip_of_a_table_that_is_none_is_named_with_its_line(value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_bytes(encoded())
    source = write_jsonl(tmp_path / "t.jsonl", [{"image": value, "label": "up"}])
    with pytest.raises(DataError, match=message):
        read_labelled_pictures(source, clips=True)


def test_a_clip_that_is_damaged_or_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = animated("up", form="WEBP")
    with pytest.raises(DataError, match=r"a picture is (damaged|no picture)"):
        list(as_clip(whole[: len(whole) // 2]).frames(5))
    gif = animated("up")
    for length in range(20, len(gif) - 1, 17):  # wherever a GIF is cut, it is said so, or what was there is read
        with suppress(DataError):
            list(as_clip(gif[:length]).frames(5))
    with pytest.raises(DataError, match="is no picture of JPEG, PNG, WEBP, GIF"):
        list(as_clip(b"no picture").frames(2))
    with pytest.raises(DataError, match=r"a clip is \(frames, height, width, 3\) bytes, not float64"):
        as_clip(np.zeros((2, 4, 4, 3)))
    with pytest.raises(DataError, match="the clip has no frames"):
        as_clip([])
    monkeypatch.setattr("legato.data.image.pictures.MAX_FRAMES", 4)
    with pytest.raises(DataError, match="a picture has 5 frames, more than 4; cut it"):
        list(as_clip(animated("up")).frames(2))


def test_clips_of_shapes_have_their_directions() -> None:
    config = ScenesConfig(size=32, count=6, frames=4)
    rows = clip_directions(config, "train", 0)
    assert (len(rows), rows.texts[1]) == (6, "clips/train/0/1")
    assert set(rows.labels) <= {"left", "right", "up", "down", "clockwise", "anticlockwise"}
    frames = list(as_clip(rows.pictures[0]).frames(4))
    assert frames[0].shape == (32, 32, 3)
    assert not np.array_equal(frames[0], frames[3])
    assert rows.sha256 != clip_directions(config, "train", 1).sha256


# --- the model -------------------------------------------------------------------------------------


def model_over(over: str, **settings: Any) -> FramesModel:
    encoder = {"name": "vit", "image": SIDE, "patch": 4, "width": 8, "layers": 1, "heads": 2}
    given = {"name": "frames", "over": over, "width": 12, "heads": 2, "dropout": 0.0, "encoder": encoder, **settings}
    torch.manual_seed(0)
    return FramesModel(validate(FramesConfig, given), Sizes(0)).eval()


@pytest.mark.parametrize("over", ["lstm", "gru", "elman", "transformer"])
@torch.no_grad()
def test_the_order_of_frames_matters_and_every_layer_shows_its_states(over: str) -> None:
    model = model_over(over, layers=2)
    clips = torch.randn(2, 5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    hidden = model(Batch(Inputs(values=clips))).hidden
    assert hidden.shape == (2, 5, 12)
    turned = model(Batch(Inputs(values=clips.flip(1)))).hidden
    assert not torch.allclose(hidden.mean(1), turned.mean(1), atol=1e-4)
    states = model.states(Batch(Inputs(values=clips)))
    assert len(states) == 3
    torch.testing.assert_close(states[-1], hidden)
    alone = model(Batch(Inputs(values=clips[1:]))).hidden
    torch.testing.assert_close(alone, hidden[1:], rtol=1e-4, atol=1e-5)
    if over != "transformer":  # the first states have not seen what follows
        torch.testing.assert_close(model(Batch(Inputs(values=clips[:, :3]))).hidden, hidden[:, :3])


def test_the_recurrent_states_are_those_of_the_frames_vectors() -> None:
    model = model_over("gru")
    clips = torch.randn(2, 3, 3, SIDE, SIDE)
    places = model.encoder(Batch(Inputs(values=clips.flatten(0, 1)))).hidden  # (6, 5, 8)
    vectors = model.projection(model.reduction(places).flatten(1)).view(2, 3, 12)
    assert model.recurrent is not None
    expected = model.recurrent(vectors.transpose(0, 1))[0].transpose(0, 1)
    torch.testing.assert_close(model(Batch(Inputs(values=clips))).hidden, expected)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, SIDE, SIDE), r"frames reads clips of shape \(frames, 3, height, width\)"),
        ((1, 5, 3, SIDE, SIDE), "a clip of 5 frames is too long: this model goes up to 4"),
        ((1, 2, 3, 2 * SIDE, SIDE), "have 9 places, and this model reads 5"),
    ],
)
def test_what_is_no_clip_of_its_kind_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LegatoError, match=message):
        model_over("transformer", length=4)(Batch(Inputs(values=torch.zeros(shape))))


# --- the task --------------------------------------------------------------------------------------


def test_it_learns_what_one_frame_does_not_say(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "run")
    assert held.evaluate(test=str(home / "train"))["accuracy"] == 1.0
    (tmp_path / "new.gif").write_bytes(animated("down", 9))
    assert held.predict(tmp_path / "new.gif") == "down"
    assert held.predict([str(home / "train" / "up" / "0"), animated("down", 7)]) == ["up", "down"]
    assert held.predict(np.stack([np.asarray(frame) for frame in frames_of("up", 5)])) == "up"
    found = held.evaluate(test=str(home / "train"), frames=5)
    assert found["clips"] == 8
    assert found["details"][1][1][-1] == "clips"


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    given = settings(home, data__augment__flip="true", data__augment__crop=0.5)
    given |= {"train.schedule": "constant", "train.warmup": 0}
    legato.train("image-classification", given, out=tmp_path / "whole", quiet=True)
    legato.train("image-classification", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


def test_all_frames_of_a_clip_are_changed_alike(home: Path) -> None:
    given = settings(home, data__augment__flip="true")
    plan = plan_of(check(settings_for("image-classification", given)), torch.device("cpu"))
    job = TASKS.get("image-classification").prepare(plan, lambda _: None)
    pixels = torch.arange(4 * 3 * SIDE * SIDE * 3).view(4, 3, SIDE, SIDE, 3).to(torch.uint8)
    pixels[:, 1:] = pixels[:, :1]  # three times the same
    draws = job.batches.at(0).inputs.draws
    draws[:, 0] = torch.tensor([0.1, 0.9, 0.1, 0.9])  # the second and the last are flipped
    values = job.reader.read(Inputs(values=pixels, draws=draws))[0].content
    plain = ImageProcessor((SIDE, SIDE)).scaled(pixels)
    expected = torch.stack([plain[0], plain[1].flip(-1), plain[2], plain[3].flip(-1)])
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


def test_scenes_that_move_and_an_encoder_of_a_folder(tmp_path: Path) -> None:
    vit = picture_model(tmp_path / "vit", layers=1, width=8, heads=2, image=16, patch=8)
    given = {key: value for key, value in TINY.items() if not key.startswith("model.encoder")}
    scenes = {"size": 32, "count": 24, "valid_count": 4, "test_count": 4}
    given |= {"data.train": "toy:clips", **{f"data.scenes.{key}": value for key, value in scenes.items()}}
    given |= {"model.over": "transformer", "from.encoder": str(vit), "train.encoder_lr": 0, "train.steps": 2}
    legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    found, expected = held.module.parts["encoder"].state_dict(), load_model(vit).module.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert held.evaluate(test="toy:clips")["clips"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vit", "model.patch": 4}, "model=vit reads single pictures; data.frames is for model=frames"),
        ({"data.frames": None}, "model=frames reads clips; say of how many frames: data.frames=8"),
        ({"data.train": "toy:scenes"}, "toy:scenes are single pictures, and this model reads clips"),
        ({"data.augment.cutmix": 1.0}, "mixup and cutmix are for single pictures"),
        ({"model.over": "transformer", "model.length": 2}, "data.frames=3, but the model reads at most 2"),
        ({"model.over": "transformer", "model.heads": 3}, "heads=3 does not divide width=16"),
        ({"model.over": "cnn"}, r"model\.over=cnn should be 'lstm', 'gru'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    changes: dict[str, Any], message: str, home: Path, tmp_path: Path
) -> None:
    given = {**settings(home), **changes}
    if changes.get("model") == "vit":
        given = {k: v for k, v in given.items() if not k.startswith("model.encoder")} | {"model.image": SIDE}
    with pytest.raises(LegatoError, match=message):
        legato.train("image-classification", given, out=tmp_path / "run", quiet=True)


def test_pictures_and_clips_are_not_taken_for_each_other(home: Path, tmp_path: Path) -> None:
    given = {"model": "vit", "model.image": SIDE, "model.patch": 4, "data.train": "toy:clips"}
    with pytest.raises(
        LegatoError, match="toy:clips are clips, and this model reads single pictures; set model=frames"
    ):
        legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    with pytest.raises(LegatoError, match="toy:scenes are single pictures, and this model reads clips"):
        legato.load(home / "run").evaluate(test="toy:scenes")
    damaged = shutil.copytree(home / "run" / "best", tmp_path / "damaged", symlinks=False)
    config = json.loads((damaged / "config.json").read_text())
    for frames, message in ((0, "frames"), ("8", "frames"), (None, "frames reads clips of shape")):
        config["legato"]["frames"] = frames
        (damaged / "config.json").write_text(json.dumps(config))
        with pytest.raises(LegatoError, match=message):
            legato.load(damaged).predict(encoded("red"))
    (tmp_path / "bad.gif").write_bytes(b"GIF89a")
    with pytest.raises(LegatoError, match=r"bad\.gif is no picture"):
        legato.load(home / "run").predict(tmp_path / "bad.gif")
