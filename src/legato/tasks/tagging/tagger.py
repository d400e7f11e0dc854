"""A model with what it takes to put words in and get their tags out.

Notable: a sentence longer than what the model reads is read in windows that overlap; of a word that two of them have,
the one counts that sees more around it. Tags are chosen for the sentence as a whole, over all windows: by the CRF, or
by the network's scores alone under the scheme's rules, so that no name begins with its middle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from legato.data.batching.batch import IGNORE
from legato.data.batching.examples import Example
from legato.data.formats.tag_schemes import Scheme, read_spans, transitions
from legato.data.text.text_reader import TextReader
from legato.evaluation.metrics import DetailTable
from legato.evaluation.tagging import MOST, confusion_table, score_table, tagging_scores
from legato.folders.finite_scores import check_finite
from legato.models.base import SequenceModel
from legato.nn.losses.crf import best_paths, log_likelihood, tag_probabilities, with_rules
from legato.tasks.base import head_outputs
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.tagging.word_splitting import Splitting, word_places

SCORES: Final = 1 << 21  # of one tag after another held at once; the same
SHARED: Final = 4  # a window shares a fourth of its words with the one before

_DIGIT: Final = re.compile(r"\d")


NumberedWindows = list[tuple[int, Example]]
"""A sentence as a model reads it: windows in their order, each with the number of its first word."""


@dataclass
class Guess:
    """The tags of a sentence, and how probable each of them is."""

    tags: list[str]
    chances: list[float]


@dataclass
class Tagger:
    """A model, how it reads, and what its answers are called."""

    model: SequenceModel
    reader: TextReader
    labels: list[str]
    scheme: Scheme
    rules: bool = True  # whether only tags are chosen that may follow each other
    zero_digits: bool = False  # whether 1996 is read as 0000
    splitting: Splitting = "treebank"  # of raw text into words
    _allowed: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.rules and self.scheme != "plain":
            self._allowed = torch.from_numpy(transitions(self.labels, self.scheme))

    def read(self, sentences: Sequence[Sequence[str]]) -> list[NumberedWindows]:
        """Every word of the sentences in one window at least."""
        held = [read_words(words, self.zero_digits) for words in sentences]
        found: list[NumberedWindows] = [[] for _ in held]
        for number, start, row in read_windows(self.reader, held, overlapping=True):
            found[number].append((start, row))
        return found

    def emissions(self, sentences: Sequence[NumberedWindows]) -> list[Tensor]:
        """The network's scores of every tag for every word, (W, C) a sentence, on the CPU."""
        rows = [row for windows in sentences for _, row in windows]
        parts = iter(head_outputs(self.model, rows, self.reader.padding))
        found = [torch.zeros(0, len(self.labels)) for _ in sentences]
        for number, windows in enumerate(sentences):
            for start, row in windows:
                first = (start + len(found[number]) + 1) // 2 if start else 0  # the middle of what two windows share
                part = next(parts)[first - start : len(row.positions or ())]
                found[number] = torch.cat([found[number][:first], part])
        return found

    @property
    def scores(self) -> Tensor | None:
        """Of one tag after another: the CRF's, or zeros under rules; None where every word is for itself."""
        crf = self.model.tag_crf
        if crf is not None:
            scores = crf.scores.detach().cpu()
            check_finite(scores, self.model)
            return with_rules(scores, self._allowed)
        count = len(self.labels)
        return None if self._allowed is None else with_rules(torch.zeros(count + 2, count + 2), self._allowed)

    def choose(self, emissions: Sequence[Tensor]) -> list[Guess]:
        """The best tags for each sentence's scores."""
        scores, crf = self.scores, self.model.tag_crf is not None
        guesses = [Guess([], []) for _ in emissions]
        for numbers, padded, lengths in self._side_by_side(emissions):
            paths = (
                best_paths(padded, scores, lengths)
                if scores is not None
                else [row[:length] for row, length in zip(padded.argmax(-1).tolist(), lengths.tolist(), strict=True)]
            )
            # Rules without a CRF only choose: how sure the network is of a tag it says itself.
            chances = tag_probabilities(padded, scores, lengths) if crf and scores is not None else padded.softmax(-1)
            for number, path, chance in zip(numbers, paths, chances, strict=True):
                sure = chance[torch.arange(len(path)), torch.tensor(path, dtype=torch.long)].tolist()
                guesses[number] = Guess([self.labels[index] for index in path], sure)
        return guesses

    def _side_by_side(self, emissions: Sequence[Tensor]) -> list[tuple[list[int], Tensor, Tensor]]:
        """Sentences of like length together: their numbers, their scores (B, W, C) and lengths (B,)."""
        rows = max(1, min(256, SCORES // (len(self.labels) + 2) ** 2))
        order = sorted((n for n, e in enumerate(emissions) if len(e)), key=lambda number: len(emissions[number]))
        found = []
        for start in range(0, len(order), rows):
            numbers = order[start : start + rows]
            chosen = [emissions[number] for number in numbers]
            lengths = torch.tensor([len(one) for one in chosen])
            found.append((numbers, pad_sequence(chosen, batch_first=True), lengths))
        return found

    def nll(self, emissions: Sequence[Tensor], gold: Sequence[Sequence[str]]) -> float:
        """Mean negative log-likelihood of the right tags, a word; sentences with a tag unheard of count nothing."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        known = [n for n, tags in enumerate(gold) if tags and all(tag in numbers for tag in tags)]
        right = {n: torch.tensor([numbers[tag] for tag in gold[n]]) for n in known}
        words = sum(map(len, right.values()))
        crf = self.model.tag_crf
        if crf is None:
            flat = [F.cross_entropy(emissions[n], right[n], reduction="sum") for n in known]
            return float(torch.stack(flat).sum()) / words if flat else 0.0
        total = torch.zeros(())
        scores = crf.scores.detach().cpu()
        for chosen, padded, _ in self._side_by_side([emissions[n] for n in known]):
            tags = pad_sequence([right[known[n]] for n in chosen], batch_first=True, padding_value=IGNORE)
            total -= log_likelihood(padded, scores, tags).sum()
        return float(total) / max(words, 1)

    def score(
        self, read: Sequence[NumberedWindows], gold: Sequence[Sequence[str]]
    ) -> tuple[dict[str, Any], list[Guess]]:
        """The figures, and what they are of."""
        emissions = self.emissions(read)
        guesses = self.choose(emissions)
        figures = tagging_scores(gold, [guess.tags for guess in guesses], self.scheme)
        return {"loss": self.nll(emissions, gold), **figures}, guesses

    def details(
        self,
        sentences: Sequence[Sequence[str]],
        gold: Sequence[Sequence[str]],
        guesses: Sequence[Guess],
        places: Sequence[Sequence[Any]],
    ) -> list[DetailTable]:
        """What to look at after an evaluation: scores by kind, confusions, the worst errors; `places` are lines."""
        tags = [guess.tags for guess in guesses]
        worst: list[tuple[float, list[Any]]] = []
        for words, right, guess, lines in zip(sentences, gold, guesses, places, strict=True):
            for at, (one, other) in enumerate(zip(right, guess.tags, strict=True)):
                if one != other:
                    around = " ".join([*words[max(at - 3, 0) : at], f"»{words[at]}«", *words[at + 1 : at + 4]])
                    worst.append(
                        (guess.chances[at], [str(lines[at]), words[at], one, other, guess.chances[at], around])
                    )
        worst.sort(key=lambda error: -error[0])
        columns = ["line", "word", "is", "taken for", "probability", "in"]
        shown: DetailTable = ("the worst errors", columns, [row for _, row in worst[:MOST]])
        return [score_table(gold, tags, self.scheme), confusion_table(gold, tags, self.scheme), shown]

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """The tags of texts, split into words as those were that the model has learned from."""
        problems = [_problem(text) for text in texts]
        found = [
            [] if problem else word_places(text, self.splitting)
            for text, problem in zip(texts, problems, strict=True)
        ]
        sentences = [[text[start:end] for start, end in places] for text, places in zip(texts, found, strict=True)]
        guesses = self.choose(self.emissions(self.read(sentences)))
        return [
            Prediction(text, [] if problem else [self._answer(text, places, guess)], problem)
            for text, places, guess, problem in zip(texts, found, guesses, problems, strict=True)
        ]

    def _answer(self, text: str, places: Sequence[tuple[int, int]], guess: Guess) -> Answer:
        words = [text[start:end] for start, end in places]
        more: dict[str, Any] = {"words": words, "tags": guess.tags, "probabilities": guess.chances}
        if self.scheme != "plain":
            more["entities"] = [
                {
                    "type": span.kind,
                    "text": text[places[span.start][0] : places[span.end - 1][1]],
                    "start": places[span.start][0],
                    "end": places[span.end - 1][1],
                    "words": [span.start, span.end],
                    "probability": sum(guess.chances[span.start : span.end]) / (span.end - span.start),
                }
                for span in read_spans(guess.tags)
            ]
        logs = torch.tensor(guess.chances).clamp(min=1e-30).log()
        return Answer(shown_tags(words, guess.tags), float(logs.mean()) if words else 0.0, more)


def shown_tags(words: Sequence[str], tags: Sequence[str]) -> str:
    """`EU/B-ORG rejects/O`."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))


def read_words(words: Sequence[str], zero_digits: bool) -> list[str]:
    """Words as the model has them.

    >>> read_words(["in", "1996"], True)
    ['in', '0000']
    """
    return [_DIGIT.sub("0", word) for word in words] if zero_digits else list(words)


def read_windows(
    reader: TextReader, sentences: Sequence[Sequence[str]], *, overlapping: bool = False
) -> list[tuple[int, int, Example]]:
    """Sentences cut where the model cannot read them at once; first parts come first, then the second ones.

    Each row comes with its sentence's number, and with that of its first word there.
    """
    windows = []
    waiting = [(number, 0) for number, words in enumerate(sentences) if words]
    while waiting:
        most = reader.max_length or max(map(len, sentences))  # a word has a token at least
        rows = reader.sentences([sentences[number][start : start + most] for number, start in waiting])
        further = []
        for (number, start), row in zip(waiting, rows, strict=True):
            windows.append((number, start, row))
            fit = len(row.positions or ())
            if start + fit < len(sentences[number]):
                further.append((number, start + max(fit - fit // SHARED * overlapping, 1)))
        waiting = further
    return windows


def _problem(text: str) -> str | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "the text holds half a surrogate pair, which is no character; remove it"
    return None if text.strip() else "the text is empty"


def pad_characters(rows: Sequence[Example]) -> None:
    """Give all words as many places for their letters, so that batches differ in fewer ways."""
    most = max((row.characters.shape[1] for row in rows if row.characters is not None), default=0)
    for row in rows:
        if row.characters is not None:
            row.characters = np.pad(row.characters, ((0, 0), (0, most - row.characters.shape[1])))
