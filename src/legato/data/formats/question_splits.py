"""Questions in parts to train, validate and test on, where a file has no such parts.

What belongs together stays together: the questions of an article, or of a context, are all in one part, so that a
model is asked about texts that it has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from legato.data.formats.questions import Question, Questions
from legato.errors import DataError

MANY = 10  # articles, of which some can be held out


def split_questions(
    every: Questions, by: str, valid_share: float, test_share: float = 0.0
) -> tuple[dict[str, Questions], str]:
    """Parts of which none shares an article (or a context) with another, and a line that says how large they are.

    Groups are taken in the order of their hashes, so that the parts depend on nothing but the data; each part takes
    groups until it has its share of the questions.
    """
    by, key = _group_key(every, by)
    groups: dict[str, list[Question]] = {}
    for question in every.questions:
        groups.setdefault(key(question), []).append(question)
    names = [name for name, share in (("test", test_share), ("valid", valid_share)) if share > 0]
    if len(groups) <= len(names):
        raise DataError(
            f"{every.source} has {len(groups)} {by}s, too few to hold out {' and '.join(names)}; give data.valid"
        )
    order = sorted(groups, key=lambda group: hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest())
    shares = {"test": test_share, "valid": valid_share}
    chosen: dict[str, set[str]] = {}
    for number, name in enumerate(names):
        least = len(names) - number  # groups that must be left for the others
        taken, count = set[str](), 0
        while not taken or (count < shares[name] * len(every.questions) and len(order) > least):
            taken.add(order[0])
            count += len(groups[order.pop(0)])
        chosen[name] = taken
    chosen["train"] = set(order)
    parts = {
        name: replace(every, questions=[q for q in every.questions if key(q) in taken], sha256="", notes=[])
        for name, taken in chosen.items()
    }
    counts = [
        f"{len(parts[name].questions):,} {name} ({len(chosen[name]):,} {by}{'s' * (len(chosen[name]) > 1)})"
        for name in ("train", "valid", "test")
        if name in parts
    ]
    return parts, f"{every.source} is split by {by}: {', '.join(counts)}"


def _group_key(every: Questions, by: str) -> tuple[str, Callable[[Question], str]]:
    articles = {question.article for question in every.questions}
    if by == "article" and None in articles:
        raise DataError(f"{every.source} does not say which article each text is from; set data.article=COLUMN")
    if by == "article" or (by == "auto" and None not in articles and len(articles) >= MANY):
        return "article", lambda question: str(question.article)
    return "context", lambda question: question.context


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
