"""Prompting: classify with a model that only continues texts (Brown et al. 2020), without training it.

    prompt = examples, each with its label, then the text with none
    score(label) = log P(label | prompt) = Σ_t log P(label_t | prompt, label_1 … label_{t-1})

`normalize` divides by the label's tokens, so that long labels are not at a loss. `calibrate` takes from each score
what a text that says nothing gets (Zhao et al. 2021): log P(label | prompt) - log P(label | prompt of "N/A").

    legato predict MODEL "a gem of a film" --task classification --labels good,bad --shots examples.tsv

Notable: a prompt is read once, however many labels there are, and what all prompts begin with, the examples, is read
once for all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor

from legato.config import Section
from legato.data.batching.batch import Inputs
from legato.data.formats.labelled import guess_columns, named_by_number, read_labelled, told_columns
from legato.data.formats.labels import Labels
from legato.data.formats.strays import are_numbers, is_missing, is_number, told_missing
from legato.data.sources.files import FileOptions
from legato.data.sources.table import Column, Head
from legato.data.sources.tables import kind_of, locate, read_table, tabbed
from legato.errors import ConfigError, DataError, brief, suggest, warn
from legato.evaluation.classification import classification_details, classification_scores
from legato.folders.chat_template import shared_start
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.registry import TASKS
from legato.tasks.predictions import Answer, Prediction

TEMPLATE: Final = "Text: {text}\nLabel: {label}"
FIELD: Final = re.compile(r"\{(text|first|second)\}")
COLUMNS: Final = "--columns TEXT,LABEL, or for pairs FIRST,SECOND,LABEL"
BETWEEN: Final = "\n\n"  # examples
SAYS_NOTHING: Final = ("N/A", "", "[MASK]")  # texts that calibrate
TOKENS: Final = 8192  # of prompts read side by side
KEPT: Final = 1 << 15  # tokens whose keys and values lie side by side, once each label goes on in a row of its own
WORTH: Final = 16  # tokens that prompts must share for reading them once to be worth it


def listed_labels(value: Any) -> Any:
    """The labels of a command line, `a,b,c`, as a list."""
    return [label.strip() for label in value.split(",")] if isinstance(value, str) else value


class PromptOptions(Section):
    """How to ask a model for labels."""

    labels: tuple[str, ...] | None = Field(None, description="left out: those of the examples")
    shots: str | tuple[tuple[str, str], ...] | None = Field(
        None, description="examples: a csv, tsv or jsonl file of texts and labels; from Python also a list of them"
    )
    columns: tuple[str | int, ...] | None = Field(
        None, description="of that file: text and label, by name, or by number from 1; left out: guessed, and said"
    )
    template: str = Field(TEMPLATE, description="with {text} (or {first} and {second}) and {label}")
    normalize: bool = Field(False, description="divide a label's score by its tokens")
    calibrate: bool = Field(False, description="take from each label what a text that says nothing gets")
    nbest: int = Field(1, ge=1)

    @field_validator("columns", mode="before")
    @classmethod
    def _numbered(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.strip("[]").split(",")]
        return [int(part) if part.isdecimal() else part for part in parts]

    @field_validator("labels", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return listed_labels(value)


@dataclass
class LabelPrompt:
    """A text with the examples before it, and each label behind it, as tokens."""

    ids: list[int]
    labels: list[list[int]]
    shots: int  # examples that fitted


@dataclass
class Prompter:
    """Asks a model for the label of texts."""

    loaded: Loaded
    options: PromptOptions
    labels: list[str] = field(default_factory=list)
    shots: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        module = self.loaded.module
        if module.is_encoder_decoder or not module.can_generate:
            predicts = TASKS.get(self.loaded.task).Options is not None
            raise ConfigError(
                f"{self.loaded.folder} does not continue texts, so labels cannot be scored behind a prompt; "
                + (f"it was trained for {self.loaded.task}: use predict" if predicts else "give a model that writes")
            )
        head, found, self.behind = self.options.template.replace("\\n", "\n").partition("{label}")
        if not found or not ("{text}" in head or ("{first}" in head and "{second}" in head)):
            raise ConfigError(
                f"the template {brief(repr(self.options.template))} needs {{text}}, and {{label}} behind it"
            )
        self.head, self.gap = head.rstrip(" "), head[len(head.rstrip(" ")) :]
        shots, columns = self.options.shots, self.options.columns
        if columns is not None and not isinstance(shots, str):
            raise ConfigError("--columns is for a file of examples; name it with --shots, or leave --columns out")
        known = self.options.labels
        self.shots = read_shots(shots, known, columns) if isinstance(shots, str) else list(shots or ())
        self.labels = list(self.options.labels or dict.fromkeys(label for _, label in self.shots))
        _check_labels(self.labels)
        self._bias: dict[int, Tensor] = {}

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """The labels of each text with their probabilities, best first."""
        found = [Prediction(text) for text in texts]
        prompts = [self._fitting(text, prediction) for text, prediction in zip(texts, found, strict=True)]
        asked = [prompt for prompt in prompts if prompt is not None]
        self._say_what_is_left_out(asked)
        answered = [prediction for prediction, prompt in zip(found, prompts, strict=True) if prompt is not None]
        for prediction, prompt, row in zip(answered, asked, self._scores(asked), strict=True):
            if self.options.calibrate:
                row = row - self._says_nothing(prompt.shots)
            shares = dict(zip(self.labels, row.softmax(0).tolist(), strict=True))
            best = sorted(shares, key=lambda label: -shares[label])[: self.options.nbest]
            prediction.answers = [Answer(label, shares[label], {"probability": shares[label]}) for label in best]
            prediction.answers[0].more["probabilities"] = shares
        return found

    def score(self, source: str, columns: Sequence[Column] | None = None) -> dict[str, Any]:
        """How well this does on a file of texts and labels: the figures and details of a classifier."""
        rows, labels = read_labelled(source, columns=columns), Labels("classes", self.labels)
        wanted, texts = labels.encode(rows, unseen="wrong"), rows.joined()
        if note := labels.unseen_note(rows, source):
            warn(note)
        even = dict.fromkeys(self.labels, 1 / len(self.labels))  # what is too long to read is a guess
        shares = [p.answers[0].more["probabilities"] if p.answers else even for p in self.predict(texts)]
        found = np.array([list(share.values()) for share in shares])
        places = [rows.where(row) for row in range(len(texts))]
        details = classification_details(labels, found, wanted, texts, places)
        scores = classification_scores(labels, found, wanted)
        return {"data": rows.source, "sha256": rows.sha256, **scores, "details": details}

    def prompt(self, text: str, shots: int) -> LabelPrompt:
        """The tokens of `text` behind that many examples, and of each label behind it."""
        tokenizer = self.loaded.tokenizer
        examples = [self._filled(shown) + self.gap + label + self.behind for shown, label in self.shots[:shots]]
        asked = BETWEEN.join([*examples, self._filled(text)])
        whole = [tokenizer.prompt(asked + self.gap + label) for label in self.labels]
        # Where a label's first letters join the prompt's last in one token, that token counts as the label's.
        common = shared_start([tokenizer.prompt(asked), *whole])
        common = max(1, min(common, *(len(ids) - 1 for ids in whole)))
        return LabelPrompt(whole[0][:common], [ids[common:] for ids in whole], shots)

    def _filled(self, text: str) -> str:
        first, _, second = text.partition("\t")
        parts = {"text": text, "first": first, "second": second}
        return FIELD.sub(lambda found: parts[found[1]], self.head)

    def _fitting(self, text: str, prediction: Prediction, most: int | None = None) -> LabelPrompt | None:
        """The prompt with as many examples as fit, or `most`; None, and why, where not even the text does."""
        max_length, most = self.loaded.module.max_length, len(self.shots) if most is None else most
        prompt = self.prompt(text, most)
        if max_length is None or _length(prompt) <= max_length:
            return prompt
        # More examples are never shorter.
        fit = bisect_right(range(most), max_length, key=lambda shots: _length(self.prompt(text, shots)))
        if fit:
            return self.prompt(text, fit - 1)
        alone = _length(self.prompt(text, 0))
        prediction.problem = f"with a label it has {alone:,} tokens, but the model reads {max_length:,} at most"
        return None

    def _say_what_is_left_out(self, prompts: Sequence[LabelPrompt]) -> None:
        fewest = min((prompt.shots for prompt in prompts), default=len(self.shots))
        if fewest < len(self.shots):
            cut = sum(prompt.shots < len(self.shots) for prompt in prompts)
            warn(
                f"the model reads {self.loaded.module.max_length:,} tokens at most: {cut:,} of {len(prompts):,} "
                f"texts have fewer than the {len(self.shots):,} examples before them, as few as {fewest:,}"
            )

    def _scores(self, prompts: Sequence[LabelPrompt]) -> Tensor:
        """log P of every label behind every prompt (N, labels), divided by its tokens where that is wanted."""
        if not prompts:
            return torch.zeros(0, len(self.labels))
        scores = label_scores(self.loaded.module, prompts, self.loaded.tokenizer.pad_id or 0)
        if self.options.normalize:
            scores = scores / torch.tensor([[len(label) for label in prompt.labels] for prompt in prompts])
        return scores

    def _says_nothing(self, shots: int) -> Tensor:
        """log of the mean probability (labels,) that texts which say nothing give each label."""
        if shots not in self._bias:
            # Such a text may be longer than one that has just room behind its examples.
            fitting = [self._fitting(text, Prediction(text), shots) for text in SAYS_NOTHING]
            scores = self._scores([prompt for prompt in fitting if prompt is not None])
            if not len(scores):
                max_length = self.loaded.module.max_length
                raise ConfigError(
                    f"the model reads {max_length:,} tokens, too few to calibrate; leave out --calibrate"
                )
            self._bias[shots] = scores.softmax(1).mean(0).clamp(min=1e-30).log()
        return self._bias[shots]


def _length(prompt: LabelPrompt) -> int:
    """Tokens that the model reads: all but a label's last."""
    return len(prompt.ids) + max(map(len, prompt.labels)) - 1


