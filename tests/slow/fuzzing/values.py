"""Values that nobody expects, for entries of files, settings and options."""

from __future__ import annotations

import math
import random
import re
from typing import Any, Final

# No text here is a path that is absolute: whoever writes where one says must stay in the case's own folder.
TEXTS: Final = [
    "",
    " ",
    "x",
    "-",
    "0",
    "nan",
    "null",
    "true",
    "1e400",
    "2020-99-99",
    "[",
    "{}",
    "a\nb",
    "a\tb",
    "\x00",
    "\x1b[31m",
    "\u2028",
    "\ud800",
    "\U0001f436",
    "x" * 300,
    "ab" * 100_000,
    "é" * 5_000,
    ".",
    "..",
    "../outside",
    "../outside/secret.txt",
    "../outside/zero",
    "../outside/pipe",
    "~nosuchuser/x",
    "x/" * 3_000,
    "**/**/**/**/**/**/*",
    "(a+)+$",
    "(((((",
    "(?:x|x|x)*y",
    "{{ 10**(10**9) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ messages.__class__.__mro__ }}",
    "{% set x = 'a' %}{% for i in range(99) %}{% set x = x + x %}{% endfor %}{{ x }}",
    "{text}{label}{nothing}{0.__class__}",
    "%s%n",
    "!!python/object/apply:os.system ['true']",
]
NUMBERS: Final[list[int | float]] = [
    *(-1, 0, 1, 2, 3, 7, 255, 1000),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(10**9, 10**25, 10**400),
    *(0.5, -0.5, 1.5, -0.0, 1e-320, 1e-9, 1e38, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf),
]
PLAIN: Final[list[Any]] = [None, True, False, [], {}, [[]], {"": {}}, [None], ["x", "x"], {"x": 1}]


def value(draw: random.Random) -> Any:
    """A plain value of any type."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice(TEXTS)
    if kind <= 2:
        return draw.choice(NUMBERS)
    return draw.choice(PLAIN)


def near(number: int | float, draw: random.Random) -> int | float:
    """Another number, not far off: what a slip or another file's value would be."""
    if isinstance(number, float):
        return draw.choice([-number, number * 2, number / 2, number + 1, 0.0])
    return draw.choice([-number, number + 1, number - 1, number * 2, number // 2, number * 1000])


def word(draw: random.Random, meaning: str = "") -> str:
    """A value as it is typed on a command line; words of what it is said to mean are likely to be real ones."""
    known = re.findall(r"[A-Za-z0-9][\w.-]*", meaning)
    kind = draw.randrange(6)
    if kind == 0 and known:
        return draw.choice(known)
    if kind <= 2:
        return str(draw.choice([*NUMBERS[:-3], "nan", "inf", "-inf", "1e5", "0x10", "1_000", "١"]))
    if kind == 3:
        return draw.choice(
            [
                *(
                    "none",
                    "[]",
                    "[1]",
                    "[a,b]",
                    "[null]",
                    "[[a,b],[c]]",
                    "[1,-1,1e400]",
                    "[2020-99-99]",
                    "{a: 1}",
                    "{",
                ),
                *("[a,", "[!!python/name:os.system ]", "[&a [*a]]", "[.nan]", "['', '']", "[" * 2000, "[x, x, x, x]"),
                *("true", "false", "auto", "all", "cpu", "cuda", "cuda:99", "mps", "meta"),
            ]
        )
    # What an operating system hands over as an argument has no zero byte.
    return draw.choice(TEXTS).replace("\x00", "\x01").encode("utf-8", "replace").decode("utf-8")
