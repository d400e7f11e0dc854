"""Tables with a column of sounds and another one beside it: a transcript, a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from legato.data.audio.sound_files import Sound, SoundFinder
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions, resolve_path
from legato.data.sources.named_files import find_files, read_naming_table
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Table

AUDIO: Final = Role("sound", "audio, sound, wav, speech, audio_path, audio_file, file_name, filename, file, path")


def read_sound_table(
    source: Source, files: FileOptions, audio: str | None, roles: Roles, columns: Sequence[Column] | None
) -> tuple[Table, list[Sound], str]:
    """A table, the sounds that its first column names, and a note of what was guessed."""
    table, path, note = read_naming_table(source, files, roles, columns)
    finder = SoundFinder(None if audio is None else resolve_path(audio, files.root), path)
    return table, find_files(table, finder.find), note
