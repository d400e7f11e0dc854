"""What a step did to each layer, against the same figures taken by hand, and that looking changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import legato
from legato.training.layer_figures import LayerFigures
from tiny_runs import read_metrics, small, weights_digest


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_figures_are_those_of_all_parameters_of_a_layer() -> None:
    torch.manual_seed(0)
    tower = Tower()
    x = tower.embedding(torch.randn(5, 3))
    for layer in tower.layers:
        x = layer(x).tanh()
    x.sum().backward()
    figures = LayerFigures(tower, every=3)
    assert [step for step in range(1, 8) if figures.due(step)] == [3, 6]
    wanted = {name: vector(part.parameters(), "grad") for name, part in parts(tower).items()}
    before = {name: vector(part.parameters()) for name, part in parts(tower).items()}
    figures.before()
    nn.utils.clip_grad_norm_(tower.parameters(), 1e-3)
    torch.optim.SGD(tower.parameters(), lr=10.0).step()
    found = figures.after()
    after = {name: vector(part.parameters()) for name, part in parts(tower).items()}
    assert set(found) == {f"{kind}/{name}" for kind in ("gradient", "update") for name in (*wanted, "unused")}
    for name, gradient in wanted.items():
        assert found[f"gradient/{name}"] == pytest.approx(gradient.norm().item())
        moved = (after[name] - before[name]).norm() / before[name].norm()
        assert found[f"update/{name}"] == pytest.approx(moved.item(), rel=1e-4)
    assert found["gradient/unused"] == found["update/unused"] == 0


def test_a_layer_of_zeros_has_no_share_that_it_moved_by() -> None:
    tower = Tower()
    for parameter in tower.layers[1].parameters():
        nn.init.zeros_(parameter)
    optimizer, figures = torch.optim.SGD(tower.parameters(), lr=0.1), LayerFigures(tower, every=1)
    rows = []
    for _ in range(2):
        x = tower.layers[1](tower.layers[0](tower.embedding(torch.ones(5, 3))))
        x.sum().backward()
        figures.before()
        optimizer.step()
        rows.append(figures.after())
    assert "update/layers.1" not in rows[0]
    assert rows[0]["gradient/layers.1"] > 0
    assert 0 < rows[1]["update/layers.1"] < 10


def parts(tower: Tower) -> dict[str, nn.Module]:
    return {"embedding": tower.embedding, "layers.0": tower.layers[0], "layers.1": tower.layers[1]}


def vector(parameters: object, of: str = "data") -> torch.Tensor:
    return torch.cat([getattr(each, of).flatten() for each in parameters]).clone()  # type: ignore[attr-defined]


def test_a_run_with_figures_of_its_layers_is_the_same_run(tmp_path: Path) -> None:
    runs = {}
    for every in (0, 2):
        made = legato.train("lm", small(tmp_path, train__layers_every=every), out=tmp_path / str(every), quiet=True)
        runs[every] = made.run
    assert weights_digest(runs[0]) == weights_digest(runs[2])
    rows = [row for row in read_metrics(runs[2]) if row["kind"] == "layers"]
    steps = max(row["step"] for row in read_metrics(runs[2]))
    assert [row["step"] for row in rows] == list(range(2, steps + 1, 2))
    assert not [row for row in read_metrics(runs[0]) if row["kind"] == "layers"]
    norm = {row["step"]: row["norm"] for row in read_metrics(runs[2]) if row["kind"] == "train"}
    for row in rows:
        squares = [value**2 for name, value in row.items() if name.startswith("gradient/")]
        if row["step"] in norm:
            assert sum(squares) ** 0.5 == pytest.approx(norm[row["step"]], rel=1e-4)
        assert all(0 <= value < 1 for name, value in row.items() if name.startswith("update/"))
