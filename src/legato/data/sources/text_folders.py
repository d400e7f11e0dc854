"""Texts in folders: a folder of text files for each class, or `seq.in` beside `seq.out` and `label` (ATIS, SNIPS).

reviews/pos/1.txt   reviews/neg/7.txt       the class is the folder's name
atis/seq.in         flights to Boston       a line for each sentence
atis/seq.out        O O B-city              its tags
atis/label          flight                  its class
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from legato.data.sources.files import FileOptions, load_text, no_file
from legato.data.sources.named_files import class_folders
from legato.errors import DataError

SENTENCES: Final = "seq.in"
TEXT_ENDINGS: Final = (".txt", ".text", ".txt.gz")


def class_texts(folder: Path, files: FileOptions) -> list[tuple[Path, str, str]]:
    """The text files of each class: where each lies, what stands in it, and its class."""
    texts = class_folders(folder, text_files, "text", "*.txt")
    return [(path, load_text(path, files.encoding, files.max_line), label) for path, label in texts]


def text_files(folder: Path) -> list[Path]:
    """The text files in a folder and below it, by name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith(TEXT_ENDINGS) and not path.name.startswith(".") and path.is_file()
    )


def has_slots(folder: Path) -> bool:
    """Whether a folder holds sentences in `seq.in`."""
    return (folder / SENTENCES).is_file()


def slot_lines(folder: Path, name: str, files: FileOptions) -> tuple[list[str], list[str]]:
    """The sentences of a folder, and the line of its file `name` for each: `seq.out` or `label`."""
    sentences, others = (text_lines(folder / file, files) for file in (SENTENCES, name))
    if len(sentences) != len(others):
        raise DataError(
            f"{folder / SENTENCES} has {len(sentences):,} lines and {folder / name} {len(others):,}; give each "
            "sentence a line in both"
        )
    return sentences, others


def text_lines(path: Path, files: FileOptions = FileOptions()) -> list[str]:
    """The lines of a text file."""
    if not path.exists():
        raise no_file(path)
    lines = load_text(path, files.encoding, files.max_line).split("\n")
    return lines[:-1] if lines[-1] == "" else lines
