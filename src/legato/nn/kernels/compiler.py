"""Compiling the C++ library of CPU kernels (`cpu/`): for this processor, or for the levels that a wheel brings.

A wheel is built where nobody knows the processor that it will run on. So it brings a library for each level, and the
best one that the processor has the instructions for is loaded. This file imports nothing of Legato's:
`hatch_build.py` runs it where a wheel is built.

OpenMP's functions stay undefined in a library: they are those of the runtime that PyTorch has loaded. A library
that names a runtime (`-fopenmp` to the linker) may bring a second one into the process, with threads of its own.
"""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final = Path(__file__).with_name("cpu")
PREBUILT: Final = Path(__file__).with_name("prebuilt")  # in wheels alone
LIBRARIES: Final = ("kernels", "training")
FLAGS: Final = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    "-fno-schedule-insns",  # GCC's order of a tile's products makes them wait for one another: 82 for 103 GOP/s
)
LINK_FLAGS: Final = ("-shared", "-s")
NATIVE: Final = ("-march=native",)
COMPILERS: Final = ("g++", "c++")  # clang's C++ lacks some of GCC's ways to write vectors
TIMEOUT_S: Final = 300


class Level(NamedTuple):
    """Processors that run the same library: the compiler's flags for them, and their features in /proc/cpuinfo."""

    name: str
    target: tuple[str, ...]
    features: Set[str]


_AVX2: Final = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
_AVX512: Final = _AVX2 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_VNNI: Final = _AVX512 | {"avx512_vnni"}
_AMX: Final = _VNNI | frozenset(["avx512_bf16", "amx_tile", "amx_bf16"])

# By the machine's name, the best level first. The sources tell no more levels apart than these (`grep defined cpu/`).
LEVELS: Final[dict[str, tuple[Level, ...]]] = {
    "x86_64": (
        Level(
            "amx",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mtune=sapphirerapids"),
            _AMX,
        ),
        Level("avx512-vnni", ("-march=x86-64-v4", "-mavx512vnni", "-mtune=cascadelake"), _VNNI),
        Level("avx512", ("-march=x86-64-v4", "-mtune=skylake-avx512"), _AVX512),
        Level("avx2", ("-march=x86-64-v3", "-mtune=haswell"), _AVX2),
    ),
    "aarch64": (
        Level(
            "dotprod",
            ("-march=armv8.2-a+fp16+dotprod", "-mtune=neoverse-n1"),
            frozenset(["asimd", "asimddp", "asimdhp", "fphp"]),
        ),
        Level("neon", ("-march=armv8-a", "-mtune=cortex-a72"), frozenset({"asimd"})),
    ),
}


def find_compiler(machine: str = platform.machine()) -> str | None:
    """The path of this machine's C++ compiler, or of Debian's for another one (g++-aarch64-linux-gnu)."""
    names = COMPILERS if machine == platform.machine() else (f"{machine}-linux-gnu-g++",)
    return next((path for name in names if (path := shutil.which(name))), None)


def compile_library(compiler: str, source: Path, file: Path, target: tuple[str, ...] = NATIVE) -> None:
    """Write the library of one source to `file`; CalledProcessError has the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = str(Path(folder) / "library.o")
        for command in (
            [compiler, *FLAGS, *target, "-c", str(source), "-o", compiled],
            [compiler, *LINK_FLAGS, compiled, "-o", str(file)],
        ):
            subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)


def prebuilt_file(library: str, level: Level) -> str:
    """The name of a wheel's library.

    >>> prebuilt_file("training", LEVELS["x86_64"][-1])
    'training-avx2.so'
    """
    return f"{library}-{level.name}.so"


def best_level(machine: str, features: Set[str]) -> Level | None:
    """The best of a machine's levels whose instructions are all there.

    >>> best_level("aarch64", {"fp", "asimd", "crc32"}).name
    'neon'
    """
    return next((level for level in LEVELS.get(machine, ()) if level.features <= features), None)


def wheel_level() -> Level | None:
    """The best level of the wheel's libraries for this processor; None where the installation has none that fit."""
    if not PREBUILT.is_dir():
        return None
    return best_level(platform.machine(), {feature for line in processor() for feature in line.split()})


@functools.cache
def processor() -> tuple[str, ...]:
    """What the processor says of itself, where it says it to everybody: on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return (platform.processor(),)
    kept = ("flags", "Features", "model name", "CPU part", "CPU implementer")
    return tuple(sorted({line for line in lines if line.startswith(kept)}))
