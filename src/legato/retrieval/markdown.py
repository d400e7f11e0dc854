"""Markdown and plain text as blocks, line by line: no nesting and no unclosed fence costs more than its length.

Of Markdown's grammar only what parts a text is read: headings (`#` and underlined), fences, blank lines, and the
front matter's `key: value` lines. All else stays as it was written, which people and models both read.
"""

from __future__ import annotations

import re
from typing import Final

from legato.retrieval.records import Block

MAX_HEADING_TEXT: Final = 200
MAX_ENTRIES: Final = 50  # of front matter
_HEADING: Final = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?[ \t]*#*[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ENTRY: Final = re.compile(r"([A-Za-z][\w-]{0,40}):(?:[ \t]+(\S.{0,200}))?[ \t]*$")
_ITEM: Final = re.compile(r"[ \t]*-[ \t]+(\S.{0,200})$")
_LIST: Final = re.compile(r"\[(.*)\]\s*(?:#.*)?")
_PART: Final = re.compile(r"\s*(\"[^\"]*\"|'[^']*'|[^,]+)")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")


def plain_blocks(text: str) -> list[Block]:
    """The paragraphs of a text, which blank lines part."""
    blocks: list[Block] = []
    lines: list[str] = []
    start = place = 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            if not lines:
                start = place
            lines.append(line)
        elif lines:
            blocks.append(Block("".join(lines).rstrip(), start))
            lines = []
        place += len(line)
    if lines:
        blocks.append(Block("".join(lines).rstrip(), start))
    return blocks


def markdown_blocks(text: str) -> tuple[str, dict[str, str | list[str]], list[Block]]:
    """The title (the first heading, or the front matter's), the front matter, and the blocks under their headings."""
    metadata, place = _front_matter(text)
    named = metadata.get("title")
    reader = _Reader(named if isinstance(named, str) else "")
    for line in text[place:].splitlines(keepends=True):
        reader.read(line, place)
        place += len(line)
    reader.close()
    return reader.named or reader.title, metadata, reader.blocks


class _Reader:
    """What has been read of a Markdown text so far."""

    def __init__(self, named: str) -> None:
        self.blocks: list[Block] = []
        self.named = named  # the title, where the front matter says it
        self.title = ""
        self.headings: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self.start = 0
        self.fence = ""

    def read(self, line: str, place: int) -> None:
        bare = line.rstrip("\r\n")
        if self.fence:
            self._hold(line, place)
            if bare.strip().startswith(self.fence) and not bare.strip().strip(self.fence[0]):
                self.fence = ""
            return
        fence = _FENCE.match(bare)
        if fence is not None:
            self.fence = fence[1]
            self._hold(line, place)
        elif not bare.strip():
            self.close()
        elif len(bare) < 1000 and (found := _HEADING.match(bare)) is not None:
            self.close()
            self._head(len(found[1]), found[2] or "")
        elif len(self.lines) == 1 and len(self.lines[0]) < 1000 and (under := _UNDERLINE.match(bare)) is not None:
            text, self.lines = self.lines[0].strip(), []
            self._head(1 if under[1][0] == "=" else 2, text)
        else:
            self._hold(line, place)

    def _hold(self, line: str, place: int) -> None:
        if not self.lines:
            self.start = place
        self.lines.append(line)

    def _head(self, level: int, text: str) -> None:
        text = text.strip()[:MAX_HEADING_TEXT]
        if not self.title and text:
            self.title = text
        self.headings = [*(one for one in self.headings if one[0] < level), (level, text)]

    def close(self) -> None:
        """End the block that is being read."""
        text = "".join(self.lines).rstrip()
        if text.strip():
            # The title stands over every passage anyway.
            above = tuple(text for _, text in self.headings if text and text != (self.named or self.title))
            self.blocks.append(Block(text, self.start, above))
        self.lines, self.fence = [], ""


def _front_matter(text: str) -> tuple[dict[str, str | list[str]], int]:
    """The plain `key: value` lines between two lines of dashes at the beginning, and where they end.

    A value may be a list, `[a, b]` or a line `- a` for each.
    """
    if not text.startswith("---\n"):
        return {}, 0
    end = text.find("\n---", 3)
    if end < 0 or end > 10_000:
        return {}, 0
    entries: dict[str, str | list[str]] = {}
    items: list[str] | None = None  # of the key above, where it has no value of its own
    for line in text[4:end].splitlines()[:MAX_ENTRIES]:
        if items is not None and line.strip()[:1] in ("", "-"):
            items += [_unquoted(item[1]) for item in [_ITEM.match(line)] if item is not None]
            continue
        items, found = None, _ENTRY.match(line)
        if found is None:
            continue
        if found[2] is None:
            entries[found[1]] = items = []
        else:
            many = _list_of(found[2].strip())
            entries[found[1]] = _unquoted(found[2]) if many is None else many
    entries = {key: value for key, value in entries.items() if value}
    newline = text.find("\n", end + 4)
    return entries, len(text) if newline < 0 else newline + 1


def _list_of(value: str) -> list[str] | None:
    """
    >>> _list_of('["Doe, Jane", x]  # both'), _list_of("[sic] he said [so]")
    (['Doe, Jane', 'x'], None)
    """
    found = _LIST.fullmatch(value)
    parts = [] if found is None else [part.strip() for part in _PART.findall(found[1])]
    if found is None or any(part[0] not in "\"'" and set(part) & set("[]") for part in parts if part):
        return None
    return [one for one in map(_unquoted, parts) if one]


def _unquoted(value: str) -> str:
    return value.strip().strip("\"'")
