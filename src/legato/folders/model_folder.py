"""The model folder: a Hugging Face folder with what is ours under one key.

config.json            the architecture: theirs where they have it, else `model_type` is legato-lstm and so on
model.safetensors      the weights, under their names where they have the architecture; several files where large
tokenizer.json, tokenizer_config.json
target/                the tokenizer of what is written, where it is another one
source.spm, target.spm, vocab.json      instead of those in published Marian folders
generation_config.json
README.md              the model card

Some weights are published alone, and their tensors' names tell what config.json would (`Published.entries_of`). A
GGUF file, which has all of that in it, is read where a folder is (gguf/).
Published folders may also have a chat template (`chat_template.py`) and be sentence encoders (`sentence_encoder.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from legato.config import validate
from legato.data.formats.tag_schemes import scheme_of_labels
from legato.data.processors import TEXT, Processor, Processors
from legato.data.text.word_bytes import vocabulary_bytes
from legato.errors import ConfigError, FolderError
from legato.folders import quantized
from legato.folders.about import Generation, check_about, head_shape, usual_task
from legato.folders.chat_template import load_chat_template
from legato.folders.checks import check_vocabularies, refuse_what_we_lack
from legato.folders.file_names import WEIGHTS
from legato.folders.finding import find_model, is_adapter
from legato.folders.links import refuse_links_out
from legato.folders.loaded import Loaded
from legato.folders.processor_files import (
    check_digests,
    digests_of,
    load_processors,
    save_tokenizers,
    set_up_tokenizer,
)
from legato.folders.sentence_encoder import (
    SentenceEncoder,
    load_sentence_encoder,
    save_sentence_encoder,
    sentences_of,
)
from legato.folders.shards import LARGEST, load_weights, save_weights, stamps_of, weights_name
from legato.folders.special_tokens import (
    ends_of_ours,
    generation_defaults,
    generation_entries,
    published_ends,
    special_token_ids,
    with_padding,
)
from legato.folders.steady import find_and_read, read_steadily
from legato.folders.weights import check_weights, put_weights, weights_of
from legato.input_files import path_of
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.building import MOST_TENSORS, built, limited, sketch
from legato.models.model_with_head import HeadSpec, ModelWithHead, body_of
from legato.models.published.entries import Entries, OwnEntries, Setting
from legato.models.published.family import PREFIX, Published, described, form_named, form_of
from legato.models.published.heads import PublishedHead, read_head, write_head
from legato.nn.characters import tell_spelling
from legato.nn.quantized import deferring, read_deferred
from legato.registry import MODELS, PUBLISHED
from legato.schema import fit, read_json, read_json_if_there, write_json

HEAD = "head."  # before the names of the tensors of a task's head, where no published form has it
SIZES = ("vocab_size", "source_vocab_size")
IDS = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id", "forced_eos_token_id")


def save_model(
    folder: Path,
    module: SequenceModel,
    processors: Processors,
    *,
    task: str,
    about: dict[str, Any],
    card: str,
    start: int | None = None,
    generation: Mapping[str, Any] = MappingProxyType({}),
    largest: int = LARGEST,
) -> None:
    """Write every file of a model folder into `folder`, which exists; of weights, at most `largest` bytes a file.

    `start` is the token that writing begins with, and `generation` what else generation_config.json is to say.
    """
    if isinstance(module, ModelWithHead):
        about = {**about, "head": module.shape.model_dump(mode="json")}
    if processors.has_text and (isinstance(module, ModelWithHead) or about.get("sentences") is not None):
        processors = Processors(with_padding(processors.tokenizer), processors.own_target, processors.others)
    told = {"task": task, **about, **digests_of(processors)}
    token_ids: dict[str, Any] = {}
    if processors.has_text:
        written = processors.target
        token_ids = special_token_ids(body_of(module), written, written.eos_id if start is None else start)
    adapter = module.adapter
    if adapter is None:
        config, tensors = _written(module, about)
        named = {name: number for name, number in token_ids.items() if config.get(name) is None}
        write_json(folder / "config.json", {**config, **named, "legato": told})
        save_weights(tensors, folder, largest)
    else:
        from legato.folders.adapters.saving import adapter_note, save_adapter

        save_adapter(folder, module, adapter, told)
        card += adapter_note(adapter)
    how = sentences_of(told, folder)
    if processors.has_text:
        save_tokenizers(folder, module, processors, texts_only=isinstance(module, ModelWithHead) or how is not None)
    for processor in processors.others.values():
        processor.save(folder)
    if how is not None and (adapter is None or adapter.name == "lora") and refusal(module) is None:
        save_sentence_encoder(folder, how, module.config.width)
    if module.can_generate and processors.has_text:
        entries = generation_entries(module, processors.target, token_ids, about)
        write_json(folder / "generation_config.json", {**entries, **generation})
    (folder / "README.md").write_text(card, encoding="utf-8")


def refusal(module: SequenceModel) -> str | None:
    """Why a model is not saved in a form that `transformers` knows; None when it is."""
    if module.published_as is None:
        return f"Hugging Face has no architecture like '{module.config.name}'"
    form: type[Published] = PUBLISHED.get(module.published_as)
    return form.refusal(module)


def _written(module: SequenceModel, about: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of config.json and the tensors, in the most widely known form that the model has."""
    narrow = quantized.entries_of(module)
    if isinstance(module, ModelWithHead):
        known = None if narrow else write_head(module, about)
        if known is not None:
            return known
        config, tensors = _written(module.body, about)
        head = {HEAD + name: tensor for name, tensor in weights_of(module).items() if not name.startswith("body.")}
        return config, {**tensors, **head}
    form = form_of(module)
    if form is not None and not narrow:
        form = form.without_head()
        config, tensors = form.save(module)
        return {"model_type": form.model_type, "architectures": [form.architecture], **config}, tensors
    settings = module.config.model_dump(mode="json")
    own = {"model_type": PREFIX + settings.pop("name"), "architectures": [type(module).__name__]}
    sizes = {"vocab_size": module.vocabulary}
    if module.sizes.source is not None:
        sizes["source_vocab_size"] = module.sizes.source
    return {**own, **sizes, **settings, **narrow}, weights_of(module)


