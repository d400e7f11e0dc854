"""Damage to what holds other things: safetensors, zip, gzip, parquet, npy; what is inside is damaged in its way."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from fuzzing.structures import CHANGES, change_json

Inner = Callable[[bytes, random.Random], bytes]  # damages what a container holds

LENGTHS: Final = (0, 1, 7, 2**16, 2**31, 2**62, 2**63, 2**64 - 1)
ZEROS: Final = 4 << 30  # bytes that a bomb unpacks to
NOT_FINITE: Final = {"F32": (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"), "F16": (b"\x00\x7e", b"\x00\x7c")}
DELTA: Final = ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")  # of texts in parquet files


def safetensors_header(content: bytes) -> str | None:
    """The header's JSON, where these are safetensors."""
    if len(content) < 10:
        return None
    (length,) = struct.unpack("<Q", content[:8])
    if length > len(content) - 8 or content[8:9] != b"{":
        return None
    try:
        text = content[8 : 8 + length].decode("utf-8")
        json.loads(text)
    except ValueError:
        return None
    return text


def change_safetensors(content: bytes, kind: str, draw: random.Random) -> bytes:
    header = safetensors_header(content)
    assert header is not None
    body = content[8 + len(header.encode()) :]
    if kind == "length":
        return struct.pack("<Q", draw.choice(LENGTHS)) + content[8:]
    if kind in ("not-finite", "one-not-finite"):
        return content[: len(content) - len(body)] + _not_finite(json.loads(header), body, kind, draw)
    tree = json.loads(header)
    named = [name for name in tree if name != "__metadata__"]
    if kind == "shapes" and named:
        entry = tree[draw.choice(named)]
        entry["shape"] = draw.choice(
            [[], [0], [-1], entry["shape"][::-1], [*entry["shape"], 1], [2**40, 2**40], [10**25], ["x"], None]
        )
        changed = json.dumps(tree)
    else:
        changed = change_json(header, "value" if kind == "shapes" else kind, draw)
    head = changed.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(head)) + head + body


def _not_finite(header: dict[str, Any], body: bytes, kind: str, draw: random.Random) -> bytes:
    known = [entry for name, entry in header.items() if name != "__metadata__" and entry["dtype"] in NOT_FINITE]
    if not known:
        return body
    entry = draw.choice(known)
    (start, end), bad = entry["data_offsets"], draw.choice(NOT_FINITE[entry["dtype"]])
    count = (end - start) // len(bad)
    if kind == "one-not-finite" and count:
        place = start + draw.randrange(count) * len(bad)
        return body[:place] + bad + body[place + len(bad) :]
    return body[:start] + bad * count + body[end:]


def change_gzip(content: bytes, kind: str, draw: random.Random, inner: Inner) -> bytes:
    if kind == "bomb":
        return gzip_bomb()
    return gzip.compress(inner(gzip.decompress(content), draw), 1)