def _check_labels(labels: Sequence[str]) -> None:
    if len(labels) < 2:
        raise ConfigError("a text is told by its label from others; give at least two: --labels good,bad")
    if not all(label.strip() for label in labels):
        raise ConfigError("a label is empty; write --labels good,bad")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if list(labels).count(label) > 1)
        raise ConfigError(f"the label '{twice}' is given twice")


@torch.no_grad()
def label_scores(model: SequenceModel, prompts: Sequence[LabelPrompt], padding: int = 0) -> Tensor:
    """log P of every label behind every prompt, (N, labels); each is read once, what all begin with once for all.

    Prompts are read side by side in order of their length.
    """
    scores = torch.zeros(len(prompts), len(prompts[0].labels))
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    shared, kept = _read_beginning(prompts, model)
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and _fit_together(end + 1 - start, prompts[order[end]], shared):
            end += 1
        chosen = order[start:end]
        scores[chosen] = _read([prompts[number] for number in chosen], model, padding, kept)
        check_finite(scores[chosen], model)
        start = end
    return scores


def _read_beginning(prompts: Sequence[LabelPrompt], model: SequenceModel) -> tuple[int, Tensor | None]:
    """How many tokens all prompts begin with, and what a state keeps of them, where that can be given to others."""
    # But for the last token of the shortest: each row has to read something.
    count = shared_start([prompt.ids[:-1] for prompt in prompts])
    if len(prompts) == 1 or count < WORTH:
        return 0, None
    state = model.start(1, count)
    model.prefill(Inputs.of([prompts[0].ids[:count]], model.device), state)
    kept = state.kept(0, count)
    return (0, None) if kept is None else (count, kept)


