"""A model in another program's form.

`hf`            a folder that `transformers` loads as it is; our own folders already are, where it has the
                architecture, so this checks and copies; of an adapter it writes the whole model, merged
`legato`        a folder of our own form, with its weights in int8 or int4 (quantized.py)
`ctranslate2`   the folder of CTranslate2, a C++ engine for encoder–decoder Transformers (needs its package)
`gguf`          a file that llama.cpp reads, of a GPT-2 or LLaMA (needs the package gguf; gguf/writing.py)
`vectors`       a text file of the vectors of words, in word2vec's form
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from legato.data.formats.vector_files import save_vectors
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import ConfigError, FolderError, LegatoError, suggest, warn
from legato.folders.adapters.saving import NOTE
from legato.folders.atomic import clear_errors, replacing
from legato.folders.finding import find_model, hub_name, is_adapter
from legato.folders.gguf.writing import check_quantize, export_gguf
from legato.folders.links import copy_folder, walk
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model, refusal, save_model
from legato.folders.processor_files import TARGET
from legato.folders.quantized import check_width, make_narrow, width_of
from legato.folders.special_tokens import prompt_entries
from legato.folders.steady import read_steadily
from legato.input_files import open_file, path_of, read_bytes
from legato.models.model_with_head import body_of
from legato.models.published.heads import head_note
from legato.models.transformer import TransformerModel
from legato.nn.transformer import Stack
from legato.output_files import replacing_file
from legato.registry import require_extra
from legato.schema import MAX_VOCABULARY, TEXTS, TypedDict, parse_json, read_json, write_json

CONSTANTS: Final = re.compile(rb"NaN|Infinity")
FORMS = ("hf", "legato", "ctranslate2", "gguf", "vectors")
FILES = {"gguf": ".gguf", "vectors": "-vectors.txt"}  # the forms that are a file, and how its name ends
MADE_ANEW = ("task", "head", "tokens", "processors")  # what saving a model says of it by itself
BESIDE = ("chat_template.jinja",)  # what a folder may also have, and a merged one then, too
RECORD = ".legato-export.json"  # which files an export wrote
MOST = 1000  # files of others' in a folder that is exported into
# What programs look for in a model's folder: settings, weights and tokenizers.
READ = (
    *("*config*.json", "legato.json", "modules.json", "*.index.json", "*.safetensors", "*.bin", "*.pt", "*.pth"),
    *("*.ckpt", "*.h5", "*.msgpack", "*.gguf", "tokenizer*", "*token*.json", "*vocab*.json", "*vocab*.txt"),
    *("merges.txt", "*.spm", "*.model", "*.jinja"),
)
MOST_OF_A_CARD = 1 << 22  # bytes
NEVER = -1e9  # the bias of a token that is never written


class ExportRecord(TypedDict):
    """What is in `RECORD`."""

    files: dict[str, str] | list[str]  # with their hashes, but for those of an older version


def export(
    place: str | Path, to: str, *, out: str | Path | None = None, quantize: str | None = None, force: bool = False
) -> Path:
    """Write the model behind `place` in the form `to`; the folder, or the file, that was written."""
    if to not in FORMS:
        raise ConfigError(f"there is no form '{to}' to export to; {suggest(to, FORMS)}")
    if quantize is not None and to in ("hf", "vectors"):
        raise ConfigError(f"--quantize is for legato, ctranslate2 and gguf; leave it out for {to}")
    if to == "legato":
        if quantize is None:
            raise ConfigError("--to legato writes quantised weights; say which: --quantize int8 or --quantize int4")
        check_width(quantize)
    if to == "gguf":
        check_quantize(quantize)
    folder = find_model(place)
    target = path_of(out, error=FolderError) if out is not None else _beside(place, to)
    with clear_errors(target, every=True):
        _refuse_loss(target, folder, "the model itself")
        _refuse_place(target, to, force)
    loaded = load_model(folder, deferred=quantize if to == "legato" else None)
    with clear_errors(target, every=True):
        for base in loaded.bases:
            _refuse_loss(target, base, "a base of the adapter")
        if to != "legato" and (held := width_of(body_of(loaded.module))) is not None:
            raise FolderError(f"{folder} holds {held} weights, which only Legato reads so; export the original model")
        if to == "vectors":
            _export_vectors(loaded, target)
        elif to == "gguf":
            export_gguf(loaded, target, quantize)
        elif to == "hf":
            _export_hugging_face(loaded, folder, target)
        elif to == "legato":
            make_narrow(loaded.module, str(quantize), folder, known=True)
            with _writing(target) as fresh:
                _write_whole(loaded, folder, fresh)
        else:
            _export_ctranslate2(loaded, target, quantize)
    return target


def _refuse_loss(target: Path, folder: Path, what: str) -> None:
    """Refuse to write onto, around or into a folder that the export is made of."""
    if folder.resolve().is_relative_to(target.resolve()):
        raise FolderError(f"{target} holds {what}, which would be lost; give another --out")
    if target.resolve().is_relative_to(folder.resolve()):
        raise FolderError(f"{target} lies in {folder}, {what}, which would be changed; give another --out")


def _refuse_place(target: Path, to: str, force: bool) -> None:
    there, meant = ("folder", "file") if to in FILES else ("file", "folder")
    if target.exists() and target.is_dir() == (there == "folder"):
        raise FolderError(f"{target} is a {there}; give --out the name of a {meant}")
    if target.exists() and not force:
        raise FolderError(f"{target} is there already; give another --out, or --force to write over it")
    if to in FILES:
        if os.path.lexists(target) and not target.is_file():
            raise FolderError(f"{target} is a pipe, a device or a link to nothing; give --out the name of a file")
        return
    if target.exists() and Path.cwd().is_relative_to(target.resolve()):
        raise FolderError(f"{target} is the folder that you are in, or holds it; give another --out")
    if target.exists() and len(list(islice(_others(target, _written(target)), MOST))) == MOST:
        raise FolderError(f"{target} holds {MOST:,} files and more that no export wrote; give another --out")


def _written(target: Path) -> dict[str, str]:
    """The files of the export that is in a folder already, with their hashes or, where nobody knows, nothing."""
    if not (target / RECORD).is_file():
        return {}
    files = read_json(target / RECORD, ExportRecord)["files"]
    return {**(files if isinstance(files, dict) else dict.fromkeys(files, "")), RECORD: ""}


def _digest(path: Path) -> str:
    with open_file(path, error=FolderError) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _others(target: Path, written: Collection[str]) -> Iterator[Path]:
    """The files in a folder that no export wrote, by their path in it."""
    for path in walk(target):
        below = path.relative_to(target)
        if below.as_posix() not in written and (path.is_symlink() or not path.is_dir()):
            yield below


def _beside(given: str | Path, to: str) -> Path:
    """Where an export goes that nobody named: `runs/t-hf` for `runs/t`, `name-hf` for `org/name` on the hub."""
    ending = FILES.get(to, f"-{to}")
    place = path_of(given, error=FolderError)
    asked = None if place.exists() else hub_name(given)
    if asked is not None:
        return Path(asked[0].rpartition("/")[2] + ending)
    named = place if place.name not in ("", "..") else place.resolve()  # '.' has a name, too
    return named.with_name((named.stem if named.is_file() else named.name) + ending)


def _export_hugging_face(loaded: Loaded, folder: Path, target: Path) -> None:
    reason = refusal(body_of(loaded.module))
    if reason is not None:
        raise LegatoError(f"{folder} cannot be a folder that transformers loads: {reason}")
    with _writing(target) as fresh:
        if is_adapter(folder) or folder.is_file():
            _write_whole(loaded, folder, fresh)
        else:
            read_steadily(folder, lambda at: _copy(at, fresh))
    if note := head_note(loaded.module, f"the body in {target}"):
        warn(note)


def _copy(folder: Path, fresh: Path) -> None:
    for path in fresh.iterdir():  # of a version that was replaced meanwhile
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_folder(folder, fresh)
    for file in fresh.rglob("*.json"):
        content = read_bytes(file, MAX_VOCABULARY, error=FolderError)
        if CONSTANTS.search(TEXTS.sub(b"", content)):  # what Python's libraries write, and JSON does not have
            write_json(file, parse_json(content, dict[str, Any], str(file), loose=True, nan_is_null=True))


@contextmanager
def _writing(target: Path) -> Iterator[Path]:
    """A folder to export into. Of what is in `target`, what an earlier export wrote gives way; all else stays."""
    written = _written(target)
    place = target.resolve() if target.is_symlink() else target  # somebody named it, so it is followed
    with replacing(place, drop=written) as fresh:
        yield fresh
        files = sorted(path for path in fresh.rglob("*") if path.is_file())
        for path in _others(target, written):
            if os.path.lexists(fresh / path):
                raise FolderError(
                    f"{target / path} is there, and no export wrote it; move it away, or give another --out"
                )
            if path.parent.name in ("", TARGET) and any(fnmatch(path.name, pattern) for pattern in READ):
                raise FolderError(
                    f"{target / path} would be read as a part of the exported model, and no export wrote it; move it "
                    "away, or give another --out"
                )
        for name, digest in written.items():  # nothing is lost that somebody made of such a file
            path = target / name
            plain = path.is_file() and not path.is_symlink()
            if digest and os.path.lexists(path) and not (plain and _digest(path) == digest):
                raise FolderError(
                    f"{path} was changed since it was exported, and would be lost; move it away, or give another "
                    "--out"
                )
        write_json(fresh / RECORD, {"files": {path.relative_to(fresh).as_posix(): _digest(path) for path in files}})


def _write_whole(loaded: Loaded, folder: Path, target: Path) -> None:
    """An adapter and its base as one model, or what a GGUF file holds."""
    file, card = folder / "README.md", ""
    if file.is_file():
        card = read_bytes(file, MOST_OF_A_CARD, error=FolderError).decode("utf-8", "replace").partition(NOTE)[0]
    about = {name: value for name, value in loaded.about.items() if name not in MADE_ANEW}
    save_model(
        target,
        loaded.module,
        loaded.processors,
        task=loaded.task,
        about=about,
        card=card,
        start=loaded.first_token,
        generation=prompt_entries(loaded.generation),
    )
    for name in BESIDE:
        if (folder / name).is_file():
            shutil.copy2(folder / name, target / name)


def _export_vectors(loaded: Loaded, target: Path) -> None:
    """Each token's vector, special tokens left out."""
    body = body_of(loaded.module)
    table = body.token_table
    if not isinstance(table, nn.Embedding):
        raise LegatoError(f"{loaded.folder} holds a {loaded.module.config.name}, which has no vectors of words")
    tokenizer = loaded.target if body.is_encoder_decoder else loaded.tokenizer  # whose tokens the table's rows are
    unread = {*tokenizer.special_ids, tokenizer.unk_id, tokenizer.eos_id}
    words = {n: name for n in range(tokenizer.size) if n not in unread and (name := tokenizer.token_name(n)).strip()}
    with replacing_file(target) as fresh:
        save_vectors(fresh, list(words.values()), table.weight[list(words)])


