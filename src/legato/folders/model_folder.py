"""The model folder: a Hugging Face folder with what is ours under one key.

config.json            the architecture: theirs where they have it, else `model_type` is legato-lstm and so on
model.safetensors      the weights, under their names where they have the architecture
tokenizer.json, tokenizer_config.json
target/                the tokenizer of what is written, where it is another one
source.spm, target.spm, vocab.json      instead of those in published Marian folders
generation_config.json
README.md              the model card
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.config import validate
from legato.data.sentencepieces import is_marian_vocabulary, load_marian_vocabulary
from legato.data.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import ConfigError, DataError, FolderError
from legato.folders.atomic import OLD
from legato.folders.weights import load_tensors, put_weights, save_tensors, weights_of
from legato.models.base import Published, SequenceModel, Sizes
from legato.registry import MODELS, PUBLISHED

PREFIX = "legato-"
TARGET = "target"  # the folder of a tokenizer of its own for what is written
IDS = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id", "forced_eos_token_id")


@dataclass
class Loaded:
    """What a model folder holds."""

    folder: Path
    module: SequenceModel
    tokenizer: AnyTokenizer  # of what is read
    task: str
    about: dict[str, Any] = field(default_factory=dict)  # the "legato" key
    target: AnyTokenizer = None  # type: ignore[assignment]  # of what is written; left out: the same
    start: int = None  # type: ignore[assignment]  # what writing begins with; left out: the end mark

    def __post_init__(self) -> None:
        self.target = self.tokenizer if self.target is None else self.target
        self.start = self.target.eos_id if self.start is None else self.start


def save_model(
    folder: Path,
    module: SequenceModel,
    tokenizer: AnyTokenizer,
    *,
    task: str,
    about: dict[str, Any],
    card: str,
    target: AnyTokenizer | None = None,
    start: int | None = None,
) -> None:
    """Write every file of a model folder into `folder`, which exists."""
    config, tensors = _published(module) or _own(module)
    written = target or tokenizer
    marks = _marks(module, written, written.eos_id if start is None else start)
    _write_json(folder / "config.json", {**config, **marks, "legato": {"task": task, **about}})
    save_tensors(tensors, folder / "model.safetensors")
    tokenizer.save(folder, ends=module.reads_source)
    if target is not None and target is not tokenizer and target is not tokenizer.partner:
        target.save(folder / TARGET)
    generation = dict(marks)
    if module.reads_source:
        generation["suppress_tokens"] = sorted(written.marks - {written.eos_id})
        if module.longest is not None:
            generation["max_length"] = module.longest
        if about.get("beams", 1) > 1:  # so that others search as we do
            generation |= {"num_beams": about["beams"], "length_penalty": about.get("length_penalty", 1.0)}
    else:
        generation["bos_token_id"] = tokenizer.eos_id
        if tokenizer.ends_text:
            generation["eos_token_id"] = tokenizer.eos_id
    _write_json(folder / "generation_config.json", generation)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _marks(module: SequenceModel, tokenizer: AnyTokenizer, start: int) -> dict[str, Any]:
    """The token numbers that an encoder–decoder's config names."""
    if not module.reads_source:
        return {}
    marks = {"decoder_start_token_id": start, "eos_token_id": tokenizer.eos_id, "is_encoder_decoder": True}
    return marks if tokenizer.pad_id is None else {**marks, "pad_token_id": tokenizer.pad_id}


def refusal(module: SequenceModel) -> str | None:
    """Why a model is not saved in a form that `transformers` knows; None when it is."""
    if module.published is None:
        return f"Hugging Face has no architecture like '{module.config.name}'"
    form: type[Published] = PUBLISHED.get(module.published)
    return form.refusal(module)


def _published(module: SequenceModel) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if refusal(module) is not None:
        return None
    form: type[Published] = PUBLISHED.get(str(module.published))
    config, tensors = form.save(module)
    return {"model_type": form.model_type, "architectures": [form.architecture], **config}, tensors


def _own(module: SequenceModel) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = module.config.model_dump(mode="json")
    name = settings.pop("name")
    sizes = {"vocab_size": module.vocabulary}
    if module.sizes.source is not None:
        sizes["source_vocab_size"] = module.sizes.source
    head = {"model_type": PREFIX + name, "architectures": [type(module).__name__], **sizes}
    return {**head, **settings}, weights_of(module)