def _fit_together(rows: int, longest: LabelPrompt, shared: int) -> bool:
    """Whether so many prompts may be read side by side, of which that is the longest."""
    length = _length(longest)
    copies = max(1, sum(len(label) > 1 for label in longest.labels))
    return rows * (length - shared) <= TOKENS and rows * length * copies <= KEPT


def _read(prompts: Sequence[LabelPrompt], model: SequenceModel, padding: int, kept: Tensor | None) -> Tensor:
    """The scores of some prompts, read side by side; `kept` is what a state has of what all begin with."""
    device, rows = model.device, len(prompts)
    # What a state cannot give to others (a recurrent one) is read once for these.
    count = shared_start([prompt.ids[:-1] for prompt in prompts]) if kept is None else kept.shape[-2]
    shared = prompts[0].ids[:count] if kept is not None or (rows > 1 and count >= WORTH) else []
    rest = [prompt.ids[len(shared) :] for prompt in prompts]
    width = max(map(len, rest))
    capacity = len(shared) + width + max(len(label) for prompt in prompts for label in prompt.labels)
    state: Any = model.start(1 if shared and kept is None else rows, capacity)
    if kept is not None:
        state.restore(kept)
    elif shared:
        model.prefill(Inputs.of([shared], device), state)
        state.reorder(torch.zeros(rows, dtype=torch.long, device=device))
    logits = model.prefill(Inputs.of(rest, device, padding), state)
    logp = F.log_softmax(logits.float(), -1)  # (B, V)
    firsts = torch.tensor([[label[0] for label in prompt.labels] for prompt in prompts], device=device)
    scores = logp.gather(1, firsts)  # (B, labels)
    # Labels of several tokens go on, each in a row of its own.
    going = [(row, n, label) for row, p in enumerate(prompts) for n, label in enumerate(p.labels) if len(label) > 1]
    if not going:
        return scores.cpu()
    state.reorder(torch.tensor([row for row, _, _ in going], device=device))
    longest = max(len(label) for _, _, label in going)
    tokens = torch.tensor([label + [padding] * (longest - len(label)) for _, _, label in going], device=device)
    lengths = torch.tensor([len(label) for _, _, label in going], device=device)
    more = torch.zeros(len(going), device=device)
    for place in range(1, longest):
        logp = F.log_softmax(model.step(tokens[:, place - 1], state).float(), -1)
        more += logp.gather(1, tokens[:, place : place + 1]).squeeze(1) * (lengths > place)
    places = torch.tensor([[row, number] for row, number, _ in going], device=device)
    scores[places[:, 0], places[:, 1]] += more
    return scores.cpu()


