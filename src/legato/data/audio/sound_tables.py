"""Tables with a column of sounds and another one beside it: a transcript, a label."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from legato.data.audio.sound_files import Sound, SoundFinder
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions, resolve_path
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import locate, read_table, tabbed
from legato.errors import DataError

AUDIO: Final = Role("sound", "audio, sound, wav, speech, audio_path, audio_file, file_name, filename, file, path")
HASHED: Final = 1 << 32  # bytes of sounds that are read to name their content


def read_sound_table(
    source: str, files: FileOptions, audio: str | None, roles: Roles, columns: Sequence[Column] | None
) -> tuple[Table, list[Sound], str]:
    """A table, the sounds that its first column names, and a note of what was guessed."""
    roles.check(columns)
    guessed: dict[str, Column] = {}

    def choose(head: Head) -> Sequence[Column]:
        if columns is not None:
            return columns
        guessed.update(roles.by_name(head))
        return list(guessed.values())

    path = locate(source, files.root)
    table = read_table(source, choose, replace(tabbed(source, files), binary=1))
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
    finder = SoundFinder(None if audio is None else resolve_path(audio, files.root), path)
    sounds = [finder.find(value, table.where(row)) for row, value in enumerate(table.columns[0])]
    told = " and ".join(f"{column} as {name}" for column, name in zip(table.shown, guessed, strict=False))
    return table, sounds, f"reading {told}" if guessed else table.note


def digest_of_sounds(sounds: Iterable[Sound]) -> Iterator[bytes]:
    """What names the sounds' content: the hash of each, or its size where they are too many to be read for that."""
    every = list(sounds)
    sizes = [len(sound.data) if sound.data is not None else sound.size for sound in every]
    whole = sum(sizes) <= HASHED
    for sound, size in zip(every, sizes, strict=True):
        yield hashlib.sha256(sound.raw()).digest() if whole else size.to_bytes(8, "little")
