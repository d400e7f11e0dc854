"""What tasks that learn from running text share: where it is, and how it is split."""

from __future__ import annotations

from pydantic import Field

from legato.config import Section
from legato.data.formats.text import Text, hold_out, read_text


class TextData(Section):
    """Where the text is."""

    train: str | None = Field(None, description="a file, hub name or builtin:stdlib")
    valid: str | None = Field(None, description="left out: the last share of the training text")
    test: str | None = Field(None, description="scored at the end, with the best model")
    root: str | None = Field(None, description="folder that relative names lie in")
    column: str | None = Field(None, description="of a csv, tsv, jsonl or parquet file")
    encoding: str = Field("utf-8", description="of text files")
    max_line: int = Field(10_000_000, ge=0, description="longest line accepted, in characters; 0 for any")
    valid_share: float = Field(0.1, gt=0, lt=1, description="share held out when data.valid is left out")


def read_split(data: TextData, source: str, split: str) -> Text:
    """The text that `source` names, read as `data` says."""
    return read_text(
        source,
        root=data.root,
        column=data.column,
        encoding=data.encoding,
        max_line=data.max_line,
        split=split,
    )


def read_splits(data: TextData) -> dict[str, Text]:
    """Training and validation text, and the test text where there is one."""
    assert data.train is not None
    train = read_split(data, data.train, "train")
    if data.valid is not None or data.train.startswith("builtin:"):
        texts = {"train": train, "valid": read_split(data, data.valid or data.train, "valid")}
    else:
        kept, held = hold_out(train, data.valid_share)
        texts = {"train": kept, "valid": held}
    if data.test is not None:
        texts["test"] = read_split(data, data.test, "test")
    return texts
