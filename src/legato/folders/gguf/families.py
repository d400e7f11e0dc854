"""The models in GGUF files: what their entries and tensors are called there, and ours.

An architecture's entries begin with its name: `llama.block_count`. Three things differ from Hugging Face's folders.

- In files of the architecture `llama` the rows of queries and keys have another order. Rotary positions turn pairs of
  a head's K rows, there (0, 1), (2, 3) and so on, here and in Hugging Face's folders (0, K/2), (1, K/2 + 1) …
- A readout that is the embedding again is left out.
- Positions slowed as LLaMA 3 does have no entries: a tensor `rope_freqs` says how many times slower each pair turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from legato.config import validate
from legato.errors import ConfigError, FolderError, LegatoError, brief
from legato.folders.gguf.blocks import check_tensors, read_rows, read_tensor
from legato.folders.gguf.header import Header
from legato.folders.gguf.narrow import narrow_matrix
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.building import built
from legato.models.gpt2 import GPT2Model
from legato.models.llama import LlamaConfig, LlamaModel, Scaling
from legato.models.published.family import Published
from legato.models.published.gpt2 import GPT2
from legato.models.published.llama import Llama
from legato.models.published.tensor_names import Names
from legato.models.published.tensor_names import check_tensors as check_shapes
from legato.nn.quantized import Deferred, deferring, hold_weights, read_deferred

EMBEDDING, POSITIONS, READOUT = "token_embd.weight", "position_embd.weight", "output.weight"
SLOWED: Final = "rope_freqs.weight"
TURNED: Final = (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")  # whose rows have another order
NEAR: Final = 1e-3  # how much factors may differ that are of one rule, relatively
LENGTH: Final = 8192  # tokens of the texts that LLaMA 3 was first trained on

# Our settings and their entries.
COMMON: Final = {
    "layers": "block_count",
    "length": "context_length",
    "width": "embedding_length",
    "feedforward": "feed_forward_length",
    "heads": "attention.head_count",
}
# Entries that change what is computed, and all that they may say here.
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "expert_count": (0,),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.causal": (True,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "rope.scaling.type": ("none", "linear"),
}


class LlamaNames(Llama):
    """The names of LLaMA's tensors there."""

    parts: ClassVar[Mapping[str, str]] = {"embedding": "token_embd", "stack.norm": "output_norm", "output": "output"}
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "blk."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention_norm": "attn_norm",
        "attention.qkv": ("attn_q", "attn_k", "attn_v"),
        "attention.query_norm": "attn_q_norm",
        "attention.key_norm": "attn_k_norm",
        "attention.output": "attn_output",
        "feedforward_norm": "ffn_norm",
        "feedforward.inner": ("ffn_gate", "ffn_up"),
        "feedforward.outer": "ffn_down",
    }


class GPT2Names(GPT2):
    """The names of GPT-2's; its matrices lie as ours."""

    parts: ClassVar[Mapping[str, str]] = {**LlamaNames.parts, "positions": "position_embd"}
    stacks = LlamaNames.stacks
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention_norm": "attn_norm",
        "attention.qkv": "attn_qkv",
        "attention.output": "attn_output",
        "feedforward_norm": "ffn_norm",
        "feedforward.inner": "ffn_up",
        "feedforward.outer": "ffn_down",
    }
    turned = False


@dataclass(frozen=True)
class Architecture:
    """What `general.architecture` may say."""

    name: str
    names: type[Published]
    turned: bool = False  # whether rows of queries and keys have another order

    @property
    def Model(self) -> type[SequenceModel]:
        return self.names.Model


ARCHITECTURES: Final = {
    "llama": Architecture("llama", LlamaNames, turned=True),
    "qwen2": Architecture("qwen2", LlamaNames),
    "qwen3": Architecture("qwen3", LlamaNames),
    "gpt2": Architecture("gpt2", GPT2Names),
}


# --- reading ------------------------------------------------------------------------------------------


