"""Which columns of a table hold what: one chooser, and a table of roles for each kind of data.

A role is known by its names, in lower case, the likeliest first; of several that a table has, the first one here
counts. Some come together (`sentence1`, `sentence2`). Where names do not tell, a format looks at what stands in the
columns (`labelled.py`), at types, or at places; and where nothing does, it asks the user (`Head.undecided`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from legato.data.sources.table import Column, Head
from legato.errors import DataError, brief, listed


@dataclass(frozen=True)
class Role:
    """What a column, or several together, may hold, and the names by which it is known."""

    name: str  # in messages
    names: str  # by which it is known, as in "text, review"; "first + second" are two columns together
    required: bool = True

    @cached_property
    def known(self) -> list[list[str]]:
        """The names, each alone or with those that it comes together with."""
        return [[name.strip() for name in together.split("+")] for together in self.names.split(",")]

    def find(self, names: Iterable[str], count: int | None = None) -> list[str]:
        """The columns that have it, `count` of them where that is given; nothing where the names do not tell."""
        there = {plain(name): name for name in reversed(list(names))}
        known = [together for together in self.known if count in (None, len(together))]
        found = next((together for together in known if all(name in there for name in together)), [])
        return [there[name] for name in found]

    def knows(self, name: str) -> bool:
        """Whether a name is one of these."""
        return any(plain(name) in together for together in self.known)


@dataclass(frozen=True)
class Roles:
    """The columns of a kind of data, in the order in which a user names them."""

    roles: tuple[Role, ...]
    which: str  # they are, and the setting that says so, behind "say which"; {first} and {last} are columns there
    counts: tuple[int, int] = (1, 1)  # columns that data.columns has, at least and at most
    naming: str = ""  # those, behind "name"

    def check(self, given: Sequence[Column] | None) -> None:
        """Refuse too many columns, or too few."""
        if given is not None and not self.counts[0] <= len(given) <= self.counts[1]:
            raise DataError(f"data.columns names {len(given)} of them; name {self.naming}")

    def by_name(self, head: Head) -> dict[str, Column]:
        """The column of each role whose name tells it, none of them twice; one that must be there is."""
        found: dict[str, Column] = {}
        for role in self.roles:
            columns = role.find(name for name in head.names if name not in found.values())
            if columns:
                found[role.name] = columns[0]
            elif role.required:
                which = self.which.format(first=brief(head.names[0]), last=brief(head.names[-1]))
                if len(self.roles) == 1:
                    raise head.undecided(which)
                raise DataError(
                    f"{head.where}: no column looks like the {role.name}, among {listed(head.names)}; say which "
                    f"{which}"
                )
        return found


def plain(name: str) -> str:
    """A name as roles know it."""
    return name.strip().lower()


# --- the kinds of data -------------------------------------------------------------------------------

SENTENCES: Final = (
    "sentence1 + sentence2, sentence_1 + sentence_2, sentence_a + sentence_b, text1 + text2, text_a + text_b, "
    "question1 + question2, #1 string + #2 string, "
)
TEXT: Final = Roles((Role("text", "text"),), "is the text: data.column={first}")
WORDS: Final = Roles(
    (Role("words", "words, tokens, form, forms, text, sentence"),), "are the words: data.word={first}"
)
TAGS: Final = Roles(
    (Role("tags", "tags, ner_tags, ner, entities, pos_tags, upos, pos, labels"),), "are the tags: data.tag={last}"
)
LABELLED: Final = Roles(
    (
        Role(
            "texts",
            SENTENCES + "text_1 + text_2, premise + hypothesis, question + sentence, question + passage, "
            "question + context, question + answer, query + document, query + passage, first + second, "
            "text, sentence, review, content, comment, tweet, message, document, body, utterance, question, query, "
            "title, headline, article, description, sms, post",
        ),
        Role(
            "label",
            "label, labels, gold_label, class, category, sentiment, score, similarity_score, similarity, rating, "
            "stars, quality, is_duplicate, intent, emotion, topic, target, polarity, y",
        ),
    ),
    "are text and label: data.columns=[TEXT,LABEL], or for pairs [FIRST,SECOND,LABEL], by name, or by number from 1",
    (2, 3),
    "two, [TEXT,LABEL], or three, [FIRST,SECOND,LABEL]",
)
SCORED: Final = Roles(
    (
        Role(
            "texts",
            SENTENCES + "anchor + positive, query + positive, query + passage, query + document, query + answer, "
            "question + answer, premise + hypothesis, source + target, first + second",
        ),
        Role("negative", "negative, hard_negative, negative_1", required=False),
        Role("score", "score, similarity, similarity_score, relatedness_score, label, quality", required=False),
    ),
    "two are texts, and which is their score or a negative, if any: data.columns=[sentence1,sentence2,score]",
    (2, 3),
    "two texts, and perhaps a score or a negative: data.columns=[sentence1,sentence2,score]",
)
TEXT_PAIRS: Final = Roles(
    (
        Role(
            "texts",
            "source + target, src + tgt, src + trg, text + summary, document + summary, article + highlights, "
            "input + output, wrong + right",
        ),
    ),
    "two are source and target: data.columns=[SOURCE,TARGET]",
    (2, 2),
    "two, source and target",
)
QUESTIONS: Final = Roles(
    (
        Role("question", "question, query, q"),
        Role("context", "context, passage, paragraph, review, document, text"),
        Role("answer", "answers, answer, human_ans_spans, answer_text, span"),
        Role("place", "answer_start, start, human_ans_indices, answer_span, offset", required=False),
        Role("article", "title, article, item_id, document_id, doc_id", required=False),
    ),
    "are question, context and answer: data.columns=[…,…,…]",
    (2, 4),
    "those of question, context, answer and, where there is one, the answer's place",
)
DIALOGUES: Final = Roles(
    (
        Role("messages", "messages, conversations, conversation, dialogue, dialog", required=False),
        Role("question", "instruction, prompt, question, user, input, query", required=False),
        Role("answer", "output, completion, response, answer, assistant, target", required=False),
        Role("system", "system, system_prompt", required=False),
    ),
    "are: data.columns=[question,answer], or the one that holds messages",
)
