"""`python -m legato`, and what the installed script calls.

A command spends most of its first seconds in imports, which make many objects and hardly any garbage.
Looking for reference cycles among them took 0.4 of a short `legato generate`'s 2.7 seconds, most of it
when the process ends. So it is done more rarely, and at the end not at all.
"""

import atexit
import gc

from legato.interrupts import CTRL_C


def main() -> None:
    CTRL_C.install()  # before the imports, which take a moment
    gc.set_threshold(10_000, 20, 20)
    atexit.register(gc.freeze)
    try:
        from legato.cli import main as run

        run()
    except KeyboardInterrupt:
        CTRL_C.end()


if __name__ == "__main__":
    main()
