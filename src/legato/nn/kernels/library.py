"""The C++ library of CPU kernels (`cpu/`): a wheel's, or compiled once for this machine, where there is a compiler.

What it has are plain functions of plain data, so that no header of PyTorch's is needed and compiling takes seconds.
A wheel for Linux brings a library for each level of processors (`compiler.py`), and the best one that fits is loaded.
Where none fits, or `LEGATO_KERNELS` names a folder, the library is compiled when it is first used. It is kept in
that folder, else in `kernels` in the cache folder, under a name that tells its sources, the compiler and the
processor. Its SHA-256 stands in a file beside it and is compared before it is loaded: a damaged library would end the
process, so it is made anew. One that another user could have written is not loaded. Without a compiler, or with
`LEGATO_KERNELS=off`, there is none: everything then runs on PyTorch's own operators, and a note says so once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from legato.errors import warn
from legato.nn.kernels.compiler import (
    FLAGS,
    LINK_FLAGS,
    NATIVE,
    PREBUILT,
    SOURCES,
    TIMEOUT_S,
    compile_library,
    find_compiler,
    prebuilt_file,
    processor,
    wheel_level,
)
from legato.output_files import replacing_file

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class LowRank(ctypes.Structure):
    """What an adapter adds to a product (cpu/low_rank.h)."""

    _fields_ = (("rank", ctypes.c_int64), *((name, ctypes.c_void_p) for name in ("down", "up", "spans")))


class Matrix(ctypes.Structure):
    """A matrix that lies ready for products (cpu/products.h)."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("minimums", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("factor", ctypes.c_float),
        ("ranks", ctypes.c_int32),
        ("adapters", ctypes.POINTER(LowRank)),
    )


class Norm(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class Block(ctypes.Structure):
    """A block of a stack (cpu/stack.h)."""

    NORMS: Final = ("attention_norm", "cross_norm", "feedforward_norm", "query_norm", "key_norm")
    MATRICES: Final = ("qkv", "attention_output", "query", "cross_output", "inner", "outer")
    _fields_ = (
        *((name, Norm) for name in NORMS),
        *((name, Matrix) for name in MATRICES),
        ("window", ctypes.c_int64),
    )


class Stack(ctypes.Structure):
    SIZES: Final = (
        *("layers", "width", "heads", "kv_heads", "head_width", "units"),
        *("activation", "gated", "norm_first", "cross"),
    )
    _fields_ = (
        *((name, ctypes.c_int32) for name in SIZES),
        ("norm", Norm),
        ("blocks", ctypes.POINTER(Block)),
        ("readout", Matrix),
    )


class Columns(ctypes.Structure):
    """Where keys and values are."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("layer", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class Step(ctypes.Structure):
    """New tokens of the rows of a cache (cpu/stack.h)."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("first", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("cache", Columns),
        ("sources", Columns),
        ("rows_of_source", ctypes.c_int64),
        ("source_lengths", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("embedded", "logits", "adapters")),
        *((name, ctypes.c_void_p) for name in ("starts", "positions", "slots", "tables")),
        *((name, ctypes.c_int64) for name in ("readers", "capacity", "from_token")),
    )


class Texts(ctypes.Structure):
    """What an encoder reads at once (cpu/encoder.h)."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("embedded", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
    )


class Choice(ctypes.Structure):
    """What a search takes tokens of (cpu/choice.h)."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("groups", "width", "stride", "vocabulary")),
        *((name, ctypes.c_void_p) for name in ("logits", "before", "forbidden")),
        ("forbidden_count", ctypes.c_int64),
        ("normalised", ctypes.c_int64),
        ("to", ctypes.c_void_p),
    )


class Strides(ctypes.Structure):
    _fields_ = (("row", ctypes.c_int64), ("head", ctypes.c_int64), ("place", ctypes.c_int64))


class Dropout(ctypes.Structure):
    """What is dropped (cpu/random.h)."""

    _fields_ = (("seed", ctypes.c_uint64), ("threshold", ctypes.c_uint32), ("scale", ctypes.c_float))


class Attention(ctypes.Structure):
    """Attention with dropout, and its gradients (cpu/attention.h)."""

    SIZES: Final = ("rows", "heads", "kv_heads", "queries", "keys", "size")
    _fields_ = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((name, Strides) for name in ("query_at", "key_at", "value_at")),
        ("mask", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("dropout", Dropout),
        *((name, ctypes.c_void_p) for name in ("context", "sums", "slope")),
        ("slope_at", Strides),
        *((name, ctypes.c_void_p) for name in ("query_slope", "key_slope", "value_slope")),
        *((name, ctypes.c_int64) for name in ("query_slope_stride", "key_slope_stride")),
    )


