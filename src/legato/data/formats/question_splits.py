"""Questions in parts to train, validate and test on, where a file has no such parts.

What belongs together stays together: the questions of an article, or of a context, are all in one part, so that a
model is asked about texts that it has not seen.
"""

from __future__ import annotations

from legato.data.formats.questions import Questions
from legato.data.splits import by_group
from legato.errors import DataError

MANY = 10  # articles, of which some can be held out


def split_questions(
    every: Questions, by: str, valid_share: float, test_share: float = 0.0
) -> tuple[dict[str, Questions], str]:
    """Parts of which none shares an article (or a context) with another, and a line that says how large they are."""
    articles = {question.article for question in every.questions}
    if by == "article" and None in articles:
        raise DataError(f"{every.source} does not say which article each text is from; set data.article=COLUMN")
    if by == "auto":
        by = "article" if None not in articles and len(articles) >= MANY else "context"
    keys = [str(question.article) if by == "article" else question.context for question in every.questions]
    shares = {name: share for name, share in (("test", test_share), ("valid", valid_share)) if share > 0}
    if (count := len(set(keys))) <= len(shares):
        raise DataError(
            f"{every.source} has {count} {by}s, too few to hold out {' and '.join(shares)}; give data.valid"
        )
    rows = by_group(keys, shares)
    parts = {name: every.select(those) for name, those in rows.items()}
    counts = []
    for name, those in rows.items():
        groups = len({keys[row] for row in those})
        counts.append(f"{len(those):,} {name} ({groups:,} {by}{'s' * (groups > 1)})")
    return parts, f"{every.source} is split by {by}: {', '.join(counts)}"


def told_shared(train: Questions, others: dict[str, Questions]) -> list[str]:
    """Lines about questions of other parts that were taught, or whose text was: what they score flatters."""
    taught = {(question.question, question.context) for question in train.questions}
    texts = {context for _, context in taught}
    told = []
    for name, part in others.items():
        count = len(part.questions)
        again = sum((question.question, question.context) in taught for question in part.questions)
        read = sum(question.context in texts for question in part.questions)
        if again:
            told.append(
                f"note: {again:,} of the {count:,} {name} questions stand in data.train, too, with the same text, so "
                f"scores on them say little; leave out data.{name} to hold out others"
            )
        elif read:
            told.append(f"note: the texts of {read:,} of the {count:,} {name} questions stand in data.train, too")
    return told
