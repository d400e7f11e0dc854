"""Which files a command reads, by Python or by any library in it: the kernel tells (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

IN_OPEN: Final = 0x20
IN_ISDIR: Final = 0x40000000
EVENT: Final = struct.Struct("iIII")


class Watch:
    """Everything under a folder that is opened from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "inotify is not to be had")
        inside = [folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]
        self._folders = {
            self._libc.inotify_add_watch(self._handle, os.fsencode(path), IN_OPEN): path for path in inside
        }

    def opened(self) -> list[str]:
        """The names, in the folder, of the files that were opened; the watch ends."""
        found: dict[str, None] = {}
        while True:
            try:
                events = os.read(self._handle, 1 << 20)
            except BlockingIOError:
                break
            place = 0
            while place < len(events):
                watch, mask, _, length = EVENT.unpack_from(events, place)
                name = os.fsdecode(events[place + EVENT.size : place + EVENT.size + length].rstrip(b"\0"))
                place += EVENT.size + length
                if name and not mask & IN_ISDIR and watch in self._folders:
                    found[os.path.relpath(self._folders[watch] / name, self.folder)] = None
        os.close(self._handle)
        return sorted(found)