def _export_ctranslate2(loaded: Loaded, target: Path, quantize: str | None) -> None:
    module = loaded.module
    if loaded.task == "parsing":
        raise LegatoError(
            f"{loaded.folder} is a parser, and CTranslate2 has no constraint that makes what it writes a tree over "
            "the sentence's words; use legato predict"
        )
    if not isinstance(module, TransformerModel):
        raise LegatoError(f"CTranslate2 knows Transformers; {loaded.folder} holds a {module.config.name}")
    config = module.config
    if config.eps != 1e-5:
        raise LegatoError(f"CTranslate2's encoder–decoder has no eps={config.eps:g}; {loaded.folder} stays here")
    for setting, found in config.model_dump(include={"positions", "window", "activation"}).items():
        if found in ("rotary", "swiglu") or (setting == "window" and found is not None):
            raise LegatoError(f"CTranslate2's encoder–decoder has no {setting}={found}; {loaded.folder} stays here")
    if not isinstance(module.encoder, Stack):
        raise LegatoError(f"CTranslate2's encoder–decoder reads text; {loaded.folder} reads pictures")
    spec = _specification(loaded, module, module.encoder, require_extra("export", "ctranslate2.specs"))
    with _writing(target) as fresh:
        try:
            spec.validate()
            spec.optimize(quantization=quantize)
        except ValueError as problem:
            raise ConfigError(f"CTranslate2 refused the model: {problem}") from None
        spec.save(str(fresh))
        # It translates tokens; this makes tokens of text.
        loaded.tokenizer.save(fresh, ends=True, max_length=module.max_length)
        if loaded.target not in (loaded.tokenizer, loaded.tokenizer.partner):
            loaded.target.save(fresh / TARGET, max_length=module.max_length)


