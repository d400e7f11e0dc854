"""Which modules fast paths may stand for: one description, that all of them ask.

A fast path computes what modules would, without calling them. It may do so only where each module is exactly of a
kind that it knows: `type(x) is Kind`, and nothing was put in the place of a method or of an activation. And where no
module has a hook, which would not be called. Everything else, such as a block of one's own, takes the modules: it is
slower, never wrong.

Classes of `nn/` register themselves, each with the role that it has in a stack. A subclass is not registered by that.

When it is asked: by an encoder's pass and by training at each call of the stack, by a decoder's step on a CPU when a
state is made for a request (`CachedModel.start`), by steps that are recorded when a request is added to an engine. So
a hook that is registered between two requests is seen at the next one, which then lets those that write beside it
take the modules, too; one that is registered while a request is written is not seen by that request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

M = TypeVar("M", bound=type[nn.Module])


class Kind(NamedTuple):
    """A class that fast paths know."""

    role: str
    forward: Callable[..., Any]  # as it was when the class was made
    methods: frozenset[str]


UNRECORDED: Final = {"start", "prefill", "encode", "slots"}  # methods of models that run before the steps
KINDS: Final[dict[type[nn.Module], Kind]] = {}


def register(role: str) -> Callable[[M], M]:
    """Let fast paths stand for modules of exactly this class, where a stack has that role for them."""

    def add(kind: M) -> M:
        KINDS[kind] = Kind(role, kind.forward, _methods(kind))
        return kind

    return add


def _methods(kind: Any) -> frozenset[str]:
    """The names of all methods of a class."""
    return frozenset(name for base in kind.__mro__ for name, value in vars(base).items() if callable(value))


for _norm in (nn.LayerNorm, nn.RMSNorm):
    register("norm")(_norm)
register("linear")(nn.Linear)
register("table")(nn.Embedding)


class StackSpec(NamedTuple):
    """What a stack is made of, where all of it is of kinds that are known, of sizes that go together."""

    products: tuple[Any, ...]  # the linear layers that new tokens go through, of all blocks
    of_sources: tuple[Any, ...]  # those that make keys and values of a memory
    norms: tuple[Any, ...]  # of the residual stream
    head_norms: tuple[Any, ...]  # of queries and of keys, by turns
    adapted: bool  # whether some of the products have low-rank adapters of their own
    fused: bool  # whether attention may be fused everywhere
    settings: tuple[Any, ...]  # the numbers that it computes with, and that are no weights


def is_hooked(module: nn.Module) -> bool:
    """Whether something is to be called with what the module reads, gives back, or gets as a gradient."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_stock(module: Any) -> bool:
    """Whether a module does what its class says, the class is one that is known, and nothing listens."""
    kind = KINDS.get(type(module))
    return kind is not None and not _has_any_global_hook() and _is(module, kind.role)


def recording_key(model: Any) -> tuple[Any, ...] | None:
    """What a model computes with beside its weights, so that a recording is replayed where it is the same.

    None where that depends on more: a module has a hook or a method of its own, its class is neither of Legato nor of
    PyTorch, or a stack is none that `describe` knows.
    """
    if _has_any_global_hook():
        return None
    parts: list[Any] = [model.training]
    for module in model.modules():
        own: Any = type(module)
        if not _is_ours(own) or is_hooked(module) or _is_altered(module, _recorded(own)):
            return None
        parts.append(own)
        kind = KINDS.get(own)
        if kind is not None and kind.role == "stack":
            if (spec := describe(module)) is None:
                return None
            parts.append(spec.settings)
    return tuple(parts)


def describe(stack: Any) -> StackSpec | None:
    """What a stack of blocks is made of; None where a part of it is foreign, altered or hooked, or sizes differ."""
    if _has_any_global_hook() or not _is(stack, "stack") or not len(stack.layers):
        return None
    if stack.rotary is not None and not _is(stack.rotary, "rotary"):
        return None
    shape, training = stack.shape, stack.training
    width, units, size = shape.width, shape.inner, shape.head_size
    own, shared = shape.heads * size, (shape.kv_heads or shape.heads) * size
    gated = shape.activation == "swiglu"
    norms, head_norms, products, of_sources, adapted, fused = [], [], [], [], False, True
    if stack.norm is not None:
        norms.append(stack.norm)
    blocks = stack.layers._modules.values()
    crossed = next(iter(blocks)).cross is not None
    for block in blocks:
        parts = block._modules  # to read a module's attributes takes ten times as long
        attention, cross, feedforward = parts.get("attention"), parts.get("cross"), parts.get("feedforward")
        if not (_is(block, "block") and _is(attention, "self-attention") and _is(feedforward, "feed-forward")):
            return None
        if block.norm_first != shape.norm_first or not block.training == attention.training == training:
            return None
        if attention.heads != shape.heads or attention.kv_heads * size != shared or attention.head_width != size:
            return None
        if feedforward.training != training or not feedforward.is_as(shape.activation):
            return None
        products += [
            (attention._modules.get("qkv"), width, own + 2 * shared),
            (attention._modules.get("output"), own, width),
            (feedforward._modules.get("inner"), width, 2 * units if gated else units),
            (feedforward._modules.get("outer"), units, width),
        ]
        norms += [parts.get("attention_norm"), parts.get("feedforward_norm")]
        fused = fused and attention.fused
        if attention.query_norm is not None or attention.key_norm is not None:
            head_norms += [attention.query_norm, attention.key_norm]
        if (cross is not None) != crossed:
            return None
        if cross is not None:
            if not _is(cross, "cross-attention") or cross.training != training:
                return None
            if cross.heads != shape.heads or cross.head_width != size or not _is(cross.key_value, "product"):
                return None
            products += [(cross.query, width, own), (cross.output, own, width)]
            of_sources.append(cross.key_value)
            norms.append(parts.get("cross_norm"))
            fused = fused and cross.fused
    for layer, inputs, outputs in products:
        if not _is(layer, "product") or layer.in_features != inputs or layer.out_features != outputs:
            return None
        adapted = adapted or layer.low_rank is not None
    for length, some in ((width, norms), (size, head_norms)):
        for norm in some:
            if not _is(norm, "norm") or norm._parameters["weight"] is None or norm.normalized_shape != (length,):
                return None
    return StackSpec(
        tuple([layer for layer, _, _ in products]),
        tuple(of_sources),
        tuple(norms),
        tuple(head_norms),
        adapted,
        fused,
        (shape, stack.causal, crossed, tuple(stack.windows), tuple([norm.eps for norm in norms + head_norms])),
    )


def _is(module: Any, role: str) -> bool:
    """Whether a module is exactly of a class that has this role, unaltered, and has no hook."""
    kind = KINDS.get(type(module))
    if kind is None or kind.role != role or type(module).forward is not kind.forward or is_hooked(module):
        return False
    return not _is_altered(module, kind.methods)


def _is_altered(module: nn.Module, methods: frozenset[str]) -> bool:
    """Whether something stands in the place of a method: `module.forward = mine`."""
    if "forward" in module.__dict__:
        return True
    return not (torch.compiler.is_compiling() or methods.isdisjoint(module.__dict__))  # which no compiler traces


@cache
def _recorded(kind: Any) -> frozenset[str]:
    """The names of methods that may be recorded; those of `UNRECORDED` are called as they are."""
    return _methods(kind) - UNRECORDED


def _is_ours(kind: type[nn.Module]) -> bool:
    """Whether a class is of Legato or PyTorch, and not one that a parametrisation made of another."""
    return kind.__module__.split(".", 1)[0] in ("legato", "torch") and kind.__module__ != "torch.nn.utils.parametrize"
