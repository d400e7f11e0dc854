"""A model as a front process has it: its tokenizer, its chat template and its limits, without its weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from legato.decoding import SearchOptions
from legato.model import Model
from legato.serving.fronts.channel import Channel, unpacked, unpacked_event
from legato.serving.models import Served, ServedModels
from legato.serving.scheduler import Listener, Piece, Scheduler, has_stopped
from legato.serving.transport.text_limits import TextLimits


@dataclass
class ModuleFacts:
    """What is asked of a module that does not run."""

    max_length: int | None
    vocabulary: int
    can_generate: bool
    is_encoder_decoder: bool

    def to(self, device: torch.device) -> ModuleFacts:
        return self


@dataclass
class ServedFacts:
    """What a front has to know of a served model."""

    name: str
    base: str | None
    model: Model
    created: int
    most_tokens: int
    input_limits: TextLimits
    prompt_limits: TextLimits

    @classmethod
    def of(cls, served: Served) -> ServedFacts:
        loaded, module = served.model.loaded, served.model.module
        facts: Any = ModuleFacts(module.max_length, module.vocabulary, module.can_generate, module.is_encoder_decoder)
        light = replace(loaded, module=facts, read_into=None, sentences=None)
        return cls(
            served.name,
            None if served.base is None else served.base.name,
            Model(light, torch.device("cpu")),
            served.created,
            served.most_tokens,
            served.input_limits,
            served.prompt_limits,
        )


class FrontRequest:
    """Texts that are being written in the other process."""

    def __init__(
        self, number: int, prompt: list[int], options: SearchOptions, count: int, listener: Listener
    ) -> None:
        self.number, self.prompt, self.options, self.count = number, prompt, options, count
        self.listener = listener
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Engines:
    """The other process, as a front sees it: requests go there, and their events come back."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self._running: dict[int, FrontRequest] = {}

    async def submit(
        self,
        name: str,
        prompt: Sequence[int],
        options: SearchOptions,
        listener: Listener,
        *,
        count: int = 1,
        group: object = None,
        **how: Any,
    ) -> FrontRequest:
        """Let texts be written; refused as the scheduler there refuses."""
        request = FrontRequest(next(self._numbers), list(prompt), options, count, listener)
        self._running[request.number] = request
        # The group lives as long as its requests do: its id is its own.
        how |= {"count": count, "group": id(group)}
        self._channel.send(("submit", request.number, name, request.prompt, options, how))
        try:
            await request.accepted
        except BaseException:
            self.cancel(request)
            raise
        return request

    def cancel(self, request: FrontRequest) -> None:
        if self._running.pop(request.number, None) is not None:
            self._channel.send(("cancel", request.number))

    def count(self, route: str, status: int, seconds: float) -> None:
        """A request has been answered: /metrics is the other process's."""
        self._channel.send(("count", route, status, seconds))

    async def listen(self) -> None:
        """Pass events on until the other process closes."""
        while (events := await self._channel.receive()) is not None:
            for kind, number, what in events:
                request = self._running.get(number)
                if request is None:  # its client has gone
                    continue
                if kind == "event":
                    _settle(request.accepted, None)
                    request.listener(event := unpacked_event(what))
                    if not isinstance(event, Piece):
                        del self._running[number]
                else:
                    _settle(request.accepted, None if what is None else unpacked(what))
        for request in self._running.values():
            _settle(request.accepted, has_stopped())


def _settle(future: asyncio.Future[None], problem: Exception | None) -> None:
    if not future.done():
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)


class FrontServed(Served):
    """A model whose texts are written in the other process."""

    def __init__(self, facts: ServedFacts, base: Served | None, engines: Engines) -> None:
        self.name, self.model, self.base = facts.name, facts.model, base
        self.created, self.most_tokens = facts.created, facts.most_tokens
        self.input_limits, self.prompt_limits = facts.input_limits, facts.prompt_limits
        self._engines = engines

    async def submit(self, prompt: Sequence[int], options: SearchOptions, listener: Listener, **how: Any) -> Any:
        return await self._engines.submit(self.name, prompt, options, listener, **how)

    def cancel(self, request: Any) -> None:
        self._engines.cancel(request)

    def scheduler(self) -> Scheduler:
        raise AssertionError("a front writes no texts")


def front_models(facts: Sequence[ServedFacts], engines: Engines) -> ServedModels:
    """The models by their names; adapters share those of their bases."""
    by_name: dict[str, Served] = {}
    for each in sorted(facts, key=lambda each: each.base is not None):
        by_name[each.name] = FrontServed(each, by_name.get(each.base or ""), engines)
    return ServedModels([by_name[each.name] for each in facts])
