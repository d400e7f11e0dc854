"""Bad input gets one clear line and exit code 2, and leaves existing files as they were."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import legato
from legato.training.checkpoints import list_checkpoints
from legato.training.loop import Stopped, Trainer
from tiny_runs import small, snapshot, weights_digest, words, write_text


def is_one_line(answer: Any, *parts: str) -> None:
    """The command was refused, in one line that holds `parts`, and said nothing else."""
    assert answer.code == 2, answer.err
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("legato: ")
    for part in parts:
        assert part in lines[0]


def ends_in_one_line(answer: Any, *parts: str) -> None:
    """The command was refused after it had begun to report what it was doing."""
    assert answer.code == 2, answer.err
    last = answer.err.splitlines()[-1]
    assert answer.err.count("legato: ") == 1
    assert last.startswith("legato: ")
    for part in parts:
        assert part in last


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a finished run and a run that was stopped at step 10."""
    home = tmp_path_factory.mktemp("home")
    update = Trainer._update

    def interrupted(self: Trainer) -> None:
        if self.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("lm", small(home), out=home / "finished", quiet=True)
        patch.setattr(Trainer, "_update", interrupted)
        with pytest.raises(Stopped):
            legato.train("lm", small(home), out=home / "stopped", quiet=True)
    return home


@pytest.fixture
def finished(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "finished", tmp_path / "finished"))


@pytest.fixture
def stopped(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "stopped", tmp_path / "stopped"))


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Callable[..., Any]:
    """`legato train lm` with small settings and these over them, into a folder that must not be left behind."""

    def run(*over: str) -> Any:
        answer = command("train", "lm", *words(small(home)), f"out={tmp_path}/run", *over)
        assert not (tmp_path / "run").exists()
        return answer

    return run


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["data.train", "data.valid", "data.test"])
def test_a_missing_file_is_named(key: str, train: Any, tmp_path: Path) -> None:
    is_one_line(train(f"{key}={tmp_path}/no.txt"), f"there is no file {tmp_path}/no.txt")


