"""Columns of parquet files, decoded no further than memory and sense allow.

Notable here: a text that stands in many rows is kept once in the file, and its number in each row. So it is read: one
string of Python's for all rows that have it, which is quicker, too. What the rows would take, if each had its own, is
counted before any is made.

Texts in parquet's DELTA encodings cannot be read by number. In one of them a text is what it adds to the one before,
and a few hundred bytes can be gigabytes: those are read a few rows at a time, as many as fit into the budget if each
text is as long as all that is written.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from legato.data.sources.files import VALUE, Budget
from legato.errors import brief

ADDED: Final = "DELTA_BYTE_ARRAY"  # the encoding of texts that go on from the one before
# Keys of the metadata of a file that was a table in memory: which one, and the folder that it named files from.
MEMORY_NAME: Final = b"legato.memory_table"
MEMORY_FOLDER: Final = b"legato.memory_folder"
ROWS: Final = 1 << 16  # of such texts that are read at once, at most


class ParquetFile:
    """A parquet file, whose columns are read when they have been chosen; what is wrong with it, pyarrow raises."""

    def __init__(self, path: Path, data: bytes) -> None:
        import pyarrow
        import pyarrow.parquet

        self._budget = Budget(str(path), len(data), small=1 << 28)
        source = pyarrow.BufferReader(data)
        plain = pyarrow.parquet.ParquetFile(source)
        leaves = [plain.schema.column(number) for number in range(len(plain.schema))]
        meta = plain.metadata
        self._groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        written = [{name for group in self._groups for name in group.column(n).encodings} for n in range(len(leaves))]
        numbered = [  # of a leaf without a logical type, pyarrow's object has no `type`
            leaf.path
            for leaf, encodings in zip(leaves, written, strict=True)
            if leaf.physical_type == "BYTE_ARRAY"
            and getattr(leaf.logical_type, "type", "NONE") in ("STRING", "NONE", "JSON", "ENUM")
            and not encodings & {ADDED, "DELTA_LENGTH_BYTE_ARRAY"}
        ]
        self._file = pyarrow.parquet.ParquetFile(source, read_dictionary=numbered)
        self._plain_schema = plain.schema_arrow
        self.names: list[str] = plain.schema_arrow.names
        self.metadata: Mapping[bytes, bytes] | None = plain.schema_arrow.metadata
        self._tops = [leaf.path.split(".")[0] if leaf.path not in self.names else leaf.path for leaf in leaves]
        self._added = {top for top, encodings in zip(self._tops, written, strict=True) if ADDED in encodings}

    @property
    def memory_name(self) -> str | None:
        """How messages call the table in memory that was written here; None: it is another file."""
        name = (self.metadata or {}).get(MEMORY_NAME)
        return None if name is None else brief(name.decode("utf-8", "replace"))

    @property
    def memory_folder(self) -> Path | None:
        """The folder from which a table in memory named files; None: it is another file."""
        folder = (self.metadata or {}).get(MEMORY_FOLDER, b".")
        return None if self.memory_name is None else Path(os.fsdecode(folder))

    @property
    def has_texts_alone(self) -> bool:
        """Whether each column is one of texts."""
        return all(str(field.type) in ("string", "large_string") for field in self._plain_schema)

    def first_rows(self, count: int) -> list[list[str]]:
        """The first rows, of texts."""
        self._check_sizes(self.names)
        batch = next(self._file.iter_batches(batch_size=count), None)
        rows = [] if batch is None else batch.to_pylist()
        return [["" if value is None else str(value) for value in row.values()] for row in rows]

    def first(self) -> dict[str, Any]:
        """The first row, by name; nothing where there is none."""
        self._check_sizes(self.names)
        batch = next(self._file.iter_batches(batch_size=1), None)
        row: dict[str, Any] = batch.to_pylist()[0] if batch is not None and batch.num_rows else {}
        return row

    def read(self, columns: Sequence[str]) -> dict[str, list[Any]]:
        """All values of these columns."""
        self._check_sizes(columns)
        wanted = sorted(set(columns))
        values: dict[str, list[Any]] = {name: [] for name in wanted}
        for number, name in itertools.product(range(len(self._groups)), wanted):
            for chunk in self._chunks(number, name):
                self._budget.take(_decoded_bytes(chunk))
                values[name] += _values(chunk)
        return values

    def _chunks(self, number: int, name: str) -> Iterator[Any]:
        """The arrays of a column in one group of rows."""
        if name not in self._added:
            yield from self._file.read_row_group(number, columns=[name]).column(name).chunks
            return
        group = self._groups[number]
        columns = [group.column(place) for place, top in enumerate(self._tops) if top == name]
        longest = sum(column.total_uncompressed_size for column in columns)
        rows = max(1, min(ROWS, self._budget.left // (4 * longest + 1)))
        for batch in self._file.iter_batches(rows, row_groups=[number], columns=[name], use_threads=False):
            yield batch.column(name)

    def _check_sizes(self, columns: Sequence[str]) -> None:
        """What the file itself says of how much there is, before any of it is unpacked."""
        told = 0
        for group in self._groups:
            for place, top in enumerate(self._tops):
                if top in columns:
                    column = group.column(place)
                    told += max(column.total_uncompressed_size, VALUE * column.num_values)
        Budget(self._budget.where, self._budget.packed, small=1 << 28).take(told)


def _values(chunk: Any) -> list[Any]:
    import pyarrow

    if not pyarrow.types.is_dictionary(chunk.type):
        found: list[Any] = chunk.to_pylist()
        return found
    words = chunk.dictionary.to_pylist()
    return [None if number is None else words[number] for number in chunk.indices.to_pylist()]


def _decoded_bytes(array: Any) -> int:
    """What an array takes where each row has its own text."""
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        words = array.dictionary
        if not (pyarrow.types.is_binary(words.type) or pyarrow.types.is_string(words.type)):
            return int(array.nbytes)
        lengths = compute.cast(compute.binary_length(words), "int64")
        return VALUE * len(array) + int(compute.sum(lengths.take(array.indices)).as_py() or 0)
    if pyarrow.types.is_struct(kind):
        return sum((_decoded_bytes(field) for field in array.flatten()), VALUE * len(array))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_map(kind):
        return VALUE * len(array) + _decoded_bytes(array.flatten() if not pyarrow.types.is_map(kind) else array.items)
    return max(int(array.nbytes), VALUE * len(array))
