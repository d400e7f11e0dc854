"""Folders of models of which little was trained: what was, and where the rest lies.

legato.json                     task, labels and head; the base with a digest of its weights; what was trained
adapter_config.json             lora: as `peft` writes and reads them (peft_files.py)
adapter_model.safetensors
changed.safetensors             head, bitfit: the tensors that were trained, under their published names
modules.json, 1_Pooling …       lora of embedding: how vectors are made (sentence_encoder.py)
tokenizer.json …  README.md     as in every model folder

When such a folder is read, its base is read first, adapters are added into the base's matrices (W + s B A), and
what comes of it is an ordinary model. `peft`'s own folders are read, too. A base may be an adapter itself; what
lora saves on top of one is the sum of both, for the whole model: `peft` loads no chains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Required

import torch
from torch import Tensor

from legato.config import validate
from legato.data.text.word_bytes import vocabulary_bytes
from legato.errors import ConfigError, FolderError, brief
from legato.folders.about import Generation, check_about, head_shape
from legato.folders.adapters import peft_files
from legato.folders.adapters.saving import (
    CHANGED,
    OURS,
    MergedAdapters,
    bare,
    digest_of,
    file_names,
    place_of,
    scaled,
    stacked,
)
from legato.folders.chat_template import load_chat_template
from legato.folders.finding import find_model, is_adapter
from legato.folders.links import refuse_links_out
from legato.folders.loaded import Loaded
from legato.folders.processor_files import check_digests, load_processors, set_up_tokenizer
from legato.folders.sentence_encoder import sentences_of
from legato.folders.special_tokens import ends_of_ours
from legato.folders.steady import read_steadily
from legato.folders.weights import load_tensors
from legato.input_files import open_file
from legato.models.base import ModelConfig, SequenceModel
from legato.models.building import built, limited
from legato.models.model_with_head import BODY, HeadSpec, ModelWithHead, body_of
from legato.models.published.entries import Setting
from legato.models.published.matrices import Matrix, matrices_of, published_head
from legato.models.published.tensor_names import From
from legato.nn.adapters.lora import Part, beside, merge
from legato.nn.characters import tell_spelling
from legato.nn.linear import Linear
from legato.nn.quantized import Narrow, hold_layers
from legato.nn.quantized.deferred import change, numbers_of, put
from legato.registry import MODELS
from legato.schema import OPEN, Place, TypedDict, read_json, read_json_if_there, with_config


@with_config(OPEN)
class BaseEntries(TypedDict, total=False):
    """Where the model lies that was adapted, and what tells its weights from others."""

    path: Place | None
    given: Place | None
    digest: str | None


@with_config(OPEN)
class AdaptEntries(TypedDict, total=False):
    """How it was adapted, as far as it matters here."""

    quantize: str | None


@with_config(OPEN)
class AdapterFile(TypedDict, total=False):
    """legato.json."""

    legato: Required[dict[str, Any]]
    model: Required[dict[str, Setting]]
    base: Required[BaseEntries]
    adapt: AdaptEntries | None
    trained: list[str] | None


def load_adapter(
    folder: Path,
    load_model: Callable[[Path], Loaded],
    above: tuple[Path, ...] = (),
    load_narrow: Callable[[Path, str], Loaded] | None = None,
) -> Loaded:
    """The whole model that an adapter and its base, read by `load_model`, make.

    `above` are the adapters that it is the base of. An adapter that was trained beside narrow matrices, made for it,
    has them again where `load_narrow` reads the base so.
    """
    refuse_links_out(folder)
    told = read_ours(folder)
    config = peft_files.read_lora_config(folder) if (folder / peft_files.CONFIG).is_file() else {}
    above = (*above, folder.resolve())
    place, name = _find_base(folder, told, config, above)
    if is_adapter(place):
        base = read_steadily(place, lambda at: load_adapter(at, load_model, above))
    else:
        width = (told.get("adapt") or {}).get("quantize")
        base = load_model(place) if load_narrow is None or width is None else load_narrow(place, str(width))
    before = body_of(base.module).original or base.digest or digest_of(base.module)
    if told and told["base"].get("digest") not in (None, before):
        raise FolderError(
            f"{folder} is an adapter for another base: it was trained for {told['base'].get('given')} as that was "
            f"then, and the weights in {base.folder} are others"
        )
    about = about_of(told, config, base)
    pairs, tensors, digest = read_tensors(folder, config, before)
    check_trained(folder, told, base.module, pairs, tensors)
    if not told:  # before a head that they lack is looked for
        find_matrices(folder, base, base.module, pairs)
    held = frozenset(BODY + name for name in body_of(base.module).state_dict())
    if not told and isinstance(base.module, ModelWithHead):  # its head stays, where the adapter brings none
        held = frozenset(base.module.state_dict())
    module = _rebuilt(folder, base, told, about, config, tensors)
    _check_whole(folder, module, held, tensors)
    matrices = find_matrices(folder, base, module, pairs)
    below = base.module.merged or MergedAdapters(name, before, {}, {})
    changed = _put(folder, base.folder, module, tensors)  # first: a matrix of a new head may have adapters, too
    merged = {key: pair for key, pair in below.pairs.items() if f"{key[0]}.weight" not in changed}
    for path, (a, b) in pairs.items():
        matrix = matrices[path]
        scaling = peft_files.scaling_of(config, path, len(a), folder / peft_files.CONFIG)
        if not isinstance(matrix.layer, Narrow):
            change(matrix.layer.weight, partial(_merge_rows, matrix, a, b, scaling))
        key, pair = place_of(matrix), (a.clone(), scaled(b, scaling))  # nothing stays of a file that may change
        merged[key] = stacked([merged[key], pair]) if key in merged else pair
    _put_beside(module, merged)
    module.eval()
    module.merged = replace(below, pairs=merged, tensors={**below.tensors, **changed})
    loaded = read_rest(folder, base, module, about, ours=bool(told))
    loaded.bases, loaded.digest = (place, *base.bases), digest
    if module.config.reads_characters:
        tell_spelling(module, torch.from_numpy(vocabulary_bytes(loaded.tokenizer)))
    return loaded


def read_rest(folder: Path, base: Loaded, module: SequenceModel, about: dict[str, Any], *, ours: bool) -> Loaded:
    """What an adapter's folder says beside its weights; what it leaves out, peft's own nearly all, is its base's."""
    said = read_json_if_there(folder / "generation_config.json", Generation, loose=True)
    loaded = replace(
        base,
        folder=folder,
        module=module,
        task=str(about.get("task", base.task)),
        about=about,
        generation={**base.generation, **said},
    )
    loaded.chat = load_chat_template(folder) or base.chat
    if ours:
        body = body_of(module)
        loaded.processors = load_processors(folder, body.processors_of(body.config), about=about)
        check_digests(folder, about, loaded.processors)
        sentences = sentences_of(about, folder / OURS)
        loaded.sentences = sentences or (base.sentences if loaded.task == "embedding" else None)
        lowercase = loaded.sentences is not None and loaded.sentences.lowercase
        set_up_tokenizer(loaded.processors, published=bool(about.get("published")), lowercase=lowercase)
        loaded.ends = ends_of_ours(about, module, loaded.tokenizer) if loaded.processors.has_text else ()
    return loaded


