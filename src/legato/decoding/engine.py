"""The engine: requests are added, a step advances all that are alive, and they finish, are cancelled, make room.

Each prompt is searched as its options say (`frontier.py`); those that are searched alike share a *lane*: one state of
the model, one batch. A lane goes one of two ways:

- `HostLane`: the host sees each step's candidates before the next one. Every option and every model can go this way;
  rows join behind those that are there, and those that are done leave, on a CPU at once, elsewhere when they are half
  of the batch;
- `DeviceLane`: on CUDA, tokens, scores and draws stay on the device and a step is a recorded graph
  (`search_steps.py`). The host looks once every few steps, while the next ones run, and cuts what was written past an
  end. Rows have fixed places, in which newcomers follow those that are done.

`search` is the engine with one call's requests; both ways write the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from legato.decoding.frontier import Constraint, Hypothesis, LogitsProcessor
from legato.decoding.lanes import DeviceLane, HostLane, Lane
from legato.decoding.options import SearchOptions
from legato.decoding.requests import Call, Manner, SearchObserver, Setting, TextOf, seeds_for
from legato.decoding.sliding import Sliding
from legato.errors import LegatoError
from legato.nn.capture import capturing
from legato.nn.state import Generates


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
    ) -> None:
        """`ends` end a hypothesis; what is in `suppress` is never written, in `suppress_first` not as the first.

        `rows` are the most that write side by side in a lane, others wait; `capacity` is what a row has room for,
        prompt included; left out: as many as there are. `recorded` keeps the steps on the device, where nothing needs
        the host; left out: on CUDA. `normalised`: what a processor gives are log-probabilities.
        """
        self.model, self.rows, self.capacity = model, rows, capacity
        never, never_first = sorted({*suppress}), sorted({*suppress_first})
        self._setting = Setting(model, sorted({*ends}), never, never_first, normalised, rows, capacity)
        self.recorded = model.device.type == "cuda" if recorded is None else recorded
        self._next = 0
        self._waiting: deque[Call] = deque()
        self._lanes: dict[tuple[Any, ...], Lane] = {}
        self._found: dict[int, list[Hypothesis]] = {}
        listed = self._setting.ends
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
    ) -> list[int]:
        """Let prompts be continued from the next step on; their numbers. Arguments as `search` has them."""
        self._check(prompts, options, text_of)
        first, ids = self._next, [[int(token) for token in prompt] for prompt in prompts]
        limits = [options.max_tokens] * len(prompts) if limits is None else list(limits)
        seeds = seeds_for(prompts, sources, options) if options.drawn else []
        manner = Manner.of(options, constraint=constraint, processor=processor, text_of=text_of, observer=observer)
        call = Call(first, ids, manner, limits, seeds, memory, on_token)
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
                if lane.idle:
                    self._lanes.pop(key).close()
        except BaseException:
            self.close()
            raise
        return bool(self._lanes or self._waiting)

    def take(self, number: int) -> list[Hypothesis]:
        """What was found for a request that is done, best first."""
        return self._found.pop(number)

    def done(self) -> list[int]:
        """The numbers of requests that are done and were not taken yet."""
        return list(self._found)

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
            key = call.manner.key
            lane = self._lanes.get(key)
            if key in full or (lane is not None and not lane.has_room(call)):
                full.add(key)
                later.append(call)
                continue
            if lane is None:
                lane = self._lanes[key] = self._lane(call)
            lane.admit(call)
            for number in call.cancelled:
                lane.cancel(number)
        self._waiting = later

    def _lane(self, call: Call) -> Lane:
        model = self.model
        able = hasattr(model, "slots") and not isinstance(model, Sliding)
        if self.recorded and able and not (call.manner.host_looks or capturing() or _hooked(model)):
            return DeviceLane(self._setting, call.manner)
        return HostLane(self._setting, call.manner)

    def _check(self, prompts: Sequence[Sequence[int]], options: SearchOptions, text_of: TextOf | None) -> None:
        vocabulary = self.model.vocabulary
        for number, prompt in enumerate(prompts, start=1):
            if not len(prompt):
                raise LegatoError(f"prompt {number} is empty; a prompt needs at least one token")
            if not 0 <= min(prompt) <= max(prompt) < vocabulary:
                raise LegatoError(f"prompt {number} holds a token outside the model's vocabulary of {vocabulary}")
        if options.stop and text_of is None:
            raise LegatoError("stop strings need text; give the search text_of, from tokens to text")


def _hooked(model: Any) -> bool:
    """Whether somebody wants to see what modules do: a recording would run past them."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
