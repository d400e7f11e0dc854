"""How far gradients reach back: against the chain of matrices, the bound, and another way to the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_models import HEADS

from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError, LegatoError
from legato.inspect.gradients import gradient_through_time
from legato.model import Model
from legato.nn.recurrent import LSTMCell

TEXT = "the dog runs and the cat sleeps and the dog eats"
TRAINING_TEXT = f"{TEXT}\n" * 40
ONE_LAYER = {"model.layers": 1, "model.dropout": 0}
RUNS: dict[str, dict[str, Any]] = {
    **{name: {"task": "lm", "model": name, **ONE_LAYER} for name in ("elman", "gru", "lstm", "window")},
    "deep": {"task": "lm", "model": "elman", "model.layers": 3, "model.dropout": 0},
    "gpt2": {"task": "lm", "model": "gpt2", **ONE_LAYER, **HEADS},
    "bert": {"task": "mlm", "model": "bert", **ONE_LAYER, **HEADS},
}


@pytest.mark.parametrize("name", ["elman", "gru", "lstm", "gpt2"])
def test_there_is_a_norm_for_each_position_up_to_the_loss(models: dict[str, Model], name: str) -> None:
    found = gradient_through_time(models[name], TEXT)
    assert len(found.norms) == len(found.tokens) == len(found.distances)
    assert (found.norms > 0).all()
    assert found.distances[-1] == 0
    assert found.wanted.strip() == "eats"
    early = gradient_through_time(models[name], TEXT, at=2)
    assert len(early.norms) == 3
    assert early.tokens == found.tokens[:3]
    assert early.wanted == found.tokens[3]


def test_an_elman_rnn_has_the_product_of_its_steps_and_stays_below_the_bound(models: dict[str, Model]) -> None:
    model = models["elman"]
    found = gradient_through_time(model, TEXT)
    assert found.bound is not None
    assert (found.norms <= found.bound * (1 + 1e-6)).all()
    module = model.loaded.module
    ids = torch.tensor([model.prompt_ids(TEXT)])
    with torch.no_grad():
        hidden = module(Batch(Inputs(ids))).hidden[0]  # the last layer's, and the only one's
    at = len(found.norms) - 1
    last = hidden[at].clone().requires_grad_()
    F.cross_entropy(module.readout(last), ids[0, at + 1]).backward()
    weight = next(value for key, value in module.named_parameters() if key.endswith("weight_hh")).detach()
    assert last.grad is not None
    back, norms = last.grad.double(), [float(last.grad.norm())]
    for state in hidden[1 : at + 1].flip(0):
        back = (back * (1 - state.double().square())) @ weight.double()
        norms.append(float(back.norm()))
    np.testing.assert_allclose(found.norms, norms[::-1], rtol=1e-3)


def stacked(models: dict[str, Model], layers: int) -> tuple[Model, list[Any]]:
    """An Elman network of so many layers, 16 wide each, and its cells."""
    model = copy.deepcopy(models["deep"])
    model.module.stack.layers = model.module.stack.layers[:layers]
    return model, [pair[0].cell for pair in model.module.stack.layers]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_bound_of_each_layer_holds_along_every_way_up(models: dict[str, Model], layers: int) -> None:
    model, cells = stacked(models, layers)
    for seed, scales in enumerate(([0.05, 1.2, 1.2], [1.2, 0.05, 0.5], [0.7, 0.9, 1.1])):
        torch.manual_seed(seed)
        for cell, scale in zip(cells, scales, strict=False):
            torch.nn.init.orthogonal_(cell.weight_hh, scale)
            torch.nn.init.normal_(cell.weight_ih, std=0.1)
        for layer in range(layers):
            found = gradient_through_time(model, TEXT, layer=layer)
            assert found.bound is not None
            assert (found.norms <= found.bound * (1 + 1e-6)).all(), (scales, layer)
            assert found.bound[-1] == pytest.approx(found.norms[-1], rel=1e-5)


def test_the_bound_is_the_norm_where_nothing_is_lost(models: dict[str, Model]) -> None:
    """States of zero, where tanh has slope 1, and matrices that only scale."""
    model, cells = stacked(models, 3)
    with torch.no_grad():
        for cell, u, w in zip(cells, (0.5, 1.2, 0.9), (0.0, 0.7, 1.5), strict=True):
            cell.weight_hh.copy_(u * torch.eye(16))
            cell.weight_ih.copy_(w * torch.eye(16))
            cell.bias_ih.zero_()
            cell.bias_hh.zero_()
    for layer in range(3):
        found = gradient_through_time(model, TEXT, layer=layer)
        np.testing.assert_allclose(found.bound, found.norms, rtol=1e-4)


def written_out(model: Model) -> tuple[Any, list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """An LSTM by its equations, one step after the other: its cell, all h, all c, and the text's tokens."""
    module: Any = model.loaded.module.eval()
    cell, ids = module.stack.layers[0][0].cell, torch.tensor(model.prompt_ids(TEXT))
    hidden, cells = [], []
    state = cell.start(1)
    for x in module.embedding(ids):
        gates = cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ state[0][0] + cell.bias_hh
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * state[1][0] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        state = (h[None], c[None])
        hidden.append(h)
        cells.append(c)
    return module, hidden, cells, ids


