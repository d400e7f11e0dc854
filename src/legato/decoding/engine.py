"""The engine: requests are added, a step advances all that are alive, and they finish, are cancelled, make room.

Each prompt is searched as its options say (`frontier.py`), in one of two kinds of *lane*, a batch with its state:

- `HostLane`: the host sees each step's candidates before the next one. Every option and every model can go this way,
  and all requests share it, however they are searched;
- `DeviceLane`: on CUDA, tokens, scores and draws stay on the device and a step is a recorded graph. There is one for
  all greedy searches and random walks, whatever their filters, penalties and stop strings, and one for beams that are
  searched alike. The host looks once every few steps, while the next ones run, and cuts what was written past an end.

`search` is the engine with one call's requests; both ways write the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from legato.decoding.batch import Batch
from legato.decoding.frontier import Constraint, Hypothesis, LogitsProcessor
from legato.decoding.lanes.device_lane import DeviceLane
from legato.decoding.lanes.host_lane import HostLane
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.options import SearchOptions
from legato.decoding.requests import Call, Manner, SearchObserver, Setting, TextOf, seeds_for
from legato.decoding.sliding import Sliding
from legato.errors import LegatoError
from legato.nn.adapters.lora_by_row import BASE, bound_rows
from legato.nn.capture import capturing
from legato.nn.kernels.description import recording_key
from legato.nn.state import Generates

BLOCKS = "blocks"
HOST: tuple[Any, ...] = ("host",)  # the lane of all that the host looks at


class Engine:
    """Writes for many requests at once with one model.

    >>> engine = Engine(model, ends=[0])                                              # doctest: +SKIP
    >>> number, = engine.add([[5, 2]], SearchOptions(max_tokens=20))                  # doctest: +SKIP
    >>> while engine.step(): ...                                                      # doctest: +SKIP
    >>> engine.take(number)[0].tokens                                                 # doctest: +SKIP
    [7, 3]
    """

    def __init__(
        self,
        model: Generates,
        *,
        ends: Collection[int] = (),
        suppress: Collection[int] = (),
        suppress_first: Collection[int] = (),
        normalised: bool = False,
        rows: int | None = None,
        capacity: int | None = None,
        recorded: bool | None = None,
        chunk: int | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """`ends` end a hypothesis; what is in `suppress` is never written, in `suppress_first` not as the first.

        `rows` are the most that write side by side in a lane, others wait; `capacity` is what a row has room for,
        prompt included; left out: as many as there are. `recorded` keeps the steps on the device, where nothing needs
        the host; left out: on CUDA. `normalised`: what a processor gives are log-probabilities. With `chunk`, no more
        than so many tokens of prompts are read between two steps of those that write. `prefixes` keeps what was
        computed of prompts for those that begin alike.
        """
        self.model, self.rows, self.capacity = model, rows, capacity
        never, never_first = sorted({*suppress}), sorted({*suppress_first})
        self._plain = recorded is False  # rows side by side, by the model's modules or its step
        self.recorded = model.device.type == "cuda" if recorded is None else recorded
        listed = sorted({*ends})
        self._setting = Setting(model, listed, never, never_first, normalised, rows, capacity, chunk, self.recorded)
        self.prefixes = prefixes
        self._next = 0
        self._waiting: deque[Call] = deque()
        self._lanes: dict[tuple[Any, ...], HostLane | DeviceLane | Batch] = {}
        self._found: dict[int, list[Hypothesis]] = {}
        if listed and not 0 <= listed[0] <= listed[-1] < model.vocabulary:
            raise LegatoError(f"end tokens {listed}: not all are in the model's vocabulary of {model.vocabulary}")

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        *,
        limits: Sequence[int] | None = None,
        memory: Any = None,
        sources: Sequence[Sequence[int]] | None = None,
        constraint: Constraint | None = None,
        processor: LogitsProcessor | None = None,
        text_of: TextOf | None = None,
        on_token: Callable[[int, int], None] | None = None,
        observer: SearchObserver | None = None,
        walks: Sequence[int] | None = None,
        adapter: int = BASE,
        ends: Collection[int] | None = None,
    ) -> list[int]:
        """Let prompts be continued from the next step on; their numbers. Arguments as `search` has them.

        Where tokens are drawn, `walks` says which of the seed's walks each prompt takes, in place of the first. What
        one of the model's adapters by row writes (`lora_by_row.py`) stands in the same batch as what others do,
        and may have `ends` of its own.
        """
        self._check(prompts, options, text_of)
        first, ids = self._next, [list(map(int, prompt)) for prompt in prompts]
        limits = [options.max_tokens] * len(prompts) if limits is None else list(limits)
        seeds = seeds_for(prompts, sources, options, walks) if options.drawn else []
        own_ends = None if ends is None or sorted({*ends}) == self._setting.ends else tuple(sorted({*ends}))
        manner = Manner.of(
            options, constraint=constraint, processor=processor, text_of=text_of, observer=observer, ends=own_ends
        )
        call = Call(first, ids, manner, limits, seeds, memory, adapter, on_token)
        if self.capacity is not None and call.capacity > self.capacity:
            raise LegatoError(
                f"a prompt of {max(map(len, prompts)):,} tokens and up to {max(limits):,} more do not fit: there is "
                f"room for {self.capacity:,} a row; shorten the prompt, or ask for fewer"
            )
        if self.rows is not None and len(prompts) * options.samples * options.width > self.rows:
            raise LegatoError(
                f"{len(prompts) * options.samples * options.width:,} rows were asked for at once, and there is room "
                f"for {self.rows:,}; ask for fewer prompts, beams or walks"
            )
        self._next += len(prompts)
        self._waiting.append(call)
        return list(range(first, self._next))

    def prepare(self) -> None:
        """On a GPU, record the steps of a batch of `rows` before somebody waits for them."""
        computed = recording_key(self.model)
        able = self.rows is not None and self.prefixes is not None and getattr(self.model, "reads_rows", False)
        if able and self.recorded and self.model.device.type == "cuda" and computed is not None:
            batch = self._lanes[BLOCKS, computed] = Batch(self._setting, computed)
            batch.prepare()

    def cancel(self, number: int) -> None:
        """A request goes no further, and nothing of it is kept, not even what a done one found."""
        for call in self._waiting:
            if call.first <= number < call.first + len(call.prompts):
                call.cancelled.add(number)
        for lane in self._lanes.values():
            lane.cancel(number)
        self._found.pop(number, None)

    def step(self) -> bool:
        """Take in who waits where there is room, and let all that are alive write on; whether any still is.

        A lane on the device writes a few tokens at once.
        """
        try:
            self._admit()
            for key, lane in list(self._lanes.items()):
                if not lane.idle:
                    lane.step()
                self._found |= lane.finished()
                if lane.idle and not (isinstance(lane, Batch) and self.prefixes is not None):
                    self._lanes.pop(key).close()  # a batch keeps what prompts began with
        except BaseException as problem:
            self._drop(problem)
            raise
        return bool(self._waiting) or not all(lane.idle for lane in self._lanes.values())

    def take(self, number: int) -> list[Hypothesis]:
        """What was found for a request that is done, best first."""
        return self._found.pop(number)

    def done(self) -> list[int]:
        """The numbers of requests that are done and were not taken yet."""
        return list(self._found)

    def _drop(self, problem: BaseException) -> None:
        """Something went wrong: nothing of a batch is kept for the next search."""
        for lane in self._lanes.values():
            if isinstance(lane, Batch):
                lane.abandon(problem)
        self.close()

    def close(self) -> None:
        """Drop all requests; what they had is given back."""
        self._waiting.clear()
        while self._lanes:
            self._lanes.popitem()[1].close()

    def _admit(self) -> None:
        later: deque[Call] = deque()
        full: set[tuple[Any, ...]] = set()  # lanes that somebody waits for: who comes later goes behind them
        while self._waiting:
            call = self._waiting.popleft()
            if len(call.cancelled) == len(call.prompts):
                continue
            computed = self._recorded_as(call)
            in_blocks = self._in_blocks(call) and (computed is not None or self._on_host())
            on_device = not in_blocks and computed is not None and not call.manner.host_looks
            key = call.manner.on_device.key if on_device else HOST
            if in_blocks:
                key = BLOCKS, computed
            lane = self._lanes.get(key)
            if key in full or (lane is not None and not lane.has_room(call)):
                full.add(key)
                later.append(call)
                continue
            if lane is None:
                if in_blocks:
                    self._drop_batches()
                    prefixes = 0 if self.prefixes is None else self.prefixes.most_bytes
                    lane = Batch(self._setting, computed, None if self.recorded else prefixes)
                elif on_device:
                    lane = DeviceLane(self._setting, call.manner.on_device, self.prefixes)
                else:
                    lane = HostLane(self._setting, self.prefixes)
                self._lanes[key] = lane
            lane.admit(call)
            for number in call.cancelled:
                lane.cancel(number)
        self._waiting = later

    def _drop_batches(self) -> None:
        """Give back what batches hold that nobody writes in, of the model as it was."""
        for key, lane in list(self._lanes.items()):
            if isinstance(lane, Batch) and lane.idle:
                self._lanes.pop(key).close()

    def _on_host(self) -> bool:
        """Whether rows in blocks write on a CPU, by its kernel or by modules."""
        return not self._plain and self.model.device.type == "cpu" and not capturing() and bound_rows() is None

    def _in_blocks(self, call: Call) -> bool:
        """Whether a call's rows may write in a cache in blocks."""
        manner = call.manner
        looks = manner.processor is not None or manner.observer is not None
        barred = manner.ends is not None and manner.options.min_tokens > 0  # the sampler knows the setting's ends
        alone = manner.options.width == 1 and call.memory is None
        return alone and not (looks or barred) and getattr(self.model, "reads_rows", False)

    def _recorded_as(self, call: Call) -> tuple[Any, ...] | None:
        """What a recorded step of the model depends on; None where none can be recorded."""
        model = self.model
        able = hasattr(model, "slots") and not isinstance(model, Sliding)
        adapted = call.adapter != BASE or bound_rows() is not None
        if not (self.recorded and able) or adapted or capturing():
            return None
        return recording_key(model)

    def _check(self, prompts: Sequence[Sequence[int]], options: SearchOptions, text_of: TextOf | None) -> None:
        vocabulary = self.model.vocabulary
        for number, prompt in enumerate(prompts, start=1):
            if not len(prompt):
                raise LegatoError(f"prompt {number} is empty; a prompt needs at least one token")
            if not 0 <= min(prompt) <= max(prompt) < vocabulary:
                raise LegatoError(f"prompt {number} holds a token outside the model's vocabulary of {vocabulary}")
        if options.stop and text_of is None:
            raise LegatoError("stop strings need text; give the search text_of, from tokens to text")
