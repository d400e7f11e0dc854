"""Clips on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_clips import animated, frames_of, write_clips
from tiny_pictures import SIDE, write_jsonl


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    encoder = {"image": SIDE, "patch": 4, "width": 8, "layers": 1, "heads": 2}
    settings = {"model": "frames", "model.width": 8, "model.encoder": "vit", "data.frames": 3}
    settings |= {f"model.encoder.{key}": value for key, value in encoder.items()}
    settings |= {"data.train": str(write_clips(folder / "train")), "train.steps": 20, "train.lr": 0.01}
    settings |= {"data.valid": str(folder / "train"), "train.batch_rows": 8, "train.tensorboard": "false"}
    legato.train("image-classification", {**settings, "device": "cpu"}, out=folder / "run", quiet=True)
    return folder / "run"


def test_predict_reads_clips_of_files_of_folders_and_of_tables(run: Path, tmp_path: Path, command: Any) -> None:
    (tmp_path / "clips" / "walk").mkdir(parents=True)
    (tmp_path / "clips" / "a.gif").write_bytes(animated("down", 9))
    for number, frame in enumerate(frames_of("up", 3)):
        frame.save(tmp_path / "clips" / "walk" / f"{number}.png")
    assert command("predict", run, tmp_path / "clips" / "a.gif").out.startswith("down\t")
    assert command("predict", run, tmp_path / "clips" / "walk").out.startswith("up\t")
    lines = command("predict", run, "--file", tmp_path / "clips").out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [["a.gif", "down"], ["walk", "up"]]
    write_jsonl(tmp_path / "t.jsonl", [{"image": ["clips/walk/0.png", "clips/walk/4.png"]}, {"image": "clips/a.gif"}])
    lines = command("predict", run, "--file", tmp_path / "t.jsonl").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["up", "down"]


def test_what_holds_no_clip_is_refused_in_a_line(run: Path, tmp_path: Path, command: Any) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "bad.gif").write_bytes(b"GIF89a")
    refusals = {
        (tmp_path / "none",): f"legato: {tmp_path}/none holds no frames; those end in",
        ("--file", tmp_path / "none"): f"legato: {tmp_path}/none holds no clip",
        (tmp_path / "bad.gif",): f"legato: {tmp_path}/bad.gif is no picture",
        ("walk",): "legato: 'walk' is no file",
        (
            tmp_path / "bad.gif",
            "--attention",
            tmp_path / "looks",
        ): "legato: where a model of clips looks is not",
    }
    for words, message in refusals.items():
        answer = command("predict", run, *words)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert answer.err.startswith(message)
