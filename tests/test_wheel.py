"""Wheels: what the build hook puts in, and that they run their own kernels where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import legato
from legato.cli import VERBS
from legato.nn.kernels.compiler import (
    LEVELS,
    LIBRARIES,
    PREBUILT,
    SOURCES,
    best_level,
    compile_library,
    find_compiler,
    prebuilt_file,
    processor,
)
from tiny_runs import small

ROOT = Path(__file__).parent.parent
BASE = Path(legato.__file__).parent.parent


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build hook, with a compiler that writes empty libraries."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compilers = module._compiler_module

    def without_compiling(root: Path) -> ModuleType:
        compiler: Any = compilers(root)
        compiler.find_compiler = lambda machine: "g++"
        compiler.compile_library = lambda path, source, file, target: file.write_bytes(b"")
        return compiler

    monkeypatch.setattr(module, "_compiler_module", without_compiling)
    return module.Kernels(str(ROOT), {}, None, None, "", "wheel")


@pytest.mark.parametrize("machine", LEVELS)
def test_a_wheel_for_linux_holds_a_library_for_every_level(
    machine: str, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_WHEEL", machine)
    build: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", build)
    names = {prebuilt_file(library, level) for library in LIBRARIES for level in LEVELS[machine]}
    assert set(build["force_include"].values()) == {f"{PREBUILT.relative_to(BASE)}/{name}" for name in names}
    assert all(map(os.path.exists, build["force_include"]))
    assert build["tag"] == f"py3-none-manylinux_2_28_{machine}"
    hook.finalize("standard", build, "")
    assert not any(map(os.path.exists, build["force_include"]))


@pytest.mark.parametrize(("machine", "version"), [(None, "standard"), ("", "standard"), ("x86_64", "editable")])
def test_other_installations_hold_no_library(
    machine: str | None, version: str, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEGATO_WHEEL", raising=False)
    if machine is not None:
        monkeypatch.setenv("LEGATO_WHEEL", machine)
    build: dict[str, Any] = {}
    hook.initialize(version, build)
    hook.finalize(version, build, "")
    assert build == {}


def test_a_machine_that_has_no_kernels_is_refused(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_WHEEL", "sparc")
    with pytest.raises(SystemExit, match="LEGATO_WHEEL=sparc: there are kernels for x86_64 and aarch64"):
        hook.initialize("standard", {})


@pytest.mark.slow
def test_an_installed_wheel_generates_with_its_own_kernels_and_no_compiler(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    level = best_level(platform.machine(), {feature for line in processor() for feature in line.split()})
    compiler = find_compiler()
    if level is None or compiler is None:
        pytest.skip("needs a compiler, and a processor that wheels have kernels for")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "LEGATO_WHEEL": ""}, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("legato_nn-*-py3-none-any.whl")
    installed = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(installed)
    prebuilt = installed / PREBUILT.relative_to(BASE)
    prebuilt.mkdir()
    file = prebuilt / prebuilt_file("kernels", level)
    compile_library(compiler, SOURCES / "kernels.cpp", file, level.target)
    needed = set(re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes()))
    assert max(map(int, needed)) <= 28
    model = legato.train("lm", out=tmp_path / "run", **{**small(tmp_path), "model": "gpt2", "model.heads": 2}).run
    script = (
        "import legato; from legato.runs import doctor; print(doctor._kernels().value);"
        f"print(legato.load({str(model)!r}, quantize='int8').generate('the', max_tokens=8));"
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}))"
    )
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(installed), "LEGATO_CACHE": str(tmp_path / "cache")}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    kernels, text, *_, runtimes = told.stdout.splitlines()
    assert (kernels, runtimes) == (f"the wheel's for {level.name} processors", "1")
    assert text
    assert "compiler" not in told.stderr


def test_the_image_of_the_server_runs_what_the_package_has() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [name for name, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT")
    (extras,) = re.findall(r'"legato-nn\[([\w,]+)\]"', " ".join(text for _, text in steps))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    command = dict(steps)["ENTRYPOINT"].strip("[]").replace('"', "").split(", ")
    assert command[0] in project["scripts"]
    assert command[1] in VERBS
    assert command[2].removeprefix("--") in signature(import_module(VERBS[command[1]]).command).parameters
