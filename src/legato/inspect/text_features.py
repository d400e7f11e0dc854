"""Properties of a text at each of its characters: what a unit of a model may follow.

    quote         1 inside quotation marks, by Python's rules; an apostrophe is none
    comment       1 from # to the end of the line
    bracket       how many brackets are open that something closes; what closes none is passed over
    indentation   spaces before the line's first other character; a tab counts for eight
    line          how far into its line a character is

or 1 where a regular expression of one's own matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from legato.errors import LegatoError

Array = np.ndarray[Any, np.dtype[np.float64]]
Feature = Callable[[str], Array]

TAB: Final = 8
LONG: Final = 60  # characters of a line beyond which its place counts no further
CLOSED: Final = {")": "(", "]": "[", "}": "{"}
# A string of Python's, from its first mark to its last; or a comment. A " that is not closed ends with its line; a '
# that is not, or that stands behind a letter (but for a prefix such as b or rf), is an apostrophe.
STRINGS: Final = re.compile(
    r"(?P<comment>#[^\n]*)"
    r'|(?P<quote>"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r"|'''(?:\\.|[^\\])*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|(?:(?<!\w)|(?<=(?<!\w)[bfrtu])|(?<=(?<!\w)[bfrt]{2}))'(?:\\.|[^'\\\n])*')",
    re.DOTALL | re.IGNORECASE,
)


def _marked(text: str, kind: str) -> Array:
    found = np.zeros(len(text))
    for match in STRINGS.finditer(text):
        if match.lastgroup == kind:
            found[match.start() : match.end()] = 1
    return found


def quote(text: str) -> Array:
    """
    >>> quote('a = "b"')[3:].tolist()
    [0.0, 1.0, 1.0, 1.0]
    """
    return _marked(text, "quote")


def comment(text: str) -> Array:
    """
    >>> comment("x # y\\n'#'").tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """
    return _marked(text, "comment")


def bracket(text: str) -> Array:
    """
    >>> bracket("(a[b]) ) :(").tolist()
    [1.0, 1.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    >>> bracket("(:])").tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    steps, opened, left = np.zeros(len(text)), list[int](), Counter[str]()
    for place, letter in enumerate(text):
        if letter in CLOSED.values():
            opened.append(place)
            left[letter] += 1
        elif letter in CLOSED and left[CLOSED[letter]]:  # else it closes nothing
            while text[opened[-1]] != CLOSED[letter]:
                left[text[opened.pop()]] -= 1  # nothing closes it
            left[CLOSED[letter]] -= 1
            steps[opened.pop()] += 1
            steps[place] -= 1
    return np.cumsum(steps)


def indentation(text: str) -> Array:
    """
    >>> indentation("a\\n  b").tolist()
    [0.0, 0.0, 1.0, 2.0, 2.0]
    """
    made, depth, begins = np.zeros(len(text)), 0, True
    for place, letter in enumerate(text):
        if begins and letter in " \t":
            depth += TAB if letter == "\t" else 1
        elif letter == "\n":
            made[place] = depth
            depth, begins = 0, True
            continue
        else:
            begins = False
        made[place] = depth
    return made


def line(text: str) -> Array:
    """
    >>> line("ab\\nc").tolist()
    [0.0, 1.0, 2.0, 0.0]
    """
    made, begin = np.zeros(len(text)), 0
    for place, letter in enumerate(text):
        made[place] = min(place - begin, LONG)
        begin = place + 1 if letter == "\n" else begin
    return made


def matching(pattern: str) -> Feature:
    """1 where a regular expression matches.

    >>> matching(r"[0-9]+")("a12b").tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    try:
        compiled = re.compile(pattern, re.MULTILINE)
    except re.error as problem:
        raise LegatoError(f"'{pattern}' is no regular expression: {problem}") from None

    def feature(text: str) -> Array:
        made = np.zeros(len(text))
        for match in compiled.finditer(text):
            made[match.start() : match.end()] = 1
        return made

    return feature


FEATURES: Final[Mapping[str, Feature]] = {
    "quote": quote,
    "comment": comment,
    "bracket": bracket,
    "indentation": indentation,
    "line": line,
}