def load_model(folder: Path) -> Loaded:
    """Read a model folder; nothing is returned unless all of it fits."""
    config = _read_json(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise FolderError(f"{folder / 'config.json'} names no model_type")
    ours = "legato" in config
    about = config.pop("legato", None) or _published_habits(folder, config)
    if not isinstance(about, dict):
        raise FolderError(f"{folder / 'config.json'}: 'legato' should hold a JSON object")
    tokenizer, target = _load_tokenizers(folder)
    if kind in PUBLISHED:
        form: type[Published] = PUBLISHED.get(kind)
        module = form.load(config, load_tensors(folder / "model.safetensors"), str(folder))
        _check_vocabularies(folder, module.sizes, tokenizer, target, exact=ours)
    else:
        module = _load_own(folder, kind, config, tokenizer, target)
    module.eval()
    start = config.get("decoder_start_token_id")
    if start is not None and not (isinstance(start, int) and 0 <= start < module.vocabulary):
        raise FolderError(f"{folder / 'config.json'}: decoder_start_token_id is {start}")
    task = str(about.get("task", "translation" if module.reads_source else "lm"))
    return Loaded(folder, module, tokenizer, task, about, target, start)  # type: ignore[arg-type]


def _published_habits(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the makers of a folder without our key say of searching; older ones say it in config.json."""
    file = folder / "generation_config.json"
    said = {**config, **(_read_json(file) if file.is_file() else {})}
    ours = {"beams": said.get("num_beams"), "length_penalty": said.get("length_penalty")}
    return {name: value for name, value in ours.items() if isinstance(value, int | float)}


def _load_own(
    folder: Path, kind: str, config: dict[str, Any], tokenizer: AnyTokenizer, target: AnyTokenizer
) -> SequenceModel:
    name = kind.removeprefix(PREFIX)
    if not kind.startswith(PREFIX) or name not in MODELS:
        known = ", ".join([*PUBLISHED.names(), *(PREFIX + n for n in MODELS.names())])
        raise FolderError(f"{folder} holds a '{kind}', which Legato does not have; it has {known}")
    sizes = {key: config.pop(key, None) for key in ("vocab_size", "source_vocab_size")}
    skipped = ("model_type", "architectures", "is_encoder_decoder", *IDS)
    settings = {k: v for k, v in config.items() if k not in skipped}
    model: type[SequenceModel] = MODELS.get(name)
    try:
        checked = validate(model.Config, {"name": name, **settings})
    except ConfigError as problem:
        raise FolderError(f"{folder / 'config.json'}: {problem}") from None
    for key, size in sizes.items():
        if (size is not None or key == "vocab_size") and not (isinstance(size, int) and size >= 1):
            raise FolderError(f"{folder / 'config.json'}: {key} is {size}")
    known_sizes = Sizes(int(sizes["vocab_size"] or 0), sizes["source_vocab_size"])
    _check_vocabularies(folder, known_sizes, tokenizer, target, exact=True)
    module = model(checked, known_sizes)
    put_weights(module, load_tensors(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return module


def _load_tokenizers(folder: Path) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Those of what is read and of what is written; mostly one and the same."""
    try:
        if is_marian_vocabulary(folder):
            return load_marian_vocabulary(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        own = folder / TARGET / "tokenizer.json"
        return tokenizer, Tokenizer.load(own) if own.is_file() else tokenizer
    except DataError as problem:
        raise FolderError(str(problem)) from None


def _check_vocabularies(
    folder: Path, sizes: Sizes, tokenizer: AnyTokenizer, target: AnyTokenizer, *, exact: bool
) -> None:
    """Refuse a tokenizer of another model. Ours fit exactly; others pad their embeddings."""
    for held, size in ((target, sizes.vocabulary), (tokenizer, sizes.source or sizes.vocabulary)):
        if held.size > size:
            raise FolderError(f"{folder}: the tokenizer has {held.size} tokens, the model only {size}")
        if exact and held.size < size:
            raise FolderError(f"{folder}: the tokenizer has {held.size} tokens, the model {size}; it is another's")


def find_model(place: str | Path) -> Path:
    """The model folder behind a path: the folder itself, or a run's `best`, or its `last`."""
    folder = Path(place)
    if not folder.exists():
        raise FolderError(f"there is no folder {folder}")
    # A kill between two renames leaves the best model under its other name until the run is resumed.
    for candidate in (folder, folder / "best", folder / f"{OLD}best", folder / "last", folder / f"{OLD}last"):
        if (candidate / "config.json").exists():
            return candidate
    if (folder / "config.yaml").exists():
        raise FolderError(f"{folder} is a run that has not saved a model yet")
    raise FolderError(f"{folder} is no model folder: it has no config.json")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} is no model folder: it has no {path.name}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise FolderError(f"{path} is not valid JSON: {problem}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path} should hold a JSON object")
    return value
