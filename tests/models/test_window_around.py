"""The window network with a window around each word."""

from __future__ import annotations

import torch

from legato.data.batching.batch import Batch, Inputs
from legato.models.base import Sizes
from legato.models.window import WindowConfig, WindowModel


def model(**more: object) -> WindowModel:
    torch.manual_seed(0)
    config = WindowConfig(context=2, width=8, embedding=4, around=True, **more)  # type: ignore[arg-type]
    return WindowModel(config, Sizes(20)).eval()


IDS = torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(1))


def test_a_word_sees_as_many_on_each_side_and_no_more() -> None:
    net = model()
    before = net(Batch(Inputs(IDS))).hidden
    assert before.shape == (3, 9, 8)
    changed = IDS.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 20
    moved = (net(Batch(Inputs(changed))).hidden != before).any(-1).any(0)
    assert moved.tolist() == [2 <= place <= 6 for place in range(9)]


def test_padding_never_changes_a_word() -> None:
    net = model()
    alone = net(Batch(Inputs(IDS[:1, :5]))).hidden
    other = torch.cat([IDS[:1, :5], IDS[1:2, :4]], 1)
    padded = net(Batch(Inputs(other, lengths=torch.tensor([5])))).hidden
    torch.testing.assert_close(padded[:, :5], alone)


def test_it_reads_both_ways_and_so_cannot_generate() -> None:
    assert not model().can_generate
    assert WindowModel(WindowConfig(), Sizes(20)).can_generate


def test_the_equation_worked_out_for_one_word() -> None:
    net = model(dropout=0.0)
    x = torch.cat([net.embedding.weight[IDS[0, place]] for place in range(1, 6)])  # around place 3
    expected = torch.tanh(net.hidden[0](x))
    torch.testing.assert_close(net(Batch(Inputs(IDS))).hidden[0, 3], expected)
