"""The runner: reads tokens with the model and chooses the next ones, on the model's device.

A step in which each row reads one token has fixed shapes for so many rows, so on CUDA it is recorded once as a graph
and replayed; steps that read prompts are run as they are. Where nothing can be recorded, all are: that is the plain
twin, and a warning says why, once.

What was chosen is written down in a ring of `2 · SYNC_EVERY` steps, which the host reads while the next steps run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.decoding.row_settings import Level
from legato.decoding.sampler import Sampler
from legato.errors import warn
from legato.nn.adapters.lora_by_row import AdapterRows, adapter_rows
from legato.nn.block_cache import KVCache, Reading, upload
from legato.nn.kernels.cuda import has_kernels
from legato.nn.kernels.recording import failure_reason, record

SYNC_EVERY: Final = 16  # steps between two looks of the host, at most
SHALLOW: Final = 256  # tokens of a row up to which the shallowest steps are recorded

Chosen = Callable[[], np.ndarray[Any, Any]]  # (steps, 5, M), once the device has made them


class Runner:
    """A model, its cache, and the batch's tokens on the device: for rows 0 to `rows`."""

    def __init__(self, model: Any, cache: KVCache, sampler: Sampler, recorded: bool) -> None:
        self.model, self.cache, self.sampler = model, cache, sampler
        self.device, rows = cache.device, cache.rows
        self.tokens = torch.zeros(rows, dtype=torch.long, device=self.device)  # the last of each row, not read yet
        self._last = min(cache.capacity, model.max_length or cache.capacity) - 1
        self._counts = torch.arange(rows + 1, dtype=torch.int32, device=self.device)
        self._logs = recorded  # else each step comes to the host as it is
        self._log = torch.zeros(2 * SYNC_EVERY, 5, rows, device=self.device)
        self._turn = torch.zeros(1, dtype=torch.long, device=self.device)
        self._made = 0
        self._recorded = recorded and self.device.type == "cuda"
        # By rows, depth and level; without one the tokens are not chosen. None: it cannot be recorded.
        self._graphs: dict[tuple[int, int, Level | None], Any] = {}
        self._logits: dict[tuple[int, int], Tensor] = {}  # by rows and depth, where a recording leaves them
        self._pool: Any = None
        self._copies = [self._log.cpu().pin_memory() for _ in range(2)] if self.device.type == "cuda" else []
        self._looks = 0
        self._adapters: AdapterRows | None = None  # of the last step

    def reset(self) -> None:
        """Forget all rows."""
        self.cache.forget()
        self.cache.lengths.zero_()
        self._turn.zero_()
        self._made = 0

    @torch.no_grad()
    def prepare(self) -> None:
        """Record the steps that most searches take, before somebody waits for them."""
        rows = [1 << n for n in range((self.cache.rows - 1).bit_length() + 1)]
        for count, level in product(reversed(rows), (Level.TAKEN, Level.DRAWN)):
            for depth in (SHALLOW, 2 * SHALLOW, 4 * SHALLOW):
                if depth <= self.cache.capacity:
                    self._recorded_or_not((count, depth, level), partial(self._write, count, depth, level))

    @torch.no_grad()
    def write(
        self,
        steps: int,
        rows: int,
        deepest: int,
        level: Level,
        masks: Mapping[int, NDArray[np.bool_]] | None = None,
        adapters: Sequence[int] = (),
    ) -> Chosen:
        """Let the first `rows` rows read and choose a token in each of so many steps, up to SYNC_EVERY.

        With `masks` (V,) of some rows, it is one step, in which they choose of what these allow. `adapters` are the
        rows', where some have one.
        """
        self.cache.flush()
        depth = SHALLOW
        while depth < min(deepest, self.cache.capacity):
            depth *= 2
        depth = min(depth, self.cache.capacity)
        with adapter_rows(self._adapter_rows(adapters)):
            if masks or not self._logs:
                logits = self._forward(rows, depth)
                chosen = self._choose(rows, level, logits, self._allowed(rows, masks) if masks else None)
                if not self._logs:
                    on_host = chosen.unsqueeze(0).numpy()
                    return lambda: on_host
            else:
                step = self._recorded_or_not((rows, depth, level), partial(self._write, rows, depth, level))
                for _ in range(steps):
                    step()
        turns = [(self._made + n) % len(self._log) for n in range(steps)]
        self._made += steps
        if self.device.type != "cuda":
            made = self._log[turns, :, :rows].numpy()
            return lambda: made
        copy, done = self._copies[self._looks % 2], torch.cuda.Event()
        self._looks += 1
        copy.copy_(self._log, non_blocking=True)
        done.record()

        def wait() -> np.ndarray[Any, Any]:
            done.synchronize()
            return copy.numpy()[turns][:, :, :rows]

        return wait

    @torch.no_grad()
    def read(
        self, ids: Sequence[int], counts: Sequence[int], rows: Sequence[int], last: Sequence[int], level: Level,
        choosing: Sequence[tuple[int, int]], masks: Mapping[int, NDArray[np.bool_]] | None = None,
        adapters: Sequence[int] = (),
    ) -> Chosen:  # fmt: skip
        """Let rows read the next tokens of their prompts, or the one they have chosen, where `ids` has −1.

        `counts` are how many each reads, `last` how many it has then. `choosing` are those that choose a token after
        it, each a number among `rows` and the row whose token it is; `masks` (V,) are of some of those, by their
        number among `choosing`.
        """
        cache, device = self.cache, self.device
        cache.flush()
        starts = np.cumsum([0, *counts])
        before = np.array(last) - np.array(counts)
        positions = np.arange(len(ids)) + np.repeat(before - starts[:-1], counts)
        owners = np.repeat(np.array(rows), counts)
        numbers = np.zeros((3, len(ids) + len(ids) % 2), dtype=np.int64)  # each begins at 16 bytes: see `tiles_of`
        numbers[:, : len(ids)] = ids, positions, owners
        ids_there, positions_there, owners_there = upload(numbers, device)[:, : len(ids)]
        writes = np.isin(np.arange(len(rows)), [number for number, _ in choosing])  # others have no length yet
        lengths_then = np.where(writes, np.minimum(last, self._last), 0)
        places, lengths = upload(np.array([rows, lengths_then], dtype=np.int64), device)
        tokens = torch.where(ids_there < 0, self.tokens[owners_there], ids_there)
        slots = cache.table.view(-1)[owners_there * cache.capacity + positions_there]
        reading = Reading(
            upload(starts.astype(np.int32), device), positions_there, slots, cache.table[places], max(counts),
            max(last), (starts, before),
        )  # fmt: skip
        with adapter_rows(self._adapter_rows(adapters)):
            logits = self.model.read_rows(tokens, reading, cache)
        cache.lengths.index_copy_(0, places, lengths)
        if not choosing:
            return lambda: np.empty((1, 5, 0), dtype=np.float32)
        which, who = upload(np.array(choosing, dtype=np.int64).T.copy(), device)
        how = self.sampler.parameters.at(who)
        if [number for number, _ in choosing] != list(range(len(rows))):
            logits = logits[which]
        made = self.sampler(logits, how, level, self._allowed(len(choosing), masks) if masks else None)
        self._take(made, who, how)
        if device.type != "cuda":
            on_host = made.unsqueeze(0).numpy()
            return lambda: on_host
        copy, done = torch.empty(made.shape, pin_memory=True), torch.cuda.Event()
        copy.copy_(made, non_blocking=True)
        done.record()

        def wait() -> np.ndarray[Any, Any]:
            done.synchronize()
            return copy.unsqueeze(0).numpy()

        return wait

    def _take(self, made: Tensor, who: Tensor, how: Any) -> None:
        """Rows (M,) have chosen."""
        chosen = made[0].long()
        self.tokens.index_copy_(0, who, chosen)
        self.sampler.parameters.written.index_copy_(0, who, how.written + 1)
        if (seen := self.sampler.parameters.seen) is not None:
            seen[who, chosen] = True

    @torch.no_grad()
    def move(self, places: Sequence[int], to: Sequence[int]) -> None:
        """Rows go on in other places, which nobody has."""
        for one, other in zip(places, to, strict=True):
            self.cache.move(one, other)
        source, target = upload(np.array([places, to], dtype=np.int64), self.device)
        for part in (self.cache.lengths, self.tokens):
            part.index_copy_(0, target, part[source])
        self.cache.lengths.index_fill_(0, source, 0)
        self.sampler.move(source, target, places, to)

    @torch.no_grad()
    def leave(self, places: Sequence[int]) -> None:
        """Rows have ended."""
        for place in places:
            self.cache.leave(place)
        self.cache.lengths.index_fill_(0, upload(np.array(places, dtype=np.int64), self.device), 0)

    def _adapter_rows(self, adapters: Sequence[int]) -> AdapterRows | None:
        """Whose each row is, for the model; None: all are the base's."""
        if not any(adapters):
            return None
        if self._adapters is None or self._adapters.rows != tuple(adapters):
            self._adapters = AdapterRows(adapters)
        return self._adapters

    def _recorded_or_not(self, key: tuple[int, int, Level | None], body: Callable[[], Any]) -> Callable[[], Any]:
        """What does a step: a replay, where it can be recorded."""
        if not self._recorded:
            return body
        if key not in self._graphs:
            self._graphs[key] = self._record(body)
        graph = self._graphs[key]
        return body if graph is None else graph.replay

    def _forward(self, rows: int, depth: int) -> Tensor:
        """Logits (rows, V) of one step."""

        def body() -> None:
            self._logits[rows, depth] = self._read_one(rows, depth)

        self._recorded_or_not((rows, depth, None), body)()
        return self._logits[rows, depth]

    def _allowed(self, rows: int, masks: Mapping[int, NDArray[np.bool_]]) -> Tensor:
        """What rows may write (rows, V), where some have masks."""
        allowed = torch.ones(rows, self.sampler.vocabulary, dtype=torch.bool, device=self.device)
        places = upload(np.array(list(masks), dtype=np.int64), self.device)
        allowed.index_copy_(0, places, upload(np.stack(list(masks.values())), self.device))
        return allowed

    def _record(self, body: Callable[[], None]) -> Any:
        """A graph of a step. What is there stays: a recording runs the step a few times."""
        parameters = self.sampler.parameters
        changing = [self.cache.lengths, self.tokens, self._turn, parameters.written]
        changing += [] if parameters.seen is None else [parameters.seen]
        before = [part.clone() for part in changing]
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = None
        try:
            graph = record(body, self.device, pool=self._pool)
        except torch.OutOfMemoryError:
            warn_once("the device's memory does not hold it")
        except RuntimeError as problem:
            warn_once(failure_reason(problem))
        if graph is None:
            torch.cuda.synchronize()  # what was run to warm up may write still
            self._pool = None  # of which a recording that failed may have left parts
        for part, old in zip(changing, before, strict=True):
            part.copy_(old)
        return graph

    def _write(self, rows: int, depth: int, level: Level) -> None:
        self._choose(rows, level, self._read_one(rows, depth), None)

    def _read_one(self, rows: int, depth: int) -> Tensor:
        """Let each row read its last token: logits (rows, V)."""
        lengths, tables = self.cache.lengths[:rows], self.cache.table[:rows]
        # Whoever has no length, since nobody has the row or it reads its prompt, writes into nobody's slot.
        slots = tables.gather(1, lengths[:, None])[:, 0] * (lengths > 0)
        reading = Reading(self._counts[: rows + 1], lengths, slots, tables, 1, depth)
        logits: Tensor = self.model.read_rows(self.tokens[:rows], reading, self.cache)
        return logits

    def _choose(self, rows: int, level: Level, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """Let each row choose its next token; what the sampler has made."""
        lengths = self.cache.lengths[:rows]
        how = self.sampler.parameters.at(slice(0, rows))
        made = self.sampler(logits, how, level, allowed)
        if how.seen is not None:
            how.seen.scatter_(-1, made[0].long()[:, None], True)
        if made.is_cuda and has_kernels():
            from legato.nn.kernels.cuda.choice import advance_rows

            advance_rows(made.contiguous(), self._log, self._turn, self.tokens, how.written, lengths, self._last)
        else:
            self._advance(made, how.written, lengths)
        return made

    def _advance(self, made: Tensor, written: Tensor, lengths: Tensor) -> None:
        """Rows have chosen: write it down, and go on."""
        rows = len(lengths)
        if self._logs:
            self._log[:, :, :rows].index_copy_(0, self._turn, made.unsqueeze(0))
            self._turn.add_(1).remainder_(len(self._log))
        self.tokens[:rows] = made[0].long()
        alive = lengths > 0
        written.add_(alive)
        # A row that nobody has stays empty; one that has ended stays within the cache until the host has seen it.
        lengths.copy_((lengths + alive).clamp_(max=self._last))


_WARNED: set[str] = set()


def warn_once(reason: str) -> None:
    if reason not in _WARNED:
        _WARNED.add(reason)
        warn(f"steps of this search are not recorded as a CUDA graph: {reason}")