def architecture_of(header: Header) -> Architecture:
    """What a file's model is; what is not read is refused."""
    if (kind := header.text("general.type", "model")) != "model":
        raise FolderError(f"{header.path} holds no whole model but '{brief(kind)}'; take the model that it is for")
    if header.number("split.count", 1) > 1:
        joined = "join its files with llama.cpp's llama-gguf-split --merge, and name what it makes"
        raise FolderError(f"{header.path} holds a part of a model; {joined}")
    name = header.text("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FolderError(
            f"{header.path} holds a '{brief(name)}'; of GGUF files Legato reads {known} (Mistral, SmolLM and others "
            "of LLaMA's form are llama)"
        )
    for key, values in NEUTRAL.items():
        found = header.entries.get(f"{name}.{key}", values[0])
        if not isinstance(found, str | int | float) or found not in values:
            has = " or ".join(map(str, values))
            raise FolderError(f"{header.path}: '{name}.{key}' is {brief(found)}; Legato has only {has}")
    return ARCHITECTURES[name]


def read_config(header: Header) -> tuple[Architecture, ModelConfig]:
    """The settings of a file's model."""
    architecture = architecture_of(header)
    check_tensors(header)
    for name in (EMBEDDING, f"blk.{header.size_of(f'{architecture.name}.block_count') - 1}.attn_norm.weight"):
        if name not in header.tensors:
            raise FolderError(f"{header.path} lacks the tensor '{name}'")
    settings = _settings(header, architecture)
    settings["tied"] = READOUT not in header.tensors
    try:
        return architecture, validate(architecture.Model.Config, settings)
    except ConfigError as problem:
        raise FolderError(f"{header.path}: {problem}") from None


