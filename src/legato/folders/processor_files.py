"""The processors of a model folder: tokenizers of what is read and written, and those of other inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from legato.data.digests import sha256_of
from legato.data.processors import SHARED_FILE, TEXT, Processor, Processors
from legato.data.text.sentencepieces import is_marian_vocabulary, load_marian_vocabulary
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import DataError, FolderError
from legato.models.base import SequenceModel
from legato.models.model_with_head import ModelWithHead
from legato.registry import PROCESSORS

TARGET: Final = "target"  # the folder of a tokenizer of its own for what is written


def load_processors(
    folder: Path,
    kinds: Sequence[str],
    defaults: Mapping[str, Processor] = MappingProxyType({}),
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Processors:
    """What the folder's model reads and writes with; `defaults` stand for files that are not there.

    What a folder says `about` itself names a tokenizer's digest where its head writes text, whatever its model reads.
    """
    try:
        others = {kind: _load(folder, kind, defaults.get(kind)) for kind in kinds if kind != TEXT}
        read, written = _load_tokenizers(folder) if TEXT in kinds or "tokens" in about else (None, None)
    except DataError as problem:
        raise FolderError(str(problem)) from None
    return Processors(read, written, others)


def _load(folder: Path, kind: str, default: Processor | None) -> Processor:
    processor: type[Processor] = PROCESSORS.get(kind)
    if not any((folder / file).is_file() for file in (processor.file, SHARED_FILE)):
        if default is not None:
            return default
        raise FolderError(f"{folder} lacks {processor.file}, the {kind} processor that its model reads with")
    return processor.load(folder)


def _load_tokenizers(folder: Path) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Those of what is read and of what is written; mostly one and the same."""
    if is_marian_vocabulary(folder):
        return load_marian_vocabulary(folder)
    tokenizer = Tokenizer.load(folder)
    own = folder / TARGET / "tokenizer.json"
    return tokenizer, Tokenizer.load(own) if own.is_file() else tokenizer


def set_up_tokenizer(processors: Processors, *, published: bool, lowercase: bool) -> None:
    """A `published` tokenizer begins texts as its own file says; some read them in lower case, but not the special
    tokens that they spell."""
    if not (processors.has_text and isinstance(processors.tokenizer, Tokenizer)):
        return
    tokenizer = processors.tokenizer
    tokenizer.follows_own_template = published
    if lowercase:
        from tokenizers import normalizers

        before = tokenizer.full_library.normalizer
        parts = [normalizers.Lowercase(), *([] if before is None else [before])]
        tokenizer.full_library.normalizer = normalizers.Sequence(parts)


def digests_of(processors: Processors) -> dict[str, Any]:
    """What a folder remembers of the processors that its model was trained with; `check_digests` reads it."""
    digests: dict[str, Any] = {}
    if processors.has_text:
        # A short hash of a vocabulary in its order: what tells a tokenizer from another one of its size.
        both = (processors.tokenizer, processors.target)
        digests["tokens"] = [sha256_of(["\n".join(map(one.token_name, range(one.size)))])[:16] for one in both]
    if processors.others:
        digests["processors"] = {kind: held.fingerprint() for kind, held in processors.others.items()}
    return digests


def check_digests(folder: Path, about: Mapping[str, Any], processors: Processors) -> None:
    """Refuse a folder whose processors are not those that its model was trained with."""
    digests = digests_of(processors)
    if about.get("tokens") not in (None, digests.get("tokens")):
        raise FolderError(f"{folder}: its tokenizer is not the one that the model was trained with")
    for kind, digest in (about.get("processors") or {}).items():
        if digests.get("processors", {}).get(kind) != digest:
            file = PROCESSORS.get(kind).file
            raise FolderError(
                f"{folder}: its {kind} processor is not the one that the model was trained with; "
                f"put back the {file} that it was saved with"
            )


def save_tokenizers(folder: Path, module: SequenceModel, processors: Processors, *, texts_only: bool) -> None:
    """Those that a model reads and writes with; `texts_only`: texts are read, and none is gone on with."""
    tokenizer, target, longest = processors.tokenizer, processors.own_target, module.max_length
    # Others' prompts begin as they say.
    own = not (isinstance(tokenizer, Tokenizer) and tokenizer.follows_own_template)
    if texts_only and own and isinstance(tokenizer, Tokenizer):
        tokenizer = _as_read(tokenizer, module.config.text_reader(tokenizer), module)
    starts = module.can_generate and not module.is_encoder_decoder and own and not texts_only
    segments, ends = module.config.uses_segments, module.is_encoder_decoder
    ctc = isinstance(module, ModelWithHead) and module.shape.kind == "ctc"
    tokenizer.save(folder, starts=starts, ends=ends, segments=segments, ctc=ctc, max_length=longest)
    if target is not None and target is not tokenizer.partner:
        target.save(folder / TARGET, max_length=longest)


def _as_read(tokenizer: Tokenizer, reader: TextReader, module: SequenceModel) -> Tokenizer:
    """The tokenizer, whose file puts around texts what a decoder's reader here does; an encoder's does already."""
    if reader.adds_special_tokens:
        return tokenizer
    before, between, behind = reader.paired
    if isinstance(module, ModelWithHead) and module.shape.kind == "spans":
        behind = behind or [tokenizer.eos_id]  # it stands for no answer
    return tokenizer.with_template(reader.alone, (before, between, behind))
