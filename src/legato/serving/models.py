"""The models of a server, each by its name, and what serves them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from legato.decoding import SearchOptions
from legato.decoding.constraints import check_constraint
from legato.decoding.emitter import Generated
from legato.errors import ConfigError, suggest
from legato.folders.quantized import into_memory
from legato.memory import trim
from legato.model import Model
from legato.registry import TASKS
from legato.schema import to_json
from legato.serving.app import Refusal, without_place
from legato.serving.batcher import Batcher, Run
from legato.serving.scheduler import PATIENCE, PREFIXES, QUEUE, Listener, QueueFull, Scheduler, TextRequest
from legato.serving.transport.departures import Gone
from legato.serving.transport.text_limits import TOKEN_BYTES, TOKEN_CHARACTERS, TextLimits, token_counts

MOST_TOKENS: Final = 4096  # that a text may have
BATCH_WORK: Final = {"cpu": 2048, "cuda": 16384}  # tokens of a batch, by device
MOST_SCHEMAS: Final = 64  # that wait to be read
CLOSING: Final = 30.0  # seconds that threads have to end
# Tokens of a request that is short, and of a long one; what has more is very long. Each kind has a thread of its own,
# so that the short ones do not wait for the others.
LONG_WORK: Final = (256, 8192)


class _SchemaReader:
    """Where schemas are read, which takes a while: nobody waits for it but those whose requests have one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "legato-schemas")
        self._waiting = 0

    async def read(self, options: SearchOptions, submit: Callable[[], TextRequest]) -> TextRequest:
        if self._waiting >= MOST_SCHEMAS:
            raise QueueFull(self._waiting, self._waiting)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._submit, options, submit)
        finally:
            self._waiting -= 1

    def _submit(self, options: SearchOptions, submit: Callable[[], TextRequest]) -> TextRequest:
        check_constraint(options)
        return submit()


_SCHEMAS: Final = _SchemaReader()