class Loss(ctypes.Structure):
    """The loss over a vocabulary (cpu/loss.h)."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "vocabulary")),
        ("targets", ctypes.c_void_p),
        ("ignored", ctypes.c_int64),
        ("smoothing", ctypes.c_float),
        ("losses", ctypes.c_void_p),
    )


class BiasedGelu(ctypes.Structure):
    """A layer's units, and their gradients (cpu/elementwise.h)."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "slope", "y", "parts", "slopes")),
    )


class Residual(ctypes.Structure):
    """A residual sum with its norm, and their gradients (cpu/residual.h)."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("stream", "added", "sum", "normed", "stats", "weight", "bias")),
        ("eps", ctypes.c_float),
        ("rms", ctypes.c_int32),
        ("dropout", Dropout),
        *((name, ctypes.c_void_p) for name in ("sum_slope", "normed_slope", "stream_slope", "added_slope")),
        *((name, ctypes.c_void_p) for name in ("parts", "slopes")),
    )


class Weights(ctypes.Structure):
    """A parameter, its gradient, and what AdamW keeps of it (cpu/update.h)."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "gradient", "mean", "square")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("keep", "rate", "root")),
    )


class Update(ctypes.Structure):
    """A step of AdamW's (cpu/update.h)."""

    _fields_ = (
        ("tensors", ctypes.POINTER(Weights)),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("beta1", "beta2", "eps", "clip")),
    )


class Library:
    """The compiled functions."""

    def __init__(self, file: Path) -> None:
        handle = _open(file)
        self.file = file
        self.linear = handle.legato_linear
        self.linear.argtypes = [
            *(ctypes.POINTER(Matrix), ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
            *(ctypes.c_int32, ctypes.c_int32),
        ]
        self.linear.restype = None
        self.broaden = handle.legato_broaden
        self.broaden.argtypes = [ctypes.POINTER(Matrix), ctypes.c_void_p]
        self.broaden.restype = None
        self.rows = handle.legato_rows
        self.rows.argtypes = [
            ctypes.POINTER(Matrix),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
        self.rows.restype = ctypes.c_int32
        self.choose = handle.legato_choose
        self.choose.argtypes = [ctypes.POINTER(Choice), ctypes.c_int32]
        self.choose.restype = None
        self.step = handle.legato_step
        self.step.argtypes = [ctypes.POINTER(Stack), ctypes.POINTER(Step), ctypes.c_int32]
        self.step.restype = None
        self.multiplies_halves = bool(handle.legato_multiplies_halves())  # cpu/halves.h
        self.encode = handle.legato_encode
        self.encode.argtypes = [ctypes.POINTER(Stack), ctypes.POINTER(Texts), ctypes.c_int32]
        self.encode.restype = None


class TrainingLibrary:
    """Those that training uses."""

    def __init__(self, file: Path) -> None:
        handle = _open(file)
        self.multiplies_tiles = bool(handle.legato_multiplies_tiles())  # cpu/tiles.h
        self.attention = handle.legato_attention
        self.attention.argtypes = [ctypes.POINTER(Attention), *[ctypes.c_int32] * 4]
        self.attention.restype = None
        self.dropout = handle.legato_dropout
        self.dropout.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32),
            *(ctypes.POINTER(Dropout), ctypes.c_int32),
        ]
        self.dropout.restype = None
        self.gelu = handle.legato_gelu
        self.gelu.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_int32] * 3]
        self.gelu.restype = None
        self.biased_gelu = handle.legato_biased_gelu
        self.biased_gelu.argtypes = [ctypes.POINTER(BiasedGelu), *[ctypes.c_int32] * 3]
        self.biased_gelu.restype = None
        self.losses = handle.legato_losses
        self.losses.argtypes = [ctypes.POINTER(Loss), ctypes.c_int32, ctypes.c_int32]
        self.losses.restype = None
        self.residual = handle.legato_residual
        self.residual.argtypes = [ctypes.POINTER(Residual), *[ctypes.c_int32] * 3]
        self.residual.restype = None
        self.squares = handle.legato_squares
        self.squares.argtypes = [ctypes.POINTER(Weights), ctypes.c_int64, ctypes.c_int32]
        self.squares.restype = ctypes.c_double
        self.adamw = handle.legato_adamw
        self.adamw.argtypes = [ctypes.POINTER(Update), ctypes.c_int32]
        self.adamw.restype = None


