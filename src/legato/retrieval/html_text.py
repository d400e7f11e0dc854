"""HTML as blocks: one pass over the tags, whatever is left open; scripts, styles and hidden parts are left out.

Not the standard library's parser, whose time grows with the square of some broken pages. Where something is next is
looked for once, and remembered until it is passed.
"""

from __future__ import annotations

import html
import re
from typing import Final

from legato.retrieval.records import Block

HIDDEN: Final = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})
_BREAKS: Final = (
    "address article aside blockquote body br dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 "
    "h4 h5 h6 head header hr html li main nav ol p pre section summary table tbody td tfoot th thead title tr ul"
)
BREAKS: Final = frozenset(_BREAKS.split())
INLINE_BREAKS: Final = frozenset({"br", "li", "tr", "td", "th", "dt", "dd"})  # which part lines, not blocks
NOWHERE: Final = -2
MAX_TAG: Final = 100_000  # characters of a tag; beyond, `<` is text
_NAME: Final = re.compile(r"/?([A-Za-z][A-Za-z0-9]*)")
# More digits than Python makes a number of. It is no character, and reads as HTML has it for those.
_ENDLESS_REFERENCE: Final = re.compile(r"&#[0-9]{4000,};?")
_SPACES: Final = re.compile(r"[ \t\r\f\v\u00a0]+")


class _Page:
    """What has been read of a page so far."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.title = self.first = ""
        self.headings: list[tuple[int, str]] = []
        self.parts: list[str] = []
        self.length = 0
        self.inside = ""  # h1 … h6 or title, whose text is no block

    def text(self, raw: str) -> None:
        self.parts.append(html.unescape(_ENDLESS_REFERENCE.sub("\ufffd", raw)).replace("\n", " "))

    def tag(self, name: str, closing: bool) -> None:
        if name not in BREAKS:
            return
        if name in INLINE_BREAKS:
            self.parts.append("\n" if name != "td" and name != "th" else " ")
            return
        self.end_block()
        if name == "title" or (len(name) == 2 and name[0] == "h" and name[1].isdigit()):
            self.inside = "" if closing else name

    def end_block(self) -> None:
        lines = (_SPACES.sub(" ", line).strip() for line in "".join(self.parts).split("\n"))
        text = "\n".join(line for line in lines if line)
        self.parts = []
        if not text:
            return
        if self.inside == "title":
            self.title = self.title or text[:200]
        elif self.inside:
            level = int(self.inside[1])
            self.first = self.first or text[:200]
            self.headings = [*(one for one in self.headings if one[0] < level), (level, text[:200])]
        else:
            title = self.title or self.first
            self.blocks.append(Block(text, self.length, tuple(one for _, one in self.headings if one != title)))
            self.length += len(text) + 2


def html_blocks(source: str) -> tuple[str, list[Block]]:
    """The title of a page, and its blocks under their headings."""
    page, place, known = _Page(), 0, dict[str, int]()
    lower = source.lower() if len(source.lower()) == len(source) else source

    def find(what: str, start: int, end: int | None = None) -> int:
        """Where it is next; -1 where that is nowhere, or beyond `end`."""
        found = known.get(what, -1)
        if found < start and found != NOWHERE:
            found = lower.find(what, start)
            found = known[what] = NOWHERE if found < 0 else found
        return -1 if found == NOWHERE or (end is not None and found > end) else found

    while place < len(source):
        opened = find("<", place)
        if opened < 0:
            page.text(source[place:])
            break
        page.text(source[place:opened])
        if source.startswith("<!--", opened):
            end = find("-->", opened + 4)
            place = len(source) if end < 0 else end + 3
            continue
        name = _NAME.match(source, opened + 1)
        end = find(">", opened, opened + MAX_TAG)
        if end < 0 or (name is None and source[opened + 1 : opened + 2] not in ("!", "?")):
            page.text("<")
            place = opened + 1
            continue
        place = end + 1
        if name is None:
            continue
        tag, closing = name[1].lower(), source[opened + 1] == "/"
        if tag in HIDDEN and not closing and source[end - 1] != "/":
            ended = find(f"</{tag}", place)
            place = len(source) if ended < 0 else ended
        else:
            page.tag(tag, closing)
    page.end_block()
    return page.title or page.first, page.blocks
