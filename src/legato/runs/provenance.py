"""Where a run comes from (`provenance.json`): versions, commit, data, hardware; and whether it goes on from those."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from legato.data.processors import TEXT
from legato.errors import DataError
from legato.models.model_with_head import ModelWithHead
from legato.runs.run_folder import RunFolder
from legato.schema import OPEN, TypedDict, read_json_if_there, to_json, with_config
from legato.tasks.base import Plan
from legato.training.adapt import Base
from legato.training.devices import describe
from legato.training.display import Display
from legato.version import __version__


@with_config(OPEN)
class Provenance(TypedDict, total=False):
    """What is read again of provenance.json."""

    data: dict[str, str]  # hashes
    device: str
    tokenizer: str
    processors: dict[str, str]
    base: str
    pool: str


def _begun(run: RunFolder) -> dict[str, Any]:
    return {**read_json_if_there(run.path / "provenance.json", Provenance, loose=True)}


def refuse_other_data(run: RunFolder, plan: Plan, hashes: dict[str, str], base: Base | None) -> None:
    about = _begun(run)
    if "data" not in about:
        return
    if (loaded := plan.loaded) is not None:
        begun = {TEXT: about.get(TEXT, ""), **(about.get("processors") or {})}
        for kind, digest in loaded.processors.fingerprints().items():
            if begun.get(kind) != digest:
                raise DataError(
                    f"{loaded.folder} has not the {kind} that {run.path} began with; name that model: from=…"
                )
    if base is not None and about.get("base", base.digest) != base.digest:
        raise DataError(f"{base.place} has not the weights that {run.path} began with; name that model: from=…")
    for split, digest in hashes.items():
        if about["data"].get(split, digest) != digest:
            raise DataError(
                f"data.{split} is not the text that {run.path} began with; put that back, or start a new run"
            )


def began_with_folders_pool(run: Any) -> bool:
    """Whether `head.pool=auto` was what a sentence encoder's folder says, also where more than a head is trained.

    Runs that began before it was have no entry of how their head pools.
    """
    return "pool" in _begun(run)


def warn_of_other_device(run: RunFolder, device: Any, display: Display) -> None:
    before = _begun(run).get("device")
    if before is not None and before != describe(device):
        display.warn(f"{run.path} began on {before} and goes on on {describe(device)}: the last bits may differ")


def write_provenance(run: RunFolder, plan: Plan, job: Any, base: Base | None, model: Any) -> None:
    about = {
        "legato": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": describe(plan.device),
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": plan.seed,
        "data": job.hashes,
        "metrics": [vars(metric) for metric in job.metrics if metric.headline],  # for lists of runs
    }
    if plan.loaded is not None:
        others: dict[str, Any] = plan.loaded.processors.fingerprints()
        text = {TEXT: others.pop(TEXT)} if TEXT in others else {}  # by itself, since older runs know no other
        about |= {"from": str(plan.loaded.folder), **text, **({"processors": others} if others else {})}
    if base is not None:
        about["base"] = base.digest
    if isinstance(model, ModelWithHead):
        about["pool"] = model.shape.pool
    run.write("provenance.json", to_json(about, indent=1, ensure_ascii=False))


def _commit() -> str | None:
    """The commit of the source that runs, when it is a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
