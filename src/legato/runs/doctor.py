"""What `legato doctor` looks at: whether this machine can train, and how fast."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from legato.version import __version__

if TYPE_CHECKING:
    import torch

NEEDED = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "pyarrow",
    "pydantic",
    "typer",
    "rich",
    "sacrebleu",
    "scikit-learn",
    "seqeval",
    "sentencepiece",
    "huggingface_hub",
    "jinja2",
)
# What only some commands need, and which.
OPTIONAL = {
    "datasets": "data sets on the hub",
    "tensorboard": "train.tensorboard",
    "matplotlib": "the picture of legato compare",
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
    return [*found, _kernels(), *_products(device)]


def _kernels() -> Finding:
    """Whether the C++ kernels are there, and why not; where they are not yet, they are compiled now."""
    from legato.nn.kernels import compiler, library

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        started = time.perf_counter()
        found = library.library.__wrapped__()  # not what an earlier call found, which told why already
    level = compiler.wheel_level()
    if found is not None and level is not None and found.file.parent == compiler.PREBUILT:
        return Finding("CPU kernels", f"the wheel's for {level.name} processors")
    if found is not None:
        took = time.perf_counter() - started
        return Finding("CPU kernels", "compiled for this processor" + (f" now, in {took:.0f} s" if took > 2 else ""))
    off = os.environ.get("LEGATO_KERNELS") == "off"
    why = "LEGATO_KERNELS=off" if off or not told else str(told[0].message)
    slower = "" if off else " (training, generating, and quantized weights)"
    return Finding("CPU kernels", f"none: {why}{slower}", off)


def _products(device: torch.device) -> list[Finding]:
    """How fast each width is multiplied, and what is chosen because of it."""
    from legato.runs.product_rates import copy_rate, product_rates
    from legato.training.devices import why_bf16

    found = [Finding("memory bandwidth", f"{_figures(copy_rate(device))} GB/s read and written")]
    for name, rate in product_rates(device).items():
        told = "no such products here"
        if rate is not None:
            told = f"{_figures(rate.many)} GFLOP/s (many rows), {_figures(rate.one)} GB/s (one row)"
        found.append(Finding(f"{name} products", told, name != "float32" or (rate is not None and rate.many > 1)))
    fast, why = why_bf16(device)
    if device.type == "cpu":
        found += _encoders()
    return [*found, Finding("dtype=auto, train.precision=auto", f"{'bf16' if fast else 'float32'}: {why}")]


def _encoders() -> list[Finding]:
    """Whether a narrower width is worth asking for where a model only reads."""
    from legato.runs.product_rates import encoder_rate

    wide, half = encoder_rate("float32"), encoder_rate("float16")
    if wide is None:
        return []
    told = f"{_figures(wide)} GFLOP/s in float32"
    if half is not None:
        told += f", {_figures(half)} in float16: dtype=float16 is faster for them"
    return [Finding("encoders (BERT, …)", told)]


def _figures(value: float) -> str:
    """
    >>> _figures(0.4321), _figures(31.4), _figures(788_123.4)
    ('0.43', '31', '788,123')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (ValueError, AttributeError, OSError):
        return Finding("free memory", "unknown")
    return Finding("free memory", f"{free:.1f} GiB", free > 1)


def _cache() -> Finding:
    from legato.output_files import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        why = f"{folder} cannot be written ({problem.strerror}); texts are encoded anew each time"
        return Finding("cache", why, False)
    return Finding("cache", str(folder))
