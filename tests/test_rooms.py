"""Imports point down the list of rooms only, and in no circle; a room is not too full, and no file too long."""

import ast
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "legato"
# From the top down; rooms on one line are equals and may know each other.
ROOMS = [
    {"cli", "__main__"},
    {"serving"},
    {"__init__", "api", "lm_eval", "loading", "model", "rag", "ray_predict", "sklearn"},
    {"inspect"},
    {"retrieval"},
    {"runs"},
    {"tasks"},
    {"training"},
    {"decoding"},
    {"evaluation"},
    {"folders"},
    {"models"},
    {"nn"},
    {"data"},
    {"recipes"},
    {"config"},
    {"other_names"},
    {"registry"},
    {"plain_yaml"},
    {"schema"},
    {"sandbox"},
    {"input_files", "output_files"},
    {"memory"},
    {"errors", "interrupts", "version"},
]
HEIGHT = {room: -level for level, rooms in enumerate(ROOMS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))
FULL = 20  # Python files of a folder
LONG = 450  # lines of a file
CROWDED = {"models", "models/published", "cli"}  # one file each for an architecture, its names, a verb


def module_of(path: Path) -> str:
    """`legato.data.cache`; a package is called as its `__init__.py`."""
    return ".".join(("legato", *path.relative_to(SOURCE).with_suffix("").parts))


MODULES = {module_of(path) for path in FILES}


def room_of(module: str) -> str:
    return module.split(".")[1]


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, at its top, inside a function or for its types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("legato"):
            found |= {_file_of(f"{node.module}.{alias.name}") or _file_of(node.module or "") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {_file_of(alias.name) for alias in node.names if alias.name.startswith("legato")}
    return {name for name in found if name is not None} - {module_of(path)}


def _file_of(name: str) -> str | None:
    return name if name in MODULES else f"{name}.__init__" if f"{name}.__init__" in MODULES else None


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return {module_of(path): imported(path) for path in FILES}


def test_a_room_knows_only_what_is_below_it(graph: dict[str, set[str]]) -> None:
    for module, known in graph.items():
        above = {other for other in known if HEIGHT[room_of(other)] > HEIGHT[room_of(module)]}
        assert not above, f"{module} imports {above}"


def test_no_files_import_each_other_in_a_circle(graph: dict[str, set[str]]) -> None:
    waiting = {module: set(known) for module, known in graph.items()}
    while free := {module for module, known in waiting.items() if not known}:
        waiting = {module: known - free for module, known in waiting.items() if module not in free}
    ends = dict(waiting)
    while idle := ends.keys() - set().union(*ends.values()):  # what only leads to a circle
        ends = {module: known for module, known in ends.items() if module not in idle}
    assert not ends, f"a circle among {sorted(ends)}"


def test_no_folder_is_too_full() -> None:
    folders = {path.parent for path in FILES if path.parent != SOURCE}
    counts = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    full = {name: count for name, count in counts.items() if count > FULL and name not in CROWDED}
    assert not full, f"more than {FULL} files: {full}"


def test_no_file_is_too_long() -> None:
    lines = {module_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    long = {module: count for module, count in lines.items() if count > LONG}
    assert not long, f"more than {LONG} lines: {long}"


def test_no_file_that_belongs_to_the_project_is_ignored() -> None:
    folder = SOURCE.parents[1]
    if not (folder / ".git").exists():
        pytest.skip("no checkout")
    asked = ["git", "-C", str(folder), "ls-files", "--cached", "--ignored", "--exclude-standard"]
    ignored = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert not ignored, f"a wheel would lack {ignored}"


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in FILES}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
