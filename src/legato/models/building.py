"""Making a model of the sizes that a file or a setting asks for: its shapes first, memory for it later.

A config.json may ask for a million layers, or a width that no machine holds. So a model is made on PyTorch's `meta`
device first, where tensors have shapes and nothing else; it stops as soon as there are more tensors than the weights
could fill. Its shapes are compared with those in the weights' file, what it takes with the memory that there is, and
only then is it made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from legato import memory
from legato.errors import ConfigError, FolderError, brief
from legato.models.base import SequenceModel, Sizes

Module = TypeVar("Module", bound=nn.Module)

MAKING: Final = ("empty", "zeros", "ones", "full", "rand", "randn", "eye", "empty_strided")
SPARE: Final = 256  # tensors of a model that its file may lack: tied ones, tables of positions, a readout not kept
SPARE_BYTES: Final = 1 << 28  # … of tables that follow from the settings, where the file's tensors are smaller
SPARE_NUMBERS: Final = 1 << 22  # … and numbers in them, where it is a head that is made
MOST_TENSORS: Final = 100_000  # of a model that is made from settings


class TooLarge(Exception):
    """What is being made has more than the file that should fill it."""


class Limited(TorchFunctionMode):
    """While this is on, no more than so many tensors are made, and numbers in them; beyond that it is `TooLarge`.

    With `shapes_only` nothing is written into them.
    """

    def __init__(self, tensors: int, numbers: int | None = None, *, shapes_only: bool = False) -> None:
        super().__init__()
        self.tensors, self.numbers, self.shapes_only = tensors, numbers, shapes_only

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in MAKING:
            self._count(args, kwargs or {})
        elif self.shapes_only and (name == "__setitem__" or (name[-1:] == "_" and name[-2:] != "__")):
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors -= 1
        if self.tensors < 0:
            raise TooLarge
        if self.numbers is not None:
            count = 1
            for part in args or (kwargs.get("size", ()),):
                for size in part if isinstance(part, tuple | list) else (part,):
                    count *= size if isinstance(size, int) else 1
            self.numbers -= count
            if self.numbers < 0:
                raise TooLarge


def sketch(make: Callable[[], Module], tensors: int, numbers: int | None = None) -> Module:
    """The module that `make` makes, without memory: its tensors have shapes and no numbers."""
    with torch.device("meta"), Limited(tensors, numbers, shapes_only=True):
        return make()


def bytes_of(module: nn.Module) -> int:
    """What a module's tensors take."""
    every = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in every.values())


def built(
    make: Callable[[], Module], tensors: Mapping[str, Tensor], check: Callable[[Module], Any], where: str
) -> Module:
    """A module for a file's tensors: made only if `check` finds that its names and shapes are the file's.

    `check` gets a sketch and raises a FolderError.
    """
    try:
        plan = sketch(make, 2 * len(tensors) + SPARE)
    except TooLarge:
        raise FolderError(
            f"{where} describes a model of far more layers than the {len(tensors):,} tensors of its weights could "
            "fill; config.json and the weights are not of one model"
        ) from None
    except (RuntimeError, OverflowError, TypeError) as problem:  # products of sizes beyond 64 bits
        if not too_many(problem):
            raise
        reason = brief(str(problem).partition("\n")[0], 200)
        raise FolderError(f"{where} describes a model of sizes that none can have: {reason}") from None
    check(plan)
    tables = sum(buffer.numel() * buffer.element_size() for buffer in plan.buffers())
    if tables > SPARE_BYTES + sum(tensor.nbytes for tensor in tensors.values()):
        raise FolderError(
            f"{where} describes a model whose positions alone take {memory.in_words(tables)}; shorten it"
        )
    memory.refuse_beyond(bytes_of(plan), f"the model in {where}", "use a machine with more", error=FolderError)
    return make()


def too_many(problem: BaseException) -> bool:
    """Whether PyTorch says that a size is no size."""
    told = str(problem).lower()
    return any(words in told for words in ("overflow", "too large", "allocate", "invalid size", "failed to unpack"))


def refuse_too_large(model: type[SequenceModel], config: Any, sizes: Sizes, copies: int) -> None:
    """Refuse settings of a model that cannot fit into memory, `copies` times: for its gradients, for instance."""
    advice = "make it smaller: model.layers, model.width, tokenizer.size"
    try:
        plan = sketch(lambda: model(config, sizes), MOST_TENSORS)
    except TooLarge:
        raise ConfigError(
            f"model={config.name} of these settings has more than {MOST_TENSORS:,} tensors; {advice}"
        ) from None
    except (RuntimeError, OverflowError, TypeError) as problem:
        if not too_many(problem):
            raise
        raise ConfigError(f"model={config.name} of these settings has sizes that none can have; {advice}") from None
    count = sum(parameter.numel() for parameter in plan.parameters())
    taken = copies * bytes_of(plan)
    what = f"training model={config.name} of these settings, {count:,} parameters,"
    memory.refuse_beyond(taken, what, advice, error=ConfigError)


def within_memory(make: Callable[[], Module], what: str) -> Module:
    """What `make` makes, unless its tensors do not fit into memory; for a head, which cannot be sketched."""
    free = memory.available()
    try:
        with Limited(MOST_TENSORS, None if free is None else free // 4):
            return make()
    except TooLarge:
        raise ConfigError(
            f"{what} takes more memory than the {memory.in_words(free or 0)} available; make it smaller"
        ) from None


def limited(make: Callable[[], Module], tensors: Mapping[str, Tensor], where: str, numbers: int = 0) -> Module:
    """What `make` makes, which has to be no more than a file's tensors can fill, and so many `numbers` beside them.

    For a head, which asks its body how wide it is, and so cannot be sketched.
    """
    try:
        numbers += sum(tensor.numel() for tensor in tensors.values())
        with Limited(2 * len(tensors) + SPARE, numbers + SPARE_NUMBERS):
            return make()
    except TooLarge:
        raise FolderError(f"{where} describes a head that is larger than what its weights hold of one") from None
