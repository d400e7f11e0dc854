"""Columns of parquet files, decoded no further than memory and sense allow.

Notable here: a text that stands in many rows is kept once in the file, and its number in each row. So it is read: one
string of Python's for all rows that have it, which is quicker, too. What the rows would take, if each had its own, is
counted before any is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from legato.data.libraries import clear_of_panics
from legato.data.unpacking import VALUE, Budget


class ParquetFile:
    """A parquet file, whose columns are read when they have been chosen."""

    def __init__(self, path: Path, data: bytes) -> None:
        import pyarrow
        import pyarrow.parquet

        self._budget = Budget(str(path), len(data), small=1 << 28)
        source = pyarrow.BufferReader(data)
        plain = pyarrow.parquet.ParquetFile(source)
        leaves = [plain.schema.column(number) for number in range(len(plain.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and _is_text(leaf)]
        self._file = pyarrow.parquet.ParquetFile(source, read_dictionary=texts)
        self.names: list[str] = plain.schema_arrow.names
        self.metadata: Mapping[bytes, bytes] | None = plain.schema_arrow.metadata
        self._tops = [leaf.path.split(".")[0] if leaf.path not in self.names else leaf.path for leaf in leaves]

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
        for number in range(self._file.num_row_groups):
            group = self._file.read_row_group(number, columns=wanted)
            for name in wanted:
                for chunk in group.column(name).chunks:
                    self._budget.take(_decoded_bytes(chunk))
                    values[name] += _values(chunk)
        return values

    def _check_sizes(self, columns: Sequence[str]) -> None:
        """What the file itself says of how much there is, before any of it is unpacked."""
        told = 0
        meta = self._file.metadata
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            for place, top in enumerate(self._tops):
                if top in columns:
                    column = group.column(place)
                    told += max(column.total_uncompressed_size, VALUE * column.num_values)
        Budget(self._budget.where, self._budget.packed, small=1 << 28).take(told)


def _is_text(leaf: Any) -> bool:
    kind = getattr(leaf.logical_type, "type", "NONE")
    return kind in ("STRING", "NONE", "JSON", "ENUM")


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


def read_parquet(
    path: Path, data: bytes, choose: Callable[[ParquetFile], Sequence[str]]
) -> tuple[ParquetFile, dict[str, list[Any]]]:
    """The file, and the columns that `choose` names of it; whatever is wrong with the file is said in one line."""
    with clear_of_panics(f"{path} is not a parquet file, or is damaged; copy it again"):
        file = ParquetFile(path, data)
        return file, file.read(choose(file))
