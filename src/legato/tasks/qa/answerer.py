"""Answers by spans: a model with a head for spans, asked about texts.

Every window of a context gives its best spans; the best of all windows is the answer. No answer scores as its token
does in the window that is least sure of it; where that is more than `threshold` above the best span, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.data.batching.examples import scoring_batches
from legato.data.batching.qa_windows import QuestionReader, Window
from legato.data.formats.questions import Question, Questions
from legato.decoding.spans import best_spans
from legato.errors import DataError, brief
from legato.evaluation.metrics import DetailTable
from legato.evaluation.qa import best_scores, best_threshold, span_scores
from legato.folders.finite_scores import check_finite
from legato.models.base import SequenceModel
from legato.tasks.predictions import Answer, Prediction

WORST = 20  # errors that are shown
SHOWN = 80  # characters of a text in a table
CONSIDERED = 20  # spans of each window among which the best are looked for, and over which probabilities are taken


@dataclass
class Candidate:
    """A span of a context that may be the answer."""

    text: str
    start: int | None  # in characters; None: there is no answer
    end: int | None
    score: float


@dataclass
class ScoredSpans:
    """What a model says of a question: spans, best first, and the score of there being no answer."""

    spans: list[Candidate] = field(default_factory=list)
    none: float = float("inf")
    loss: float = 0.0  # mean over the windows; 0 where the answer is not known

    @property
    def margin(self) -> float:
        """By how much no answer is ahead of the best one."""
        return self.none - self.spans[0].score if self.spans else float("inf")

    def answer(self, threshold: float | None) -> str:
        """The best answer; the empty one where there is none, which a threshold of None rules out."""
        silent = not self.spans or (threshold is not None and self.margin > threshold)
        return "" if silent else self.spans[0].text

    def ranked(self, threshold: float | None) -> list[tuple[Candidate, float]]:
        """All candidates with their probabilities, best first; with a threshold, no answer is one of them."""
        every = list(self.spans)
        scores = [candidate.score for candidate in every]
        if threshold is not None or not every:
            every.append(Candidate("", None, None, self.none))
            scores.append(self.none - (threshold or 0.0))
        shares = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
        return sorted(zip(every, shares, strict=True), key=lambda pair: -pair[1])


@dataclass
class Answerer:
    """Asks a model."""

    model: SequenceModel
    reader: QuestionReader
    max_length: int = 30  # tokens of an answer

    @torch.no_grad()
    def ask(self, contexts: Sequence[str], windows: Sequence[Window]) -> list[ScoredSpans]:
        """What the model says of each question, whose contexts these are; `windows` are all of theirs."""
        found = [ScoredSpans() for _ in contexts]
        counts = [0] * len(contexts)
        for window, best, none, loss in self._read(windows):
            held, tokens = found[window.question], self.reader.context(contexts[window.question])
            held.none = min(held.none, none)
            held.loss += loss
            counts[window.question] += 1
            for score, first, last in best:
                first, last = (place - window.first + window.start for place in (first, last))
                start, end = int(tokens.starts[first]), int(tokens.ends[last])
                if end > start:
                    held.spans.append(Candidate(contexts[window.question][start:end], start, end, score))
        for held, count in zip(found, counts, strict=True):
            held.loss /= max(count, 1)
            held.spans = _best_once(held.spans)
        return found

    def predict(
        self, texts: Sequence[str], context: str | None, threshold: float | None, nbest: int
    ) -> list[Prediction]:
        """The answers to questions about `context`, or about what stands behind each and a tab."""
        predictions = [Prediction(text) for text in texts]
        windows: list[Window] = []
        asked: list[tuple[Prediction, str]] = []
        for prediction in predictions:
            try:
                question, around = parts_of(prediction.input, context)
                made = self.reader.windows([(question, around)])
            except DataError as problem:
                prediction.problem = str(problem)
                continue
            windows += [replace(window, question=len(asked)) for window in made]
            asked.append((prediction, around))
        for (prediction, _), found in zip(asked, self.ask([around for _, around in asked], windows), strict=True):
            prediction.answers = [
                Answer(span.text, share, {"probability": share, "start": span.start, "end": span.end})
                for span, share in found.ranked(threshold)[:nbest]
            ]
        return predictions

    def _read(self, windows: Sequence[Window]) -> Iterator[tuple[Window, list[tuple[float, int, int]], float, float]]:
        """Each window with its best spans, the score of no answer, and the loss where the answer is known."""
        rows = [window.row for window in windows]
        for numbers, batch in scoring_batches(rows, pad=self.reader.padding):
            batch = batch.to(self.model.device)
            logits = self.model(batch).logits.float()  # (B, T, 2)
            chosen = [windows[number] for number in numbers]
            table = [(window.first, window.count, window.none) for window in chosen]
            first, count, none = torch.tensor(table, device=self.model.device).unbind(1)
            places = torch.arange(logits.shape[1], device=logits.device)
            inside = (places >= first[:, None]) & (places < (first + count)[:, None])
            scores, begins, ends = best_spans(logits[..., 0], logits[..., 1], inside, self.max_length, CONSIDERED)
            silent = logits.gather(1, none[:, None, None].expand(-1, 1, 2)).sum((1, 2))
            losses = span_losses(logits, batch) if batch.spans is not None else torch.zeros_like(silent)
            held = [part.cpu() for part in (scores, begins, ends, silent, losses)]
            # What is no span scores −∞; a place that is no number comes first of all.
            check_finite(held[0].masked_fill(held[0] == -torch.inf, 0.0), self.model)
            check_finite(held[3], self.model)
            lists = [part.tolist() for part in held]
            for window, score, begin, end, unanswered, loss in zip(chosen, *lists, strict=True):
                spans = [found for found in zip(score, begin, end, strict=True) if found[0] > float("-inf")]
                yield window, spans, unanswered, loss


def span_losses(logits: Tensor, batch: Batch) -> Tensor:
    """-½ (log p(start) + log p(end)) of each row, (B,); 0 for rows that only fill a batch up."""
    assert batch.spans is not None
    logits = logits.float()
    each = [F.cross_entropy(logits[..., side], batch.spans[:, side], reduction="none") for side in (0, 1)]
    return (each[0] + each[1]) / 2


def _best_once(spans: list[Candidate]) -> list[Candidate]:
    """The best spans, each place once: neighbouring windows share some."""
    kept: dict[tuple[int | None, int | None], Candidate] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        kept.setdefault((span.start, span.end), span)
        if len(kept) == CONSIDERED:
            break
    return list(kept.values())


def parts_of(text: str, context: str | None = None) -> tuple[str, str]:
    """A question, and the text in which its answer is: `context`, or what stands behind the question and a tab."""
    question, tab, behind = text.partition("\t")
    if tab and context is not None:
        raise DataError("the question brings a context behind its tab, and another one is given; leave one out")
    if not tab and context is None:
        raise DataError(
            "there is no text to find the answer in: write the question, a tab and the text, or give --context FILE"
        )
    if context is None:
        context = behind
    if not question.strip() or not context.strip():
        raise DataError(f"the {'context' if question.strip() else 'question'} is empty")
    return question.strip(), context


# --- scores ----------------------------------------------------------------------------------------


def choose_threshold(questions: Sequence[Question], found: Sequence[ScoredSpans]) -> float:
    """The threshold with the highest F1 on these questions."""
    answering = [
        best_scores(said.answer(None), asked.rights)[1] for asked, said in zip(questions, found, strict=True)
    ]
    silence = [best_scores("", asked.rights)[1] for asked in questions]
    return best_threshold([min(said.margin, 1e9) for said in found], answering, silence)


def answer_scores(asked: Questions, found: Sequence[ScoredSpans], threshold: float | None) -> dict[str, float]:
    answers = [said.answer(threshold) for said in found]
    scores = {"loss": sum(said.loss for said in found) / len(found)}
    scores |= span_scores(answers, [question.rights for question in asked.questions])
    return scores if threshold is None else {**scores, "threshold": threshold}


def details_of(
    questions: Sequence[Question], found: Sequence[ScoredSpans], threshold: float | None
) -> list[DetailTable]:
    """Tables for a person: whether an answer was given where there is one, and the worst errors."""
    tables: list[DetailTable] = []
    answers = [said.answer(threshold) for said in found]
    if threshold is not None:
        rows = []
        for name, kind in (("answerable", True), ("unanswerable", False)):
            given = [bool(a) for a, question in zip(answers, questions, strict=True) if question.answerable == kind]
            rows.append([name, f"{sum(given):,}", f"{len(given) - sum(given):,}"])
        tables.append(("answered", ["question", "answered", "no answer"], rows))
    errors = []
    for question, said, answer in zip(questions, found, answers, strict=True):
        f1 = best_scores(answer, question.rights)[1]
        if f1 < 0.5:
            share = next((share for candidate, share in said.ranked(threshold) if candidate.text == answer), 0.0)
            errors.append((f1 - share, share, question, answer))
    errors.sort(key=lambda error: error[0])
    shown = [
        [f"{share:.2f}", *(brief(text, SHOWN) or "—" for text in (answer, " ‖ ".join(q.rights), q.question)), q.id]
        for _, share, q, answer in errors[:WORST]
    ]
    tables.append(("worst errors", ["sure", "answer", "right", "question", "id"], shown))
    return tables