def test_of_an_lstm_there_are_two_states_to_ask_at(models: dict[str, Model]) -> None:
    model = models["lstm"]
    found = {of: gradient_through_time(model, TEXT, of=of) for of in ("hidden", "cell")}
    assert (found["hidden"].name, found["cell"].name) == ("lstm.0.hidden", "lstm.0.cell")
    module, hidden, cells, ids = written_out(model)
    at = len(found["cell"].norms) - 1
    loss = F.cross_entropy(module.readout(hidden[at]), ids[at + 1])
    assert found["cell"].loss == found["hidden"].loss == pytest.approx(loss.item(), rel=1e-5)
    for of, states in (("hidden", hidden), ("cell", cells)):
        back = torch.autograd.grad(loss, states[: at + 1], retain_graph=True)
        np.testing.assert_allclose(found[of].norms, [float(each.norm()) for each in back], rtol=1e-3)
        assert found[of].bound is None


def test_a_cell_that_forgets_nothing_hands_its_gradient_on(models: dict[str, Model]) -> None:
    """With open forget gates and no word of h in any gate, ∂c_t / ∂c_s = 1; nothing comes back through h."""
    model = copy.deepcopy(models["lstm"])
    cell: Any = next(part for part in model.module.modules() if isinstance(part, LSTMCell))
    with torch.no_grad():
        cell.weight_hh.zero_()
        cell.bias_ih[cell.width : 2 * cell.width] = 50.0
    kept, lost = (gradient_through_time(model, TEXT, of=of) for of in ("cell", "hidden"))
    np.testing.assert_allclose(kept.norms, kept.norms[-1], rtol=1e-4)
    assert (lost.norms[:-1] == 0).all()
    assert lost.norms[-1] > 0


def test_what_has_no_cell_is_refused_in_a_line(models: dict[str, Model]) -> None:
    for name in ("elman", "gru", "gpt2", "window"):
        with pytest.raises(
            LegatoError, match=f"{name} has no cell, which only an LSTM has; leave out of=cell"
        ) as said:
            gradient_through_time(models[name], TEXT, of="cell")
        assert "\n" not in str(said.value)
    with pytest.raises(LegatoError, match="has the layers 0 to 0, and no layer 3"):
        gradient_through_time(models["lstm"], TEXT, layer=3, of="cell")
    anything: Any = "gates"
    with pytest.raises(ConfigError, match="of='gates': the states are hidden and cell"):
        gradient_through_time(models["lstm"], TEXT, of=anything)


def test_a_transformer_is_asked_at_what_its_first_block_reads(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    found = gradient_through_time(model, TEXT)
    assert found.name == "decoder.embedded"
    assert found.bound is None
    module, ids = model.loaded.module.eval(), torch.tensor([model.prompt_ids(TEXT)])
    kept: list[torch.Tensor] = []

    def keep(block: Any, given: Any) -> None:
        given[0].retain_grad()
        kept.append(given[0])

    stack = next(each for name, each in module.named_modules() if name.endswith("layers.0"))
    handle = stack.register_forward_pre_hook(keep)
    at = len(found.norms) - 1
    F.cross_entropy(module.readout(module(Batch(Inputs(ids))).hidden)[0, at], ids[0, at + 1]).backward()
    handle.remove()
    assert kept[0].grad is not None
    np.testing.assert_allclose(found.norms, kept[0].grad[0].norm(dim=-1)[: at + 1], rtol=1e-3)


def test_what_has_no_such_gradient_is_said(models: dict[str, Model], tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match="does not predict the next token"):
        gradient_through_time(models["bert"], TEXT)
    with pytest.raises(LegatoError, match="has no states that go from one position to the next"):
        gradient_through_time(models["window"], TEXT)
    with pytest.raises(LegatoError, match="has the layers 0 to 0, and no layer 3"):
        gradient_through_time(models["lstm"], TEXT, layer=3)
    with pytest.raises(LegatoError, match="gpt2 has no recurrent layer"):
        gradient_through_time(models["gpt2"], TEXT, layer=0)
    with pytest.raises(LegatoError, match=r"at=99: the text has tokens behind the positions 0 to"):
        gradient_through_time(models["gru"], TEXT, at=99)
