"""How good translations are, by sacreBLEU, with the signatures that make the figures comparable.

    bleu         n-grams up to 4, geometric mean of precisions times brevity penalty (Papineni et al. 2002);
                 as written, tokenized by mteval's 13a
    bleu_lower   the same in lower case
    chrf         character n-grams up to 6, F2 (Popović 2015)

They are from 0 to 100, over the whole corpus. Texts are given as people read them: detokenized. Of more than
10,000 characters without a space the first 10,000 are scored, and a warning says so: chrF counts six n-grams at each
character, so a word of 100,000 took longer than all else in a validation. In scripts without spaces (Chinese,
Japanese, Thai) that is a long document on one line: give it line by line.
"""

from __future__ import annotations

import re
from typing import Final

from legato.errors import LegatoError, warn
from legato.evaluation.metrics import metrics

MAX_WORD: Final = 10_000  # characters without a space
LONG_WORD: Final = re.compile(rf"(?<!\S)(\S{{{MAX_WORD}}})\S+")

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("bleu", "chrf", unit="percent", better="up", headline=True, decoded=True, points=True),
    *metrics("accuracy", unit="fraction", better="up", headline=True, decoded=True),
    *metrics("bleu_*", "chrf_*", unit="percent", better="up", decoded=True, points=True),
    *metrics("hypothesis_ratio", "sentences", "too_long"),
)


def translation_scores(hypotheses: list[str], references: list[str]) -> dict[str, float | str]:
    """`bleu`, `bleu_lower` and `chrf`, each with its `…_signature`, and `hypothesis_ratio`.

    The ratio is the hypotheses' length over the references', in BLEU's tokens: below 1, BLEU has a brevity
    penalty.

    >>> round(translation_scores(["A dog runs on the beach."], ["A dog runs on the beach."])["bleu"])
    100
    """
    if len(hypotheses) != len(references):
        raise LegatoError(
            f"there are {len(hypotheses)} translations and {len(references)} references; give one for each"
        )
    if not hypotheses:
        raise LegatoError("there are no translations to score; give at least one")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scored = [[LONG_WORD.sub(r"\1", text) for text in texts] for texts in (hypotheses, references)]
    if scored != [list(hypotheses), list(references)]:
        warn(
            f"of more than {MAX_WORD:,} characters without a space only the first {MAX_WORD:,} are scored; "
            "give long texts line by line"
        )
    hypotheses, references = scored
    cased, lower, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    bleu = cased.corpus_score(hypotheses, [references])
    return {
        "bleu": bleu.score,
        "bleu_lower": lower.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "bleu_signature": str(cased.get_signature()),
        "bleu_lower_signature": str(lower.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
        "hypothesis_ratio": float(bleu.ratio),
    }
