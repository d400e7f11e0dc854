"""What a folder says of single tokens: which begin a text, end it and fill it up, in config.json and beside it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Final

from legato.data.text.tokenizers import AnyTokenizer
from legato.models.base import SequenceModel
from legato.models.published.family import form_of

# What a model of speech is told by generation_config.json: what writing begins with, and what is never written.
OF_SPEECH: Final = (
    *("forced_decoder_ids", "lang_to_id", "task_to_id", "is_multilingual", "no_timestamps_token_id"),
    *("suppress_tokens", "begin_suppress_tokens", "max_initial_timestamp_index", "alignment_heads"),
)


def prompt_entries(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What of generation_config.json is written again for a model of speech that others made."""
    return {name: generation[name] for name in OF_SPEECH if generation.get(name) is not None}


def generation_entries(
    module: SequenceModel, written: AnyTokenizer, token_ids: dict[str, Any], about: dict[str, Any]
) -> dict[str, Any]:
    """What others need to know to write as we do."""
    generation = dict(token_ids)
    if module.is_encoder_decoder:
        generation["suppress_tokens"] = sorted(written.special_ids - {written.eos_id})
        if module.max_length is not None:
            generation["max_length"] = module.max_length
        if about.get("beams", 1) > 1:  # so that others search as we do
            generation |= {"num_beams": about["beams"], "length_penalty": about.get("length_penalty", 1.0)}
    else:
        generation = {"bos_token_id": written.prompt("")[0]}
        ends = ends_of_ours(about, module, written)
        if ends:
            generation["eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
    return generation


def special_token_ids(module: SequenceModel, tokenizer: AnyTokenizer, start: int) -> dict[str, Any]:
    """The token numbers that config.json names; where it does not, Hugging Face's library takes another model's."""
    token_ids: dict[str, Any] = {}
    if module.is_encoder_decoder:
        token_ids = {"decoder_start_token_id": start, "eos_token_id": tokenizer.eos_id, "is_encoder_decoder": True}
    elif form_of(module) is None:
        return {}
    elif module.can_generate:
        token_ids = {"bos_token_id": tokenizer.prompt("")[0], "eos_token_id": None}
        if tokenizer.ends_text:
            token_ids["eos_token_id"] = tokenizer.eos_id
    return token_ids if tokenizer.pad_id is None else {**token_ids, "pad_token_id": tokenizer.pad_id}


def with_padding(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """The same tokenizer, which pads with the EOS token where it has nothing else: others' classifiers look for the
    last token that is no padding, and no text of ours ends in that token; others' libraries of vectors pad, too."""
    if tokenizer.pad_id is not None:
        return tokenizer
    padding = copy(tokenizer)
    padding.pad_id = padding.eos_id
    return padding


def published_ends(said: dict[str, Any], module: SequenceModel, tokenizer: AnyTokenizer) -> tuple[int, ...]:
    """The tokens that end a continuation. Published folders may name several (`"eos_token_id": [2, 32000]`)."""
    named = said.get("eos_token_id")
    return _writable(named if isinstance(named, list) else [tokenizer.eos_id if named is None else named], module)


def ends_of_ours(about: dict[str, Any], module: SequenceModel, tokenizer: AnyTokenizer) -> tuple[int, ...]:
    """The token that our texts end in, and those of the published model that this one was before (`ends`)."""
    own = [tokenizer.eos_id] if tokenizer.ends_text else []
    return _writable([*own, *(about.get("ends") or [])], module)


def _writable(ends: list[int], module: SequenceModel) -> tuple[int, ...]:
    """A token that the model cannot write ends nothing."""
    return tuple(sorted({end for end in ends if 0 <= end < module.vocabulary}))


def generation_defaults(config: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """What the makers of a folder without our key say of searching; older ones say it in config.json."""
    said = {**config, **generation}
    ours = {"beams": said.get("num_beams"), "length_penalty": said.get("length_penalty")}
    return {name: value for name, value in ours.items() if value is not None}