def _specification(loaded: Loaded, module: TransformerModel, encoder: Stack, specs: Any) -> Any:
    config, known = module.config, specs.Activation
    activations = {"relu": known.RELU, "gelu": known.GELU, "gelu-tanh": known.GELUTanh, "silu": known.SWISH}
    layers = len(encoder.layers), len(module.decoder.layers)
    spec = specs.TransformerSpec.from_config(
        layers, config.heads, pre_norm=config.norm == "pre", activation=activations[config.activation]
    )
    scale = math.sqrt(config.width) if config.scale else 1.0
    read = module.source_embedding or module.embedding
    sides = ((spec.encoder, encoder, read), (spec.decoder, module.decoder, module.embedding))
    for side, stack, table in sides:
        side.scale_embeddings = np.dtype("float32").type(scale)
        side.position_encodings.encodings = _array(module.positions(slice(0, config.length)))  # type: ignore[misc]
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(table.weight)
        if stack.norm is not None:
            _fill_norm(side.layer_norm, stack.norm)
        for layer, block in zip(side.layer, stack.layers, strict=True):
            _fill_block(layer, block)
    spec.decoder.projection.weight = _array(module.output.weight)
    readout = module.output.bias
    bias = np.zeros(module.vocabulary, dtype=np.float32) if readout is None else _array(readout).copy()
    bias[sorted(loaded.target.special_ids - {loaded.target.eos_id})] = NEVER
    spec.decoder.projection.bias = bias
    spec.register_source_vocabulary(_names(loaded.tokenizer, module.sizes.source or module.vocabulary))
    spec.register_target_vocabulary(_names(loaded.target, module.vocabulary))
    written = loaded.target
    spec.config.eos_token = written.token_name(written.eos_id)
    spec.config.decoder_start_token = written.token_name(loaded.start)
    unknown = written.unk_id if written.unk_id is not None else written.pad_id
    spec.config.unk_token = written.token_name(written.eos_id if unknown is None else unknown)
    spec.config.bos_token = spec.config.decoder_start_token
    return spec


