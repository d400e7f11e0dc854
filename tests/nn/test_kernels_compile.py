"""The C++ kernels are read by the compiler for every kind of processor that they have ways for."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest

from legato.nn.kernels.library import FLAGS, SOURCES

pytestmark = pytest.mark.slow
TARGETS = {
    "x86_64": ("-march=x86-64", "-march=haswell", "-march=skylake-avx512", "-march=sapphirerapids"),
    "aarch64": ("-mcpu=neoverse-n1", "-mcpu=neoverse-v1", "-mcpu=cortex-a53"),
}


def compiler_for(machine: str) -> str | None:
    """This machine's, or one of Debian's for the other (g++-aarch64-linux-gnu, g++-x86-64-linux-gnu)."""
    return shutil.which("g++" if platform.machine() == machine else f"{machine}-linux-gnu-g++")


@pytest.mark.parametrize("source", ["kernels.cpp", "training.cpp"])
@pytest.mark.parametrize(("machine", "target"), [(name, target) for name in TARGETS for target in TARGETS[name]])
def test_the_sources_are_read_for_each_processor(machine: str, target: str, source: str) -> None:
    compiler = compiler_for(machine)
    if compiler is None:
        pytest.skip(f"there is no compiler for {machine} here")
    flags = [flag for flag in FLAGS if flag not in ("-march=native", "-shared")]
    told = subprocess.run(
        [compiler, *flags, target, "-fsyntax-only", str(SOURCES / source)], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr[-2000:]