@pytest.mark.parametrize("content", [b"", b" \n\n"])
@pytest.mark.parametrize("key", ["data.train", "data.valid", "data.test"])
def test_an_empty_file_is_named(key: str, content: bytes, train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    is_one_line(train(f"{key}={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt is empty")


def test_a_binary_file_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"some text" + bytes(range(256)))
    is_one_line(train(f"data.train={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt is binary", "offset 9")


def test_a_mis_encoded_file_is_named_with_its_line(train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes("ein Satz\nnoch ein schöner\n".encode("latin-1"))
    is_one_line(train(f"data.valid={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt, line 2", "data.encoding=latin-1")


def test_a_line_of_100_megabytes_is_named(train: Any, tmp_path: Path) -> None:
    with (tmp_path / "bad.txt").open("wb") as file:
        file.write(b"short\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
    answer = train(f"data.train={tmp_path}/bad.txt")
    (tmp_path / "bad.txt").unlink()
    is_one_line(answer, f"{tmp_path}/bad.txt, line 2: 100000000 characters in one line", "data.max_line=0")


def test_a_folder_in_place_of_a_file_is_named(train: Any, tmp_path: Path) -> None:
    is_one_line(train(f"data.train={tmp_path}"), f"{tmp_path} is a folder")


def test_a_validation_text_shorter_than_one_batch_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n")
    is_one_line(
        train(f"data.valid={tmp_path}/short.txt"), f"data.valid={tmp_path}/short.txt holds", "train.batch_tokens"
    )


def test_a_training_text_shorter_than_one_batch_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n")
    is_one_line(train(f"data.train={tmp_path}/short.txt"), f"data.train={tmp_path}/short.txt holds")


def test_no_training_text_at_all_is_said(train: Any) -> None:
    is_one_line(train("data.train=none"), "data.train=FILE")


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("model.widht=5", ("'model.widht'", "'width'")),
        ("train.step=5", ("'train.step'", "'steps'")),
        ("data.trian=x", ("'data.trian'", "'train'")),
        ("tokenizer.sise=5", ("'tokenizer.sise'", "'size'")),
        ("data.toy.distanse=5", ("'data.toy.distanse'", "'distance'")),
        ("sede=1", ("'sede'", "'seed'")),
        ("foo=1", ("'foo'", "seed")),
    ],
)
def test_an_unknown_key_suggests_the_nearest(word: str, parts: tuple[str, ...], train: Any) -> None:
    is_one_line(train(word), *parts)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("model.width=wide", "model.width=wide is not a whole number"),
        ("model.width=1.5", "model.width=1.5 is not a whole number"),
        ("train.lr=fast", "train.lr=fast is not a number"),
        ("train.compile=maybe", "train.compile=maybe is neither true nor false"),
        ("train.optimizer=adam", "train.optimizer=adam should be"),
        ("data.batching=shuffled", "data.batching=shuffled should be"),
        ("seed=one", "seed=one is not a whole number"),
        ("model.width=[16,32]", "model.width="),
        ("data=x", "'data' is a group of settings"),
        ("train=5", "'train' is a group of settings"),
        ("model=[", "not a list"),
    ],
)
def test_a_wrong_type_names_the_key(word: str, reason: str, train: Any) -> None:
    is_one_line(train(word), reason)


@pytest.mark.parametrize(
    "key",
    [
        "model.width",
        "model.layers",
        "model.embedding",
        "tokenizer.size",
        "data.window",
        "train.steps",
        "train.epochs",
        "train.batch_tokens",
        "train.accumulate",
        "train.lr",
        "train.validate_every",
        "train.checkpoint_every",
        "train.log_every",
        "train.keep",
        "data.toy.count",
    ],
)
def test_a_size_of_zero_names_the_key(key: str, train: Any) -> None:
    is_one_line(train(f"{key}=0"), f"{key}=0 should be greater than")


def test_ema_and_asgd_together_are_refused(train: Any) -> None:
    is_one_line(train("train.ema=0.9", "train.optimizer=asgd"), "asgd averages the weights itself")


def test_a_word_that_is_no_setting_is_named(train: Any) -> None:
    is_one_line(train("fast"), "'fast' is not a setting", "key=value")


def test_a_model_that_does_not_exist_suggests_the_nearest(train: Any) -> None:
    is_one_line(train("model=lstn"), "there is no model 'lstn'", "'lstm'")


def test_a_tokenizer_that_does_not_exist_is_named(train: Any) -> None:
    is_one_line(train("tokenizer=chars"), "chars", "'char'")


def test_a_toy_that_does_not_exist_suggests_the_nearest(train: Any) -> None:
    is_one_line(train("data.train=toy:recal", "tokenizer=word"), "there is no toy task 'recal'", "'recall'")


def test_reading_both_ways_is_refused_for_language_modelling(train: Any) -> None:
    is_one_line(train("model.bidirectional=true"), "model.bidirectional=true")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("xy", ("'xy' is no task, recipe or YAML file", "there is chat, classification", "legato recipes")),
        ("lm/ptb-lstn", ("'lm/ptb-lstn' is no task", "'lm/ptb-lstm'")),
        ("no.yaml", ("there is no file no.yaml",)),
    ],
)
def test_an_unknown_task_or_recipe_is_named(name: str, parts: tuple[str, ...], command: Any) -> None:
    is_one_line(command("train", name), *parts)


