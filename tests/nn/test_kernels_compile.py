"""The C++ kernels are read by the compiler for every kind of processor that they have ways for."""

from __future__ import annotations

import subprocess

import pytest

from legato.nn.kernels.compiler import FLAGS, LEVELS, LIBRARIES, SOURCES, find_compiler

pytestmark = pytest.mark.slow
# Those of a wheel, and what has less or more than the best of them.
TARGETS = {
    "x86_64": {"-march=x86-64": ("-march=x86-64",)},
    "aarch64": {"-mcpu=neoverse-v1": ("-mcpu=neoverse-v1",)},
}
for machine, levels in LEVELS.items():
    TARGETS[machine] |= {level.name: level.target for level in levels}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("machine", "target"), [(name, target) for name in TARGETS for target in TARGETS[name]])
def test_the_sources_are_read_for_each_processor(machine: str, target: str, library: str) -> None:
    compiler = find_compiler(machine)
    if compiler is None:
        pytest.skip(f"there is no compiler for {machine} here")
    command = [compiler, *FLAGS, *TARGETS[machine][target], "-fsyntax-only", str(SOURCES / f"{library}.cpp")]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