def _names(tokenizer: AnyTokenizer, size: int) -> list[str]:
    """What CTranslate2 calls each token: as the tokenizer's file does."""
    named = [tokenizer.token_name(index) for index in range(tokenizer.size)]
    return named + [f"<unused{index}>" for index in range(size - len(named))]


def _fill_block(layer: Any, block: Any) -> None:
    attention = block.attention
    _fill_linear(layer.self_attention.linear[0], attention.qkv)
    _fill_linear(layer.self_attention.linear[1], attention.output)
    _fill_norm(layer.self_attention.layer_norm, block.attention_norm)
    if block.cross is not None:
        _fill_linear(layer.attention.linear[0], block.cross.query)
        _fill_linear(layer.attention.linear[1], block.cross.key_value)
        _fill_linear(layer.attention.linear[2], block.cross.output)
        _fill_norm(layer.attention.layer_norm, block.cross_norm)
    _fill_linear(layer.ffn.linear_0, block.feedforward.inner)
    _fill_linear(layer.ffn.linear_1, block.feedforward.outer)
    _fill_norm(layer.ffn.layer_norm, block.feedforward_norm)


def _fill_linear(spec: Any, linear: Any) -> None:
    spec.weight, spec.bias = _array(linear.weight), _array(linear.bias)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()
