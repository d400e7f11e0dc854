"""Requests that are searched alike, side by side: the host looks at every step (`HostLane`), or once in a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.decoding.candidates import Candidates, Chooser, Floats
from legato.decoding.draws import seeds_of
from legato.decoding.frontier import Frontier, Hypothesis, ranked
from legato.decoding.requests import Call, Manner, Setting
from legato.decoding.search_steps import LOOK, SearchSteps, search_steps
from legato.decoding.sliding import Sliding
from legato.folders.finite_scores import not_finite
from legato.nn.pooling import inside

SMALLEST = 128  # columns of the smallest recorded cache


class Newcomers:
    """What a call has after its prompts are taken in and its first tokens are chosen."""

    def __init__(self, lane: Lane, call: Call, capacity: int) -> None:
        setting, options = lane.setting, lane.manner.options
        model, device = setting.model, setting.model.device
        samples, width = options.samples, options.width
        self.frontier = Frontier(
            np.repeat(call.limits, samples),
            options,
            setting.ends,
            model.vocabulary,
            lane.told,
            lane.manner.text_of,
            first=call.first * samples,
        )
        self.seeds = seeds_of(call.seeds, device) if options.drawn else None  # (G,)
        self.seen: Tensor | None = None
        inputs = Inputs.of(call.prompts, device)
        self.state: Any = model.start(len(call.prompts), capacity, call.memory)
        logits = model.prefill(inputs, self.state)  # (B, V)
        if options.repetition_penalty != 1:
            self.seen = _tokens_in(inputs, model.vocabulary)  # (B, V)
        if samples * width > 1:
            rows = torch.arange(len(call.prompts), device=device).repeat_interleave(samples * width)
            self.state.reorder(rows)
            logits = logits[rows]  # (B · samples · width, V)
            self.seen = None if self.seen is None else self.seen[rows]
        lane.choose(self.frontier, logits, self.seeds, self.seen, first=True)


class Lane:
    """Requests that are searched alike."""

    def __init__(self, setting: Setting, manner: Manner) -> None:
        self.setting, self.manner = setting, manner
        self.device = setting.model.device
        self.chooser = Chooser(
            manner.options,
            setting.ends,
            setting.suppress,
            setting.suppress_first,
            setting.normalised,
            self.device,
        )
        self.frontier: Frontier | None = None
        self._tellers: dict[int, tuple[Callable[[int, int], None], int]] = {}  # by group, and the first of its call
        self._first: int | None = None  # the number of the first request
        self._changed = False  # whether something may have closed since `finished` was asked

    @property
    def idle(self) -> bool:
        return self.frontier is None or bool(self.frontier.done.all())

    def has_room(self, call: Call) -> bool:
        rows = self.setting.rows
        if self.frontier is None or rows is None:
            return True
        options = self.manner.options
        alive = int((~self.frontier.done).sum()) + len(call.prompts) * options.samples
        return alive * options.width <= rows

    def admit(self, call: Call) -> None:
        samples = self.manner.options.samples
        if call.on_token is not None:
            first = call.first * samples
            self._tellers |= {first + n: (call.on_token, first) for n in range(len(call.prompts) * samples)}
        self._first = call.first if self._first is None else self._first
        self._changed = True
        # Not inference mode: tables that a model keeps for later, made here, must still serve its training.
        with torch.no_grad():
            self._take_in(call)

    def _take_in(self, call: Call) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the lane has."""

    @property
    def told(self) -> Callable[[int, int], None] | None:
        """Whom the frontier tells of tokens."""
        return self._tell if self._tellers else None

    def _tell(self, group: int, token: int) -> None:
        if group in self._tellers:
            on_token, first = self._tellers[group]
            on_token(group - first, token)

    def cancel(self, number: int) -> None:
        if self.frontier is None:
            return
        self._changed = True
        samples = self.manner.options.samples
        for group in range(number * samples, (number + 1) * samples):
            self.frontier.cancel(group)
            self._tellers.pop(group, None)

    def finished(self) -> dict[int, list[Hypothesis]]:
        """Requests all of whose groups are done; they are given once."""
        if self.frontier is None or not self._changed:
            return {}
        self._changed = False
        frontier, samples, found = self.frontier, self.manner.options.samples, {}
        open_requests = {int(group) // samples for group in frontier.groups[~frontier.done]}
        for number in sorted({group // samples for group in frontier.closed} - open_requests):
            groups = [frontier.closed.get(number * samples + walk, {}) for walk in range(samples)]
            best = ranked(chain(*(closed.values() for closed in groups)))
            found[number] = best[: self.manner.options.nbest]
        for number in found:
            for walk in range(samples):
                self._tellers.pop(number * samples + walk, None)
                if self.manner.observer is None:  # who may look at all that has closed
                    frontier.closed.pop(number * samples + walk, None)
        return found

    def choose(
        self, frontier: Frontier, logits: Tensor, seeds: Tensor | None, seen: Tensor | None, *, first: bool = False
    ) -> None:
        """Let the frontier's hypotheses take a token each of logits (G · W, V)."""
        manner, chooser, device = self.manner, self.chooser, self.device
        may_end: bool | None = True
        if manner.options.min_tokens > 0:
            enough = frontier.written >= manner.options.min_tokens
            may_end = None if enough.any() != enough.all() else bool(enough.all())
        allowed = None
        if manner.constraint is not None:
            allowed = torch.from_numpy(frontier.allowed(self._constraint, bool(may_end))).to(device)
        if manner.processor is not None:
            rows = range(len(logits))
            first_number = self._first or 0
            logits = manner.processor(
                logits,
                [frontier.history(row)[0] for row in rows],
                [frontier.prompt_of(row) - first_number for row in rows],
            )
        if manner.observer is not None:
            manner.observer.scored(logits, chooser.forbidden[first, may_end is True], frontier)
        packed = None
        if seen is None and allowed is None:
            packed = chooser.on_host(logits, frontier.scores, may_end=may_end, first=first)
        if packed is None:
            packed = (
                chooser(
                    logits,
                    torch.from_numpy(frontier.scores).to(device),
                    torch.from_numpy(frontier.written).to(device),
                    seeds,
                    seen,
                    allowed,
                    may_end=may_end,
                    first=first,
                )
                .cpu()
                .numpy()
            )  # the step's one wait
        self.advance(frontier, packed)

    def _constraint(self, prompt: int, tokens: list[int]) -> Collection[int] | None:
        assert self.manner.constraint is not None
        return self.manner.constraint(prompt - (self._first or 0), tokens)

    def advance(self, frontier: Frontier, packed: Floats) -> None:
        """What was chosen becomes the frontier: what ended closes, what is spent, too."""
        frontier.on_token = self.told
        observer, text_of = self.manner.observer, self.manner.text_of if self.manner.options.stop else None
        if observer is None and text_of is None and frontier.advance_open(packed):
            return
        self._changed = True
        candidates = Candidates.of(packed)
        if (where := frontier.broken(candidates)) is not None:
            raise not_finite(_module_of(self.setting.model), where)
        frontier.advance(candidates)
        if observer is not None:
            observer.advanced(candidates, frontier)
        if text_of is not None:
            frontier.close_at_stop(text_of)
        frontier.close_spent()
        frontier.settle()


class HostLane(Lane):
    """The host sees each step's candidates before the next."""

    _state: Any = None
    _tokens: Tensor
    _seeds: Tensor | None = None  # (G,)
    _seen: Tensor | None = None  # (G · W, V)

    def _take_in(self, call: Call) -> None:
        new = Newcomers(self, call, call.capacity)
        if new.frontier.done.all():
            self._keep_found(new.frontier)
            return
        tokens, state, seeds, seen = self._settled(new.frontier, new.state, new.seeds, new.seen)
        if self.frontier is None or self._state is None:
            self._keep_found(new.frontier)
            self._state, self._tokens, self._seeds, self._seen = state, tokens, seeds, seen
            return
        self._state.join(state)
        self._tokens = torch.cat([self._tokens, tokens])
        if self._seeds is not None and seeds is not None:
            self._seeds = torch.cat([self._seeds, seeds])
        if self._seen is not None and seen is not None:
            self._seen = torch.cat([self._seen, seen])
        self.frontier.join(new.frontier)

    def _keep_found(self, frontier: Frontier) -> None:
        """A frontier takes the place of one that is done, whose findings stay."""
        if self.frontier is None:
            self.frontier = frontier
        elif self.frontier.done.all():
            frontier.closed |= self.frontier.closed
            self.frontier = frontier
        else:
            self.frontier.closed |= frontier.closed

    def _settled(self, frontier: Frontier, state: Any, seeds: Tensor | None, seen: Tensor | None) -> Any:
        """What the next step needs, once done groups have left and rows are where their hypotheses are."""
        device = self.device
        # On a CPU a row costs its share of every step, and to copy a few only theirs.
        order = frontier.shrink(at_once=device.type == "cpu")
        last = frontier.steps[-1]
        tokens = torch.from_numpy(last.tokens).to(device)  # (G · W,)
        if frontier.moved:
            rows = torch.from_numpy(last.parents).to(device)
            state.reorder(rows)
            seen = None if seen is None else seen[rows]
        if seeds is not None and order is not None:
            seeds = seeds[torch.from_numpy(order).to(device)]
        if seen is not None:
            seen.scatter_(-1, tokens[:, None], True)
        return tokens, state, seeds, seen

    @torch.no_grad()
    def step(self) -> None:
        assert self.frontier is not None
        logits = self.setting.model.step(self._tokens, self._state)  # (G · W, V)
        self.choose(self.frontier, logits, self._seeds, self._seen)
        if self.idle:
            self._state = None
            return
        settled = self._settled(self.frontier, self._state, self._seeds, self._seen)
        self._tokens, self._state, self._seeds, self._seen = settled
        if self._changed:
            self.frontier.forget_steps()


class DeviceLane(Lane):
    """Steps stay on the device; the host looks at them while the next ones run."""

    def __init__(self, setting: Setting, manner: Manner) -> None:
        super().__init__(setting, manner)
        self._steps: SearchSteps | None = None
        self._capacity = 0
        self._resources = ExitStack()
        self._unread: deque[Callable[[], list[Any]]] = deque()
        self._ahead = 0  # steps that were begun and not looked at
        self._looks = 0
        self._instead: HostLane | None = None  # where steps cannot stay on the device

    def has_room(self, call: Call) -> bool:
        if self._instead is not None:
            return self._instead.has_room(call)
        if self._steps is None or self.frontier is None:
            return True
        free = int(self.frontier.done.sum())
        fits = call.capacity <= self._capacity
        return fits and len(call.prompts) * self.manner.options.samples <= free

    def _take_in(self, call: Call) -> None:
        if self._instead is not None:
            self._instead.admit(call)
            return
        self._look(0)
        samples, width = self.manner.options.samples, self.manner.options.width
        new = Newcomers(self, call, max(map(len, call.prompts)) + 1)
        if self._steps is None:
            wanted = self.setting.rows // width if self.setting.rows else len(call.prompts) * samples
            self._capacity = _bucket(max(call.capacity, self.setting.capacity or 0), SMALLEST)
            self._steps = self._make(_bucket(wanted), new.state)
        if self._steps is None:
            self._instead = HostLane(self.setting, self.manner)
            self._instead.admit(call)
            return
        device, last = self.device, new.frontier.steps[-1]
        if new.frontier.moved:
            rows = torch.from_numpy(last.parents).to(device)
            new.state.reorder(rows)
            new.seen = None if new.seen is None else new.seen[rows]
        places = list(range(len(new.frontier.groups)))
        if self.frontier is not None:
            places = np.flatnonzero(self.frontier.done)[: len(places)].tolist()
        self._steps.begin(
            places,
            new.state,
            torch.from_numpy(last.tokens).to(device),
            torch.from_numpy(new.frontier.scores).to(device),
            torch.from_numpy(new.frontier.written).to(device),
            new.seeds,
            new.seen,
        )
        if self.frontier is None:
            self._begin(new.frontier, self._steps.slots.groups)
        else:
            self.frontier.join(new.frontier, places)
        self._looks = 0

    def _begin(self, frontier: Frontier, groups: int) -> None:
        """The frontier of the first call, with places for as many groups as there are."""
        missing = groups - len(frontier.groups)
        frontier.groups = np.pad(frontier.groups, (0, missing), constant_values=-1)
        frontier.done = np.pad(frontier.done, (0, missing), constant_values=True)
        frontier.scores = np.pad(frontier.scores, ((0, missing), (0, 0)), constant_values=-np.inf)
        frontier.limits = np.pad(frontier.limits, (0, missing), constant_values=1)
        frontier.begun = np.pad(frontier.begun, (0, missing))
        frontier.steps[-1] = frontier.steps[-1].padded(missing * frontier.width)
        self.frontier = frontier

    def _make(self, groups: int, state: Any) -> SearchSteps | None:
        setting, model = self.setting, self.setting.model
        source = _bucket(state.source_length, 16) if state.source_length else 0
        forbidden = tuple(setting.suppress), tuple(setting.suppress_first), tuple(setting.ends), setting.normalised
        key = (groups, self._capacity, source, self.manner.options.model_dump_json(), forbidden)

        def make() -> SearchSteps | None:
            slots = model.slots(groups, self.manner.options.width, self._capacity, state, source)
            if slots is None:
                return None
            steps = SearchSteps(slots, self.chooser, setting.ends, model.vocabulary, model.device)
            steps.record()
            return steps

        return self._resources.enter_context(search_steps(model, key, make))

    @property
    def idle(self) -> bool:
        return self._instead.idle if self._instead is not None else super().idle

    @torch.no_grad()
    def step(self) -> None:
        if self._instead is not None:
            self._instead.step()
            return
        assert self.frontier is not None
        assert self._steps is not None
        alive = ~self.frontier.done
        left = int((self.frontier.limits - self.frontier.written)[alive].max()) - self._ahead
        # What streams is looked at step by step; else more seldom as the search goes on.
        count = 1 if self._tellers else min(1 << self._looks, LOOK)
        count = min(count, left)
        if count > 0:
            self._unread.append(self._steps.advance(count))
            self._ahead += count
            self._looks += 1
        self._look(1 if count > 0 else 0)

    def _look(self, unread: int) -> None:
        """Read what was chosen, but for the newest `unread` looks."""
        while len(self._unread) > unread:
            for packed in self._unread.popleft()():
                self._ahead -= 1
                if self.frontier is not None and not self.frontier.done.all():
                    self.advance(self.frontier, packed)
        if self.frontier is not None:
            self.frontier.forget_steps()

    def cancel(self, number: int) -> None:
        if self._instead is not None:
            self._instead.cancel(number)
        super().cancel(number)

    def finished(self) -> dict[int, list[Hypothesis]]:
        return self._instead.finished() if self._instead is not None else super().finished()

    def close(self) -> None:
        self._unread.clear()
        self._resources.close()


def _bucket(size: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (max(size, 1) - 1).bit_length())


def _module_of(model: Any) -> Any:
    """The model whose weights are searched with."""
    return model.model if isinstance(model, Sliding) else model


def _tokens_in(inputs: Inputs, vocabulary: int) -> Tensor:
    """Which tokens each prompt holds, (B, V)."""
    tokens = inputs.token_ids
    own = inside(tokens.unsqueeze(-1), inputs.lengths).squeeze(-1)  # (B, T)
    counts = torch.zeros(len(tokens), vocabulary, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add_(-1, tokens, own.long()) > 0
