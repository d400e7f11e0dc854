"""Adapters that share a served model: each has a name of its own, and its texts stand in its base's batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from legato.errors import ConfigError, FolderError, brief, listed, suggest
from legato.folders.adapters.by_row import SharedBase, find_adapter, named_base, says_digest
from legato.model import Model
from legato.nn.adapters.lora_by_row import AdapterRows, adapter_rows
from legato.serving.batcher import Run
from legato.serving.models import Served
from legato.serving.scheduler import Scheduler
from legato.serving.transport.departures import Gone


class ServedAdapter(Served):
    """An adapter, beside its base and whatever else shares that."""

    def __init__(self, name: str, base: Served, model: Model) -> None:
        super().__init__(
            name, model, most_tokens=base.most_tokens, input_tokens=base.input_limits.tokens, **base.limits
        )
        self.base: Served = base

    def scheduler(self) -> Scheduler:
        return self.base.scheduler()

    async def _batched(
        self, inputs: Sequence[Any], costs: Sequence[float], kind: Any, run: Run, gone: Gone
    ) -> list[Any]:
        rows = AdapterRows.all_of(self.model.loaded.adapter)

        def run_adapted(some: list[Any]) -> Sequence[Any]:
            with adapter_rows(rows):
                return run(some)

        return await super()._batched(inputs, costs, kind, run_adapted, gone)

    def warm_up(self) -> None:
        """Its base has been."""


class AdapterPlace(NamedTuple):
    """What `--adapter` says: where an adapter is, what it is to be called, and whose it is, where that is said."""

    base: str | None
    name: str
    place: str


def adapter_place(given: str) -> AdapterPlace:
    """
    >>> adapter_place("chat/polite=runs/polite")
    AdapterPlace(base='chat', name='polite', place='runs/polite')
    """
    names, _, place = given.partition("=")
    base, slash, name = names.rpartition("/")
    if not name or not place or (slash and not base):
        raise ConfigError(
            f"--adapter {brief(given)}: write NAME=FOLDER, or MODEL/NAME=FOLDER to say which model it shares"
        )
    return AdapterPlace(base or None, name, place)


def with_adapters(models: Sequence[tuple[str, Served]], adapters: Sequence[AdapterPlace]) -> list[Served]:
    """The models, each with the place where it lies, and behind them their adapters."""
    served = [each for _, each in models]
    bases = [SharedBase(each.model.loaded, place, each.name) for place, each in models]
    counts = Counter([*(each.name for each in served), *(adapter.name for adapter in adapters)])
    found: list[Served] = []
    for adapter in adapters:
        folder = find_adapter(adapter.place)
        number = _base_of(adapter, folder, bases, served)
        base = served[number]
        name = adapter.name if counts[adapter.name] == 1 else f"{base.name}:{adapter.name}"
        found.append(ServedAdapter(name, base, Model(bases[number].put(folder), base.model.device)))
    return [*served, *found]


def _base_of(adapter: AdapterPlace, folder: Path, bases: Sequence[SharedBase], served: Sequence[Served]) -> int:
    """Which model an adapter is for: the one that is said, else the one that its own files name."""
    names = [each.name for each in served]
    if adapter.base is not None:
        if adapter.base not in names:
            raise ConfigError(
                f"--adapter {adapter.base}/{adapter.name}: there is no model '{adapter.base}' here; "
                f"{suggest(adapter.base, names)}"
            )
        return names.index(adapter.base)
    fitting = [number for number, base in enumerate(bases) if base.is_base_of(folder)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        several = listed([names[number] for number in fitting])
        raise ConfigError(
            f"--adapter {adapter.name}: {folder} fits {several}; say whose it is: "
            f"--adapter {names[fitting[0]]}/{adapter.name}={adapter.place}"
        )
    if len(served) == 1 and says_digest(folder):
        return 0  # and there it is said what is wrong
    there = listed(names)
    raise FolderError(
        f"{folder} is an adapter for {named_base(folder)}, and there is {there}; if that is the same model, say so: "
        f"--adapter {names[0]}/{adapter.name}={adapter.place}"
    )
