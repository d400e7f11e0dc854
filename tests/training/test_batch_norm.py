"""Batch norms in the loop: running statistics are resumed, averaged and, in a frozen body, left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import legato
from legato.config import Section
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.errors import ConfigError
from legato.evaluation.metrics import Metric
from legato.folders.model_folder import load_model
from legato.folders.weights import load_tensors
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec
from legato.models.resnet import ResNetConfig, ResNetModel
from legato.nn.convolution import BatchNorm
from legato.registry import TASKS
from legato.tasks.base import Plan, Say, Task, TaskJob
from legato.training.job import Loss
from legato.training.optimizers import Average, _depths

STEPS = 6


class NoData(Section):
    train: str | None = None


class Pictures:
    """Random pictures, of which those of class 1 are brighter."""

    steps_per_epoch = 4
    tokens_per_step = 6
    stops_at: int | None = None  # as a kill would

    def at(self, step: int) -> Batch:
        if step == self.stops_at:
            raise KeyboardInterrupt
        drawn = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        labels = torch.arange(6) % 2
        return Batch(Inputs(values=drawn + labels[:, None, None, None]), labels=labels, tokens=6, read=6)


class BrightnessJob(TaskJob):
    task = "brightness"
    metric = "loss"
    likelihood = False
    use = "none"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        self.processors = Processors(others={"image": ImageProcessor((8, 8))})
        self.batches = Pictures()
        self.hashes = {"valid": "drawn"}
        self.head = HeadSpec(kind="classes", outputs=2, dropout=0.0)

    @property
    def sizes(self) -> Sizes:  # type: ignore[override]
        return Sizes(0)

    def loss(self, model: Any, batch: Batch, state: Any) -> Loss:
        total = nn.functional.cross_entropy(model(batch).logits, batch.labels, reduction="sum")  # type: ignore[arg-type]
        return Loss(total, total)

    def score(self, model: Any, split: str) -> dict[str, Any]:
        batch = self.batches.at(10**6)
        return {"loss": float(nn.functional.cross_entropy(model(batch).logits, batch.labels))}  # type: ignore[arg-type]


class Brightness(Task):
    name = "brightness"
    summary = "dark or bright"
    default_model = "resnet"
    processors = ("image",)
    Data = NoData
    metrics = (Metric("loss", "nats", "down"),)
    continues = True
    headed = True

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> BrightnessJob:
        return BrightnessJob(plan, say)


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    TASKS.add("brightness", Brightness)
    yield
    del TASKS._added["brightness"]


MODEL = {"model.widths": [4, 6], "model.depths": [1, 1], "model.embedding": 4, "model.stem": "3x3", "model.image": 8}


def train(out: Path, **more: Any) -> Path:
    train = {"train.steps": STEPS, "train.lr": 0.02, "train.validate_every": 2, "train.tensorboard": False}
    settings = {**train, **({} if "from" in more else MODEL), **{k.replace("__", "."): v for k, v in more.items()}}
    legato.train("brightness", settings, out=str(out), device="cpu", quiet=True)
    return out


def stopped_and_resumed(out: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Path:
    monkeypatch.setattr(Pictures, "stops_at", 5)
    with pytest.raises(KeyboardInterrupt):
        train(out, **more)
    monkeypatch.setattr(Pictures, "stops_at", None)
    legato.train(resume=str(out), quiet=True)
    return out


def checkpoint(run: Path, name: str, step: int = STEPS) -> dict[str, Tensor]:
    return load_tensors(run / "checkpoints" / f"step-{step}" / f"{name}.safetensors")


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"train__ema": 0.5}, {"train__average": 0.5}])
def test_a_run_that_was_stopped_goes_on_to_the_same_statistics(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", **more)
    cut = stopped_and_resumed(tmp_path / "cut", monkeypatch, **more)
    for name in ("weights", "average"):
        assert_same(checkpoint(cut, name), checkpoint(whole, name))
    assert_same(load_tensors(cut / "last" / "model.safetensors"), load_tensors(whole / "last" / "model.safetensors"))
    weights = checkpoint(whole, "weights")
    assert weights["body.stem.norm.num_batches_tracked"] == STEPS
    assert weights["body.stem.norm.running_mean"].any()


def test_statistics_are_averaged_as_weights_are(tmp_path: Path) -> None:
    run = train(tmp_path / "run", train__average=0.999, train__keep=10, train__checkpoint_every=1)
    steps = [checkpoint(run, "weights", step) for step in range(2, STEPS + 1)]  # the first is before the last 99.9 %
    saved = load_tensors(run / "last" / "model.safetensors")
    for name in ("stem.norm.running_mean", "stages.1.blocks.0.shortcut.norm.running_var", "stem.convolution.weight"):
        mean = torch.stack([weights[f"body.{name}"] for weights in steps]).mean(0)
        torch.testing.assert_close(saved[name], mean)
        assert not torch.allclose(saved[name], steps[-1][f"body.{name}"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adapt", ["head", "bitfit"])
def test_a_frozen_body_keeps_its_statistics(adapt: str, tmp_path: Path) -> None:
    base = train(tmp_path / "base") / "best"
    run = train(tmp_path / "run", **{"from": str(base), "adapt": adapt, "train__ema": 0.5})
    before, after = load_model(base).module.state_dict(), load_model(run / "last").module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    biases = {name for name in before if name.endswith("norm.bias")}
    assert changed == {"head.weight", "head.bias"} | (biases if adapt == "bitfit" else set())
    assert not any("running" in name for name in checkpoint(run, "average"))
    # … and a checkpoint still holds them, with which the frozen body runs.
    assert torch.equal(checkpoint(run, "weights")["body.stem.norm.running_var"], before["body.stem.norm.running_var"])


def test_norms_alone_may_be_frozen(tmp_path: Path) -> None:
    base = train(tmp_path / "base") / "best"
    run = train(tmp_path / "run", **{"from": str(base), "train__frozen": "norms"})
    before, after = load_model(base).module.state_dict(), load_model(run / "last").module.state_dict()
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {name for name in before if ".norm." in name}


@pytest.mark.slow
def test_a_frozen_body_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = train(tmp_path / "base") / "best"
    whole = train(tmp_path / "whole", **{"from": str(base), "adapt": "head"})
    cut = stopped_and_resumed(tmp_path / "cut", monkeypatch, **{"from": str(base), "adapt": "head"})
    assert_same(checkpoint(cut, "weights"), checkpoint(whole, "weights"))


def test_low_rank_adapters_have_no_place_in_convolutions(tmp_path: Path) -> None:
    base = train(tmp_path / "base") / "best"
    with pytest.raises(ConfigError, match=re.escape("model=resnet has none; use adapt=head, bitfit or full")):
        train(tmp_path / "run", **{"from": str(base), "adapt": "lora"})


@pytest.mark.slow
def test_training_begins_with_a_folders_statistics(tmp_path: Path) -> None:
    base = train(tmp_path / "base") / "best"
    run = train(tmp_path / "run", **{"from": str(base), "train__keep": 10, "train__checkpoint_every": 1})
    weights, before = checkpoint(run, "weights", 0), load_model(base).module.state_dict()
    assert_same(weights, dict(before))


def small() -> ResNetModel:
    return ResNetModel(ResNetConfig(widths=(4, 6), depths=(1, 2), embedding=4, stem="3x3"), Sizes(0))


def test_only_statistics_that_change_are_averaged() -> None:
    model = small()
    model.stages[0].requires_grad_(False)
    names = {name for name in Average(model, None).weights if "running" in name}
    assert "stem.norm.running_mean" in names
    assert not any(name.startswith("stages.0") for name in names)
    assert len(names) == 2 * sum(
        isinstance(m, BatchNorm) for m in [*model.stem.modules(), *model.stages[1].modules()]
    )


def test_stages_are_the_layers_of_a_layers_rate() -> None:
    names = [name for name, _ in small().named_parameters()]
    depths, above = _depths(names, "resnet")
    assert above == 3
    assert depths["stem.convolution.weight"] == 0
    assert depths["stages.1.blocks.1.convolutions.0.norm.weight"] == 2
