"""Checkpoints: whole or not there, and damage is noticed."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.errors import CheckpointError
from legato.training.checkpoint_files import list_checkpoints, sweep
from legato.training.checkpoints import (
    Checkpoint,
    flatten,
    load_checkpoint,
    newest_good,
    save_checkpoint,
    unflatten,
    with_each,
)

FILES = ("weights", "optimizer", "average", "random", "stream")


def checkpoint(step: int = 3, **parts: Any) -> Checkpoint:
    return Checkpoint(step=step, weights={"w": torch.arange(4.0) + step}, **parts)


def test_every_part_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = Checkpoint(
        step=7,
        weights={"a.weight": torch.randn(2, 3), "b": torch.randn(4)},
        optimizer={"a.weight/exp_avg": torch.randn(2, 3), "b/step": torch.tensor(7.0)},
        average={"b": torch.randn(4)},
        random={"cpu": torch.get_rng_state()},
        progress={"progress": {"tokens": 12, "best": None, "scores": [1.5, 2.0]}},
    )
    loaded = load_checkpoint(save_checkpoint(saved, tmp_path, keep=1))
    assert loaded.step == 7
    for part in ("weights", "optimizer", "average", "random"):
        before, after = getattr(saved, part), getattr(loaded, part)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert loaded.progress == {"step": 7, **saved.progress}


def test_a_random_state_that_comes_back_draws_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    saved = checkpoint(random={"cpu": torch.get_rng_state()})
    expected = torch.rand(3)
    torch.set_rng_state(load_checkpoint(save_checkpoint(saved, tmp_path, keep=1)).random["cpu"])
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "nest",
    [
        lambda t: None,
        lambda t: [None, None],
        lambda t: t,
        lambda t: [[(t, t + 1), (t + 2, t + 3)], None],
        lambda t: [(), [t], ((t,),)],
    ],
)
def test_a_stream_state_comes_back_nested_as_it_was(nest: Callable[[Any], Any], tmp_path: Path) -> None:
    state = nest(torch.randn(2, 3))
    stream = load_checkpoint(save_checkpoint(checkpoint(stream=state), tmp_path, keep=1)).stream
    tensors, shape = flatten(stream)
    expected, expected_shape = flatten(state)
    assert shape == expected_shape
    assert all(torch.equal(a, b) for a, b in zip(tensors, expected, strict=True))


def test_a_state_that_holds_one_tensor_twice_still_comes_back(tmp_path: Path) -> None:
    zero = torch.zeros(2, 3)
    stream = load_checkpoint(save_checkpoint(checkpoint(stream=[(zero, zero)]), tmp_path, keep=1)).stream
    assert [part.shape for part in stream[0]] == [zero.shape, zero.shape]


def test_flattening_and_unflattening_undo_each_other() -> None:
    tensors, shape = flatten([(1 * torch.ones(1), [2 * torch.ones(1)]), None])
    back = unflatten(tensors, json.loads(json.dumps(shape)))
    assert isinstance(back[0], tuple)
    assert [float(back[0][0]), float(back[0][1][0]), back[1]] == [1.0, 2.0, None]


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_noticed_and_named(name: str, tmp_path: Path) -> None:
    place = save_checkpoint(checkpoint(), tmp_path, keep=1)
    file = place / f"{name}.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{name}.safetensors is damaged"):
        load_checkpoint(place)


@pytest.mark.parametrize("name", ["weights.safetensors", "progress.json"])
def test_one_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    place = save_checkpoint(checkpoint(), tmp_path, keep=1)
    data = bytearray((place / name).read_bytes())
    data[-2] ^= 1
    (place / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{name} is damaged: its checksum is wrong"):
        load_checkpoint(place)


@pytest.mark.parametrize("name", [*(f"{name}.safetensors" for name in FILES), "progress.json", "manifest.json"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    place = save_checkpoint(checkpoint(), tmp_path, keep=1)
    (place / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load_checkpoint(place)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"weights.safetensors": 5}'])
def test_a_damaged_manifest_is_noticed(content: str, tmp_path: Path) -> None:
    place = save_checkpoint(checkpoint(), tmp_path, keep=1)
    (place / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(place)


def test_the_one_before_is_used_and_said_so(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(checkpoint(step), tmp_path, keep=3)
    (tmp_path / "step-3" / "weights.safetensors").write_bytes(b"")
    said: list[str] = []
    assert newest_good(tmp_path, said.append).step == 2
    assert len(said) == 1
    assert "step-3" in said[0]
    assert said[0].endswith("using the one before")


def test_every_checkpoint_damaged_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        place = save_checkpoint(checkpoint(step), tmp_path, keep=2)
        (place / "manifest.json").unlink()
    said: list[str] = []
    with pytest.raises(CheckpointError, match="every checkpoint"):
        newest_good(tmp_path, said.append)
    assert len(said) == 2
    assert not said[-1].endswith("using the one before")


@pytest.mark.parametrize("made", [True, False])
def test_no_checkpoint_at_all_is_an_error(made: bool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    if made:
        folder.mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
        newest_good(folder, print)


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):  # 10 is after 9, whatever the alphabet says
        save_checkpoint(checkpoint(step), tmp_path, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-10", "step-11"]


def test_a_damaged_later_checkpoint_never_pushes_out_a_good_one(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(20), tmp_path, keep=1)
    (tmp_path / "step-20" / "weights.safetensors").write_bytes(b"")
    save_checkpoint(checkpoint(12), tmp_path, keep=1)
    assert newest_good(tmp_path, lambda text: None).step == 12


def test_a_checkpoint_can_be_written_over(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(3), tmp_path, keep=1)
    again = Checkpoint(step=3, weights={"w": torch.zeros(4)})
    assert load_checkpoint(save_checkpoint(again, tmp_path, keep=1)).weights["w"].sum() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_sweeping_removes_what_is_half_written(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(3), tmp_path, keep=1)
    (tmp_path / ".new-step-4").mkdir()
    (tmp_path / ".new-step-4" / "weights.safetensors").write_bytes(b"half")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_sweeping_puts_back_what_had_stepped_aside(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(3), tmp_path, keep=1)
    (tmp_path / "step-3").rename(tmp_path / ".old-step-3")
    (tmp_path / ".new-step-3").mkdir()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert load_checkpoint(tmp_path / "step-3").step == 3


def test_an_error_while_writing_leaves_the_old_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(checkpoint(3), tmp_path, keep=1)

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("legato.training.checkpoints._digest", fail)
    with pytest.raises(RuntimeError):
        save_checkpoint(checkpoint(3), tmp_path, keep=1)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert load_checkpoint(tmp_path / "step-3").step == 3


def test_a_changed_state_holds_nothing_of_the_one_before() -> None:
    state = [(torch.ones(2, requires_grad=True) * 2, None), [torch.zeros(1)]]
    kept = weakref.ref(state[0][0])
    gc.disable()  # a reference cycle would be found too late
    try:
        changed = with_each(Tensor.detach, state)
        del state
        assert kept() is None
    finally:
        gc.enable()
    assert torch.equal(changed[0][0], torch.full((2,), 2.0))
    assert changed[0][1] is None
    assert isinstance(changed[0], tuple)
