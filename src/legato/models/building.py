"""Making a model of the sizes that a file or a setting asks for: its shapes first, memory for it later.

A config.json may ask for a million layers, or a width that no machine holds. So whoever makes a model says how many
tensors there are to fill it, and numbers in them; making stops where there would be far more. To say what is wrong, a
sketch of it is made then, on PyTorch's `meta` device, where tensors have shapes and nothing else, and compared with
the file's header. What settings ask for is sketched first, too, and compared with the memory that there is.
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
from legato.nn.quantized.deferred import deferring, number_bytes

Made = TypeVar("Made")
Module = TypeVar("Module", bound=nn.Module)

# What is left out where no parameter is drawn. PyTorch's `trunc_normal_` draws until all lies inside its bounds,
# which numbers that nobody draws may never do: a model that is read from files does without it.
DRAWING: Final = ("normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_", "mul_")
MAKING: Final = ("empty", "zeros", "ones", "full", "rand", "randn", "eye", "empty_strided")
SPARE: Final = 256  # tensors of a model that its file may lack: tied ones, tables of positions, a readout not kept
SPARE_NUMBERS: Final = 1 << 26  # … and numbers in them
MOST_TENSORS: Final = 100_000  # of a model that is made from settings


class TooLarge(Exception):
    """What is being made has more than the file that should fill it."""


class Limited(TorchFunctionMode):
    """While this is on, no more than so many tensors are made, and numbers in them; beyond that it is `TooLarge`.

    Functions that are `skipped` leave their first argument as it is; with `shapes_only` all do that write into one.
    """

    def __init__(
        self, tensors: int, numbers: int | None = None, *, skipped: tuple[str, ...] = (), shapes_only: bool = False
    ) -> None:
        super().__init__()
        self.tensors, self.numbers = tensors, numbers
        self.skipped, self.shapes_only = skipped, shapes_only

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")  # of all that can be overridden, some have no name
        writes = name == "__setitem__" or (name[-1:] == "_" and name[-2:] != "__")
        if name in MAKING:
            self._count(args, kwargs or {})
        elif name in self.skipped or (self.shapes_only and writes):
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


def sketch(make: Callable[[], Made], tensors: int) -> Made:
    """The module, or what holds one, that `make` makes without memory: its tensors have shapes and no numbers."""
    with torch.device("meta"), Limited(tensors, shapes_only=True):
        return make()


def built(
    make: Callable[[], Module],
    tensors: Mapping[str, Tensor],
    check: Callable[[Module], Any],
    where: str,
    *,
    drawn: bool = True,
    into: nn.Module | None = None,
) -> Module:
    """The module that a file's tensors are to fill: never much larger than they are.

    `check` says, of a module or a sketch of one, which of its names and shapes are not the file's: it raises a
    FolderError. With `drawn=False` no parameter is drawn, since all are about to be read. Where they are read `into`
    another module, the one made is a sketch whose tensors are that module's own, as far as that has them.
    """
    if into is not None:
        return _sharing(sketch(make, MOST_TENSORS), into)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    each = number_bytes()
    taken = int(sum(part.numel() * (each if part.is_floating_point() else 1) for part in tensors.values()))
    memory.refuse_beyond(taken, f"the model in {where}", "use a machine with more", error=FolderError)
    try:
        with Limited(2 * len(tensors) + SPARE, 3 * numbers + SPARE_NUMBERS, skipped=() if drawn else DRAWING):
            return make()
    except TooLarge:
        raise _why_too_large(make, tensors, check, where) from None


def undrawn(make: Callable[[], Module]) -> Module:
    """What `make` makes, without a number drawn, and without memory for matrices that can be narrow."""
    with deferring(1.0), Limited(MOST_TENSORS, skipped=DRAWING):
        return make()


def _sharing(module: Module, other: nn.Module) -> Module:
    """A sketch that shares the other module's tensors; what only the sketch has becomes a tensor of its own."""
    theirs = other.state_dict(keep_vars=True)
    mine = module.state_dict(keep_vars=True)
    shared = {id(tensor): theirs[name] for name, tensor in mine.items() if name in theirs}  # tied ones are one tensor
    for tensor in mine.values():
        if id(tensor) not in shared:
            shared[id(tensor)] = torch.zeros_like(tensor, device="cpu")  # as rows are that no file has
    module.load_state_dict({name: shared[id(tensor)] for name, tensor in mine.items()}, assign=True)
    return module


def _why_too_large(
    make: Callable[[], Module], tensors: Mapping[str, Tensor], check: Callable[[Module], Any], where: str
) -> FolderError:
    """The first tensor that is not the file's, where it can be told."""
    try:
        plan = sketch(make, 2 * len(tensors) + SPARE)
    except TooLarge:
        return FolderError(
            f"{where} describes a model of far more layers than the {len(tensors):,} tensors of its weights could "
            "fill; config.json and the weights are not of one model"
        )
    except (RuntimeError, OverflowError, TypeError) as problem:  # products of sizes beyond 64 bits
        if not too_many(problem):
            raise
        reason = brief(str(problem).partition("\n")[0], 200)
        return FolderError(f"{where} describes a model of sizes that none can have: {reason}")
    check(plan)
    taken = memory.in_words(sum(buffer.numel() * buffer.element_size() for buffer in plan.buffers()))
    return FolderError(f"{where} describes a model whose positions alone take {taken}; shorten it")


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
    taken = copies * sum(part.numel() * part.element_size() for part in (*plan.parameters(), *plan.buffers()))
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
