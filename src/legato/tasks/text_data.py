"""What tasks that learn from running text share: where it is, and how it is split."""

from __future__ import annotations

from pydantic import Field

from legato.data.formats.text import Text, hold_out, read_text
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.splits import Encoding, MaxLine, SplitData, ValidShare, completed


class TextData(SplitData):
    """Where the text is."""

    train: Source | None = Field(None, description="a file, hub name or builtin:stdlib")
    valid: Source | None = Field(None, description="left out: the last share of the training text")
    column: str | None = Field(None, description="of a csv, tsv, jsonl or parquet file")
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.1


def read_split(data: TextData, source: Source, split: str) -> Text:
    """The text that `source` names, read as `data` says."""
    return read_text(source, data.files(split), column=data.column)


def read_splits(data: TextData) -> dict[str, Text]:
    """Training and validation text, and the test text where there is one."""
    found = data.read(lambda source, split, train: read_split(data, source, split))
    return completed(found, lambda train: hold_out(train, data.valid_share))