class Served:
    """A model that is served."""

    base: Served | None = None  # of an adapter (adapters.py), the model that it shares

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        rows: int | None = None,
        queue: int = QUEUE,
        patience: float = PATIENCE,
        most_tokens: int = MOST_TOKENS,
        input_tokens: int | None = None,
        prefix_bytes: int = PREFIXES,
    ) -> None:
        into_memory(model.module)
        self.name, self.model = name, model
        self.created = int(time.time())
        self.most_tokens = most_tokens
        kept = {"rows": rows, "queue": queue, "patience": patience, "prefix_bytes": prefix_bytes}
        self.limits: dict[str, Any] = kept  # whoever shares it has the same
        self._scheduler: Scheduler | None = None
        self.input_limits = TextLimits.of(model.module, input_tokens)
        self.prompt_limits = self.input_limits.for_prompts(model.module)
        self._batchers: dict[int, Batcher] = {}  # by how long their requests are
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

    async def submit(
        self, prompt: Sequence[int], options: SearchOptions, listener: Listener, **how: Any
    ) -> TextRequest:
        """Let texts be written, as the scheduler does; a schema is read without the event loop."""
        submit = partial(self.scheduler().submit, prompt, options, listener, model=self.model, **how)
        return submit() if options.json_schema is None else await _SCHEMAS.read(options, submit)

    def cancel(self, request: TextRequest) -> None:
        """No client waits for these texts any longer."""
        self.scheduler().cancel(request)

    async def embed(self, texts: Sequence[str], gone: Gone) -> tuple[Any, int]:
        """A vector for each text (N, D), and how many tokens were read."""
        tokenizer, most = self.model.tokenizer, self.model.module.max_length

        def lengths() -> list[int]:
            if most is None:
                return [length for length, _ in self.input_limits.input_lengths(texts, tokenizer, "input")]
            return list(token_counts(texts, tokenizer))

        if most is not None:  # what is beyond would be cut off, once all of it is tokens
            texts = [text[: TOKEN_CHARACTERS * most] for text in texts]
        counts = await asyncio.to_thread(lengths)
        read = counts if most is None else [min(count, most) for count in counts]
        costs = list(map(self.cost, read))
        vectors = await self._batched(texts, costs, "embed", lambda some: list(self.model.embed(some)), gone)
        return np.stack(vectors), sum(counts)

    async def predict(
        self, inputs: Sequence[Any], options: Mapping[str, Any], gone: Gone, task: str | None = None
    ) -> list[dict[str, Any]]:
        """What `legato predict --json` gives of each input; `task` is one of several that a model has."""
        model = self.member(task)
        tokenizer = model.loaded.tokenizer if model.loaded.processors.has_text else None
        lengths = await asyncio.to_thread(self.input_limits.input_lengths, inputs, tokenizer, "inputs")
        if model.module.is_encoder_decoder:  # as much is written as is read, in each of the beams
            beams, most = options.get("beams") or 1, options.get("max_tokens")
            lengths = [
                ((length + (most or length)) * beams, files * beams * (1 if most else 2)) for length, files in lengths
            ]
        costs = [self.cost(length) + files for length, files in lengths]

        def run(some: list[Any]) -> list[dict[str, Any]]:
            return [prediction.as_json() for prediction in model.predictions(some, **options)]

        kind = ("predict", task, to_json(dict(sorted(options.items()))))
        return await self._batched(inputs, costs, kind, run, gone)

    async def talk(self, prompt: list[int], picture: bytes, options: SearchOptions, gone: Gone) -> list[Generated]:
        """What is answered to a dialogue about a picture, `options.nbest` times."""

        def run(some: list[tuple[list[int], bytes]]) -> list[list[Generated]]:
            prompts, pictures = zip(*some, strict=True)
            return self.model.hypotheses(prompts, options, images=pictures)

        # What is drawn depends on the row that it is drawn for, so it is drawn alone.
        kind = ("talk", options) if options.search == "greedy" else object()
        cost = self.cost(len(prompt) + options.max_tokens * options.nbest) + len(picture) // TOKEN_BYTES
        (answer,) = await self._batched([(prompt, picture)], [cost], kind, run, gone)
        return list(answer)

    def member(self, task: str | None) -> Model:
        """The model, or what it is for one of its several tasks."""
        with self._lock:
            if task not in self._members:
                several = TASKS.get(self.model.task).members(self.model.loaded)
                self._members[task] = self.model.for_task(task) if several else self.model
            return self._members[task]

    async def _batched(
        self, inputs: Sequence[Any], costs: Sequence[float], kind: Any, run: Run, gone: Gone
    ) -> list[Any]:
        long = sum(sum(costs) > bound for bound in LONG_WORK)
        with self._lock:
            if long not in self._batchers:
                self._batchers[long] = Batcher(
                    self.name,
                    work=BATCH_WORK.get(self.model.device.type, BATCH_WORK["cuda"]),
                    queue=self.limits["queue"],
                    patience=self.limits["patience"],
                    idle=trim if long else None,
                )
            batcher = self._batchers[long]
        return await batcher.outcome(batcher.submit(inputs, kind, run, costs), gone)

    def cost(self, length: int) -> float:
        """What a text of so many tokens takes, in tokens alone: attention goes by their square, within what is read
        at once. Of a token each layer's matrices take 12 D² products, and its attention 2 n D.
        """
        config, most = self.model.module.config, self.model.module.max_length
        width = getattr(config, "width", None) if config.network == "attention" else None
        return length if width is None else length * (1 + min(length, most or length) / (6 * width))

    def warm_up(self) -> None:
        """Do once what each first request would wait for: kernels are compiled, tables are made."""
        if self.model.generates:
            self.model.generate([0], max_tokens=2)

    def load(self) -> tuple[int, int]:
        """Texts and other inputs that are being worked on, and that wait."""
        loads = [each.load() for each in self._threads()]
        return sum(running for running, _ in loads), sum(waiting for _, waiting in loads)

    @property
    def broken(self) -> bool:
        """Whether a thread of it has ended by a fault."""
        return any(each.broken for each in self._threads())

    def close(self, *, drain: bool = True, until: float | None = None) -> bool:
        """End its threads, by a moment of the monotonic clock at most; whether they have ended."""
        until = time.monotonic() + CLOSING if until is None else until
        ended = [each.close(drain=drain, seconds=max(0, until - time.monotonic())) for each in self._threads()]
        return all(ended)

    def _threads(self) -> list[Scheduler | Batcher]:
        with self._lock:
            return [*([] if self._scheduler is None else [self._scheduler]), *self._batchers.values()]


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

    @property
    def broken(self) -> list[str]:
        """The names of those that answer no more."""
        return [served.name for served in self if served.broken]

    def close(self, *, drain: bool = True, until: float | None = None) -> bool:
        """End all threads, by a moment of the monotonic clock at most; whether they have ended."""
        ended = [served.close(drain=drain, until=until) for served in self]
        return all(ended)
