"""Lists of inputs as people hold them: lists, tuples, iterators, arrays, or a column of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from legato.errors import DataError, brief


def items_of(values: Any, kind: str = "text", *, alone: bool = False) -> list[Any]:
    """The items of a list of texts, or of what else `kind` says; a DataError where it is none.

    `alone` says that the caller takes one that is in no list, too.

    >>> items_of(np.array(["a", "b"]))
    ['a', 'b']
    """
    if hasattr(values, "to_numpy"):  # pandas' or polars' column: neither has to be there
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.ndim:
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise DataError(f"give one column of {kind}s, not a table of shape {values.shape}")
        return list(values.tolist())
    if isinstance(values, str | bytes | Mapping | Set | np.ndarray) or not isinstance(values, Iterable):
        raise DataError(f"give {f'a {kind} or ' if alone else ''}a list of {kind}s, not {brief(repr(values))}")
    return list(values)


def texts_of(values: Any) -> list[str]:
    """A list of texts; a DataError names the first that is none."""
    texts = items_of(values)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"text {number} is no text: {brief(repr(text))}")
    return texts
