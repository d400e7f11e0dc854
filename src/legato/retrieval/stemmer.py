"""Porter's stemmer: words that differ in their endings alone count as one word.

M. F. Porter, "An algorithm for suffix stripping", Program 14 (3), 1980. A word is [C](VC)^m[V], runs of consonants
and of vowels by turns; m, its measure, says how much of it is left before an ending that may be taken off.

>>> [stem(word) for word in ("relational", "hopping", "studies", "agreed", "sky")]
['relat', 'hop', 'studi', 'agre', 'sky']
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

VOWELS: Final = frozenset("aeiou")
# Endings of steps 2 and 3, and what takes their place where a measure of one at least is before them.
_LONGER: Final = (
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize "
    "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log"
)
LONGER: Final = dict(pair.split(":") for pair in _LONGER.split())
SHORTER: Final = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
# Endings of step 4, which go where a measure of two at least is before them.
LAST: Final = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate"),
    *("iti", "ous", "ive", "ize"),
)


@lru_cache(maxsize=1 << 17)
def stem(word: str) -> str:
    """The stem of an English word in lower case; what is no such word, or has two letters, stays as it is."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _without_plural(word)
    word = _without_past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _exchanged(_exchanged(word, LONGER), SHORTER)
    return _without_e(_without_last(word))


def _kinds(word: str) -> str:
    """`v` for each vowel and `c` for each consonant; y is a vowel behind a consonant."""
    kinds = ""
    for place, letter in enumerate(word):
        vowel = letter in VOWELS or (letter == "y" and place > 0 and kinds[-1] == "c")
        kinds += "v" if vowel else "c"
    return kinds


def _measure(word: str) -> int:
    """How often consonants follow vowels."""
    return _kinds(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _kinds(word)


def _is_short(word: str) -> bool:
    """Whether it ends as 'hop' does: consonant, vowel, consonant, and the last is not w, x or y."""
    return len(word) > 2 and _kinds(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        start = word.removesuffix(ending)
        if start != word:
            return _mended(start) if _has_vowel(start) else word
    return word


def _mended(word: str) -> str:
    """What -ed and -ing leave, as it was before them: hopp → hop, fil → file."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    double = len(word) > 1 and word[-1] == word[-2] and _kinds(word)[-1] == "c"
    if double and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _exchanged(word: str, endings: dict[str, str]) -> str:
    for ending in sorted((one for one in endings if word.endswith(one)), key=len, reverse=True)[:1]:
        start = word[: -len(ending)]
        return start + endings[ending] if _measure(start) > 0 else word
    return word


def _without_last(word: str) -> str:
    for ending in sorted((one for one in LAST if word.endswith(one)), key=len, reverse=True)[:1]:
        start = word[: -len(ending)]
        if _measure(start) > 1 and (ending != "ion" or start[-1:] in ("s", "t")):
            return start
    return word


def _without_e(word: str) -> str:
    if word.endswith("e"):
        size = _measure(word[:-1])
        if size > 1 or (size == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
