"""Where a run comes from (`provenance.json`): versions, commit, data, hardware; and whether it goes on from those."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.errors import DataError
from legato.runs.config import (
    RunConfig,
)
from legato.schema import OPEN, TypedDict, read_json_if_there, to_json, with_config
from legato.version import __version__

if TYPE_CHECKING:
    from legato.folders.loaded import Loaded
    from legato.training.adapt import Base
    from legato.training.display import Display


@with_config(OPEN)
class Provenance(TypedDict, total=False):
    """What is read again of provenance.json."""

    data: dict[str, str]  # hashes
    device: str
    tokenizer: str
    base: str


def refuse_other_data(run: Any, hashes: dict[str, str], loaded: Loaded | None, base: Base | None) -> None:
    about = read_json_if_there(run.path / "provenance.json", Provenance, loose=True)
    if "data" not in about:
        return
    before = about["data"]
    if loaded is not None and about.get("tokenizer", "") != loaded.tokenizer.fingerprint():
        raise DataError(f"{loaded.folder} has not the tokenizer that {run.path} began with; name that model: from=…")
    if base is not None and about.get("base", base.digest) != base.digest:
        raise DataError(f"{base.place} has not the weights that {run.path} began with; name that model: from=…")
    for split, digest in hashes.items():
        if before.get(split, digest) != digest:
            raise DataError(
                f"data.{split} is not the text that {run.path} began with; put that back, or start a new run"
            )


def warn_of_other_device(run: Any, device: Any, display: Display) -> None:
    from legato.training.devices import describe

    before = read_json_if_there(run.path / "provenance.json", Provenance, loose=True).get("device")
    if before is not None and before != describe(device):
        display.warn(f"{run.path} began on {before} and goes on on {describe(device)}: the last bits may differ")


def write_provenance(
    run: Any, config: RunConfig, hashes: dict[str, str], loaded: Loaded | None, base: Base | None, device: Any
) -> None:
    import torch

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
        about |= {"from": str(loaded.folder), "tokenizer": loaded.tokenizer.fingerprint()}
    if base is not None:
        about["base"] = base.digest
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
