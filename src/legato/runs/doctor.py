"""What `legato doctor` looks at: whether this machine can train, and how fast."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from legato.version import __version__

NEEDED = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "datasets",
    "pydantic",
    "typer",
    "rich",
    "tensorboard",
    "matplotlib",
    "sacrebleu",
    "sentencepiece",
    "huggingface_hub",
    "jinja2",
)
# What only some commands need, and which.
OPTIONAL = {
    "ctranslate2": "legato export --to ctranslate2",
    "gguf": "legato export --to gguf",
    "transformers": "tests and benchmarks",
}


@dataclass
class Finding:
    """One thing looked at."""

    name: str
    value: str
    good: bool = True


def diagnose() -> list[Finding]:
    """Everything worth knowing about this machine, the bad news marked."""
    findings = [
        Finding("legato", __version__),
        Finding("python", f"{platform.python_version()} on {platform.machine()}", sys.version_info >= (3, 11)),
    ]
    findings += [_package(name) for name in NEEDED]
    findings += [Finding(name, f"{_package(name).value} (optional: {use})") for name, use in OPTIONAL.items()]
    if all(f.good for f in findings if f.name == "torch"):
        findings += _devices()
    disk = shutil.disk_usage(Path.cwd()).free / 2**30
    return [*findings, _memory(), Finding("free disk here", f"{disk:.1f} GiB", disk > 1), _cache()]


def _package(name: str) -> Finding:
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", False)


def _devices() -> list[Finding]:
    import torch

    from legato.training.devices import choose_device

    device = choose_device("auto")
    found = [Finding("device", f"{device} ({torch.get_num_threads()} CPU threads)")]
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory / 2**30
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        found.append(Finding("gpu", f"{torch.cuda.get_device_name(0)}, {total:.0f} GiB, {bf16}"))
    size = 1024
    a = torch.randn(size, size, device=device)
    a @ a
    started = time.perf_counter()
    for _ in range(5):
        a = (a @ a) / size**0.5  # keeps its scale: numbers that underflow are slow on a CPU
    float(a.sum())  # waits for the device
    rate = 5 * 2 * size**3 / (time.perf_counter() - started) / 1e9
    found.append(Finding("float32 matrix product", f"{rate:,.0f} GFLOP/s", rate > 1))
    return found


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (ValueError, AttributeError, OSError):
        return Finding("free memory", "unknown")
    return Finding("free memory", f"{free:.1f} GiB", free > 1)


def _cache() -> Finding:
    from legato.data.cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        why = f"{folder} cannot be written ({problem.strerror}); texts are encoded anew each time"
        return Finding("cache", why, False)
    return Finding("cache", str(folder))
