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


KINDS: Final[dict[type[nn.Module], Kind]] = {}


def register(role: str) -> Callable[[M], M]:
    """Let fast paths stand for modules of exactly this class, where a stack has that role for them."""

    def add(kind: M) -> M:
        KINDS[kind] = Kind(role, kind.forward)
        return kind

    return add


for _norm in (nn.LayerNorm, nn.RMSNorm):
    register("norm")(_norm)
register("linear")(nn.Linear)
register("table")(nn.Embedding)


class StackSpec(NamedTuple):
    """What a stack is made of, where all of it is of kinds that are known, of sizes that go together."""

    products: tuple[Any, ...]  # the linear layers that its blocks multiply with, of all blocks
    norms: tuple[Any, ...]  # of the residual stream
    head_norms: tuple[Any, ...]  # of queries and of keys, by turns
    adapted: bool  # whether some of these layers have low-rank adapters of their own
    fused: bool  # whether attention may be fused everywhere
    settings: tuple[Any, ...]  # the numbers that it computes with, and that are no weights


def is_hooked(module: nn.Module) -> bool:
    """Whether something is to be called with what the module reads, gives back, or gets as a gradient."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_stock(module: Any) -> bool:
    """Whether a module does what its class says, the class is one that is known, and nothing listens."""
    kind = KINDS.get(type(module))
    return kind is not None and not _has_any_global_hook() and _is(module, kind.role)


def recording_key(model: nn.Module) -> tuple[Any, ...] | None:
    """What a model computes with beside its weights, so that a recording is replayed where it is the same.

    None where that depends on more: a module has a hook or a method of its own, its class is neither of Legato nor of
    PyTorch, or a stack is none that `describe` knows.
    """
    if _has_any_global_hook():
        return None
    parts: list[Any] = [model.training]
    for module in model.modules():
        if not _is_ours(type(module)) or is_hooked(module) or _is_altered(module):
            return None
        parts.append(type(module))
        kind = KINDS.get(type(module))
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
    norms, head_norms, products, adapted, fused = [], [], [], False, True
    if stack.norm is not None:
        norms.append(stack.norm)
    crossed = stack.layers[0].cross is not None
    for block in stack.layers:
        attention, cross, feedforward = block.attention, block.cross, block.feedforward
        if not (_is(block, "block") and _is(attention, "self-attention") and _is(feedforward, "feed-forward")):
            return None
        if block.norm_first != shape.norm_first or not block.training == attention.training == training:
            return None
        if attention.heads != shape.heads or attention.kv_heads * size != shared or attention.head_width != size:
            return None
        if feedforward.training != training or not feedforward.is_as(shape.activation):
            return None
        products += [
            (attention.qkv, width, own + 2 * shared),
            (attention.output, own, width),
            (feedforward.inner, width, 2 * units if gated else units),
            (feedforward.outer, units, width),
        ]
        norms += [block.attention_norm, block.feedforward_norm]
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
            norms.append(block.cross_norm)
            fused = fused and cross.fused
    for layer, inputs, outputs in products:
        if not _is(layer, "product") or layer.in_features != inputs or layer.out_features != outputs:
            return None
        adapted = adapted or layer.low_rank is not None
    for length, some in ((width, norms), (size, head_norms)):
        for norm in some:
            if not _is(norm, "norm") or norm.weight is None or norm.normalized_shape != (length,):
                return None
    return StackSpec(
        tuple([layer for layer, _, _ in products]),
        tuple(norms),
        tuple(head_norms),
        adapted,
        fused,
        (shape, stack.causal, crossed, tuple(stack.windows), tuple([norm.eps for norm in norms + head_norms])),
    )


def _is(module: Any, role: str) -> bool:
    """Whether a module is exactly of a class that has this role, unaltered, and has no hook."""
    kind = KINDS.get(type(module))
    if kind is None or kind.role != role or type(module).forward is not kind.forward:
        return False
    return not (is_hooked(module) or _is_altered(module))


def _is_altered(module: nn.Module) -> bool:
    """Whether something stands in the place of a method: `module.forward = mine`."""
    if torch.compiler.is_compiling():
        return "forward" in module.__dict__
    return not _methods(type(module)).isdisjoint(module.__dict__)


@cache
def _methods(kind: type[nn.Module]) -> frozenset[str]:
    """The names of all methods of a class."""
    return frozenset(name for base in kind.__mro__ for name, value in vars(base).items() if callable(value))


def _is_ours(kind: type[nn.Module]) -> bool:
    """Whether a class is of Legato or PyTorch, and not one that a parametrisation made of another."""
    return kind.__module__.split(".", 1)[0] in ("legato", "torch") and kind.__module__ != "torch.nn.utils.parametrize"
