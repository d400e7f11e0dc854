"""Adapters as the `peft` library keeps them: its names for tensors, and its adapter_config.json.

    base_model.model.PATH.lora_A.weight     A (r, inputs) of the matrix PATH
    base_model.model.PATH.lora_B.weight     B (outputs, r)
    base_model.model.NAME                   a tensor that was trained as it is, such as a head's

PATH and NAME are Hugging Face's. What is merged is W + s B A, with s = lora_alpha / r, or with `use_rslora`
lora_alpha / √r (Kalajdzievski 2023).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Required

from pydantic import Field
from torch import Tensor

from legato import sandbox
from legato.errors import FolderError, brief
from legato.models.published.entries import Flag, Size
from legato.sandbox import worker
from legato.schema import OPEN, Place, TypedDict, fit, read_json, with_config

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
ROOT: Final = "base_model.model."
# Entries of adapter_config.json that change what an adapter computes, and why they are refused.
REFUSED: Final = {
    "use_dora": "DoRA, which also changes the lengths of the rows",
    "lora_bias": "a bias beside B",
    "use_qalora": "QALoRA, which needs quantised weights",
    "use_bdlora": "block-diagonal LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "layer_replication": "layers that are repeated",
    "target_parameters": "adapters of parameters that are in no linear layer",
    "trainable_token_indices": "rows of the embedding trained alone",
    "alora_invocation_tokens": "adapters that a token switches on",
    "arrow_config": "Arrow, which mixes several adapters",
    "megatron_config": "Megatron's parallel layers",
}
SAVED: Final = r"\.modules_to_save(\.default)?"  # in the names of modules that were trained as they are
PLAIN: Final = re.compile(r"[\w.]*")  # patterns that name a module and no more
SCALING: Final = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")  # entries that scale B A
# Ways to start an adapter that leave the base as it is; others (pissa, olora, loftq, …) change it, too.
STARTS: Final = (True, False, None, "gaussian", "orthogonal", "eva")
TASK_TYPES: Final = {
    "classification": "SEQ_CLS",
    "tagging": "TOKEN_CLS",
    "qa": "QUESTION_ANS",
    "embedding": "FEATURE_EXTRACTION",
    "lm": "CAUSAL_LM",
    "chat": "CAUSAL_LM",
    "translation": "SEQ_2_SEQ_LM",
}


Alpha = Annotated[int | float, Field(gt=0, le=1e9)]  # a whole one stays one: digests are of what is written


@with_config(OPEN)
class LoraEntries(TypedDict, total=False):
    """What adapter_config.json says of a LoRA adapter."""

    base_model_name_or_path: Place | None
    revision: Annotated[str, Field(max_length=200)] | None
    task_type: str | None
    r: Required[Size]
    lora_alpha: Required[Alpha]
    use_rslora: Flag | None
    rank_pattern: dict[str, Size] | None
    alpha_pattern: dict[str, Alpha] | None
    init_lora_weights: bool | str | None


def read_lora_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json of a LoRA adapter; any other kind is refused with the reason."""
    path = folder / CONFIG
    held = read_json(path, dict[str, Any], loose=True)
    kind = held.get("peft_type")
    if kind != "LORA":
        raise FolderError(f"{path} describes an adapter of type '{brief(kind)}'; Legato reads LORA")
    config: dict[str, Any] = {**fit(held, LoraEntries, str(path))}
    for entry, why in REFUSED.items():
        if config.get(entry):
            raise FolderError(f"{path} has {entry}: {why}, which Legato does not have; merge it with peft first")
    start = config.get("init_lora_weights")
    if start not in STARTS:
        raise FolderError(
            f"{path} has init_lora_weights={brief(start)}, which changes the base's weights, too; merge it with peft "
            "first"
        )
    return config


def alike(rank: int, alpha: float, rslora: bool) -> dict[str, Any]:
    """The entries that scale B A where all matrices are alike."""
    return {"r": rank, "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha, "use_rslora": rslora}


def unscaled(ranks: Mapping[str, int]) -> dict[str, Any]:
    """The same entries where B A is added as it is, alpha being the rank, and each matrix has a rank of its own."""
    usual = max(ranks.values(), key=list(ranks.values()).count)
    other = {path: rank for path, rank in ranks.items() if rank != usual}
    return {**alike(usual, usual, False), "rank_pattern": other, "alpha_pattern": other}


def split_tensors(
    tensors: Mapping[str, Tensor], where: str
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """A and B of each matrix by its path, and the tensors that were trained as they are by their names."""
    pairs: dict[str, dict[str, Tensor]] = {}
    rest: dict[str, Tensor] = {}
    # With bias="all" a saved module's bias is there a second time, as it was before or as it is: the module counts.
    saved = {re.sub(SAVED, "", name) for name in tensors if re.search(SAVED, name)}
    for name, tensor in tensors.items():
        if name in saved:
            continue
        path = name.removeprefix(ROOT)
        found = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", path)
        if found is None and ".lora_" in path:
            raise FolderError(f"{where} holds '{name}', which is no LoRA of a linear layer; merge it with peft first")
        if ".original_module" in path:  # what a module was before it was trained
            continue
        if found is None:
            path = re.sub(rf"{SAVED}|\.base_layer", "", path)
        part, place = (found[2], pairs.setdefault(found[1], {})) if found is not None else (path, rest)
        if part in place:
            raise FolderError(f"{where} holds '{name}' under two names")
        place[part] = tensor
    for path, both in pairs.items():
        if set(both) != {"A", "B"}:
            raise FolderError(f"{where}: '{path}' has lora_{min(both)} only; A and B belong together")
        a, b = both["A"], both["B"]
        if a.dim() != 2 or b.dim() != 2 or b.shape[1] != len(a) or not len(a):
            shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
            raise FolderError(f"{where}: A and B of '{path}' have shapes {shapes}, which do not belong together")
    return {path: (both["A"], both["B"]) for path, both in pairs.items()}, rest


def scaling_of(config: Mapping[str, Any], path: str, rank: int, where: Path) -> float:
    """What B A, of this rank, is multiplied with, for the matrix `path`."""
    alpha: float = _own(config, "alpha_pattern", path, where, config["lora_alpha"])
    told: int = _own(config, "rank_pattern", path, where, config["r"])
    if told != rank:
        raise FolderError(f"{where} says that '{path}' has rank {told}, but in the weights it has {rank}")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _own(config: Mapping[str, Any], entry: str, path: str, where: Path, usual: Any) -> Any:
    """What the first pattern says that matches the end of the path, from a dot or its beginning on.

    Most are names. A regular expression can run for ever, so others are matched where they can be ended.
    """
    values: dict[str, Any] = config.get(entry) or {}
    patterns = list(values)
    whole = [rf"(.*\.)?({pattern})" for pattern in patterns]
    plain = all(PLAIN.fullmatch(pattern) for pattern in patterns)
    try:
        found = worker.first_match(whole, path) if plain else sandbox.call("first_match", patterns=whole, text=path)
    except sandbox.OverBudget as problem:
        listed = brief(", ".join(f"'{pattern}'" for pattern in patterns), 200)
        raise FolderError(f"{where}: matching {listed} in {entry} takes more than {problem}; simplify it") from None
    except sandbox.Failed as problem:
        pattern = brief(patterns[int(problem.stage)], 100) if problem.stage else "a pattern"
        raise FolderError(f"{where}: '{pattern}' in {entry} is no regular expression: {problem.message}") from None
    return usual if found is None else values[patterns[found]]