def read_model(
    place: str | Path,
    *,
    sketched: bool = False,
    dtype: torch.dtype = torch.float32,
    quantize: str | None = None,
    frozen: bool = False,
) -> Loaded:
    """The model behind a path (`find_model`), even while a run replaces it; its weights in `dtype`, or narrower.

    `sketched`: its body has shapes only, and `Loaded.put_into` reads the weights into the model that trains. Of an
    adapter all is read, since it is added to its base. So it is of narrow weights, which are refused unless they
    stay as they are while adapters learn beside them: `frozen`.
    """
    read = partial(_load, sketched=sketched, narrow=True, dtype=dtype, quantize=quantize, frozen=frozen)
    return find_and_read(path_of(place, error=FolderError), lambda: find_model(place), read)


def read_config(place: str | Path) -> ModelConfig:
    """The settings of the model behind a path (`find_model`): its shapes are looked at, and no weight is copied."""
    return find_and_read(path_of(place, error=FolderError), lambda: find_model(place), _read_config)


def _read_config(folder: Path) -> ModelConfig:
    if folder.is_file():
        from legato.folders.gguf.loading import read_gguf_config

        return read_gguf_config(folder)
    refuse_links_out(folder)
    if is_adapter(folder):
        from legato.folders.adapters.loading import adapter_config

        return adapter_config(folder, read_config)
    said = _read_entries(folder)
    tensors = load_weights(said.folder)
    return sketch(lambda: _read_body(said, tensors, lambda sizes: None)[0], MOST_TENSORS).config


def load_model(folder: Path, *, deferred: str | None = None) -> Loaded:
    """Read a model folder; nothing is returned unless all of it fits, and is of one version of it.

    `deferred`: its matrices stay in the file, for `make_narrow` to bring them to this width.
    """
    return read_steadily(folder, partial(_load, deferred=deferred))


def _load(
    folder: Path,
    *,
    sketched: bool = False,
    narrow: bool = False,
    dtype: Any = None,
    quantize: str | None = None,
    frozen: bool = False,
    deferred: str | None = None,
) -> Loaded:
    deferred = quantize or deferred
    try:
        with quantized.made_in(dtype or torch.float32, deferred):
            if is_adapter(folder):
                loaded = _load_adapter(folder, quantize, deferred)
            else:
                wide = deferred is None
                loaded = _load_model(folder, sketched=sketched and wide, narrow=narrow and wide, frozen=frozen)
        if quantize is not None:
            quantized.make_narrow(loaded.module, quantize, folder, known=frozen)
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, MemoryError) or "allocate" in str(problem):
            raise FolderError(
                f"{folder} holds a model that does not fit into memory, or says so in config.json"
            ) from None
        raise
    loaded.module.folder = loaded.folder
    return loaded


def _load_adapter(folder: Path, quantize: str | None, deferred: str | None) -> Loaded:
    """One that was trained beside matrices of that width has them again; elsewhere it is added to wide ones first."""
    from legato.folders.adapters.loading import load_adapter  # most folders hold a whole model

    def load_narrow(place: Path, width: str) -> Loaded:
        own = width if width == quantize else None
        return read_steadily(place, partial(_load, quantize=own, frozen=True, deferred=deferred))

    return load_adapter(folder, partial(load_model, deferred=deferred), load_narrow=load_narrow)


