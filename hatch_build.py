"""Wheels with compiled kernels: `LEGATO_WHEEL=x86_64` or `aarch64` (`make wheels`) compiles them for every level.

Without the variable the wheel holds Python and the C++ sources alone, which a machine with a compiler compiles when
they are first used; so do an editable installation and the sdist.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("legato/nn/kernels")
# The lowest glibc that PyTorch's own wheels run on; the libraries need 2.27, which a test holds.
PLATFORM = "manylinux_2_28"


class Kernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = os.environ.get("LEGATO_WHEEL")
        if not machine or version == "editable":
            return
        compiler = _compiler_module(Path(self.root))
        if machine not in compiler.LEVELS:
            raise SystemExit(f"LEGATO_WHEEL={machine}: there are kernels for {' and '.join(compiler.LEVELS)}")
        path = compiler.find_compiler(machine)
        if path is None:
            raise SystemExit(f"LEGATO_WHEEL={machine}: there is no g++ for it; Debian's is g++-{machine}-linux-gnu")
        self.built = tempfile.TemporaryDirectory()
        files = {
            Path(self.built.name) / compiler.prebuilt_file(library, level): (library, level)
            for level in compiler.LEVELS[machine]
            for library in compiler.LIBRARIES
        }

        def compile_one(file: Path) -> None:
            library, level = files[file]
            try:
                compiler.compile_library(path, compiler.SOURCES / f"{library}.cpp", file, level.target)
            except subprocess.CalledProcessError as problem:
                raise SystemExit(problem.stderr.decode(errors="replace")) from None

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, files))
        build_data["force_include"] |= {str(file): str(KERNELS / "prebuilt" / file.name) for file in files}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORM}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "built"):
            self.built.cleanup()


def _compiler_module(root: Path) -> ModuleType:
    """Legato's own way to compile; the package is not imported, since PyTorch is not there where wheels are built."""
    spec = importlib.util.spec_from_file_location("compiler", root / "src" / KERNELS / "compiler.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
