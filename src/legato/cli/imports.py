"""How a verb imports what it works with."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Around the imports of a verb: nothing looks for reference cycles among what modules are made of, then or later.

    They make a million objects, and hardly any garbage.
    """
    known, looking = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if looking:
            gc.enable()
