"""Where the words of a raw text are, for a tagger that has learned from words split by others.

    treebank       as the Penn Treebank has them, punctuation and 's apart (the parser's `split_words`)
    punctuation    the same, but don't and Anna's are whole
    spaces         where white space is, and nowhere else

Notable: which of them suits a model is told by the words it learned from (`splitting_of`). A text may hold several
sentences, each with a full stop of its own; a text whose commas or full stops stand alone is split already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from legato.tasks.parsing.task import split_words

Splitting = Literal["treebank", "punctuation", "spaces"]

_GLUED: Final = re.compile(r"\w[,;:?!]")
_STOPPED: Final = re.compile(r"([^\W\d]{2,})\.")
_ENDING: Final = re.compile(r"(?i)(n['’]t|['’](s|re|ve|ll|d|m))")
_WITH_ENDING: Final = re.compile(r"(?i)\w+(n['’]t|['’](s|re|ve|ll|d|m))")
_CURLED: Final = re.compile(r"(?<=\w)’(?=\w)")
# Addresses, and marks with white space around them such as :-) and !!!, which are no punctuation of a word.
_WHOLE: Final = re.compile(
    r"(?<![^\s\"'“‘(\[<])((https?://|www\.)\S*[\w/]|[\w.+-]+@[\w.-]*\w)|(?<!\S)[^\w\s]{2,}(?!\S)"
)
_LETTERS: Final = re.compile(r"(\w\.)+\w")  # U.S
# A full stop behind a word, but not behind a single letter, and what the next word begins with.
_STOP: Final = re.compile(r"(?<!\S)(\S{0,99}[^\s.]{2})\.[\"'”’)\]}]*(?=\s+[\"'“‘(\[]*(\w))")
_OPENING: Final = "\"'“‘(["
_SHORTENED: Final = {
    *("mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "sen", "rep", "gov", "gen", "col", "maj", "lt", "capt"),
    *("sgt", "cpl", "adm", "pres", "jr", "sr", "mt", "ft", "co", "corp", "inc", "ltd", "bros", "vs"),
    *("jan", "feb", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "etc"),
    *("approx", "dept", "univ", "ave", "blvd", "nr", "bzw", "ca", "mme", "mlle", "sra"),
}


def splitting_of(sentences: Iterable[Sequence[str]]) -> Splitting:
    """How raw text has to be split to look like these words.

    >>> splitting_of([["Anna", "'s", "dog", "barks", "."]]), splitting_of([["it", "barks,", "loudly."]])
    ('treebank', 'spaces')
    """
    alone = glued = apart = whole = 0
    for words in sentences:
        for word in words:
            alone += word in (",", ".", ";", ":", "?", "!")
            glued += _GLUED.search(word[-2:]) is not None
            apart += _ENDING.fullmatch(word) is not None
            whole += _WITH_ENDING.fullmatch(word) is not None
        last = _STOPPED.fullmatch(words[-1]) if words else None
        glued += last is not None and _ends(last[1])
    if glued and alone <= glued:
        return "spaces"
    return "punctuation" if whole > apart else "treebank"


def word_places(text: str, splitting: Splitting) -> list[tuple[int, int]]:
    """Where each word begins and ends.

    >>> [text[a:b] for text in ["In Paris, France."] for a, b in word_places(text, "treebank")]
    ['In', 'Paris', ',', 'France', '.']
    """
    parts = text.split()
    split_already = ("," in parts or "." in parts) and not any(_GLUED.search(part[-2:]) for part in parts)
    if splitting == "spaces" or split_already:
        return [found.span() for found in re.finditer(r"\S+", text)]
    straight = _WHOLE.sub(lambda found: "x" * len(found[0]), _CURLED.sub("'", text))
    places: list[tuple[int, int]] = []
    for start, end in _sentences(straight):
        for word in split_words(straight[start:end]):
            begin = straight.index(word, places[-1][1] if places else 0)
            before = places[-1] if places and places[-1][1] == begin else None  # the word that this one touched
            if before is not None and _belongs(straight[slice(*before)], word, splitting):
                places[-1] = before[0], begin + len(word)
            else:
                places.append((begin, begin + len(word)))
    return places


def _belongs(before: str, word: str, splitting: Splitting) -> bool:
    """Whether a part that was split off is one word with what it was split from: U.S. at the end, !!!, or don't."""
    if word == ".":
        return _LETTERS.fullmatch(before) is not None
    if word in ("!", "?"):
        return before[-1] in "!?"
    return splitting == "punctuation" and _ENDING.fullmatch(word) is not None


def _sentences(text: str) -> list[tuple[int, int]]:
    """The parts of a text that end with a full stop; what looks like an abbreviation ends none."""
    ends = [found.end() for found in _STOP.finditer(text) if found[2].isupper() and _ends(found[1])]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def _ends(word: str) -> bool:
    """Whether a full stop behind a word ends the sentence: not behind Mr, J or 12."""
    word = word.lstrip(_OPENING)
    return len(word) > (2 if word.isdigit() else 1) and word.lower() not in _SHORTENED
