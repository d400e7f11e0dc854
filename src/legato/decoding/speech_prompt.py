"""What Whisper's writing begins with, and what it never writes: the entries of generation_config.json.

    <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>        the prompt (Radford et al. 2022, figure 1)

Models of one language have neither the language nor the task in it. Older folders spell the prompt out, place by
place (`forced_decoder_ids`); newer ones have a table of languages and one of tasks. Signs that nobody speaks are
never written (`suppress_tokens`), a space and the end not as the first token (`begin_suppress_tokens`).

    prompt = SpeechPrompt.of(entries, language="en")
    search(model, [prompt.tokens], options, suppress=prompt.suppress, suppress_first=prompt.suppress_first, …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from legato.errors import ConfigError, FolderError, brief
from legato.models.published.entries import Token
from legato.schema import OPEN, TypedDict, fit, with_config

FILE: Final = "generation_config.json"
TRANSCRIBE: Final = "transcribe"

Pair = Annotated[
    list[Token | None], Field(min_length=2, max_length=2)
]  # a place in the prompt, and what stands there


@with_config(OPEN)
class PromptEntries(TypedDict, total=False):
    """What is read of generation_config.json."""

    decoder_start_token_id: Token | None
    forced_decoder_ids: list[Pair] | None
    lang_to_id: dict[str, Token] | None
    task_to_id: dict[str, Token] | None
    no_timestamps_token_id: Token | None
    suppress_tokens: list[Token] | None
    begin_suppress_tokens: list[Token] | None


@dataclass(frozen=True)
class SpeechPrompt:
    """The tokens that writing begins with, and those that are not written."""

    tokens: tuple[int, ...]
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, generation: Mapping[str, Any], language: str | None = None, task: str | None = None, where: str = FILE
    ) -> SpeechPrompt:
        """The prompt that a generation_config.json asks for; `where` names it in an error.

        >>> entries = {"decoder_start_token_id": 7, "lang_to_id": {"<|en|>": 8}, "task_to_id": {"transcribe": 9}}
        >>> SpeechPrompt.of({**entries, "no_timestamps_token_id": 6, "suppress_tokens": [1, 2]}, language="en")
        SpeechPrompt(tokens=(7, 8, 9, 6), suppress=(1, 2), suppress_first=())
        """
        said: Mapping[str, Any] = fit(dict(generation), PromptEntries, where)
        start, plain = said.get("decoder_start_token_id"), said.get("no_timestamps_token_id")
        if start is None:
            raise FolderError(f"{where} names no decoder_start_token_id, which what is written begins with")
        forced = _forced(said, where) if language is None and task is None else []
        prompt = [start, *(forced or _chosen(said, language, task))]
        if plain is not None and prompt[-1] != plain:
            prompt.append(plain)
        kept = (said.get(name) or () for name in ("suppress_tokens", "begin_suppress_tokens"))
        return cls(tuple(prompt), *(tuple(sorted({token for token in tokens if token >= 0})) for tokens in kept))


def _forced(said: Mapping[str, Any], where: str) -> list[int]:
    """The prompt after its first token where it is spelt out; nothing where it leaves the language open."""
    pairs = said.get("forced_decoder_ids") or []
    placed = dict(pairs)
    if len(placed) != len(pairs) or placed.keys() != set(range(1, len(pairs) + 1)):
        raise FolderError(f"{where}: forced_decoder_ids leave places out: {brief(repr(pairs))}")
    tokens = [placed[place] for place in sorted(placed)]
    return [] if None in tokens else tokens


def _chosen(said: Mapping[str, Any], language: str | None, task: str | None) -> Sequence[int]:
    """The tokens of a language and a task, of a model that has several."""
    languages, tasks = said.get("lang_to_id") or {}, said.get("task_to_id") or {}
    if not languages:
        if language is not None or task is not None:
            raise ConfigError("this model writes one language and has one task; leave language and task out")
        return ()
    known = {name.strip("<|>"): token for name, token in languages.items()}
    if language is None:
        raise ConfigError(f"this model writes {len(known)} languages; say which one is spoken, such as language=en")
    if language not in known:
        raise ConfigError(f"this model does not write '{brief(language)}'; it has {', '.join(sorted(known))}")
    task = TRANSCRIBE if task is None and tasks else task
    if task is not None and task not in tasks:
        raise ConfigError(f"this model has no task '{brief(task)}'; it has {', '.join(sorted(tasks)) or 'none'}")
    return (known[language],) if task is None else (known[language], tasks[task])
