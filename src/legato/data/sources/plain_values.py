"""The values of tables as plain ones: text, numbers, true, false, nothing, and lists and objects of those.

Whatever a jsonl line, a parquet file or a dataset on the hub holds in a column that is read passes here, so that no
reader behind it meets a date, a decimal number, bytes, half a character or a number beyond 64 bits. Dates and times
are the texts that stand for them. NaN stays: what it means is the reader's to say.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any, Final

from legato.errors import DataError, brief
from legato.schema import LARGEST, MAX_DEPTH, MAX_DIGITS, MAX_KEY, is_text

SIMPLE: Final = (bool, float, type(None))


def plain_value(value: Any, where: str, column: str, depth: int = 0) -> Any:
    """`value` made plain, or a DataError that says where it stands and in which column."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() or is_text(value) else _refuse_half(value, where, column)
    if kind in SIMPLE:
        return value
    if isinstance(value, int):
        if not -LARGEST <= value <= LARGEST:
            raise DataError(f"{where}: '{brief(column)}' holds {brief(value)}, which is too large a number")
        return value
    if depth >= MAX_DEPTH:
        raise DataError(f"{where}: '{brief(column)}' is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return [plain_value(part, where, column, depth + 1) for part in value]
    if isinstance(value, dict):
        return {_key(key, where, column): plain_value(part, where, column, depth + 1) for key, part in value.items()}
    if isinstance(value, Decimal):
        return _number(value, where, column)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, str | float):  # of a library's own kind
        return plain_value(str(value) if isinstance(value, str) else float(value), where, column, depth)
    raise DataError(
        f"{where}: '{brief(column)}' is {kind.__name__}, which is neither text nor a number; save it as one of those"
    )


def _refuse_half(text: str, where: str, column: str) -> Any:
    place = next(place for place, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    raise DataError(
        f"{where}: half a surrogate pair at character {place} of '{brief(column)}', which is no text; remove it"
    )


def _key(key: Any, where: str, column: str) -> str:
    if not isinstance(key, str) or len(key) > MAX_KEY or not is_text(key):
        raise DataError(f"{where}: '{brief(column)}' has an entry whose name is no name: {brief(key)}")
    return key


def _number(value: Decimal, where: str, column: str) -> int | float | None:
    if not value.is_finite():
        return float(value)
    whole = value == value.to_integral_value()
    return plain_value(int(value), where, column) if whole and abs(value) < LARGEST else float(value)


def _whole_number(digits: str) -> int | float:
    # Python's own limit on digits is a setting of the process; what is beyond any use is refused where it is read.
    return int(digits) if len(digits) <= MAX_DIGITS else float("-inf" if digits.startswith("-") else "inf")


_DECODER: Final = json.JSONDecoder(parse_int=_whole_number)


def parse_line(line: str, where: str) -> Any:
    """A line of JSON; its values are made plain where they are read."""
    try:
        return _DECODER.decode(line)
    except RecursionError:
        raise DataError(
            f"{where}: not JSON that can be read, since it is nested too deeply; make it flatter"
        ) from None
    except ValueError as problem:
        raise DataError(f"{where}: not JSON ({problem}); write one object per line") from None
