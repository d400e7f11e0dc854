"""DETR: what its queries are, what is taught, where gradients flow, and that it learns boxes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError
from legato.models.base import Sizes
from legato.models.detr import DETRConfig, DETRModel
from legato.nn.boxes import to_corners
from legato.nn.capture import record
from legato.nn.positions import share_sinusoids
from legato.tasks.detection.detector import losses

RESNET = {"name": "resnet", "stem": "3x3", "embedding": 4, "widths": [4, 8], "depths": [1, 1]}
VIT = {"name": "vit", "image": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2}
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "layers": 2, "encoder_layers": 1, "queries": 3, "encoder": RESNET}


def build(**settings: Any) -> DETRModel:
    torch.manual_seed(0)
    return DETRModel(validate(DETRConfig, {"name": "detr", **SMALL, **settings}), Sizes(5))


def pictures(rows: int = 2, height: int = 8, width: int = 12) -> Batch:
    draw = torch.Generator().manual_seed(1)
    return Batch(Inputs(values=torch.randn(rows, 3, height, width, generator=draw)))


@pytest.mark.parametrize("encoder", [RESNET, VIT], ids=["resnet", "vit"])
def test_each_query_says_classes_and_a_box(encoder: dict[str, Any]) -> None:
    model = build(encoder=encoder).eval()
    output = model(pictures())
    assert output.logits.shape == (2, 3, 5)
    assert output.boxes.shape == (2, 3, 4)
    assert output.hidden.shape == (2, 3, 16)
    assert output.stages == []  # in training alone
    assert (output.boxes[..., 2:] > output.boxes[..., :2]).all()


def test_a_grid_smaller_than_the_queries_gives_as_many_as_it_has() -> None:
    assert build(queries=1000).eval()(pictures(height=4, width=6)).boxes.shape == (2, 2 * 3, 4)


def test_what_is_taught_beside_the_last_block() -> None:
    stages = build()(pictures()).stages
    assert [stage.logits.shape[1] for stage in stages] == [4 * 6, 3]  # every place of the grid, then the first block
    assert [stage.logits.shape[1] for stage in build(deep=False)(pictures()).stages] == [4 * 6]


def test_cells_lie_where_their_pixels_are() -> None:
    cells = build().cells(8, 12, torch.device("cpu"))
    assert cells.shape == (24, 4)
    torch.testing.assert_close(cells[0], torch.tensor([1 / 12, 1 / 8, 4 / 12, 4 / 8]))
    torch.testing.assert_close(cells[7], torch.tensor([3 / 12, 3 / 8, 4 / 12, 4 / 8]))  # second row, second column


def test_queries_begin_at_the_likeliest_places_with_the_boxes_proposed_there() -> None:
    model = build()
    with torch.no_grad():
        model.proposals.classes.weight.normal_(generator=torch.Generator().manual_seed(2))
        model.proposals.boxes.linears[-1].weight.normal_(generator=torch.Generator().manual_seed(3))
    output = model(pictures())
    grid, first = output.stages
    chosen = grid.logits.amax(-1).topk(3).indices
    wanted = grid.boxes.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 4))
    torch.testing.assert_close(first.boxes, wanted, rtol=1e-3, atol=1e-4)  # a block moves none at the start
    torch.testing.assert_close(output.boxes, first.boxes, rtol=1e-3, atol=1e-4)
    wanted = grid.logits.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 5))
    torch.testing.assert_close(output.logits, wanted)  # nor says anything else of classes


def test_a_block_moves_its_anchors_and_no_gradient_reaches_them() -> None:
    model = build()
    with torch.no_grad():
        model.answers.boxes.linears[-1].bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    output = model(pictures())
    grid, first = output.stages
    middles = [(stage.boxes[..., 0] + stage.boxes[..., 2]).mean() for stage in (grid, first, output)]
    assert middles[0] < middles[1] < middles[2]
    (output.boxes.sum() + output.logits.sum()).backward()
    assert model.proposals.boxes.linears[-1].bias.grad is None
    assert model.places.layers[0].attention.qkv.weight.grad is not None  # by what the queries look at


def test_what_one_picture_shows_changes_no_other() -> None:
    model = build().eval()
    batch = pictures(3)
    whole = model(batch)
    alone = model(Batch(Inputs(values=batch.inputs.values[1:2])))
    torch.testing.assert_close(whole.boxes[1:2], alone.boxes)
    torch.testing.assert_close(whole.logits[1:2], alone.logits)


def test_where_queries_look_can_be_seen() -> None:
    model = build().eval()
    with torch.no_grad(), record() as trace:
        model(pictures())
    assert trace["decoder.1.cross.weights"][0].shape == (2, 2, 3, 24)


def test_shares_of_a_side_are_vectors_that_differ() -> None:
    fine = share_sinusoids(torch.arange(0, 1, 0.02).unsqueeze(-1), 32)
    assert fine.shape == (50, 32)
    apart = torch.cdist(fine, fine) + 9 * torch.eye(50)
    assert apart.min() > 0.5
    both = share_sinusoids(torch.tensor([0.25, 0.5]), 16)
    torch.testing.assert_close(both[:8], share_sinusoids(torch.tensor([0.25]), 8))
    assert share_sinusoids(torch.tensor([0.25, 0.5]), 18).shape == (18,)


@pytest.mark.slow
def test_it_learns_the_boxes_of_some_pictures() -> None:
    model = build(queries=6)
    values, truth, labels = squares()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    first = None
    for _ in range(40):
        total = torch.stack(losses(model(Batch(Inputs(values=values))), labels, truth)).sum() / labels.numel()
        first = total.item() if first is None else first
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert total.item() < 0.5 * first


def squares() -> tuple[Tensor, Tensor, Tensor]:
    """Pictures with a bright and a dark square each, their boxes and classes."""
    values, boxes = torch.zeros(4, 3, 16, 24), torch.zeros(4, 2, 4)
    for row in range(4):
        for label, (x, y) in enumerate(((4 * row, 2), (20 - 4 * row, 8))):
            values[row, :, y : y + 6, x : x + 4] = 1.0 if label else -1.0
            boxes[row, label] = torch.tensor([x / 24, y / 16, (x + 4) / 24, (y + 6) / 16])
    return values, boxes, torch.tensor([[0, 1]] * 4)


def test_without_an_encoder_it_reads_nothing() -> None:
    with pytest.raises(ConfigError, match=r"set model\.encoder=resnet"):
        DETRModel(DETRConfig(), Sizes(2))


def test_corners_of_boxes_are_said() -> None:
    output = build()(pictures())
    torch.testing.assert_close(output.stages[0].boxes[0, 0], to_corners(build().cells(8, 12, torch.device("cpu"))[0]))
