"""What the GPT-2 benchmarks share: one model for all sides, and a process for each.

Each side runs in a process of its own, so that none meets another's threads, memory or settings, and rounds of all
sides alternate, so that a change of clock or of load meets all alike.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

VOCABULARY = 50_257


def choose_sides(wanted: str, known: Collection[str]) -> list[str]:
    """The sides named with commas between; each will have a process that begins with nothing of this one."""
    chosen = wanted.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"there is no side '{unknown[0]}'; there are {', '.join(known)}")
    require_transformers()
    multiprocessing.set_start_method("spawn")
    return chosen


def require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit('transformers is not installed; the peers come with: pip install -e ".[bench]"')


def write_model(folder: Path, layers: int, width: int, length: int, tied: bool, seed: int) -> None:
    """A GPT-2 with random weights, as Hugging Face keeps it."""
    import torch
    from safetensors.torch import save_file

    from legato.models.base import Sizes
    from legato.models.gpt2 import GPT2Config, GPT2Model
    from legato.models.published.gpt2 import GPT2

    torch.manual_seed(seed)
    config = GPT2Config(layers=layers, width=width, heads=max(1, width // 64), length=length, dropout=0, tied=tied)
    entries, tensors = GPT2.save(GPT2Model(config, Sizes(VOCABULARY)))
    about = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **entries}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
    kept = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def read_ours(folder: Path) -> Any:
    """The model in `folder` as a `GPT2Model`."""
    from safetensors.torch import load_file

    from legato.models.published.gpt2 import GPT2

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return GPT2.load(config, load_file(folder / "model.safetensors"), str(folder))


def read_theirs(folder: Path) -> Any:
    """The same model as a `GPT2LMHeadModel`."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.GPT2LMHeadModel.from_pretrained(folder)


Answer = Callable[[Any], Any]


def serve(connection: Connection, make: Callable[..., Answer], *given: Any) -> None:
    """A side's process: requests in, answers out."""
    answer = make(*given)
    with suppress(EOFError):  # nobody asks any more
        while True:
            connection.send(answer(connection.recv()))


class Side:
    """A process that answers when asked. `make(*given)` is called there, and what it returns is asked."""

    def __init__(self, make: Callable[..., Answer], *given: Any) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(other, make, *given), daemon=True)
        self.process.start()
        other.close()

    def __call__(self, request: Any) -> Any:
        self.connection.send(request)
        try:
            return self.connection.recv()
        except EOFError:
            raise SystemExit("a side failed; its error is above") from None


def run_apart(work: Callable[..., None], *given: Any) -> None:
    """Call `work` in a process of its own, which gives its memory back."""
    maker = multiprocessing.Process(target=work, args=given)
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit("the model could not be written; the error is above")


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers")}