def _settings(header: Header, architecture: Architecture) -> dict[str, Any]:
    name = architecture.name
    settings = {ours: header.size_of(f"{name}.{theirs}") for ours, theirs in COMMON.items()}
    if architecture.Model is GPT2Model:
        return {**settings, "eps": _eps(header, f"{name}.attention.layer_norm_epsilon")}
    width = header.size_of(f"{name}.attention.key_length", settings["width"] // settings["heads"])
    for key in ("attention.value_length", "rope.dimension_count"):
        if (found := header.size_of(f"{name}.{key}", width)) != width:
            raise FolderError(f"{header.path}: '{name}.{key}' is {found}, and heads have a width of {width}")
    theta = float(header.number(f"{name}.rope.freq_base", 10000.0))
    window = header.entries.get(f"{name}.attention.sliding_window") or None  # some write 0
    window = None if window is None else header.size_of(f"{name}.attention.sliding_window")
    window = None if window is None or window >= settings["length"] else window
    return {
        **settings,
        "family": "mistral" if name == "llama" and window is not None else name,
        "kv_heads": header.size_of(f"{name}.attention.head_count_kv", settings["heads"]),
        "head_width": width,
        "eps": _eps(header, f"{name}.attention.layer_norm_rms_epsilon"),
        "theta": theta,
        "scaling": _scaling(header, name, theta, width),
        "window": window,
        "bias": "blk.0.attn_output.bias" in header.tensors,
        "bias_feedforward": "blk.0.ffn_down.bias" in header.tensors,
    }


def _eps(header: Header, key: str) -> float:
    found = float(header.number(key))
    if not 0 < found <= 1:
        raise FolderError(f"{header.path}: '{key}' should be a small number above 0, not {found:g}")
    return found


def _scaling(header: Header, name: str, theta: float, width: int) -> dict[str, Any]:
    """How rotary positions are slowed."""
    linear = header.entries.get(f"{name}.rope.scaling.type") == "linear"
    factor = float(header.number(f"{name}.rope.scaling.factor" if linear else f"{name}.rope.scale_linear", 1.0))
    if SLOWED in header.tensors:
        if theta <= 0 or width % 2 or header.tensors[SLOWED].shape != (width // 2,):
            raise FolderError(
                f"{header.path}: '{SLOWED}' should have a number for each of {width // 2} pairs of rows"
            )
        factors = torch.from_numpy(read_tensor(header, SLOWED)).double()
        length = header.size_of(f"{name}.rope.scaling.original_context_length", LENGTH)
        if factor != 1 or (found := _llama3(factors, theta, length)) is None:
            raise FolderError(
                f"{header.path}: '{SLOWED}' slows positions by a rule that Legato does not have; it has LLaMA 3's"
            )
        return found
    return {} if factor == 1 else {"type": "linear", "factor": factor}


def _rates(theta: float, pairs: int) -> Tensor:
    """Angles per token."""
    return theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


def _llama3(factors: Tensor, theta: float, length: int) -> dict[str, Any] | None:
    """The settings that slow positions by these factors; None where none do.

    Of the share that is kept (`Scaling.slowed`) each factor tells one value, and it is a line over the turns in
    `length` tokens: two points of it give both its ends.
    """
    factor = float(factors.max())
    if not (bool(torch.isfinite(factors).all()) and bool((factors >= 1 - NEAR).all())):
        return None
    if factor <= 1 + NEAR:
        return {}
    rates = _rates(theta, len(factors))
    turns = length * rates / (2 * torch.pi)
    kept = (1 / factors - 1 / factor) / (1 - 1 / factor)
    low, high = 1.0, 4.0
    between = ((kept > NEAR) & (kept < 1 - NEAR)).nonzero().flatten()
    if len(between) > 1:
        first, last = int(between[0]), int(between[-1])
        span = float((turns[first] - turns[last]) / (kept[first] - kept[last]))
        low = float(turns[last]) - span * float(kept[last])
        low, high = round(low, 3), round(low + span, 3)
    settings = {"type": "llama3", "factor": round(factor, 4), "low": low, "high": high, "length": length}
    try:
        slowed = rates / validate(Scaling, settings).slowed(rates)
    except ConfigError:
        return None
    return settings if bool(torch.allclose(slowed, factors, rtol=NEAR)) else None


def load_module(
    header: Header,
    architecture: Architecture,
    config: ModelConfig,
    into: SequenceModel | None = None,
    *,
    narrow: bool = False,
) -> SequenceModel:
    """The model of a file, read `into` another if one is given; of a sketch, shapes alone.

    `narrow`: matrices that are packed in the file stay so.
    """
    names, where = architecture.names, str(header.path)
    shapes = {
        name: torch.empty(tensor.shape, device="meta") for name, tensor in header.tensors.items() if name != SLOWED
    }

    def check(plan: SequenceModel) -> None:
        check_shapes(plan, names.names(plan), shapes, where)

    sizes = Sizes(header.tensors[EMBEDDING].shape[0])
    numbers = sum(tensor.numel() for tensor in shapes.values())
    with deferring(header.size / numbers) if narrow else nullcontext():
        module = built(lambda: architecture.Model(config, sizes), shapes, check, where, drawn=False, into=into)
    check(module)
    ours = dict(names.names(module))
    if narrow:
        for name in _hold(module, ours, header, architecture):
            del ours[name]
    _fill(module, ours, header, architecture)
    if narrow:
        read_deferred(module)
    return module


def _hold(module: SequenceModel, names: Names, header: Header, architecture: Architecture) -> list[str]:
    """Give a module the matrices that the file has packed: their names."""

    def ordered(name: str, rows: Tensor) -> Tensor:
        turned = architecture.turned and name.endswith(TURNED)
        return halves_apart(rows, head_width(module)) if turned else rows

    found, tensors = {}, module.state_dict()
    for name, source in names.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and not source.turned and tensors[name].dim() == 2:
            packed = narrow_matrix(header, source.names, len(tensors[name]), ordered)
            if packed is not None:
                found[layer] = packed
    return [f"{name}.weight" for name in hold_weights(module, found)]


@torch.no_grad()
def _fill(module: SequenceModel, names: Names, header: Header, architecture: Architecture) -> None:
    """One tensor after the other, so that no second model lies in memory."""
    ours = module.state_dict(keep_vars=True)
    for name, source in names.items():
        tensor = ours[name]
        if isinstance(tensor, Deferred):
            tensor.stacked = [FileRows(header, theirs, architecture, module) for theirs in source.names]
            continue
        for theirs, place in source.pieces(tensor).items():
            if not place.is_meta:
                found = torch.from_numpy(read_tensor(header, theirs))
                if architecture.turned and theirs.endswith(TURNED):
                    found = halves_apart(found, head_width(module))
                place.copy_(found)


class FileRows:
    """Rows of a matrix in a file, in our order."""

    def __init__(self, header: Header, name: str, architecture: Architecture, module: SequenceModel) -> None:
        self.header, self.name = header, name
        self.head = head_width(module) if architecture.turned and name.endswith(TURNED) else 1

    def __len__(self) -> int:
        return self.header.tensors[self.name].shape[0]

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(len(self))
        first = start // self.head * self.head  # rows change places within a head
        found = torch.from_numpy(read_rows(self.header, self.name, slice(first, -(-stop // self.head) * self.head)))
        return (found if self.head == 1 else halves_apart(found, self.head))[start - first : stop - first]


def head_width(module: Any) -> int:
    config: LlamaConfig = module.config
    return config.head_size


def halves_apart(rows: Tensor, width: int) -> Tensor:
    """Rows of heads of a `width` from pairs of neighbours, as files have them, to first and second halves.

    >>> halves_apart(torch.arange(4), 4).tolist(), pairs_together(torch.arange(4), 4).tolist()
    ([0, 2, 1, 3], [0, 2, 1, 3])
    """
    return rows.view(-1, width // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def pairs_together(rows: Tensor, width: int) -> Tensor:
    """The other way round."""
    return rows.view(-1, 2, width // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


# --- writing ------------------------------------------------------------------------------------------


def architecture_for(module: SequenceModel) -> Architecture:
    """What a model is written as; the reason where it cannot be."""
    config = module.config
    if isinstance(module, GPT2Model):
        if module.config.activation != "gelu-tanh":
            raise LegatoError(
                f"llama.cpp's GPT-2 has activation=gelu-tanh, and this one {module.config.activation}; it stays here"
            )
        return ARCHITECTURES["gpt2"]
    if not isinstance(module, LlamaModel):
        raise LegatoError(
            f"GGUF files are written of gpt2 and llama, which llama.cpp and Legato both have; this is a {config.name}"
        )
    own = module.config
    if own.window is not None and own.window < own.length:
        raise LegatoError(
            f"llama.cpp's {own.family} has no window, and this one has window={own.window}; it stays here"
        )
    architecture = ARCHITECTURES["llama" if own.family == "mistral" else own.family]
    if own.scaling.type == "llama3" and architecture.name != "llama":
        raise LegatoError(f"llama.cpp's {own.family} has no scaling.type=llama3; it stays here")
    if own.bias and architecture.name == "qwen3":
        raise LegatoError("llama.cpp's qwen3 has no biases, and this one has bias=true; it stays here")
    return architecture


def entries_of(module: SequenceModel, architecture: Architecture) -> dict[str, Any]:
    """What a file says of a model, but for its tokenizer."""
    config: Any = module.config
    entries = {theirs: getattr(config, ours) for ours, theirs in COMMON.items()}
    entries |= {"feed_forward_length": config.inner, "vocab_size": module.vocabulary}
    if isinstance(config, LlamaConfig):
        entries |= {
            "attention.head_count_kv": config.kv_heads or config.heads,
            "attention.layer_norm_rms_epsilon": float(config.eps),
            "attention.key_length": config.head_size,
            "attention.value_length": config.head_size,
            "rope.dimension_count": config.head_size,
            "rope.freq_base": float(config.theta),
        }
        if config.scaling.type == "linear":
            entries |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(config.scaling.factor)}
        if config.scaling.type == "llama3":  # llama.cpp does without it; it lets us have the same settings again
            entries["rope.scaling.original_context_length"] = config.scaling.length
    else:
        entries["attention.layer_norm_epsilon"] = float(config.eps)
    return {"general.architecture": architecture.name} | {f"{architecture.name}.{k}": v for k, v in entries.items()}


def tensors_of(module: SequenceModel, architecture: Architecture) -> dict[str, Tensor]:
    """A model's tensors under their names there: views, but for rows that have another order there."""
    ours, names = module.state_dict(), architecture.names.names(module)
    found: dict[str, Tensor] = {}
    for name, source in names.items():
        for theirs, part in source.pieces(ours[name]).items():
            turned = architecture.turned and theirs.endswith(TURNED)
            found[theirs] = pairs_together(part.contiguous(), head_width(module)) if turned else part
    config = module.config
    if isinstance(config, LlamaConfig) and config.scaling.type == "llama3":
        rates = _rates(config.theta, config.head_size // 2)
        found[SLOWED] = (rates / config.scaling.slowed(rates)).float()
    return found


def as_array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.detach().float().cpu().contiguous().numpy()