def _load_model(folder: Path, *, sketched: bool, narrow: bool, frozen: bool) -> Loaded:
    if folder.is_file():
        from legato.folders.gguf.loading import load_gguf  # most models are folders

        return load_gguf(folder, sketched=sketched, narrow=narrow)
    refuse_links_out(folder)
    said = _read_entries(folder)
    folder, config, about = said.folder, said.config, said.about
    if sketched and config.get("quantization_config") is not None:
        if not frozen:
            raise FolderError(f"{folder} holds quantised weights, which cannot be trained; {quantized.INSTEAD}")
        sketched = False
    processors = load_processors(folder, said.processors, said.default_processors, about)
    chat = load_chat_template(folder)

    def check(sizes: Sizes) -> None:
        if processors.has_text and sizes.vocabulary:  # else only a head knows tokens, and its task asks
            check_vocabularies(folder, sizes, processors, exact=not said.published)

    tensors, stamps = load_weights(folder), stamps_of(folder)

    def read(into: SequenceModel | None) -> tuple[SequenceModel, dict[str, Any], PublishedHead | None]:
        return _read_body(said, tensors, check, into)

    module, of_head, theirs = sketch(lambda: read(None), MOST_TENSORS) if sketched else read(None)
    if theirs is not None:
        module = theirs.on(module, str(folder))
        if theirs.about:  # what our own key says, if it is there, was of the model before
            kept = ("tokens", "processors", "published")
            about = {key: about[key] for key in kept if key in about} | theirs.about
            if theirs.shape.kind == "tags":
                about |= scheme_of_labels(about["labels"])
    elif said.head is not None:
        module = _with_head(module, said.head, of_head, folder)
    check_digests(folder, about, processors)
    if module.config.reads_characters:
        tell_spelling(module, torch.from_numpy(vocabulary_bytes(processors.tokenizer)))
    module.eval()
    start = said.start if module.is_encoder_decoder else None
    if start is not None and not 0 <= start < module.vocabulary:
        file = "generation_config.json" if config.get("decoder_start_token_id") is None else "config.json"
        raise FolderError(f"{folder / file}: decoder_start_token_id is {start}")
    lowercase = said.sentences is not None and said.sentences.lowercase
    set_up_tokenizer(processors, published=said.published, lowercase=lowercase)
    ends: tuple[int, ...] = ()
    if processors.has_text and said.ours:
        ends = ends_of_ours(about, module, processors.tokenizer)
    elif processors.has_text:
        ends = published_ends({**config, **said.generation}, module, processors.tokenizer)
    task = str(about.get("task", "embedding" if said.sentences is not None else usual_task(module)))

    def read_into(model: SequenceModel) -> SequenceModel:
        # The tensors lie in the file until now. A folder that was replaced meanwhile leaves them as they were.
        for file, now in stamps_of(folder).items():
            if file in stamps and stamps[file][0] == now[0] and stamps[file] != now:
                raise FolderError(f"{file} was written over while the data was read; begin again")
        return read(model)[0]

    weights = read_into if sketched else None
    told = (start, said.generation, ends, chat, said.sentences)
    return Loaded(folder, module, processors, task, about, *told, read_into=weights)


@dataclass(frozen=True)
class _Entries:
    """What a folder's JSON says of its model."""

    folder: Path  # of the model itself: a sentence encoder's may lie further in
    config: dict[str, Any]
    generation: dict[str, Any]
    about: dict[str, Any]  # what is ours
    ours: bool  # whether there is any such
    head: HeadSpec | None
    sentences: SentenceEncoder | None

    @property
    def published(self) -> bool:
        """Whether others made the model, whoever trained it last."""
        return not self.ours or bool(self.about.get("published"))

    @property
    def model(self) -> type[SequenceModel]:
        """The class of a model that only we have."""
        found: type[SequenceModel] = MODELS.get(self.config["model_type"].removeprefix(PREFIX))
        return found

    @property
    def start(self) -> int | None:
        """The token that what an encoder–decoder writes begins with; newer folders say it apart from config.json."""
        name, generation = "decoder_start_token_id", self.generation
        known = (self.config.get(name), generation.get(name), generation.get("bos_token_id"))
        return next((token for token in known if token is not None), None)

    @property
    def processors(self) -> tuple[str, ...]:
        """The kinds of processors that the model reads with."""
        form = form_named(self.config["model_type"])
        return self.model.processors_of(self.own_settings()) if form is None else form.processors()

    def own_settings(self) -> ModelConfig:
        """The settings of a model that only we have."""
        skipped = ("quantization_config", "model_type", "architectures", "is_encoder_decoder", *SIZES, *IDS)
        settings = {key: value for key, value in self.config.items() if key not in skipped}
        fit(settings, dict[str, Setting], str(self.folder / "config.json"))
        name = self.config["model_type"].removeprefix(PREFIX)
        try:
            return validate(self.model.Config, {"name": name, **settings})
        except ConfigError as problem:
            raise FolderError(f"{self.folder / 'config.json'}: {problem}") from None

    @property
    def default_processors(self) -> Mapping[str, Processor]:
        """What it reads with where the folder does not say it."""
        form = form_named(self.config["model_type"])
        return {} if form is None else form.default_processors(self.config)