def test_a_recipe_that_does_not_exist_suggests_the_nearest(command: Any) -> None:
    is_one_line(command("recipes", "lm/ptb-lsmt"), "there is no recipe 'lm/ptb-lsmt'", "'lm/ptb-lstm'")


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "task: [", "task: lm\nmodle: lstm\n"])
def test_a_settings_file_that_is_wrong_is_refused(content: str, command: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    answer = command("train", tmp_path / "bad.yaml", f"out={tmp_path}/run")
    is_one_line(answer, "'modle'" if "modle" in content else f"{tmp_path}/bad.yaml")


def test_training_nothing_in_particular_says_what_is_missing(command: Any) -> None:
    is_one_line(command("train"), "which task?")


def test_a_device_that_is_not_there_is_refused(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    is_one_line(train("device=cuda"), "device=cuda", "no CUDA device", "device=cpu")


def test_a_device_that_does_not_exist_is_refused(train: Any) -> None:
    is_one_line(train("device=tpu9"), "device=tpu9 is not a device")


@pytest.mark.parametrize(
    ("words", "part"),
    [(["trian"], "No such command 'trian'"), (["generate"], "Missing argument"), (["train", "--fast"], "--fast")],
)
def test_a_slip_in_the_command_itself_is_one_line_too(words: list[str], part: str, command: Any) -> None:
    is_one_line(command(*words), part)


# ── the run folder ────────────────────────────────────────────────────────────────────────────────


def test_an_out_that_holds_a_run_is_refused_and_left_alone(command: Any, home: Path, finished: Path) -> None:
    before = snapshot(finished)
    is_one_line(command("train", "lm", *words(small(home)), f"out={finished}"), f"{finished} already holds a run")
    assert snapshot(finished) == before


def test_an_out_that_is_a_file_is_refused_and_left_alone(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    is_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/file"), f"{tmp_path}/file is a file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_out_below_a_file_is_refused(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    is_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/file/run"), f"{tmp_path}/file/run")


def test_bad_data_leaves_what_else_was_in_the_out_folder(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    is_one_line(command("train", "lm", *words(small(home, data__train="no.txt")), f"out={tmp_path}/run"), "no.txt")
    assert snapshot(tmp_path / "run") == {"notes.txt": b"mine"}


@pytest.mark.parametrize("word", ["model.width=32", "model=gru", "model.dropout=0.5", "tokenizer=byte", "seed=5"])
def test_resuming_with_other_settings_is_refused(word: str, command: Any, stopped: Path) -> None:
    before = snapshot(stopped)
    key = {"model=gru": "model.name", "tokenizer=byte": "tokenizer.name"}.get(word, word.partition("=")[0])
    is_one_line(command("train", f"resume={stopped}", word), f"{key} is ", f"in {stopped} and cannot become")
    assert snapshot(stopped) == before


def test_resuming_with_an_unknown_key_suggests_the_nearest(command: Any, stopped: Path) -> None:
    is_one_line(command("train", f"resume={stopped}", "train.stpes=50"), "'train.stpes'", "'steps'")


def test_resuming_with_other_data_under_the_same_name_is_refused(command: Any, tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    write_text(tmp_path / "train.txt", seed=99)
    before = snapshot(run)
    answer = command("train", f"resume={run}", "train.steps=16")
    ends_in_one_line(answer, f"data.train is not the text that {run} began with")
    assert snapshot(run) == before


def test_resuming_a_finished_run_is_refused_and_leaves_it_alone(command: Any, finished: Path) -> None:
    before = snapshot(finished)
    is_one_line(command("train", f"resume={finished}"), f"{finished} is finished", "raise train.steps")
    assert snapshot(finished) == before


def test_resuming_a_finished_run_with_fewer_steps_is_refused(command: Any, finished: Path) -> None:
    before = snapshot(finished)
    ends_in_one_line(command("train", f"resume={finished}", "train.steps=8"), f"{finished} is finished")
    assert snapshot(finished) == before


def test_resuming_without_a_checkpoint_is_refused(command: Any, stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    before = snapshot(stopped)
    is_one_line(command("train", f"resume={stopped}"), f"{stopped} has no checkpoint")
    assert snapshot(stopped) == before


@pytest.mark.parametrize("made", [True, False])
def test_resuming_what_is_no_run_is_refused(made: bool, command: Any, tmp_path: Path) -> None:
    if made:
        (tmp_path / "none").mkdir()
    is_one_line(command("train", f"resume={tmp_path}/none"), f"{tmp_path}/none holds no run")


def test_resuming_a_recipe_is_refused(command: Any, stopped: Path) -> None:
    is_one_line(command("train", "lm", f"resume={stopped}"), "leave out 'lm'")


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def truncate(place: Path) -> None:
    file = place / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def flip_a_bit(place: Path) -> None:
    data = bytearray((place / "optimizer.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (place / "optimizer.safetensors").write_bytes(data)


def lose_the_manifest(place: Path) -> None:
    (place / "manifest.json").unlink()


DAMAGES = [truncate, flip_a_bit, lose_the_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], None], command: Any, stopped: Path, home: Path
) -> None:
    damage(stopped / "checkpoints" / "step-10")
    answer = command("train", f"resume={stopped}")
    assert answer.code == 0
    warnings = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"{stopped}/checkpoints/step-10" in warnings[0]
    assert warnings[0].endswith("using the one before")
    assert "going on from step 8 of 12" in answer.err
    assert weights_digest(stopped) == weights_digest(home / "finished")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_every_checkpoint_is_damaged_is_refused(
    damage: Callable[[Path], None], command: Any, stopped: Path
) -> None:
    for place in list_checkpoints(stopped / "checkpoints"):
        damage(place)
    before = snapshot(stopped)
    ends_in_one_line(command("train", f"resume={stopped}"), f"every checkpoint in {stopped}/checkpoints is damaged")
    assert snapshot(stopped) == before


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the disk be full after so many files of tensors."""

    def arm(files: int) -> None:
        from legato.folders import weights

        save = weights.save_file
        left = files

        def write(*args: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            save(*args, **options)

        monkeypatch.setattr(weights, "save_file", write)

    return arm


@pytest.mark.parametrize("files", [0, 3])
def test_a_disk_that_is_full_at_once_leaves_no_run_behind(files: int, train: Any, full_after: Any) -> None:
    full_after(files)
    ends_in_one_line(train(), "the disk is full")


@pytest.mark.parametrize("files", [5, 7, 12, 15])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint(
    files: int,
    command: Any,
    home: Path,
    tmp_path: Path,
    full_after: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_after(files)
    ends_in_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/run"), "the disk is full", "run")
    monkeypatch.undo()
    monkeypatch.setenv("LEGATO_CACHE", str(home / "cache"))
    assert not list((tmp_path / "run").rglob(".new-*"))
    assert command("train", f"resume={tmp_path}/run").code == 0
    assert weights_digest(tmp_path / "run") == weights_digest(home / "finished")


@pytest.mark.parametrize("name", [".new-.starting", ".new-config.yaml", ".new-provenance.json"])
def test_a_disk_too_full_for_the_first_small_file_leaves_no_run_behind(
    name: str, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(self: Path, *args: Any, **options: Any) -> int:
        if self.name == name:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    ends_in_one_line(train(), "the disk is full")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("events", ["true", "false"])
def test_a_disk_that_is_really_full_leaves_a_run_that_goes_on(
    events: str, command: Any, home: Path, tiny_disk: Path
) -> None:
    settings = small(home, train__checkpoint_every=1, train__keep=9, train__tensorboard=events)
    answer = command("train", "lm", *words(settings), f"out={tiny_disk}/run")
    ends_in_one_line(answer, "the disk is full", str(tiny_disk))
    assert list_checkpoints(tiny_disk / "run" / "checkpoints")
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    assert command("train", f"resume={tiny_disk}/run").code == 0
    assert weights_digest(tiny_disk / "run") == weights_digest(home / "finished")


def test_a_disk_that_is_full_from_the_start_leaves_no_run_behind(command: Any, home: Path, tiny_disk: Path) -> None:
    with contextlib.suppress(OSError), (tiny_disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    ends_in_one_line(command("train", "lm", *words(small(home)), f"out={tiny_disk}/run"), "the disk is full")
    assert not (tiny_disk / "run").exists()


# ── reading a model ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["eval", "generate"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_folder_that_lacks_a_file_is_refused(name: str, verb: str, command: Any, finished: Path) -> None:
    (finished / "best" / name).unlink()
    words = [f"data.test={finished}"] if verb == "eval" else []
    is_one_line(command(verb, finished / "best", *words), str(finished / "best"), name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_folder_with_a_damaged_file_is_refused(name: str, command: Any, finished: Path) -> None:
    file = finished / "best" / name
    file.write_bytes(file.read_bytes()[:50])
    is_one_line(command("generate", finished, "the"), name)


def test_weights_of_another_shape_are_refused(command: Any, finished: Path) -> None:
    config = finished / "best" / "config.json"
    config.write_text(config.read_text().replace('"width": 16', '"width": 24'))
    is_one_line(command("generate", finished, "the"), "has shape")


@pytest.mark.parametrize("verb", ["eval", "generate"])
def test_a_model_that_is_not_there_is_refused(verb: str, command: Any, tmp_path: Path) -> None:
    is_one_line(command(verb, tmp_path / "none"), f"there is no folder {tmp_path}/none")


def test_a_run_without_a_model_yet_is_said_to_be_one(command: Any, stopped: Path) -> None:
    shutil.rmtree(stopped / "best")
    shutil.rmtree(stopped / "last")
    is_one_line(command("generate", stopped), f"{stopped} is a run that has not saved a model yet")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ("'data.test' is needed",)),
        (["data.test=no.txt"], ("there is no file no.txt",)),
        (["data.tset=x"], ("'data.tset'", "'test'")),
        (["data=x"], ("'data' is a group of settings",)),
        (["train.steps=5"], ("'train'",)),
        (["data.test=toy:recal"], ("'recal'",)),
        (["device=cuda9x"], ("device=cuda9x",)),
        (["fast"], ("'fast' is not a setting",)),
    ],
)
def test_an_evaluation_that_makes_no_sense_is_refused(
    words: list[str], parts: tuple[str, ...], command: Any, finished: Path
) -> None:
    is_one_line(command("eval", finished, *words), *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--search", "best"], ("search=best should be 'greedy'",)),
        (["--search", "beam", "--beams", "2", "--nbest", "3"], ("nbest=3", "2 beams")),
        (["--search", "beam", "--beams", "0"], ("beams=0",)),
        (["--nbest", "2"], ("nbest=2", "greedy")),
        (["--max-tokens", "0"], ("max_tokens=0",)),
        (["--top-p", "0.9"], ("top_p=0.9", "--search sample")),
        (["--search", "sample", "--temperature", "0"], ("temperature=0",)),
        (["--beams", "two"], ("'--beams'",)),
        (["--stop", ""], ("stop",)),
        (["--device", "cuda9x"], ("device=cuda9x",)),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    words: list[str], parts: tuple[str, ...], command: Any, finished: Path
) -> None:
    is_one_line(command("generate", finished, "the ", *words), *parts)


def test_a_prompt_file_that_is_missing_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    is_one_line(command("generate", finished, "--file", tmp_path / "no.txt"), f"{tmp_path}/no.txt cannot be read")


def test_a_prompt_file_that_is_no_text_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    is_one_line(command("generate", finished, "--file", tmp_path / "bad.txt"), f"{tmp_path}/bad.txt cannot be read")


def test_an_empty_prompt_file_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    is_one_line(command("generate", finished, "--file", tmp_path / "empty.txt"), f"{tmp_path}/empty.txt is empty")


def test_a_prompt_and_a_prompt_file_together_are_refused(command: Any, finished: Path, tmp_path: Path) -> None:
    is_one_line(command("generate", finished, "the", "--file", tmp_path / "x.txt"), "not both")


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["lm"], "only one thing to compare"),
        (["lm", "model=[elman,lstn]"], "there is no model 'lstn'"),
        (["lm", "model=[elman,lstm]", "match=width"], "match=width"),
        (["model=[elman,lstm]"], "what should be compared?"),
        (["lm", "model=[elman,lstm]", "data.train=no.txt"], "there is no file no.txt"),
        (["no.yaml", "lm"], "there is no file no.yaml"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    words: list[str], part: str, command: Any, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "compared"
    is_one_line(command("compare", *words, f"out={out}"), part)
    assert not out.exists()


def test_a_comparison_of_unequal_budgets_is_refused(command: Any, tmp_path: Path) -> None:
    toy = "task: lm\ndata: {train: 'toy:copy', toy: {count: 50}}\n"
    (tmp_path / "a.yaml").write_text(f"{toy}model: elman\ntrain: {{steps: 5}}\n")
    (tmp_path / "b.yaml").write_text(f"{toy}model: lstm\ntrain: {{steps: 6}}\n")
    is_one_line(
        command("compare", tmp_path / "a.yaml", tmp_path / "b.yaml"),
        "12,288 tokens, 'a' on 10,240",
        "set train.steps",
    )


def test_a_comparison_whose_windows_waste_tokens_is_refused(command: Any, tmp_path: Path) -> None:
    words = ("compare", "lm", "data.train=builtin:stdlib", "tokenizer=byte", "data.window=[64,100]", "train.steps=2")
    is_one_line(command(*words, f"out={tmp_path}/c"), "4,000 tokens", "4,096")


def test_a_comparison_that_may_stop_early_is_refused(command: Any, tmp_path: Path) -> None:
    words = ("compare", "lm", "model=[elman,lstm]", "data.train=toy:copy", "train.patience=2", f"out={tmp_path}/c")
    is_one_line(command(*words), "train.patience")


def test_a_comparison_into_another_one_is_refused(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text("{}")
    is_one_line(command("compare", "lm", "model=[elman,lstm]", f"out={tmp_path}"), f"{tmp_path} already holds")
    assert (tmp_path / "compare.json").read_text() == "{}"