def adapter_config(
    folder: Path, read_config: Callable[[Path], ModelConfig], above: tuple[Path, ...] = ()
) -> ModelConfig:
    """The settings of the whole model; of an adapter of peft's, those of the base, which `read_config` reads."""
    if told := read_ours(folder):
        try:
            return _settings(told)[1]
        except (ConfigError, LookupError, TypeError, ValueError) as problem:
            raise FolderError(f"{folder / OURS}: {problem}") from None
    above = (*above, folder.resolve())
    base, _ = _find_base(folder, told, peft_files.read_lora_config(folder), above)
    return adapter_config(base, read_config, above) if is_adapter(base) else read_config(base)


def _settings(told: dict[str, Any]) -> tuple[type[SequenceModel], ModelConfig]:
    """The class of the model that was adapted, and its settings, as our own file has them."""
    kind: type[SequenceModel] = MODELS.get(str(told["model"].get("name")))
    return kind, validate(kind.Config, told["model"])


def read_ours(folder: Path) -> dict[str, Any]:
    """What our own file says; nothing in a folder of peft's."""
    file = folder / OURS
    if not file.is_file():
        return {}
    told: dict[str, Any] = {**read_json(file, AdapterFile, loose=True)}
    return {**told, "legato": check_about(told["legato"], file)}


def read_tensors(
    folder: Path, config: Mapping[str, Any], base: str
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor], str]:
    """Low-rank pairs, tensors as they are, and what tells the model that comes of them and the `base` from others.

    Not a digest of the merged weights: their last bits are the machine's.
    """
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    scaling = {name: config.get(name) for name in peft_files.SCALING}
    digest = hashlib.sha256((base + json.dumps(scaling, sort_keys=True)).encode())
    for name in (peft_files.WEIGHTS, CHANGED):
        if (folder / name).is_file():
            with open_file(folder / name, error=FolderError) as file:
                hashlib.file_digest(file, lambda: digest)
    if config:
        weights = folder / peft_files.WEIGHTS
        pairs, tensors = peft_files.split_tensors(load_tensors(weights), str(weights))
    if (folder / CHANGED).is_file():
        tensors |= load_tensors(folder / CHANGED)
    for name, tensor in [*tensors.items(), *((name, part) for name, pair in pairs.items() for part in pair)]:
        if not tensor.is_floating_point():
            raise FolderError(f"{folder}: '{name}' holds {str(tensor.dtype).removeprefix('torch.')}, not weights")
    return pairs, tensors, digest.hexdigest()


