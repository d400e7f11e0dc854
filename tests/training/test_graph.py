"""A step replayed as a CUDA graph equals the same step made kernel by kernel. Needs a GPU."""

from pathlib import Path

import torch

try:
    import pytest
except ImportError:  # run by hand on a machine that has a GPU and no pytest
    pytest = None

from legato.registry import MODELS, TASKS
from legato.run import check, settings_for
from legato.tasks.base import Plan
from legato.training.display import Display
from legato.training.loop import Trainer
from legato.training.run_folder import RunFolder


def losses(model: str, graph: bool, folder: Path, steps: int = 40) -> tuple[list[float], bool]:
    """The loss of each of the first steps, and whether a graph was recorded."""
    settings = {
        "data.train": "builtin:stdlib",
        "tokenizer": "byte",
        "model": model,
        "model.width": 64,
        "data.forget": 0.1,
        "train.graph": graph,
        "train.precision": "float32",
        "train.batch_tokens": 1024,
    }
    config = check(settings_for("lm", settings))
    device = torch.device("cuda")
    plan = Plan(config.data, config.tokenizer, config.model, config.train, 0, device)
    job = TASKS.get("lm").prepare(plan, lambda text: None)
    torch.manual_seed(0)
    module = MODELS.get(model)(config.model, job.tokenizer.size).to(device)
    run = RunFolder(folder)
    trainer = Trainer(module, job, config.train, run, seed=0, device=device, display=Display(quiet=True))
    module.train()
    found = []
    for _ in range(steps):
        trainer._update()
        found.append(trainer.watch.read()[0])
    return found, trainer.graph is not None


if pytest is not None:

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
    @pytest.mark.parametrize("model", ["window", "elman", "gru", "lstm"])
    def test_replaying_a_graph_equals_launching_each_kernel(model: str, tmp_path: Path) -> None:
        with_graph, recorded = losses(model, True, tmp_path)
        plain, not_recorded = losses(model, False, tmp_path)
        assert recorded
        assert not not_recorded
        torch.testing.assert_close(torch.tensor(with_graph), torch.tensor(plain), rtol=2e-3, atol=2e-3)
