"""Dropout: what is dropped, how often, and when it is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from legato.nn.dropout import drop_connect, embed, variational_dropout
from legato.nn.recurrent import CELLS, Recurrent


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def table(weight: Tensor) -> nn.Embedding:
    return nn.Embedding.from_pretrained(weight)


def test_one_mask_serves_all_time_steps() -> None:
    dropped = variational_dropout(torch.ones(9, 5, 20), 0.5, training=True)
    assert (dropped == dropped[0]).all()


def test_each_row_has_a_mask_of_its_own() -> None:
    dropped = variational_dropout(torch.ones(9, 5, 200), 0.5, training=True)
    assert len({tuple(row.tolist()) for row in dropped[0]}) == 5


def test_variational_dropout_keeps_the_expectation() -> None:
    dropped = variational_dropout(torch.ones(1, 200, 200), 0.3, training=True)
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / 0.7))


def test_a_word_that_is_dropped_is_dropped_wherever_it_occurs() -> None:
    ids = torch.randint(30, (50, 8))
    vectors = embed(ids, table(torch.ones(30, 4)), 0.5, training=True)
    for word in range(30):
        assert len(vectors[ids == word].unique()) == 1


def test_a_word_is_dropped_whole() -> None:
    vectors = embed(torch.arange(30), table(torch.ones(30, 4)), 0.5, training=True)
    assert (vectors == vectors[:, :1]).all()
    assert (vectors == 0).any()
    assert (vectors != 0).any()


def test_dropping_words_keeps_the_expectation() -> None:
    vectors = embed(torch.arange(20_000), table(torch.ones(20_000, 1)), 0.4, training=True)
    assert vectors.mean().item() == pytest.approx(1, abs=0.03)


def test_dropconnect_keeps_the_expectation() -> None:
    assert drop_connect(torch.ones(300, 300), 0.5, training=True).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True)], ids=["in-eval", "at-zero"])
def test_every_dropout_is_off(p: float, training: bool) -> None:
    x = torch.randn(6, 4, 3)
    assert variational_dropout(x, p, training) is x
    assert drop_connect(x, p, training) is x
    assert torch.equal(embed(torch.tensor([1, 5]), table(x[:, 0]), p, training), x[[1, 5], 0])


def stack_of(name: str, p: float) -> Recurrent:
    return Recurrent(name, 3, [40], recurrent_dropout=p)


@pytest.mark.parametrize("name", CELLS)
def test_dropconnect_changes_what_training_gives(name: str) -> None:
    stack, x = stack_of(name, 0.5), torch.randn(5, 2, 3)
    assert not torch.allclose(stack(x)[0], stack(x)[0])


@pytest.mark.parametrize("name", CELLS)
def test_dropconnect_leaves_evaluation_alone(name: str) -> None:
    stack, x = stack_of(name, 0.5), torch.randn(5, 2, 3)
    plain = stack_of(name, 0.0)
    plain.load_state_dict(stack.state_dict())
    stack.eval()
    assert torch.equal(stack(x)[0], plain(x)[0])


@pytest.mark.parametrize("name", CELLS)
def test_dropconnect_touches_recurrent_weights_only(name: str) -> None:
    stack, x = stack_of(name, 0.5), torch.randn(1, 2, 3)
    # From a state of zeros the first step does not see the recurrent weights.
    assert torch.equal(stack(x)[0], stack(x)[0])


@pytest.mark.parametrize("name", CELLS)
def test_dropconnect_gives_a_dropped_weight_no_gradient(name: str) -> None:
    stack = stack_of(name, 0.5)
    stack(torch.randn(5, 2, 3))[0].sum().backward()
    gradient = stack.layers[0][0].cell.weight_hh.grad  # type: ignore[index]
    assert (gradient == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", CELLS)
def test_dropconnect_never_writes_on_the_weights_themselves(name: str) -> None:
    stack = stack_of(name, 0.5)
    before = {key: value.clone() for key, value in stack.state_dict().items()}
    stack(torch.randn(5, 2, 3))
    assert all(torch.equal(value, before[key]) for key, value in stack.state_dict().items())


def test_dropout_goes_between_layers_and_not_after_the_last() -> None:
    single = Recurrent("lstm", 3, [40], hidden_dropout=0.9)
    stacked = Recurrent("lstm", 3, [40, 40], hidden_dropout=0.9)
    x = torch.randn(5, 2, 3)
    assert torch.equal(single(x)[0], single(x)[0])
    assert not torch.allclose(stacked(x)[0], stacked(x)[0])
    assert (stacked(x)[0] != 0).all()