def check_trained(
    folder: Path, told: dict[str, Any], base: SequenceModel, pairs: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """Refuse a folder that lacks some of what was trained; of peft's own, one that has no adapter at all."""
    there = {*tensors, *(f"{path}.lora_{part}.weight" for path in pairs for part in "AB")}
    for name in told.get("trained") or ():
        if name not in there and bare(name, base) not in there:
            raise FolderError(f"{folder} lacks the tensor '{brief(name)}'")
    if (folder / peft_files.CONFIG).is_file() and not pairs:
        raise FolderError(f"{folder / peft_files.WEIGHTS} holds no low-rank matrices")


def _find_base(
    folder: Path, told: dict[str, Any], config: dict[str, Any], above: tuple[Path, ...]
) -> tuple[Path, str]:
    """The base's folder, and what others should call it; it is none of those `above`, which are made of it."""
    key = f"base.path in {OURS}"  # where the folder says what it is for
    if (folder / peft_files.CONFIG).is_file():
        key = f"base_model_name_or_path in {peft_files.CONFIG}"
    inside = told.get("base", {})
    where: str | None = config.get("base_model_name_or_path") or inside.get("path")
    if not where:
        raise FolderError(f"{folder} does not say which model it is for; write its folder to {key}")
    if config.get("revision") and not Path(where).exists():
        where = f"{where}@{config['revision']}"
    given = inside.get("given") or where  # how it was named when the adapter was made
    there = next((place for place in (where, given) if Path(place).exists()), None)
    try:
        base = find_model(where if there is None else there)
    except FolderError as problem:
        if there is not None:
            raise
        raise FolderError(
            f"{folder} is an adapter for {given}, which is not there ({problem}); put it back, or write where it is "
            f"to {key}"
        ) from None
    if base.resolve() in above:
        raise FolderError(f"{folder} names {base} as the model that it adapts, which is itself or made of it")
    if there is None:
        return base, where
    return base, given if Path(given).exists() else str(base.resolve())


def about_of(told: dict[str, Any], config: dict[str, Any], base: Loaded) -> dict[str, Any]:
    """What our own key would say; of peft's own folders, what can be told."""
    if told:
        about: dict[str, Any] = told["legato"]
        return about
    tasks = {theirs: ours for ours, theirs in reversed(peft_files.TASK_TYPES.items())}
    task = tasks.get(config.get("task_type") or "")
    kept = {name: value for name, value in base.about.items() if name != "tokens"}
    return {**kept, "published": True} | ({} if task is None else {"task": task})


def _rebuilt(
    folder: Path,
    base: Loaded,
    told: dict[str, Any],
    about: dict[str, Any],
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
) -> SequenceModel:
    """The module that was trained, as it was before: the base's body, with the task's head where there is one."""
    if not told and isinstance(base.module, ModelWithHead):
        return base.module
    if not told:
        return _peft_head(folder, base, about, config, tensors)
    body = body_of(base.module)
    try:
        shape = head_shape(about, folder / OURS)
        if shape is not None:  # first: a readout of its own must not be taken for an embedding that is tied to none
            body.drop_readout()
        if told.get("model") != body.config.model_dump(mode="json"):  # it was given heads that the base lacks
            (kind, settings), state, sizes = _settings(told), body.state_dict(keep_vars=True), body.sizes

            def check(plan: SequenceModel) -> None:
                """Tensors that the model has alone may be of any shape, the others are of the base's."""
                pairs = plan.state_dict().items()
                if any(name in state and state[name].shape != tensor.shape for name, tensor in pairs):
                    raise FolderError(f"{folder} is an adapter for a model of another shape than {base.folder}")

            fresh = built(lambda: kind(settings, sizes), {**state, **tensors}, check, str(folder / OURS))
            check(fresh)
            hold_layers(fresh, state)  # the narrow matrices, where there are any
            for name, tensor in fresh.state_dict(keep_vars=True).items():
                if name in state:
                    put(tensor, state[name])
            body = fresh
        if shape is None:
            return body
        more = sum(parameter.numel() for parameter in body.parameters())  # a head may be trained in part
        return limited(lambda: ModelWithHead(body, shape), tensors, str(folder / OURS), more)
    except (ConfigError, LookupError, TypeError, ValueError) as problem:
        raise FolderError(f"{folder / OURS}: {problem}") from None


def _peft_head(
    folder: Path, base: Loaded, about: dict[str, Any], config: dict[str, Any], tensors: Mapping[str, Tensor]
) -> SequenceModel:
    """The head that peft saved beside an adapter: its kind is in the config, its size in its last tensor."""
    kinds = {"SEQ_CLS": "classes", "TOKEN_CLS": "tags", "QUESTION_ANS": "spans"}
    kind = kinds.get(config.get("task_type") or "")
    last = ("classifier.weight", "classifier.out_proj.weight", "score.weight", "qa_outputs.weight")
    outputs = next((len(tensors[name]) for name in last if name in tensors and tensors[name].dim() == 2), None)
    if kind is None or not outputs:
        return base.module
    module = ModelWithHead(base.module, validate(HeadSpec, {"kind": kind, "outputs": outputs}))
    if not published_head(module):
        raise FolderError(
            f"{folder} has a head that reads the pooler, which {base.folder} lacks; export it with peft"
        )
    if kind != "spans":
        about["labels"] = [f"LABEL_{number}" for number in range(outputs)]  # theirs are not told
        about["kind"] = "regression" if kind == "classes" and outputs == 1 else "classes"
    return module


def _check_whole(folder: Path, module: SequenceModel, held: frozenset[str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse to leave as it was made what the base does not have: a head."""
    for name, source in file_names(module).items():
        inside = name if isinstance(module, ModelWithHead) else BODY + name
        missing = [their for their in source.names if their not in tensors and bare(their, module) not in tensors]
        if inside not in held and missing and name in dict(module.named_parameters()):
            raise FolderError(f"{folder} lacks the tensor '{missing[0]}'")


def find_matrices(
    folder: Path, base: Loaded, module: SequenceModel, pairs: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Matrix]:
    """The matrices that adapters are for; a body's path may lack what it begins with."""
    known = matrices_of(module)
    known |= {bare(path, module): matrix for path, matrix in known.items()}
    for path, (a, b) in pairs.items():
        shape = f"{len(b)} × {a.shape[1]}"
        if path not in known:
            raise FolderError(
                f"{folder} is an adapter for another base: it needs a matrix '{path}' of {shape}, and {base.folder}, "
                "the base that it names, has none of that name"
            )
        rows, columns = known[path].shape
        if (len(b), a.shape[1]) != (rows, columns):
            raise FolderError(
                f"{folder} is an adapter for another base: its '{path}' is {shape}, but in {base.folder}, the base "
                f"that it names, it is {rows} × {columns}"
            )
    return {path: known[path] for path in pairs}


def _put_beside(module: SequenceModel, merged: Mapping[tuple[str, int, int], tuple[Tensor, Tensor]]) -> None:
    """Adapters of narrow matrices, into which they cannot be merged."""
    parts: dict[Linear, list[tuple[Part, tuple[Tensor, Tensor]]]] = {}
    for path, matrix in matrices_of(module).items():
        key = place_of(matrix)
        if isinstance(matrix.layer, Narrow) and key in merged:
            parts.setdefault(matrix.layer, []).append((Part(path, matrix.start, matrix.end), merged[key]))
    for layer, each in parts.items():
        layer.low_rank = beside(layer.in_features, layer.out_features, *zip(*each, strict=True))


@torch.no_grad()
def _put(folder: Path, base: Path, module: SequenceModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take over what was trained as it is; copies of the body's tensors that were changed by it, by our names."""
    state, places, names, sources = module.state_dict(keep_vars=True), {}, {}, file_names(module)
    for name, source in sources.items():
        for their, part in source.pieces(state[name]).items():
            places[their] = places[bare(their, module)] = part
            names[their] = names[bare(their, module)] = name, their
    for their, tensor in tensors.items():
        place = places.get(their)
        if place is None:
            raise FolderError(f"{folder} holds '{their}', which the model in {base} lacks: it is for another one")
        if place.shape != tensor.shape:
            raise FolderError(
                f"{folder} is for another base: its '{their}' has shape {tuple(tensor.shape)}, but in {base} it is "
                f"{tuple(place.shape)}"
            )
        name, piece = names[their]
        change(state[name], partial(_put_piece, sources[name], piece, tensor))
    changed = {names[their][0] for their in tensors}
    inside = BODY if isinstance(module, ModelWithHead) else ""
    return {
        name.removeprefix(inside): numbers_of(state[name]).clone()
        for name in sorted(changed)
        if name.startswith(inside)
    }


def _put_piece(source: From, piece: str, tensor: Tensor, whole: Tensor) -> None:
    """Write a published tensor into one of ours that it is a part of."""
    source.pieces(whole)[piece].copy_(tensor)


def _merge_rows(matrix: Matrix, a: Tensor, b: Tensor, scaling: float, whole: Tensor) -> None:
    merge(whole[matrix.start : matrix.end], a, b, scaling)