@functools.cache
def library() -> Library | None:
    """The kernels of this machine's processor, compiled where they are not yet; None where there can be none."""
    return _loaded("kernels", Library)


@functools.cache
def training_library() -> TrainingLibrary | None:
    """The same of those that training uses."""
    return _loaded("training", TrainingLibrary)


Loaded = TypeVar("Loaded")


def _loaded(name: str, kind: Callable[[Path], Loaded]) -> Loaded | None:
    place = os.environ.get("LEGATO_KERNELS")
    if place == "off":
        return None
    if not place and (level := wheel_level()) is not None:
        with contextlib.suppress(OSError):  # a system whose libraries the wheel's do not fit; they are compiled
            return kind(PREBUILT / prebuilt_file(name, level))
    compiler = find_compiler()
    if compiler is None:
        why = "the wheel's kernels do not fit this processor, and " if PREBUILT.is_dir() else ""
        _tell(
            f"{why}there is no C++ compiler (g++): PyTorch's operators do what Legato's own kernels would do faster"
        )
        return None
    try:
        file = _folder() / f"{name}-{_key(compiler)}.so"
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(file.parent)
        if not (_is_intact(file) and _is_private(file)):
            _compile(compiler, SOURCES / f"{name}.cpp", file)
        _check_owner(file)
        return kind(file)
    except (OSError, subprocess.SubprocessError, AttributeError) as problem:
        told = getattr(problem, "stderr", None) or str(problem)
        _tell(f"Legato's CPU kernels could not be made, so PyTorch's operators are used: {_first_line(told)}")
        return None


def _open(file: Path) -> ctypes.CDLL:
    """A library whose OpenMP is PyTorch's, which importing PyTorch mostly shows to every library."""
    import torch

    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):  # as of the wheel of 2.8 for aarch64
        package = Path(torch.__file__).parent
        runtimes = [*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*"), "libgomp.so.1"]
        ctypes.CDLL(str(runtimes[0]), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(file))


def _tell(note: str) -> None:
    warn(note)


def _folder() -> Path:
    from legato.output_files import cache_folder

    own = os.environ.get("LEGATO_KERNELS")
    return Path(own) if own else cache_folder() / "kernels"


def _key(compiler: str) -> str:
    """What the library depends on, as one name."""
    told = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".h", ".cpp"):
            told.update(source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    told.update(version + " ".join((*FLAGS, *LINK_FLAGS, *NATIVE)).encode() + platform.machine().encode())
    told.update("".join(processor()).encode())
    return told.hexdigest()[:24]


def _compile(compiler: str, source: Path, file: Path) -> None:
    """Write a library, and then its digest, each under another name first: two processes may do this together."""
    with replacing_file(file) as fresh:
        compile_library(compiler, source, fresh)
        fresh.chmod(0o700)  # whatever the umask lets a group do
        digest = _digest(fresh)
    with replacing_file(_digest_file(file)) as fresh:
        fresh.write_text(digest, encoding="ascii")


def _is_intact(file: Path) -> bool:
    """Whether a library is there and is what was written; it has a few hundred kilobytes, hashed in a millisecond."""
    try:
        return _digest_file(file).read_bytes() == _digest(file).encode()
    except FileNotFoundError:
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest_file(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _close_to_others(folder: Path) -> None:
    """Let nobody else write into a folder of this user's: a umask of 002 lets a group. One that all share stays."""
    if hasattr(os, "getuid") and not _is_private(folder):
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & stat.S_ISVTX:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
    _check_owner(folder)


def _is_private(path: Path) -> bool:
    """Whether no other user can write to a file or folder."""
    if not hasattr(os, "getuid"):
        return True
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & OTHERS_WRITE


def _check_owner(path: Path) -> None:
    """Refuse a file or folder into which another user may have put code."""
    if not _is_private(path):
        raise PermissionError(f"other users may write to {path}; set LEGATO_KERNELS to a folder of your own")


def _first_line(told: str | bytes) -> str:
    text = told.decode("utf-8", "replace") if isinstance(told, bytes) else told
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or [""]
    return lines[0][:300]
