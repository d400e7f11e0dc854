"""UniT: each task has its head and its averages of batch norms, and all else is one model's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError, LegatoError
from legato.models.base import Sizes
from legato.models.unit import UnitConfig, UnitModel
from legato.nn.convolution import FOLLOWED, running_statistics

RESNET = {"name": "resnet", "stem": "3x3", "embedding": 4, "widths": [4, 8], "depths": [1, 1]}
BERT = {"name": "bert", "width": 12, "layers": 1, "heads": 2, "length": 16, "dropout": 0.0, "dropout_attention": 0.0}
TASKS = {
    "boxes": {"kind": "boxes", "outputs": 5, "queries": 3},
    "questions": {"kind": "classes", "outputs": 4},
    "films": {"kind": "classes", "outputs": 2},
}
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "layers": 2,
    "encoder_layers": 1,
    "dropout": 0.0,
    "encoder": RESNET,
    "text": BERT,
    "tasks": TASKS,
}


def build(**settings: Any) -> UnitModel:
    torch.manual_seed(0)
    model = UnitModel(validate(UnitConfig, {"name": "unit", **SMALL, **settings}), Sizes(11))
    with torch.no_grad():
        for parameter in model.parameters():  # most start out tiny
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def pictures(seed: int = 1, scale: float = 1.0) -> Inputs:
    return Inputs(values=scale * torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(seed)))


def question(*ids: int, lengths: list[int] | None = None, seed: int = 1) -> Batch:
    """The same question about two pictures."""
    asked = Inputs(torch.tensor([ids, ids]), lengths=None if lengths is None else torch.tensor(lengths))
    return Batch(asked, images=pictures(seed), image_rows=torch.arange(2))


def test_each_task_says_what_its_own_head_does() -> None:
    model = build().eval()
    boxes = model.task("boxes")(Batch(pictures()))
    assert (boxes.logits.shape, boxes.boxes.shape, boxes.stages) == ((2, 3, 5), (2, 3, 4), [])
    assert model.task("questions")(question(1, 2, 3)).logits.shape == (2, 4)
    assert model.task("films")(Batch(Inputs(torch.tensor([[1, 2, 3]])))).logits.shape == (1, 2)
    stages = model.train().task("boxes")(Batch(pictures())).stages
    assert [stage.logits.shape[1] for stage in stages] == [4 * 6, 3]  # every place of the grid, then the first block


def test_an_answer_depends_on_the_picture_and_on_the_question_and_not_on_padding() -> None:
    task = build().eval().task("questions")
    said = task(question(1, 2, 3)).logits
    assert not torch.allclose(said, task(question(1, 2, 4)).logits, atol=1e-4)
    assert not torch.allclose(said, task(question(1, 2, 3, seed=2)).logits, atol=1e-4)
    padded = task(question(1, 2, 3, 7, 7, lengths=[3, 3])).logits
    torch.testing.assert_close(padded, said, rtol=1e-4, atol=1e-5)


def test_a_task_teaches_what_all_share_and_no_other_tasks_head() -> None:
    model = build()
    model.task("questions")(question(1, 2, 3)).logits.sum().backward()
    moved = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {"encoder", "places", "text", "of_text", "kinds", "decoder", "heads"}
    heads = {name for name, parameter in model.heads.named_parameters() if parameter.grad is not None}
    assert heads == {"1.query", "1.classes.weight", "1.classes.bias"}


def test_each_task_has_its_own_averages_of_batch_norms() -> None:
    model = build()
    before = {name: average.clone() for name, average in model.statistics.named_buffers()}
    model.task("boxes")(Batch(pictures(scale=9.0)))
    after = dict(model.statistics.named_buffers())
    changed = {name.split(".")[0] for name, average in after.items() if not torch.equal(average, before[name])}
    assert changed == {"0"}
    assert {f"statistics.{name}" for name in after} <= set(
        running_statistics(model)
    )  # so that they are averaged, too
    model.eval()
    answer = model.task("questions")(question(1, 2)).logits
    with torch.no_grad():
        for average in model.statistics[0].buffers():
            average.mul_(2).add_(1)
    assert torch.equal(model.task("questions")(question(1, 2)).logits, answer)  # what another task saw is not its own


def test_the_encoders_own_averages_follow_those_of_all_tasks() -> None:
    model = build()
    assert model.encoder is not None
    name = next(name for name, _ in model.encoder.named_buffers() if name.endswith("running_mean"))
    before = model.encoder.get_buffer(name).clone()
    model.task("boxes")(Batch(pictures(scale=9.0)))
    own = model.statistics[0].get_buffer(name.replace(".", "/"))
    torch.testing.assert_close(model.encoder.get_buffer(name), before.lerp(own, FOLLOWED))
    model.eval()
    model.task("boxes")(Batch(pictures(scale=3.0)))
    torch.testing.assert_close(model.encoder.get_buffer(name), before.lerp(own, FOLLOWED))


def test_averages_begin_as_those_of_the_encoder() -> None:
    model = build()
    with torch.no_grad():
        for name, buffer in model.encoder.named_buffers():  # type: ignore[union-attr]
            if name.endswith("running_mean"):
                buffer.fill_(3.0)
    model.begin_statistics()
    assert all((buffer == 3).all() for name, buffer in model.statistics.named_buffers() if name.endswith("mean"))


def test_what_cannot_be_read_or_said_is_refused() -> None:
    with pytest.raises(LegatoError, match="no task 'sounds'; it has boxes, questions, films"):
        build()(Batch(pictures(), task="sounds"))
    with pytest.raises(ConfigError, match="use it with: legato train unit"):
        build(tasks={})
    with pytest.raises(ConfigError, match="gpt2 is no encoder of text; use bert or roberta or distilbert"):
        build(text="gpt2")
    with pytest.raises(LegatoError, match="no part that reads text"):
        build(text=None).task("films")(Batch(Inputs(torch.tensor([[1]]))))
    with pytest.raises(LegatoError, match="no part that reads pictures"):
        build(encoder=None).task("boxes")(Batch(pictures()))
