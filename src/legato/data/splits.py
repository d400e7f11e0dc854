"""What is trained, validated and tested on: which sources those are, and what is held out where they are not given.

Three ways to hold out a share of the training rows, each at least one of them and never all:

- `by_order`: the last ones, for text that goes on from row to row;
- `by_hash`: what part a row is in follows from a text of its, whatever the order and whatever else there is, so that
  rows with one text stay together, and more rows move no others;
- `by_group`: groups of any size in the order of their hashes, until the share is filled.

No row may ever change its part: what was trained on would be validated on when a run goes on.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol, Self, TypeVar

from pydantic import Field, field_validator

from legato.config import Section
from legato.data.digests import chance
from legato.data.sources.files import SPLITS, FileOptions
from legato.data.sources.patterns import Source, source_files
from legato.data.sources.toys import TOY
from legato.errors import DataError

PARTED: Final = ("builtin:", TOY)  # how sources begin that have a part for validation, too

R = TypeVar("R")

# What settings of one name mean in every task.
Encoding = Annotated[str, Field(description="of text files")]
TableFormat = Annotated[
    Literal["auto", "tsv", "csv", "jsonl", "parquet"],
    Field(description="auto: by the file's ending, and by its tabs"),
]
MaxLine = Annotated[int, Field(ge=0, description="longest line accepted, in characters; 0 for any")]
ValidShare = Annotated[float, Field(gt=0, lt=1, description="share held out when data.valid is left out")]


class SplitData(Section):
    """Where the data is; each task says what its sources may be, and how it reads them."""

    train: Source | None = None
    valid: Source | None = None
    test: Source | None = Field(None, description="scored at the end, with the best model")
    root: str | None = Field(None, description="folder that relative names lie in")

    def files(self, split: str) -> FileOptions:
        """How the sources of a split are read, as far as the task has settings for it."""
        return FileOptions(split=split, **self.model_dump(include={"root", "format", "encoding", "max_line"}))

    @field_validator(*SPLITS, mode="before")
    @classmethod
    def _is_named(cls, source: Any) -> Any:
        """A table in memory is no list of names, though its columns could be read as one."""
        if source is None or isinstance(source, str | list | tuple):
            return source
        raise ValueError("takes names of files; save the table to one, as with df.to_csv('train.csv', index=False)")

    def _check_patterns(self) -> None:
        """Refuse a pattern that takes in a file of another split."""
        sources = [(split, source) for split in SPLITS if (source := getattr(self, split)) is not None]
        names = [name for _, source in sources for name in ([source] if isinstance(source, str) else source)]
        if not any(map(glob.has_magic, names)) or any("!" in name for name in names):  # a zip's are its reader's
            return
        splits: dict[str, str] = {}
        for split, source in sources:
            for name in source_files(source, self.root):
                first = splits.setdefault(os.path.abspath(os.path.join(self.root or "", name)), split)
                if first != split:
                    raise DataError(f"{name} is in data.{first} and in data.{split}; take it out of one of them")

    def read(self, read: Callable[[Source, str, R | None], R]) -> dict[str, R]:
        """What `read` makes of the source of each split that has one, the split's name, and the training part."""
        self._check_patterns()
        found: dict[str, R] = {}
        parted = self.train if str(self.train).startswith(PARTED) else None
        valid = parted if self.valid is None else self.valid
        for split, source in zip(SPLITS, (self.train, valid, self.test), strict=True):
            if source is not None:
                found[split] = read(source, split, found.get("train"))
        return found


def completed(found: Mapping[str, R], hold_out: Callable[[R], Mapping[str, R]]) -> dict[str, R]:
    """The parts in their order; where there is none for validation, with what is held out of the training part."""
    parts = {**found, **({} if "valid" in found else hold_out(found["train"]))}
    return {split: parts[split] for split in SPLITS if split in parts}


def by_order(count: int, share: float, source: str, what: str) -> dict[str, range]:
    """The rows of each part, the last share for validation; `what` each of them is, for a message."""
    if count < 2:
        raise DataError(f"{source} has one {what}, too few to hold any out; give data.valid")
    cut = max(1, min(count - 1, round(count * (1 - share))))
    return {"train": range(cut), "valid": range(cut, count)}


def by_hash(
    keys: Sequence[str], shares: Mapping[str, float], kept: Collection[str] = (), left: int = 1
) -> dict[str, list[int]]:
    """The rows of each part, which follows from a row's key; at least `left` keys train, and all that are `kept`."""
    order = sorted((chance(key), key) for key in set(keys).difference(kept))
    part_of: dict[str, str] = {}
    end, level = 0, 0.0
    for others, (part, share) in zip(range(len(shares) - 1, -1, -1), shares.items(), strict=True):
        level += share
        start, most = end, len(order) - others - left
        end = max(start + 1, min(sum(number < level for number, _ in order), most))
        part_of |= {key: part for _, key in order[start:end]}
    return _rows_of(keys, part_of)


def by_group(keys: Sequence[str], shares: Mapping[str, float]) -> dict[str, list[int]]:
    """The rows of each part, those of a key all in one; a part takes keys until it has its share of the rows."""
    sizes = Counter(keys)
    order = sorted(sizes, key=lambda key: hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest())
    part_of: dict[str, str] = {}
    for number, (part, share) in enumerate(shares.items()):
        count = 0
        # Those that come behind get one key at least.
        while not count or (count < share * len(keys) and len(order) > len(shares) - number):
            count += sizes[order[0]]
            part_of[order.pop(0)] = part
    return _rows_of(keys, part_of)


class NamedRows(Protocol):
    """Rows with a picture or a sound each."""

    @property
    def source(self) -> str: ...

    @property
    def names(self) -> list[str]:
        """Of the pictures or sounds."""
        ...

    def select(self, rows: Sequence[int]) -> Self: ...


N = TypeVar("N", bound=NamedRows)


def hold_out_named(data: N, share: float, what: str) -> dict[str, N]:
    """The rows without those of a `share` of the pictures or sounds, and these, chosen by a hash of their names."""
    if len(set(data.names)) < 2:
        raise DataError(f"{data.source} has one {what}, too few to hold any out; give data.valid")
    return {part: data.select(rows) for part, rows in by_hash(data.names, {"valid": share}).items()}


def _rows_of(keys: Sequence[str], part_of: Mapping[str, str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {split: [] for split in SPLITS if split == "train" or split in part_of.values()}
    for row, key in enumerate(keys):
        rows[part_of.get(key, "train")].append(row)
    return rows
