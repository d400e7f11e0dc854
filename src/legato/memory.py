"""How much memory there is, so that what cannot fit is refused before it is asked for.

Linux hands out memory that it does not have, and ends whoever uses it; a program that asks first can say what is
wrong. Where nothing can be told (other systems), nothing is refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from legato.errors import LegatoError

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")  # of a container, version 2


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
