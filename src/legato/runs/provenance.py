"""Where a run comes from (`provenance.json`): versions, commit, data, hardware; and whether it goes on from those."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.data.processors import TEXT
from legato.errors import DataError
from legato.runs.config import (
    RunConfig,
)
from legato.schema import OPEN, TypedDict, read_json_if_there, to_json, with_config
from legato.version import __version__

if TYPE_CHECKING:
    from legato.data.processors import Processors
    from legato.folders.loaded import Loaded
    from legato.models.base import SequenceModel
    from legato.training.adapt import Base
    from legato.training.display import Display


@with_config(OPEN)
class Provenance(TypedDict, total=False):
    """What is read again of provenance.json."""

    data: dict[str, str]  # hashes
    device: str
    tokenizer: str
    processors: dict[str, str]
    base: str
    pool: str


def refuse_other_data(run: Any, hashes: dict[str, str], loaded: Loaded | None, base: Base | None) -> None:
    about: dict[str, Any] = {**read_json_if_there(run.path / "provenance.json", Provenance, loose=True)}
    if "data" not in about:
        return
    before = about["data"]
    if loaded is not None:
        begun = {TEXT: about.get(TEXT, ""), **(about.get("processors") or {})}
        for kind, digest in loaded.processors.fingerprints().items():
            if begun.get(kind) != digest:
                raise DataError(
                    f"{loaded.folder} has not the {kind} that {run.path} began with; name that model: from=…"
                )
    if base is not None and about.get("base", base.digest) != base.digest:
        raise DataError(f"{base.place} has not the weights that {run.path} began with; name that model: from=…")
    for split, digest in hashes.items():
        if before.get(split, digest) != digest:
            raise DataError(
                f"data.{split} is not the text that {run.path} began with; put that back, or start a new run"
            )


def began_with_folders_pool(run: Any) -> bool:
    """Whether `head.pool=auto` was what a sentence encoder's folder says, also where more than a head is trained.

    Runs that began before it was have no entry of how their head pools.
    """
    return "pool" in read_json_if_there(run.path / "provenance.json", Provenance, loose=True)


def _fingerprints(processors: Processors) -> dict[str, Any]:
    """Those of processors as a run's file has them: the tokenizer's by itself, since older runs know no other."""
    found = processors.fingerprints()
    text = {TEXT: found.pop(TEXT)} if TEXT in found else {}
    return {**text, **({"processors": found} if found else {})}


def warn_of_other_device(run: Any, device: Any, display: Display) -> None:
    from legato.training.devices import describe

    before = read_json_if_there(run.path / "provenance.json", Provenance, loose=True).get("device")
    if before is not None and before != describe(device):
        display.warn(f"{run.path} began on {before} and goes on on {describe(device)}: the last bits may differ")


def write_provenance(
    run: Any,
    config: RunConfig,
    hashes: dict[str, str],
    loaded: Loaded | None,
    base: Base | None,
    device: Any,
    model: SequenceModel,
) -> None:
    import torch

    from legato.models.model_with_head import ModelWithHead
    from legato.training.devices import describe

    about = {
        "legato": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": describe(device),
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        "data": hashes,
    }
    if loaded is not None:
        about |= {"from": str(loaded.folder), **_fingerprints(loaded.processors)}
    if base is not None:
        about["base"] = base.digest
    if isinstance(model, ModelWithHead):
        about["pool"] = model.shape.pool
    run.write("provenance.json", to_json(about, indent=1, ensure_ascii=False))


def _commit() -> str | None:
    """The commit of the source that runs, when it is a checkout."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
