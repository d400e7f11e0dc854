"""How a page of the docs reads: its words outside code, and the length of its sentences.

`python tests/readability.py README.md docs/guide.md` prints both for each page, and its longest sentence.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import fmean

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")  # what is read of it is its text
INLINE = re.compile(r"`[^`]*`")
WORD = re.compile(r"\S*\w\S*")
END = re.compile(r"(?<=[.!?])\s+")
NO_SENTENCE = re.compile(r"\s*(#|\|)")  # headings, rows of tables


def prose(page: str) -> str:
    """The page without its blocks of code, its pictures and where its links lead."""
    return LINK.sub(lambda link: "" if link[0].startswith("!") else link[1], FENCED.sub("", page))


def words(text: str) -> list[str]:
    """The words of a text; code within a line is one word."""
    return WORD.findall(INLINE.sub("code", text))


def sentences(page: str) -> list[str]:
    """The sentences of paragraphs and lists, each of which ends one."""
    blocks: list[list[str]] = [[]]
    for line in prose(page).splitlines():
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+", line)
        if item or not line.strip() or NO_SENTENCE.match(line):
            blocks.append([])
        if line.strip() and not NO_SENTENCE.match(line):
            blocks[-1].append(line[item.end() :] if item else line.strip())
    return [sentence for block in blocks for sentence in END.split(" ".join(block)) if words(sentence)]


def mean_sentence(page: str) -> float:
    """Words of a sentence, on average."""
    return fmean(len(words(sentence)) for sentence in sentences(page))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = Path(name).read_text(encoding="utf-8")
        longest = max(sentences(text), key=lambda sentence: len(words(sentence)))
        print(f"{name}: {len(words(prose(text))):,} words outside code, {mean_sentence(text):.1f} in a sentence")
        print(f"  longest, {len(words(longest))}: {longest}")