def read_shots(
    source: str, labels: Sequence[str] | None = None, columns: Sequence[Column] | None = None
) -> list[tuple[str, str]]:
    """Examples: (text, label), in the order of the file; which columns were guessed is said.

    A file of two columns needs no header; where nothing tells them apart the second one has the labels.
    """
    if columns is not None and len(columns) not in (2, 3):
        raise ConfigError(f"--columns names {len(columns)} of them; say {COLUMNS}")
    guessed = False

    def choose(head: Head) -> list[Column]:
        nonlocal guessed
        if columns is not None:
            return named_by_number(head, columns)
        guessed = True
        try:
            return guess_columns(head, f"are text and label: {COLUMNS}, by name, or by number from 1")
        except DataError:
            if len(head.names) == 2 and head.separated:
                return [2, 1] if _labels_first(head.rows(), labels) else [1, 2]
            raise

    try:
        path = locate(source)
    except DataError:
        raise DataError(f"there is no file {source}; --shots needs a csv, tsv or jsonl file of examples") from None
    plain = path is not None and kind_of(path) == "text"
    table = read_table(source, choose, FileOptions(format="tsv") if plain else tabbed(source))
    if guessed:
        warn(f"{source}: {told_columns(table)}")
    shots = []
    numeric = are_numbers(table.columns[-1])
    for row, (*texts, label) in enumerate(zip(*table.columns, strict=True)):
        if is_missing(label, numeric) and str(label).strip() not in (labels or ()):
            what = f"an example needs a text and a label, and {told_missing(label)}"
            raise DataError(f"{table.where(row)}: {what}; complete or remove it")
        text, name = ("\t".join(map(_stripped, part)) for part in (texts, [label]))
        if not text.strip() or not name:
            raise DataError(f"{table.where(row)}: an example needs a text and a label")
        if labels is not None and name not in labels:
            other = f", or name the columns: {COLUMNS}" if guessed else ""
            near = suggest(name, labels)
            raise DataError(f"{table.where(row)}: the label '{name}' is none of --labels; {near}{other}")
        shots.append((text, name))
    if not shots:
        raise DataError(f"{source} holds no examples")
    return shots


def _labels_first(rows: Sequence[Sequence[str]], labels: Sequence[str] | None) -> bool:
    """Of rows of two fields: whether the first ones are labels, since they are known, or since they are numbers."""
    first, second = ([row[place].strip() for row in rows if len(row) > 1] for place in (0, 1))
    tests: list[Callable[[str], bool]] = [is_number]
    if labels is not None:
        tests.insert(0, lambda value: value in labels)
    for test in tests:
        if all(map(test, first)) != all(map(test, second)):
            return all(map(test, first))
    return False


def _stripped(value: Any) -> str:
    return "" if value is None else str(value).strip()
