"""Sounds with what is said in them: a table with a column of sounds and one of transcripts, or sounds that are made.

audio	text
a/1.flac	go to sleep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from legato.data.audio.sound_files import Sound
from legato.data.audio.sound_tables import AUDIO, read_sound_table
from legato.data.audio.toy_sounds import SOUNDS, ToySounds, ToySoundsConfig
from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.rows import NumberedRows
from legato.data.formats.text_pairs import tidy
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import digest_of_files
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.errors import DataError

TRANSCRIPTS: Final = Roles(
    (AUDIO, Role("transcript", "text, transcript, transcription, sentence, normalized_text, transcripts, words")),
    "are sound and transcript: data.columns=[AUDIO,TEXT], by name, or by number from 1",
    (2, 2),
    "two, [AUDIO,TEXT]",
)


@dataclass(frozen=True, kw_only=True)
class Transcripts(NumberedRows):
    """Sounds, and what is said in each."""

    sounds: list[Sound]
    names: list[str]  # of the sounds
    texts: list[str]
    columns: list[Column]  # that were read

    by_row: ClassVar[tuple[str, ...]] = ("lines", "sounds", "names", "texts")

    def content_hash(self) -> str:
        return sha256_of([*sized_columns((self.names, self.texts), self.where), *digest_of_files(self.sounds)])


def read_transcripts(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    audio: str | None = None,
    columns: Sequence[Column] | None = None,
) -> Transcripts:
    """The sounds of a table or a dataset on the hub, with their transcripts."""
    table, sounds, note = read_sound_table(source, files, audio, TRANSCRIPTS, columns)
    texts = [tidy(text) for text in table.texts(1, "data.columns")]
    for row, text in enumerate(texts):
        if not text:
            raise DataError(f"{table.where(row)}: the transcript is empty; write what is said, or remove the row")
    return Transcripts(
        source=table.source,
        sounds=sounds,
        names=[sound.name for sound in sounds],
        texts=texts,
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(table.names),
        note=note,
    )


def toy_transcripts(config: ToySoundsConfig, split: str, seed: int) -> Transcripts:
    """Sounds that are made, each with the digits that it tells."""
    sounds = ToySounds(config, split, seed)
    every = list(sounds)
    return Transcripts(
        source=SOUNDS,
        sounds=[each.sound for each in every],
        names=[each.key for each in every],
        texts=[each.text for each in every],
        lines=list(range(1, len(every) + 1)),
        unit="sound",
        columns=["sound"],
        sha256=sha256_of([sounds.digest(), "transcripts"]),
    )
