"""What `predict --file` reads for models of pictures (`file_inputs.py`), and of clips.

For models of clips a folder has a file, or a folder of frames, for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from legato.data.formats.picture_rows import IMAGE
from legato.data.image.clips import clips_in, find_clip
from legato.data.image.picture_files import PictureFinder, members_of, picture_file, pictures_in
from legato.data.image.pictures import ENDINGS
from legato.data.sources.named_files import printable
from legato.data.sources.table import Column
from legato.errors import DataError
from legato.tasks.file_inputs import FileKind, existing
from legato.tasks.table_inputs import TableInputs

PICTURES: Final = FileKind(
    "picture",
    ENDINGS,
    IMAGE,
    picture_file,
    pictures_in,
    lambda path: list(members_of(path).values()),
    lambda table: PictureFinder(None, table).find,
)
CLIPS: Final = replace(PICTURES, finder=lambda table: partial(find_clip, PictureFinder(None, table)))


def read_pictures(
    source: str,
    trained: Sequence[Column] | None = None,
    columns: Sequence[Column] | None = None,
    *,
    clips: bool = False,
) -> TableInputs:
    """The pictures, or `clips`, that a file or folder names; of a table those of `columns`, else as in training, else
    guessed."""
    if clips and existing(source).is_dir():
        return _clips(existing(source))
    return (CLIPS if clips else PICTURES).read(source, trained, columns)


def _clips(folder: Path) -> TableInputs:
    """Every clip, by name."""
    found = clips_in(folder)
    if not found:
        raise DataError(f"{folder} holds no clip: neither a file that ends in {', '.join(ENDINGS)} nor a folder")
    return TableInputs(found, names=[printable(clip.name) for clip in found], unit="clip")
