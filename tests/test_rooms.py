"""Imports point down the list of rooms only; nothing below knows what is above it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "legato"
# From the top down; rooms on one line are equals and may know each other.
ROOMS = [
    {"cli", "__main__"},
    {"comparing", "diagnosis"},
    {"run", "model", "features", "sklearn"},
    {"settings"},
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
    {"registry"},
    {"schema"},
    {"sandbox"},
    {"input_files", "output_files"},
    {"memory"},
    {"errors", "interrupts"},
]
HEIGHT = {room: -level for level, rooms in enumerate(ROOMS) for room in rooms}
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("legato.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_knows_only_what_is_below_it(path: Path) -> None:
    mine = HEIGHT[room_of(path)]
    above = {room for room in imported(path) if HEIGHT[room] > mine}
    assert not above, f"{room_of(path)} imports {above}"