def _read_entries(folder: Path) -> _Entries:
    sentences = load_sentence_encoder(folder)
    if sentences is not None:
        folder = folder / sentences.transformer
    file = folder / "config.json"
    found: Any = None
    if file.exists():
        found = read_json(file, Entries, loose=True)
    elif (folder / WEIGHTS).is_file():  # which are published alone, too
        found = described(load_weights(folder))
    if found is None:
        raise FolderError(f"{folder} is no model folder: it has no config.json")
    config: dict[str, Any] = {**found}
    kind = config.get("model_type")
    if kind is None:
        raise FolderError(f"{file} names no model_type")
    form = form_named(kind)
    if form is not None or kind.startswith(PREFIX):  # its entries are what the family that it names has
        config = fit(config, OwnEntries if form is None else form.Entries, str(file))
    generation: dict[str, Any] = {**read_json_if_there(folder / "generation_config.json", Generation, loose=True)}
    told = config.pop("legato", None)
    about = generation_defaults(config, generation) if told is None else check_about(told, file)
    refuse_what_we_lack(folder, kind, config)
    sentences = sentences or sentences_of(about, file)
    return _Entries(folder, config, generation, about, told is not None, head_shape(about, file), sentences)


def _read_body(
    said: _Entries, tensors: Mapping[str, Tensor], check: Callable[[Sizes], None], into: SequenceModel | None = None
) -> tuple[SequenceModel, dict[str, Any], PublishedHead | None]:
    """The model without the head that a task has put on it, that head's tensors, and what is published of it."""
    folder, config, kind, head = said.folder, said.config, said.config["model_type"], said.head
    tensors = dict(tensors)
    of_head = {name.removeprefix(HEAD): tensors.pop(name) for name in list(tensors) if head and name.startswith(HEAD)}
    theirs = None
    if not of_head and (head is not None or said.sentences is None):
        theirs = read_head(kind, config, tensors, str(folder), head, said.about.get("labels"))
    form = form_named(kind)
    if form is None:
        return _load_own(said, tensors, check, into), of_head, theirs
    of_body = (config, tensors) if theirs is None else (theirs.config, theirs.body)
    module = form.load(*of_body, str(folder), into)
    check(module.sizes)
    return module, of_head, theirs


def _with_head(body: SequenceModel, shape: HeadSpec, tensors: dict[str, Any], folder: Path) -> ModelWithHead:
    module = limited(lambda: ModelWithHead(body, shape), tensors, str(folder))
    inside = {f"body.{name}": tensor for name, tensor in weights_of(module.body).items()}
    put_weights(module, {**inside, **tensors}, str(folder / weights_name(folder)))
    return module


def _load_own(
    said: _Entries, tensors: dict[str, Any], check: Callable[[Sizes], None], into: SequenceModel | None
) -> SequenceModel:
    folder, config, model, checked = said.folder, said.config, said.model, said.own_settings()
    sizes = Sizes(config["vocab_size"], config.get("source_vocab_size"))
    if TEXT in said.processors and not sizes.vocabulary:
        raise FolderError(f"{folder / 'config.json'}: 'vocab_size' should be 1 at least, of a model that reads text")
    check(sizes)
    where = str(folder / weights_name(folder))

    def make() -> SequenceModel:
        module = model(checked, sizes)
        if said.head is not None:
            module.drop_readout()
        return module

    narrow = config.get("quantization_config")

    def check_plan(plan: SequenceModel) -> None:
        check_weights(plan, tensors, where)

    with nullcontext() if narrow is None else deferring(1.0):  # wide matrices are in no such file
        module = built(make, tensors, check_plan, str(folder), into=into, drawn=narrow is None)
    if narrow is not None:
        quantized.hold(module, tensors, narrow, folder)
    put_weights(module, tensors, where)
    if narrow is not None:
        read_deferred(module)
    return module
