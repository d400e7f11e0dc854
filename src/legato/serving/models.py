"""The models of a server, each by its name, and what serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from legato.decoding import SearchOptions
from legato.errors import ConfigError, suggest
from legato.folders.quantized import into_memory
from legato.model import Generated, Model
from legato.registry import TASKS
from legato.schema import to_json
from legato.serving.app import Refusal, without_place
from legato.serving.batcher import Batcher, Run
from legato.serving.scheduler import PATIENCE, PREFIXES, QUEUE, ROWS, Scheduler

MOST_TOKENS: Final = 4096  # that a text may have
LETTERS: Final = 64  # of a token, in texts that are read at all: there are few so long, and none is of these alone

Gone = Callable[[], Awaitable[bool]]
"""Whether the client of a request has gone away."""


class Served:
    """A model that is served."""

    base: Served | None = None  # of an adapter (adapters.py), the model that it shares

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        rows: int = ROWS,
        queue: int = QUEUE,
        patience: float = PATIENCE,
        most_tokens: int = MOST_TOKENS,
        prefix_bytes: int = PREFIXES,
    ) -> None:
        into_memory(model.module)
        self.name, self.model = name, model
        self.created = int(time.time())
        self.most_tokens = most_tokens
        kept = {"rows": rows, "queue": queue, "patience": patience, "prefix_bytes": prefix_bytes}
        self.limits: dict[str, Any] = kept  # whoever shares it has the same
        self._scheduler: Scheduler | None = None
        self._batcher: Batcher | None = None
        self._members: dict[str | None, Model] = {}
        self._lock = threading.Lock()

    def without_places(self, line: str) -> str:
        """A message in which this model goes by its name, and not by where its folder lies."""
        line = without_place(line, str(self.model.folder), self.name)
        return line if self.base is None else self.base.without_places(line)

    def scheduler(self) -> Scheduler:
        """What writes; refused for a model that does not."""
        with self._lock:
            if self._scheduler is None:
                self._scheduler = Scheduler(self.model, **self.limits)
            return self._scheduler

    def check_letters(self, letters: int) -> None:
        """Refuse a prompt of so many characters that to count its tokens would take long, and they would not fit."""
        most = self.model.module.max_length
        if most is not None and letters > LETTERS * most:
            raise ConfigError(
                f"the prompt has {letters:,} characters, but the model reads {most:,} tokens at most: shorten it"
            )

    async def embed(self, texts: Sequence[str], gone: Gone) -> tuple[Any, int]:
        """A vector for each text (N, D), and how many tokens were read."""
        encode, most = self.model.tokenizer.encode, self.model.module.max_length
        if most is not None:  # what is beyond would be cut off, once all of it is tokens
            texts = [text[: LETTERS * most] for text in texts]

        def run(some: list[str]) -> list[tuple[Any, int]]:
            return [(vector, len(encode(text))) for vector, text in zip(self.model.embed(some), some, strict=True)]

        answers = await self._batched(texts, "embed", run, gone)
        return np.stack([vector for vector, _ in answers]), sum(count for _, count in answers)

    async def predict(
        self, inputs: Sequence[Any], options: Mapping[str, Any], gone: Gone, task: str | None = None
    ) -> list[dict[str, Any]]:
        """What `legato predict --json` gives of each input; `task` is one of several that a model has."""
        model = self.member(task)

        def run(some: list[Any]) -> list[dict[str, Any]]:
            return [prediction.as_json() for prediction in model.predictions(some, **options)]

        return await self._batched(inputs, ("predict", task, to_json(dict(sorted(options.items())))), run, gone)

    async def talk(self, prompt: list[int], picture: bytes, options: SearchOptions, gone: Gone) -> list[Generated]:
        """What is answered to a dialogue about a picture, `options.nbest` times."""

        def run(some: list[tuple[list[int], bytes]]) -> list[list[Generated]]:
            prompts, pictures = zip(*some, strict=True)
            return self.model.hypotheses(prompts, options, images=pictures)

        # What is drawn depends on the row that it is drawn for, so it is drawn alone.
        kind = ("talk", options) if options.search == "greedy" else object()
        (answer,) = await self._batched([(prompt, picture)], kind, run, gone)
        return list(answer)

    def member(self, task: str | None) -> Model:
        """The model, or what it is for one of its several tasks."""
        with self._lock:
            if task not in self._members:
                several = TASKS.get(self.model.task).members(self.model.loaded)
                self._members[task] = self.model.for_task(task) if several else self.model
            return self._members[task]

    async def _batched(self, inputs: Sequence[Any], kind: Any, run: Run, gone: Gone) -> list[Any]:
        with self._lock:
            if self._batcher is None:
                self._batcher = Batcher(self.name, queue=self.limits["queue"], patience=self.limits["patience"])
            batcher = self._batcher
        return await batcher.outcome(batcher.submit(inputs, kind, run), gone)

    def warm_up(self) -> None:
        """Do once what each first request would wait for: kernels are compiled, tables are made."""
        if self.model.generates:
            self.model.generate([0], max_tokens=2)

    def load(self) -> tuple[int, int]:
        """Texts and other inputs that are being worked on, and that wait."""
        running, waiting = (0, 0) if self._scheduler is None else self._scheduler.load()
        if self._batcher is not None:
            more = self._batcher.load()
            running, waiting = running + more[0], waiting + more[1]
        return running, waiting

    def close(self, *, drain: bool = True) -> None:
        for each in (self._scheduler, self._batcher):
            if each is not None:
                each.close(drain=drain)


class ServedModels:
    """By name; a name that nobody has is refused with the nearest."""

    def __init__(self, served: list[Served]) -> None:
        self._by_name: dict[str, Served] = {}
        self._also: dict[str, Served] = {}  # adapters behind the names of their bases
        for each in served:
            if each.name in self._by_name:
                raise ConfigError(f"two models are called '{each.name}'; name one of them: OTHER={each.model.folder}")
            self._by_name[each.name] = each
        for each in served:
            if each.base is not None:
                self._also.setdefault(f"{each.base.name}:{each.name}", each)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Served:
        if name in self._also and name not in self._by_name:
            return self._also[name]
        if name not in self._by_name:
            told = f"there is no model '{name}'; {suggest(name, self._by_name)}"
            raise Refusal(404, told, "model", "model_not_found")
        return self._by_name[name]

    def without_places(self, line: str) -> str:
        """A message in which models go by their names: where their folders lie is nobody's business."""
        for served in self:
            line = served.without_places(line)
        return line

    def close(self, *, drain: bool = True) -> None:
        for served in self:
            served.close(drain=drain)