@lru_cache(maxsize=1)
def gzip_bomb() -> bytes:
    """Many members, each of zeros, as one gzip may have them."""
    part = 1 << 28
    return gzip.compress(bytes(part), 9) * (ZEROS // part)


def change_zip(content: bytes, kind: str, draw: random.Random, inner: Inner) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        members = [(info.filename, old.read(info)) for info in old.infolist()]
    if kind == "bomb":
        return zip_bomb(draw.choice(members)[0])
    which = draw.randrange(len(members))
    name, data = members[which]
    if kind == "member":
        members[which] = name, inner(data, draw)
    elif kind == "name":
        members[which] = draw.choice(["../outside/evil.mrg", "x" * 300 + ".mrg", "a\nb.mrg", "x/", name + name]), data
    elif kind == "many":
        members += [(f"{number}/{name}", data[:50]) for number in range(3000)]
    else:
        members = [] if draw.random() < 0.5 else members + members
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as new:
        for name, data in members:
            with warnings.catch_warnings(action="ignore"):  # that a name is there twice is what is wanted
                new.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


@lru_cache(maxsize=4)
def zip_bomb(name: str) -> bytes:
    """One member that says it has little, and unpacks to gigabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = packer.compress(bytes(1 << 26)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = part * (ZEROS >> 26) + packer.flush()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(name), b"")
        info = file.infolist()[0]
    raw = bytearray(made.getvalue())
    head = 30 + len(name.encode())
    central = raw.index(b"PK\x01\x02")
    raw[head:central] = data
    central = head + len(data)
    for place, offset in ((0, 18), (central, 20)):  # sizes, packed and not, in both headers
        raw[place + offset : place + offset + 8] = struct.pack("<II", len(data), 2**32 - 1)
        raw[place + offset - 10 : place + offset - 8] = struct.pack("<H", zipfile.ZIP_DEFLATED)
    ending = bytes(raw).rindex(b"PK\x05\x06")
    raw[ending + 16 : ending + 20] = struct.pack("<I", central)
    assert info.filename == name
    return bytes(raw)


def change_parquet(content: bytes, kind: str, draw: random.Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "bomb":
        return parquet_bomb(pq.read_schema(io.BytesIO(content)).names)
    table = pq.read_table(io.BytesIO(content))
    which = draw.randrange(table.num_columns)
    name, rows = table.column_names[which], table.num_rows
    if kind == "drop":
        table = table.drop_columns([name])
    elif kind == "rename":
        names = list(table.column_names)
        names[which] = draw.choice(["", "x" * 300, names[0], "a\nb", "\U0001f436"])
        table = table.rename_columns(names)
    elif kind == "rows":
        table = table.slice(0, draw.choice([0, 1])) if draw.random() < 0.5 else pa.concat_tables([table] * 40)
    else:
        column: Any = draw.choice(
            [
                pa.array([None] * rows),
                pa.array([1.5] * rows),
                pa.array([float("nan")] * rows),
                pa.array([b"\xff\xfe"] * rows, pa.binary()),
                pa.array([["a", None]] * rows),
                pa.array([{"a": 1, "b": None}] * rows),
                pa.array([0] * rows, pa.timestamp("ns")),
                pa.array([2**63 - 1] * rows),
                pa.array(["x" * 100_000] * rows),
                pa.array([True] * rows),
                pa.array(["x"] * rows).dictionary_encode(),
                pa.array([None, *table.column(which).to_pylist()[1:]], table.schema.types[which]),
                pa.array([10**30] * rows, pa.decimal256(40, 0)),
                pa.array([[]] * rows, pa.list_(pa.int8())),
            ]
        )
        table = table.set_column(which, name, column)
    if kind == "metadata":
        table = table.replace_schema_metadata(
            {"huggingface": draw.choice(["{", "[]", "null", '{"info": 5}', '{"info": {"features": [1]}}', "9" * 500])}
        )
    texts = [field.name for field in table.schema if pa.types.is_string(field.type) and kind != "rename"]
    how: dict[str, Any] = {}
    if texts and draw.random() < 0.3:
        how = {"use_dictionary": False, "column_encoding": dict.fromkeys(texts, draw.choice(DELTA))}
    made = io.BytesIO()
    pq.write_table(table, made, **how)
    return made.getvalue()


@lru_cache(maxsize=4)
def _parquet_bomb(names: tuple[str, ...]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, text = 3_000_000, "x" * 3000
    packed = pa.DictionaryArray.from_arrays(_zeros(rows), [text])
    made = io.BytesIO()
    pq.write_table(pa.table(dict.fromkeys(names, packed)), made)
    return made.getvalue()


def _zeros(rows: int) -> Any:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.zeros(rows, dtype=np.int32))


def parquet_bomb(names: list[str]) -> bytes:
    """Millions of rows of one long text, kept once."""
    return _parquet_bomb(tuple(names))


def change_npy(content: bytes, kind: str, draw: random.Random) -> bytes:
    (length,) = struct.unpack("<H", content[8:10])
    header, body = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    if kind == "header":
        old, new = draw.choice(
            [
                ("(", "(-"),
                ("(", "(9" * 1),
                (",)", "0000000000000,)"),
                ("'<u2'", "'<f8'"),
                ("'<u2'", "'|O'"),
                ("'<u2'", "'<i2'"),
                ("False", "True"),
                ("'shape'", "'shapes'"),
                ("{", ""),
                (",)", ", 1)"),
            ]
        )
        header = header.rstrip().replace(old, new, 1)
        header = header.ljust((len(header) + 10) // 64 * 64 + 53) + "\n"
    elif kind == "zero-tail":
        body = body[: (cut := draw.randrange(len(body) + 1))] + bytes(len(body) - cut)
    else:
        place = draw.randrange(max(1, len(body)))
        body = body[:place] + bytes([body[place] ^ 1 << draw.randrange(8)]) + body[place + 1 :] if body else body
    return content[:8] + struct.pack("<H", len(header)) + header.encode("latin-1") + body


SAFETENSORS: Final = ("length", "shapes", "not-finite", "one-not-finite", *CHANGES)
GZIP: Final = ("inside", "inside-2", "inside-3", "bomb")
ZIP: Final = ("member", "member-2", "member-3", "name", "many", "members", "bomb")
PARQUET: Final = ("column", "column-2", "column-3", "drop", "rename", "rows", "metadata", "bomb")
NPY: Final = ("header", "zero-tail", "bit")
