"""`python -m legato`, and what the installed script calls.

A command spends most of its first seconds in imports, which make many objects and hardly any garbage. So reference
cycles are looked for more rarely (and see `cli/imports.py`), and a command that went well ends without taking those
objects apart one by one: whatever it asked to be called at the end has been, and the system takes the rest.

CPython keeps the frames of calls in pieces of 16 KB. Code that calls back and forth over the end of a piece maps and
unmaps memory with each call, and PyTorch's import does so thousands of times where the frames above it happen to end
there: 0.13 seconds more for one verb than for another. So a command has one piece that is large enough for all of it.
"""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from legato.interrupts import CTRL_C


class Ending:
    """How the process ends: at once, where all has gone well."""

    well = False

    def __call__(self) -> None:
        if not self.well:
            gc.freeze()
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # one that is closed
                stream.flush()
        os._exit(0)


def is_whole_program() -> bool:
    """Whether the process is a command and nothing else; a program that calls `main` may go on, and end otherwise."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    return __name__ == "__main__" or os.path.splitext(os.path.basename(script))[0] == "legato"


def with_room(run: Callable[[], None]) -> None:
    """Call a function below a frame so large that all the frames of its calls lie in one piece of memory."""
    run()


# Of a megabyte, with as much behind it; what nobody writes to takes no memory.
with_room.__code__ = with_room.__code__.replace(co_stacksize=1 << 17)


def main() -> None:
    CTRL_C.install()  # before the imports, which take a moment
    gc.set_threshold(10_000, 20, 20)
    ending = Ending()
    atexit.register(ending)  # before whatever else asks to be called, and so called last
    try:
        from legato.cli import main as run

        with_room(run)
    except KeyboardInterrupt:
        CTRL_C.end()
    except SystemExit as ended:
        ending.well = not ended.code and is_whole_program()
        raise


if __name__ == "__main__":
    main()
