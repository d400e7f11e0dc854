"""Which device to run on, and in which precision."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor

from legato.errors import CheckpointError, ConfigError, DeviceError, brief, suggest
from legato.nn.kernels.compiler import processor


def choose_device(name: str = "auto") -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; anything else must be there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        near = (
            "auto takes a GPU where there is one"
            if str(name).lower() == "gpu"
            else "use auto, cpu, cuda, cuda:1 or mps"
        )
        raise ConfigError(f"device={brief(name)} is not a device; {near}") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("device=cuda, but PyTorch sees no CUDA device here; use device=auto or device=cpu")
        if name == "cuda":  # several of PyTorch's functions want to know which
            return torch.device("cuda", torch.cuda.current_device())
        if device.index >= torch.cuda.device_count():
            raise DeviceError(f"device={name}, but there are only {torch.cuda.device_count()} CUDA devices")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("device=mps, but this machine has no Apple GPU; use device=auto or device=cpu")
    elif device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device={brief(name)} is not a device Legato knows; use auto, cpu, cuda, cuda:1 or mps")
    return device


DTYPES: Final = {
    **dict.fromkeys(("float32", "fp32", "float"), torch.float32),
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
    **dict.fromkeys(("float16", "fp16", "half"), torch.float16),
}


# What /proc/cpuinfo calls instructions that multiply matrices of bf16: x86's, and aarch64's.
BF16_FLAGS: Final = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16 matrix instructions"}


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The width of weights that is meant; `auto` is bf16 where the device multiplies it fast, else float32."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bf16(device) else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"dtype={brief(name)}: {suggest(name, ('auto', 'float32', 'bfloat16', 'float16'))}")
    dtype = DTYPES[name]
    if dtype == torch.bfloat16 and device.type == "cuda" and not multiplies_bf16(device):
        raise DeviceError(f"dtype={name}, but {describe(device)} has no bf16; use dtype=float16 or float32")
    return dtype


def multiplies_bf16(device: torch.device) -> bool:
    """Whether bf16 products are fast there: CUDA from Ampere on, and CPUs with instructions for them."""
    return why_bf16(device)[0]


def why_bf16(device: torch.device) -> tuple[bool, str]:
    """Whether bf16 products are fast on a device, and what tells it. `LEGATO_BF16=off` says that a CPU's are not."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"compute capability {major}.{minor}" + (" is older than 8.0" if major < 8 else "")
    if device.type != "cpu":
        return False, f"{device.type} is not known to gain by it"
    if os.environ.get("LEGATO_BF16") == "off":
        return False, "LEGATO_BF16=off"
    flags = {flag for line in processor() for flag in line.split()}
    found = next((name for flag, name in BF16_FLAGS.items() if flag in flags), None)
    return found is not None, f"the processor has {found}" if found else "the processor has no instructions for bf16"


def precision_of(precision: str, device: torch.device) -> str:
    """`auto` is bf16 where that is multiplied fast, else float32; anything else is itself."""
    if precision != "auto":
        return precision
    return "bf16" if multiplies_bf16(device) else "float32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """bf16 where the device multiplies it fast, float32 elsewhere; `precision` may insist on either."""
    if precision_of(precision, device) == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed what draws on the CPU and on `device`.

    Not `torch.manual_seed`: where there is no GPU it notes a stack trace for later at every call, which
    takes longer than a small step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def describe(device: torch.device) -> str:
    """The device in words, for provenance."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Where the generators stand, for a checkpoint."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device, where: str = "the checkpoint") -> None:
    if "cpu" not in states:
        raise CheckpointError(f"{where} lacks the state of the random numbers")
    try:
        torch.set_rng_state(states["cpu"])
        if device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], device)
    except (RuntimeError, TypeError) as problem:  # PyTorch's, of a state of another length or kind
        raise CheckpointError(f"{where} holds no state of random numbers: {brief(problem)}") from None
