"""Folders of models of which little was trained: what was, and where the rest lies.

legato.json                     task, labels and head; the base with a digest of its weights; what was trained
adapter_config.json             lora: as `peft` writes and reads them (peft_files.py)
adapter_model.safetensors
changed.safetensors             head, bitfit: the tensors that were trained, under their published names
tokenizer.json …  README.md     as in every model folder

When such a folder is read, its base is read first, adapters are added into the base's matrices (W + s B A), and
what comes of it is an ordinary model. `peft`'s own folders are read, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from legato.config import validate
from legato.data.tokenizers import Tokenizer
from legato.errors import ConfigError, FolderError
from legato.folders import peft_files
from legato.folders.adaptation import Adaptation, digest_of
from legato.folders.chat import load_chat_template
from legato.folders.json_files import read_json_if_there, write_json
from legato.folders.sentence_encoder import lower_marking, sentences_of
from legato.folders.weights import load_tensors, save_tensors
from legato.models.base import SequenceModel
from legato.models.headed import Headed, HeadShape, body_of
from legato.models.matrices import BODY, LOW_RANK, Matrix, matrices_of, names_of, published_head
from legato.models.names import From, Names, give_tensors
from legato.nn.characters import tell_spelling
from legato.nn.low_rank import merge
from legato.registry import MODELS

if TYPE_CHECKING:
    from legato.folders.model_folder import Loaded

OURS: Final = "legato.json"
CHANGED: Final = "changed.safetensors"
HEAD: Final = "head."  # before the names of a head's tensors, where no published form has it


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def save_adapter(folder: Path, module: SequenceModel, adaptation: Adaptation, about: dict[str, Any]) -> None:
    """Write what was trained of `module`, and what it takes to put it back; `about` is our own key's content."""
    local = Path(adaptation.base)
    place = str(local.resolve()) if local.exists() else adaptation.base
    told: dict[str, Any] = {
        "legato": about,
        "model": body_of(module).config.model_dump(mode="json"),
        "adapt": {k: v for k, v in asdict(adaptation).items() if k not in ("base", "digest")},
        "base": {"path": place, "given": adaptation.base, "digest": adaptation.digest},
    }
    write_json(folder / OURS, told)
    trained = _trained(module)
    if adaptation.name != "lora":
        save_tensors(trained, folder / CHANGED)
        return
    plain = not _peft_has(module, str(about.get("task")))
    low, turned = _low_rank_tensors(module)
    config = peft_files.write_config(
        base=place,
        task=str(about.get("task")),
        rank=adaptation.rank,
        alpha=adaptation.alpha,
        dropout=adaptation.dropout,
        targets=_written_targets(module, adaptation.targets, plain),
        saved={_module_of(name) for name in trained} if not plain else (),
        turned=turned,
        plain=plain,
    )
    write_json(folder / peft_files.CONFIG, config)
    known = {peft_files.ROOT + (_bare(name) if plain else name): tensor for name, tensor in low.items()}
    if plain and trained:  # nothing that peft could put anywhere
        save_tensors(trained, folder / CHANGED)
    elif trained:
        known |= {peft_files.ROOT + name: tensor for name, tensor in trained.items()}
    save_tensors(known, folder / peft_files.WEIGHTS)


def _peft_has(module: SequenceModel, task: str) -> bool:
    """Whether peft can take the adapter and the head together: there is a class of theirs with such a head."""
    if task == "embedding":
        return False
    return published_head(module) if isinstance(module, Headed) else True


def _trained(module: SequenceModel) -> dict[str, Tensor]:
    """The tensors that were trained as they are, under their names in files."""
    wanted = {name for name, p in module.named_parameters() if p.requires_grad and LOW_RANK not in name}
    return give_tensors(module, {name: source for name, source in _names(module).items() if name in wanted})


def _names(module: SequenceModel) -> Names:
    """Of all tensors; a head's that nobody else has begin with `head.`, as in whole model folders."""
    names = dict(names_of(module))
    if isinstance(module, Headed):
        for name, source in names.items():
            if not name.startswith("body.") and source.names == (name,):
                names[name] = From((HEAD + name,))
    return names


def _low_rank_tensors(module: SequenceModel) -> tuple[dict[str, Tensor], bool]:
    """A and B of every matrix, as peft names them, and whether their matrices lie the other way round."""
    tensors: dict[str, Tensor] = {}
    turned = False
    for matrix in matrices_of(module).values():
        low = matrix.layer.low_rank
        if low is None:
            continue
        turned = turned or matrix.turned
        for part, (a, b) in zip(low.parts, low.pairs(), strict=True):
            tensors[f"{part.name}.lora_A.weight"] = a.detach().clone()
            tensors[f"{part.name}.lora_B.weight"] = b.detach().clone()
    return tensors, turned


