"""How well speech was understood: word and character error rates by jiwer, with what makes the figures comparable.

    wer         (substituted + left out + added words) / words of the references, over all of them; as written
    cer         the same of characters, spaces among them
    wer_plain   wer in lower case, without punctuation
    wer_whisper wer after Whisper's normaliser of English (Radford et al. 2022, appendix C), where it is asked for

They are in percent, and may be above 100. A space is one of any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from legato.errors import LegatoError
from legato.evaluation.captioning import caption_words
from legato.evaluation.metrics import DetailTable, metrics
from legato.registry import require_extra

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("wer", "cer", unit="percent", better="down", headline=True, decoded=True),
    *metrics("wer_plain", "wer_whisper", unit="percent", better="down", decoded=True),
    *metrics("substituted", "left_out", "added", unit="percent", decoded=True, eval_only=True),
    *metrics("words", "sounds", "seconds", "not_alignable"),
)
WORST: Final = 10  # transcripts that are shown


def spaced(text: str) -> str:
    """With one space between words.

    >>> spaced(" go  to ")
    'go to'
    """
    return " ".join(text.split())


def plain(text: str) -> str:
    """In lower case, without punctuation."""
    return " ".join(caption_words(text))


def speech_scores(written: Sequence[str], references: Sequence[str], normalizer: str | None = None) -> dict[str, Any]:
    """`wer`, `cer` and `wer_plain`, each with its `…_signature`, and of which errors `wer` consists; with the
    `normalizer` "whisper" `wer_whisper`, too.

    >>> speech_scores(["go too sleep"], ["go to sleep"])["wer"]  # doctest: +ELLIPSIS
    33.33...
    """
    if len(written) != len(references) or not written:
        raise LegatoError(f"there are {len(written)} transcripts and {len(references)} references; give one for each")
    jiwer = require_extra("audio", "jiwer")
    said, truth = [spaced(text) for text in written], [spaced(text) for text in references]
    words = jiwer.process_words(truth, said)
    count = max(1, words.hits + words.substitutions + words.deletions)
    version = f"jiwer {_version_of('jiwer')}"
    scores = {
        "wer": 100 * words.wer,
        "cer": 100 * jiwer.process_characters(truth, said).cer,
        "wer_plain": _wer(jiwer, said, truth, plain),
        "substituted": 100 * words.substitutions / count,
        "left_out": 100 * words.deletions / count,
        "added": 100 * words.insertions / count,
        "words": count,
        "wer_signature": f"case:as written|punctuation:as written|spaces:one|by:{version}",
        "cer_signature": f"case:as written|punctuation:as written|spaces:one|by:{version}",
        "wer_plain_signature": f"case:lower|punctuation:none|spaces:one|by:{version}",
    }
    if normalizer is not None:
        english = require_normalizer(normalizer).EnglishTextNormalizer()
        scores["wer_whisper"] = _wer(jiwer, said, truth, english)
        name = f"whisper_normalizer {_version_of('whisper_normalizer')}, English"
        scores["wer_whisper_signature"] = f"text:{name}|by:{version}"
    return scores


def require_normalizer(name: str | None) -> Any:
    """The package of a normaliser, or a line that says how to install it; before anything is transcribed."""
    return None if name is None else require_extra("bench", "whisper_normalizer.english")


def _wer(jiwer: Any, written: Sequence[str], references: Sequence[str], change: Callable[[str], str]) -> float:
    """In percent, of texts that are changed before they are compared."""
    said, truth = [change(text) for text in written], [change(text) for text in references]
    kept = [row for row, text in enumerate(truth) if text]  # a reference of punctuation alone says nothing
    if not kept:
        return 0.0
    return 100 * float(jiwer.process_words([truth[row] for row in kept], [said[row] for row in kept]).wer)


def _version_of(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def speech_details(written: Sequence[str], references: Sequence[str], names: Sequence[str]) -> list[DetailTable]:
    """The worst transcripts: those with the most wrong words."""
    jiwer = require_extra("audio", "jiwer")
    wrong = []
    for said, truth, name in zip(written, references, names, strict=True):
        words = jiwer.process_words(spaced(truth), spaced(said))
        wrong.append((words.substitutions + words.deletions + words.insertions, name, said, truth))
    worst = sorted((row for row in wrong if row[0]), key=lambda row: (-row[0], row[1]))[:WORST]
    rows = [[errors, name, said, truth] for errors, name, said, truth in worst]
    return [("the worst transcripts", ["wrong words", "sound", "written", "said"], rows)] if rows else []
