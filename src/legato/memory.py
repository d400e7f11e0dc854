"""How much memory there is, so that what cannot fit is refused before it is asked for; pages given back, and kept.

Linux hands out memory that it does not have, and ends whoever uses it; a program that asks first can say what is
wrong. Where nothing can be told (other systems), nothing is refused.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from legato.errors import LegatoError

if TYPE_CHECKING:
    from torch import Tensor

MEMINFO: Final = Path("/proc/meminfo")
MAPS: Final = Path("/proc/self/maps")
CGROUP: Final = Path("/sys/fs/cgroup")  # of a container, version 2
WORTH_IT: Final = 1 << 16  # bytes of pages to give back
DONT_NEED: Final = 4  # Linux's number for it
WEIGHTS: Final = b".safetensors"
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # glibc's numbers for what can be set


def available() -> int | None:
    """Bytes that a process may still take, swapping included; None where the system does not say."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        entries = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        free = entries["MemAvailable"] + entries.get("SwapFree", 0)
    except (OSError, ValueError, LookupError):
        return _physical()
    limit = _container()
    return free if limit is None else min(free, limit)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container() -> int | None:
    """What a container's limit leaves; pages of files that nobody uses now are given back when needed."""
    try:
        limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))  # "max" where there is none
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
        entries = dict(line.split() for line in lines)
        return limit - used + int(entries.get("inactive_file", 0)) + int(entries.get("active_file", 0))
    except (OSError, ValueError):
        return None


def refuse_beyond(needed: int, what: str, advice: str, *, error: type[LegatoError]) -> None:
    """Refuse `what` where it takes more memory than there is."""
    free = available()
    if free is not None and needed > free:
        raise error(f"{what} takes {in_words(needed)} of memory, and {in_words(free)} is available; {advice}")


def in_words(size: int) -> str:
    """
    >>> in_words(3_400_000_000), in_words(12_000)
    ('3.4 GB', '12 kB')
    """
    for unit, name in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"


def let_go(tensor: Tensor) -> None:
    """Give back the pages of a safetensors file that a tensor lies in, once it is copied; they can be read again.

    Mapped pages count as a process's own, though the system may take them: of a file that is read from one end to the
    other all would. Only those that Linux says are a file's are let go, since others would be lost.
    """
    if not tensor.is_cpu or not tensor.numel():
        return
    numbers = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (tensor.data_ptr() + numbers * tensor.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    if last - first < WORTH_IT or not _in_weights(first, last):
        return
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), DONT_NEED)


def _in_weights(first: int, last: int) -> bool:
    """Whether all from one address to another is a private mapping of a safetensors file."""
    try:
        with MAPS.open("rb") as lines:
            for line in lines:  # b"7f00-7fff rw-p 00000000 08:01 1582753    /models/x/model.safetensors"
                place, mode, _ = line.split(None, 2)
                start, _, end = place.partition(b"-")
                if first < int(end, 16):  # they are in order
                    return int(start, 16) <= first and last <= int(end, 16) and mode[-1:] == b"p" and WEIGHTS in line
    except (OSError, ValueError):  # another system
        pass
    return False


def trim() -> None:
    """Give what is free in this process back to the system, where glibc keeps it for what asks next."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


@contextmanager
def kept_pages() -> Iterator[None]:
    """While it lasts, memory that is freed is kept for what asks next, where glibc hands it out.

    It would give large pieces back to Linux, which clears each page before it hands it out again: a step of training
    takes and frees the same tensors as the one before, and a third of it went into that.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or any(name.startswith("MALLOC_") for name in os.environ):
        yield
        return
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:  # what glibc itself comes to where large pieces are freed
        libc.mallopt(MMAP_MAX, 65536)
        libc.mallopt(MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)