def _written_targets(module: SequenceModel, targets: tuple[str, ...], plain: bool) -> list[str]:
    """The targets as they were given, where peft would find the same matrices by them; else every path."""
    paths = matrices_of(module)
    chosen = [path for path, matrix in paths.items() if _has_part(matrix, path)]
    others = {name for source in names_of(module).values() for name in source.names}
    others = {name.removesuffix(".weight") for name in others if name.endswith(".weight")}
    met = {path for path in others | set(paths) if any(path == t or path.endswith(f".{t}") for t in targets)}
    if met == set(chosen):
        return list(targets)
    return [_bare(path) if plain else path for path in chosen]


def _has_part(matrix: Matrix, path: str) -> bool:
    low = matrix.layer.low_rank
    return low is not None and any(part.name == path for part in low.parts)


PREFIXES: Final = ("bert", "roberta", "distilbert", "transformer", "model")  # of a body inside theirs with a head


def _bare(path: str) -> str:
    """The path in a model without a head: `encoder.layer.0…` for `bert.encoder.layer.0…`."""
    first, _, rest = path.partition(".")
    return rest if first in PREFIXES and rest else path


def _module_of(name: str) -> str:
    """The module of theirs that a trained tensor belongs to: `classifier`, or `bert.pooler`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] in PREFIXES else parts[0]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def load_adapter(folder: Path) -> Loaded:
    """The whole model that an adapter and its base make."""
    from legato.folders.model_folder import ends_of_ours, load_model, load_tokenizers, tokenizer_digest

    told = read_json_if_there(folder / OURS)
    config = peft_files.read_config(folder) if (folder / peft_files.CONFIG).is_file() else {}
    where, given = _base_of(folder, told, config)
    base = load_model(_find_base(folder, where, given))
    if told:
        _check_digest(folder, told, base)
    about = _about(folder, told, config, base)
    tensors: dict[str, Tensor] = {}
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    if config:
        pairs, tensors = peft_files.split_tensors(
            load_tensors(folder / peft_files.WEIGHTS), str(folder / peft_files.WEIGHTS)
        )
    if (folder / CHANGED).is_file():
        tensors |= load_tensors(folder / CHANGED)
    held = frozenset(BODY + name for name in body_of(base.module).state_dict())
    if not told and isinstance(base.module, Headed):  # whose head stays as it is, where the adapter brings none
        held = frozenset(base.module.state_dict())
    module = _rebuilt(folder, base, told, about, config, tensors)
    _check_whole(folder, module, held, tensors)
    names = _Parts(module)
    for path, (a, b) in pairs.items():
        _merge(folder, base.folder, names, path, a, b, peft_files.scaling_of(config, path, len(a)))
    for name, tensor in tensors.items():
        _put(folder, base.folder, names, name, tensor)
    module.eval()
    loaded = replace(base, folder=folder, module=module, task=str(about.get("task", base.task)), about=about)
    loaded.chat = load_chat_template(folder) or base.chat
    if told:  # peft's own folders leave all this to the base
        tokenizer, loaded.target = load_tokenizers(folder)
        if about.get("tokens") not in (None, [tokenizer_digest(tokenizer), tokenizer_digest(loaded.target)]):
            raise FolderError(f"{folder}: its tokenizer is not the one that the model was trained with")
        sentences = sentences_of(about, folder / OURS)
        loaded.sentences = sentences or (base.sentences if loaded.task == "embedding" else None)
        if isinstance(tokenizer, Tokenizer):
            tokenizer.foreign = bool(about.get("published"))
            if loaded.sentences is not None and loaded.sentences.lowercase:
                lower_marking(tokenizer)
        loaded.tokenizer = tokenizer
        loaded.ends = ends_of_ours(about, module, tokenizer)
    if module.reads_characters:
        tell_spelling(module, loaded.tokenizer)
    return loaded


def _base_of(folder: Path, told: dict[str, Any], config: dict[str, Any]) -> tuple[str, str]:
    """Where the base should be, and how it was named when the adapter was made."""
    inside = told.get("base") or {}
    where = config.get("base_model_name_or_path") or inside.get("path")
    if config.get("revision") and not Path(str(where)).exists():
        where = f"{where}@{config['revision']}"
    if not isinstance(where, str) or not where:
        file = folder / (peft_files.CONFIG if config else OURS)
        raise FolderError(f"{file} does not say which model it is for; write its folder to base_model_name_or_path")
    return where, str(inside.get("given", where))


def _find_base(folder: Path, where: str, given: str) -> Path:
    from legato.folders.model_folder import find_model

    for place in (where, given):
        if Path(place).exists():
            found = find_model(place)
            if found.resolve() == folder.resolve():
                raise FolderError(f"{folder} names itself as the model that it adapts")
            return found
    key = (
        "base_model_name_or_path in adapter_config.json"
        if (folder / peft_files.CONFIG).is_file()
        else (f"base.path in {OURS}")
    )
    try:
        return find_model(where)
    except FolderError as problem:
        raise FolderError(
            f"{folder} is an adapter for {given}, which is not there ({problem}); put it back, or write where it is "
            f"to {key}"
        ) from None


def _check_digest(folder: Path, told: dict[str, Any], base: Loaded) -> None:
    made = told.get("base") or {}
    if made.get("digest") not in (None, digest_of(base.module)):
        raise FolderError(
            f"{folder} is an adapter for another base: it was trained for {made.get('given')} as that was then, and "
            f"the weights in {base.folder} are others"
        )


def _about(folder: Path, told: dict[str, Any], config: dict[str, Any], base: Loaded) -> dict[str, Any]:
    """What our own key would say; of peft's own folders, what can be told."""
    about = told.get("legato")
    if told and not isinstance(about, dict):
        raise FolderError(f"{folder / OURS}: 'legato' should hold a JSON object")
    if isinstance(about, dict):
        return about
    tasks = {theirs: ours for ours, theirs in reversed(peft_files.TASK_TYPES.items())}
    task = tasks.get(str(config.get("task_type")))
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
    if not told:
        return base.module if isinstance(base.module, Headed) else _peft_head(folder, base, about, config, tensors)
    body = body_of(base.module)
    try:
        if told.get("model") != body.config.model_dump(mode="json"):  # it was given heads that the base lacks
            kind: type[SequenceModel] = MODELS.get(str(dict(told["model"]).get("name")))
            fresh = kind(validate(kind.Config, told["model"]), body.sizes)
            fresh.load_state_dict(body.state_dict(), strict=False)
            body = fresh
        if about.get("head") is None:
            return body
        return Headed(body, validate(HeadShape, about["head"], "legato.head"))
    except (ConfigError, LookupError, TypeError, ValueError) as problem:
        raise FolderError(f"{folder / OURS}: {problem}") from None
    except RuntimeError:  # of PyTorch's, where shapes differ
        raise FolderError(f"{folder} is an adapter for a model of another shape than {base.folder}") from None


