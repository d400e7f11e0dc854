"""How many times longer a tokenizer.json can make a text: a few replacements in a row take all memory there is.

The `tokenizers` library ends the process where memory runs out, which nothing catches. So a chain of normalizers,
pre-tokenizers or decoders whose factors multiply to more than MAX_GROWTH is refused before it is loaded. Unicode's
own forms (NFKD, lowercase) count as 1: they make a character 18 at most, and only once.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from legato.errors import DataError

MAX_GROWTH: Final = 16  # of published ones, 2
MAX_COPIES: Final = 4  # of a text in what a post-processor makes of it
MAX_FORM: Final = 64  # bytes that a published character map makes of a character
SECTIONS: Final = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
SECTION: Final = re.compile(rf'"(?:{"|".join(SECTIONS)})"\s*:\s*(?=\{{)')
ESCAPED: Final = re.compile(r"\\u00[4-7]")


def check_growth(file: Path, data: bytes, known_patterns: Collection[str]) -> None:
    """Refuse a tokenizer.json that makes texts many times longer; `known_patterns` match a character at least."""
    for section in _sections(data.decode("utf-8", "replace")):
        growth = _growth(section, known_patterns)
        if growth > MAX_GROWTH:
            times = f"{growth:,.0f}" if growth < 1e6 else f"{growth:.0e}"
            raise DataError(
                f"{file} may make a text {times} times longer by what it replaces ({section.get('type')}), more than "
                f"the {MAX_GROWTH} that are allowed; use another tokenizer"
            )


def _sections(text: str) -> Iterator[dict[str, Any]]:
    """The parts that change texts, without reading the vocabulary, which is large."""
    try:
        if ESCAPED.search(text):  # a name may be written by its letters' numbers
            spec = json.loads(text)
            yield from (spec[name] for name in SECTIONS if isinstance(spec.get(name), dict))
            return
        for match in SECTION.finditer(text):
            yield json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError, AttributeError):
        return  # the library says what is wrong


def _growth(part: Any, known_patterns: Collection[str]) -> float:
    """By what factor a part makes a text longer at most."""
    if not isinstance(part, Mapping):
        return 1
    own = 1.0
    match part.get("type"):
        case "Replace":
            own = _replacement_growth(part.get("pattern"), part.get("content"), known_patterns)
        case "Prepend":
            own = 1 + len(str(part.get("prepend", "")))
        case "ByteLevel":  # a byte becomes a character, which may be of two bytes
            own = 2
        case "Precompiled":
            longest = _longest_form(str(part.get("precompiled_charsmap") or ""))
            own = longest if longest > MAX_FORM else 1
        case "TemplateProcessing":
            own = math.inf if max(_copies(part.get(kind)) for kind in ("single", "pair")) > MAX_COPIES else 1
    inner = (other for value in part.values() for other in (value if isinstance(value, list) else [value]))
    return own * math.prod(_growth(other, known_patterns) for other in inner)


def _copies(template: Any) -> int:
    """How often a template holds a text; what is no template the library refuses."""
    pieces = template if isinstance(template, list) else []
    return sum(isinstance(piece, Mapping) and "Sequence" in piece for piece in pieces)


def _replacement_growth(pattern: Any, content: Any, known_patterns: Collection[str]) -> float:
    length, pattern = len(str(content or "")), pattern if isinstance(pattern, Mapping) else {}
    if pattern.get("String"):
        return max(1.0, length / len(str(pattern["String"])))
    # Any other expression may match nothing, between any two characters.
    return max(1, length) if str(pattern.get("Regex")) in known_patterns else 1 + length


def _longest_form(charsmap: str) -> int:
    """Bytes of the longest replacement in a sentencepiece model's map: its index's size, the index, then texts."""
    try:
        data = base64.b64decode(charsmap)
    except (ValueError, binascii.Error):
        return 0  # the library says what is wrong
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
