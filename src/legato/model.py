"""The model that people hold: weights, tokenizer and task in one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from legato.config import validate
from legato.data.tokenizers import StreamDecoder
from legato.decoding import Hypothesis, SearchOptions, cut_at_stop, search
from legato.errors import ConfigError, LegatoError, suggest
from legato.folders.model_folder import Loaded, find_model, load_model
from legato.models.base import count_parameters
from legato.registry import TASKS
from legato.tasks.base import Prediction
from legato.training.devices import choose_device


@dataclass
class Generated:
    """One text that a model wrote."""

    text: str  # without the prompt
    tokens: list[int]
    score: float  # what the search ranked by: log-probability, normalised by length
    logprob: float
    finished: bool  # by an end mark or stop string, not by the limit


class Model:
    """A trained model. Get one with `legato.load`.

    >>> model = legato.load("runs/x")                                   # doctest: +SKIP
    >>> model.generate("The ", search="sample", top_p=0.9)              # doctest: +SKIP
    """

    def __init__(self, loaded: Loaded, device: torch.device) -> None:
        self.loaded = loaded
        self.folder = loaded.folder
        self.module = loaded.module.to(device)
        self.tokenizer = loaded.tokenizer
        self.task = loaded.task
        self.about = loaded.about
        self.device = device

    def __repr__(self) -> str:
        return f"Model({self.folder}, {self.module.config.name}, {count_parameters(self.module):,} parameters)"

    def generate(self, prompt: str | Sequence[str] = "", **options: Any) -> Any:
        """Continue a text, or each of several. Options as in `legato generate`: search, beams, top_p, …

        Returns the text written after the prompt; a list of texts for a list of prompts; with
        `nbest` > 1 a list for each.
        """
        many = [prompt] if isinstance(prompt, str) else list(prompt)
        checked = validate(SearchOptions, options)
        texts = [[g.text for g in found] for found in self.hypotheses(many, checked)]
        shaped: list[Any] = [found[0] if checked.nbest == 1 else found for found in texts]
        return shaped[0] if isinstance(prompt, str) else shaped

    def hypotheses(
        self, prompts: Sequence[str], options: SearchOptions, on_token: Any = None
    ) -> list[list[Generated]]:
        """What the search found for each prompt, best first, with scores."""
        self.check_generates()
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        found = self._search(ids, options, on_token)
        return [[self._finish(start, h, options) for h in best] for start, best in zip(ids, found, strict=True)]

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """Yield the text piece by piece as it is written (greedy and sample only)."""
        import queue
        import threading

        checked = validate(SearchOptions, options)
        self.check_generates()
        pieces: queue.Queue[str | BaseException | None] = queue.Queue()

        def work() -> None:
            try:
                self.write(prompt, checked, pieces.put)
                pieces.put(None)
            except BaseException as problem:
                pieces.put(problem)

        threading.Thread(target=work, daemon=True).start()
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def write(self, prompt: str, options: SearchOptions, emit: Any) -> Generated:
        """Generate one text, handing each piece to `emit` as soon as it is certain."""
        self.check_generates()
        if options.nbest > 1:
            raise LegatoError(f"one text is written at a time; nbest={options.nbest} needs generate")
        start = self.prompt_ids(prompt)
        decoder = StreamDecoder(self.tokenizer, after=start)
        out = _Emitter(options.stop, emit)

        def on_token(row: int, token: int) -> None:
            out.push(decoder.push(token))

        found = self._search([start], options, on_token)
        out.push(decoder.finish())
        out.finish()
        return self._finish(start, found[0][0], options)

    def prompt_ids(self, prompt: str) -> list[int]:
        """The prompt as tokens, behind the mark that starts a text."""
        return [self.tokenizer.eos_id, *self.tokenizer.encode(prompt).tolist()]

    def evaluate(self, **data: Any) -> dict[str, Any]:
        """The task's scores, as `legato eval`: `model.evaluate(test="c.txt")`."""
        task = TASKS.get(self.task)
        checked = validate(task.Data, data, "data")
        with torch.no_grad():
            scores: dict[str, Any] = task.evaluate(self.loaded, checked)
        return scores

    def predict(self, text: str | Sequence[str], **options: Any) -> Any:
        """What the model's task makes of a text, or of each of several: a translation, a tree, …

        Options as in `legato predict`: beams, nbest, … Returns the best answer's text; a list of texts for a
        list; with `nbest` > 1 a list for each.

        >>> legato.load("runs/en-de").predict(["A dog runs."], beams=4)      # doctest: +SKIP
        ['Ein Hund rennt.']
        """
        many = [text] if isinstance(text, str) else list(text)
        shaped: list[Any] = []
        for number, prediction in enumerate(self.predictions(many, **options), start=1):
            if prediction.problem is not None:
                where = "" if isinstance(text, str) else f"text {number}: "
                raise LegatoError(where + prediction.problem)
            texts = [answer.text for answer in prediction.answers]
            shaped.append(texts if int(options.get("nbest", 1)) > 1 else texts[0])
        return shaped[0] if isinstance(text, str) else shaped

    def predictions(self, texts: Sequence[str], **options: Any) -> list[Prediction]:
        """The same with scores and all else that the task tells; a text may have a problem instead of answers."""
        task = TASKS.get(self.task)
        if not hasattr(task, "predict"):
            raise LegatoError(f"{self.folder} is a model for {self.task}, which generates: use legato generate")
        for name in options:
            if name not in task.Options.model_fields:
                raise ConfigError(f"{self.task} has no option '{name}'; {suggest(name, task.Options.model_fields)}")
        with torch.no_grad():
            found: list[Prediction] = task.predict(self.loaded, texts, validate(task.Options, options))
        return found

    def _search(self, prompts: list[list[int]], options: SearchOptions, on_token: Any) -> list[list[Hypothesis]]:
        return search(
            self.module,
            prompts,
            options,
            eos=self.tokenizer.eos_id if self.tokenizer.ends_text else None,
            text_of=self.tokenizer.decode,
            on_token=on_token,
        )

    def _finish(self, start: list[int], hypothesis: Hypothesis, options: SearchOptions) -> Generated:
        # Decoded behind the prompt, so that a word keeps the space before it.
        decoder = StreamDecoder(self.tokenizer, after=start)
        written = "".join(decoder.push(token) for token in hypothesis.tokens) + decoder.finish()
        text, _ = cut_at_stop(written, options.stop)
        return Generated(text, hypothesis.tokens, hypothesis.score, hypothesis.logprob, hypothesis.finished)

    def check_generates(self) -> None:
        """Refuse a model that does not continue texts."""
        if self.module.reads_source:
            raise LegatoError(f"{self.folder} turns one text into another: use legato predict")
        if not self.module.generates:
            raise LegatoError(f"{self.folder} holds a model that reads both ways, so it cannot generate")


class _Emitter:
    """Passes text on, but never the part of a stop string that has begun."""

    def __init__(self, stops: Sequence[str], emit: Any) -> None:
        self.stops, self.emit = stops, emit
        self.held, self.done = "", False

    def push(self, text: str) -> None:
        if self.done:
            return
        self.held += text
        self.held, self.done = cut_at_stop(self.held, self.stops)
        safe = len(self.held) if self.done else len(self.held) - self._beginning()
        if safe:
            self.emit(self.held[:safe])
            self.held = self.held[safe:]

    def finish(self) -> None:
        if self.held and not self.done:
            self.emit(self.held)

    def _beginning(self) -> int:
        """How much of the held text might be the start of a stop string."""
        return max((n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n])), default=0)


def load(place: str | Path, device: str = "auto") -> Model:
    """A model from a model folder or a run folder (its `best`, or `last`)."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Model(load_model(find_model(place)), chosen)