def _peft_head(
    folder: Path, base: Loaded, about: dict[str, Any], config: dict[str, Any], tensors: Mapping[str, Tensor]
) -> SequenceModel:
    """The head that peft saved beside an adapter: its kind is in the config, its size in its last tensor."""
    kinds = {"SEQ_CLS": "classes", "TOKEN_CLS": "tags", "QUESTION_ANS": "spans"}
    kind = kinds.get(str(config.get("task_type")))
    last = ("classifier.weight", "classifier.out_proj.weight", "score.weight", "qa_outputs.weight")
    outputs = next((len(tensors[name]) for name in last if name in tensors), None)
    if kind is None or outputs is None:
        return base.module
    module = Headed(base.module, validate(HeadShape, {"kind": kind, "outputs": outputs}))
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
    for name, source in _names(module).items():
        inside = name if isinstance(module, Headed) else BODY + name
        missing = [their for their in source.names if their not in tensors and _bare(their) not in tensors]
        if inside not in held and missing and name in dict(module.named_parameters()):
            raise FolderError(f"{folder} lacks the tensor '{missing[0]}'")


class _Parts:
    """Where published tensors and matrices are in a module; a body's path may lack what it begins with."""

    def __init__(self, module: SequenceModel) -> None:
        self.module = module
        self.matrices = matrices_of(module)
        self.matrices |= {_bare(path): matrix for path, matrix in self.matrices.items()}
        state = module.state_dict()
        self.tensors: dict[str, Tensor] = {}
        for name, source in _names(module).items():
            whole = state[name][: source.rows]
            sizes = list(source.sizes or [len(whole) // len(source.names)] * len(source.names))
            for their, part in zip(source.names, whole.split(sizes), strict=True):
                self.tensors[their] = part.t() if source.turned else part
        self.tensors |= {_bare(name): tensor for name, tensor in self.tensors.items()}


def _merge(folder: Path, base: Path, parts: _Parts, path: str, a: Tensor, b: Tensor, scaling: float) -> None:
    """Add one adapter into the matrix that it is for."""
    matrix = parts.matrices.get(path)
    if matrix is None:
        raise FolderError(f"{folder} is an adapter for another base: {base} has no matrix '{path}'")
    rows, columns = matrix.shape
    if b.dim() != 2 or a.dim() != 2 or (len(b), a.shape[1]) != (rows, columns) or b.shape[1] != len(a):
        raise FolderError(
            f"{folder} is an adapter for another base: its '{path}' is {len(b)} × {a.shape[-1]}, but in {base} "
            f"it is {rows} × {columns}"
        )
    merge(matrix.layer.weight[matrix.start : matrix.end], a, b, scaling)


@torch.no_grad()
def _put(folder: Path, base: Path, parts: _Parts, name: str, tensor: Tensor) -> None:
    place = parts.tensors.get(name)
    if place is None:
        raise FolderError(f"{folder} holds '{name}', which the model in {base} lacks: it is for another one")
    if place.shape != tensor.shape:
        raise FolderError(
            f"{folder} is for another base: its '{name}' has shape {tuple(tensor.shape)}, but in {base} it is "
            f"{tuple(place.shape)}"
        )
    place.copy_(tensor)
