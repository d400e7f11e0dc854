"""A question and its context as rows that a model can read: long contexts in windows that overlap.

    encoders                    [CLS] question [SEP] part of the context [SEP]      no answer here: [CLS]
    decoders, recurrent models  question <eos> part of the context <eos>            no answer here: the last <eos>

A window that does not hold the answer points at the token that stands for none. With a model that reads from left to
right only the last special token has seen both question and context, so it is that one.

Notable: a context is cut into tokens once, however many questions are asked of it; where each token stands in the
text, in characters, comes from the tokenizer itself, so that an answer is a part of the text as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from legato.data.batching.batches import Array
from legato.data.batching.examples import Example
from legato.data.formats.questions import AnswerSpan
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import Tokenizer, whole_text
from legato.errors import DataError

AT_ONCE: Final = 256  # contexts that are cut side by side
LEAST: Final = 8  # tokens of context that a window must have room for
_WORDS: Final = re.compile(r"\w+|[^\w\s]")  # for models that read the letters of words: punctuation apart


@dataclass
class ContextTokens:
    """A text as tokens, and the characters that each stands for: from `starts` up to `ends`."""

    ids: list[int]
    starts: Array
    ends: Array
    characters: Array | None = None  # (T, C), for models that read those

    def of(self, span: AnswerSpan) -> tuple[int, int] | None:
        """The first and the last token of a part of the text; None where no token stands for it."""
        first = int(np.searchsorted(self.ends, span.start, side="right"))
        last = int(np.searchsorted(self.starts, span.end, side="left")) - 1
        return (first, last) if first <= last else None


@dataclass
class Window:
    """A question with a part of its context."""

    question: int  # its number
    row: Example
    first: int  # where in the row the context begins
    start: int  # which of the context's tokens that is
    count: int  # how many of them there are
    none: int  # the place that stands for no answer


class QuestionReader:
    """Questions and contexts to windows."""

    def __init__(self, reader: TextReader, window: int = 384, stride: int = 128) -> None:
        """`window` tokens a row at most, or what the model can read; neighbours share `stride` tokens of context."""
        if not isinstance(reader.tokenizer, Tokenizer):
            raise DataError("the model's tokenizer does not say where in a text its tokens stand, which qa needs")
        self.tokenizer = reader.tokenizer
        self.max_length = min(window, reader.max_length or window)
        self.reader = replace(reader, max_length=None)
        self.stride = stride
        self._contexts: dict[str, ContextTokens] = {}
        self.before, self.between, behind = self.reader.paired
        self.after = behind or [self.tokenizer.eos_id]

    @property
    def padding(self) -> int:
        return self.reader.padding

    def context(self, text: str) -> ContextTokens:
        """The tokens of a context, cut once."""
        if text not in self._contexts:
            self._contexts[text] = self.cut([text])[0]
        return self._contexts[text]

    def windows(
        self,
        questions: Sequence[tuple[str, str]],
        answers: Sequence[AnswerSpan | None] | None = None,
        names: Sequence[str] | None = None,
    ) -> list[Window]:
        """Windows of all (question, context) pairs in order, with what to learn of each where answers are known.

        `names` are the questions' own, for messages.
        """
        new = list(dict.fromkeys(context for _, context in questions if context not in self._contexts))
        self._contexts.update(zip(new, self.cut(new), strict=True))
        texts = list(dict.fromkeys(question for question, _ in questions))
        asked = dict(zip(texts, self.cut(texts), strict=True))
        found: list[Window] = []
        for number, (question, context) in enumerate(questions):
            try:
                made = self._windows_of(number, asked[question], self._contexts[context])
            except DataError as problem:
                raise problem if names is None else DataError(f"{names[number]}: {problem}") from None
            if answers is not None:
                _point(made, self._contexts[context], answers[number])
            found += made
        return found

    def _windows_of(self, number: int, question: ContextTokens, context: ContextTokens) -> list[Window]:
        special = len(self.before) + len(self.between) + len(self.after)
        room = self.max_length - len(question.ids) - special
        if room < LEAST:
            raise DataError(
                f"the question has {len(question.ids):,} tokens, which leaves no room for its context in a window of "
                f"{self.max_length:,}; shorten it, or raise data.window"
            )
        total = len(context.ids)
        shared = min(self.stride, room // 2)
        starts = [0]
        while starts[-1] + room < total:
            starts.append(min(starts[-1] + room - shared, total - room))  # the last one is full, too
        return [self._window(number, question, context, start, min(room, total)) for start in starts]

    def _window(self, number: int, question: ContextTokens, context: ContextTokens, start: int, count: int) -> Window:
        part = slice(start, start + count)
        before = [*self.before, *question.ids, *self.between]
        ids = [*before, *context.ids[part], *self.after]
        kinds = [0] * len(before) + [1] * (len(ids) - len(before)) if self.reader.segments else None
        row = Example(ids, kinds)
        if context.characters is not None and question.characters is not None:
            wide = max(question.characters.shape[1], context.characters.shape[1])
            row.characters = np.zeros((len(ids), wide), dtype=np.int16)
            for place, values in ((len(self.before), question.characters), (len(before), context.characters[part])):
                row.characters[place : place + len(values), : values.shape[1]] = values
        none = 0 if self.reader.adds_special_tokens else len(ids) - 1
        return Window(number, row, len(before), start, count, none)

    # --- tokens and where they stand -----------------------------------------------------------------

    def cut(self, texts: Sequence[str]) -> list[ContextTokens]:
        """Texts as tokens that know their place."""
        if self.reader.characters:
            return [self._words(text) for text in texts]
        found: list[ContextTokens] = []
        for begin in range(0, len(texts), AT_ONCE):
            part = [whole_text(text) for text in texts[begin : begin + AT_ONCE]]
            encodings = self.tokenizer.library.encode_batch(part, add_special_tokens=False)
            found += [_placed(text, encoding) for text, encoding in zip(part, encodings, strict=True)]
        return found

    def _words(self, text: str) -> ContextTokens:
        """Whole words, which a model that reads letters wants."""
        places = [found.span() for found in _WORDS.finditer(whole_text(text))]
        words = [text[first:last] for first, last in places]
        row = self.reader.words(words)
        assert row.positions is not None
        assert row.characters is not None
        ends = np.array(places, dtype=np.int64).reshape(-1, 2)
        ids = [row.ids[place] for place in row.positions]
        return ContextTokens(ids, ends[:, 0], ends[:, 1], row.characters[row.positions].astype(np.int16))


def _placed(text: str, encoding: Any) -> ContextTokens:
    """Tokens with their places, without the white space that some bring; both ends never fall."""
    places = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    for token, (first, last) in enumerate(encoding.offsets):
        while first < last and text[first].isspace():
            first += 1
        while last > first and text[last - 1].isspace():
            last -= 1
        places[token] = first, last
    # Where a normaliser moves letters about, a place may lie before its neighbour's.
    return ContextTokens(list(encoding.ids), np.maximum.accumulate(places[:, 0]), np.maximum.accumulate(places[:, 1]))


def _point(windows: list[Window], context: ContextTokens, answer: AnswerSpan | None) -> None:
    """Set what each window is to say: its part's answer, or none."""
    place = None if answer is None else context.of(answer)
    for window in windows:
        window.row.span = (window.none, window.none)
        if place is not None and window.start <= place[0] and place[1] < window.start + window.count:
            moved = window.first - window.start
            window.row.span = (place[0] + moved, place[1] + moved)
