"""Texts that fit a JSON schema: after each token, `llguidance` tells which tokens may follow.

What is cut off by the limit of tokens fits nothing. So the constraint knows how a text would be ended soonest from
where it is (schema_ends.py). While more tokens are left than that takes, and than anything takes that one token can
open (schema_sizes.py), all that fits may follow; then only what leaves room for an end, tried token by token. Values
are separated as `json.dumps` does, and nothing else is space between them: a model may not write blanks until its
tokens are spent.

A schema comes from whoever asks, and texts of others wait for each step. So reading it, a step and a text each have a
budget. What exceeds it is refused, is ended by the shortest way that is known, or not ended: then the limit cuts it
off, and its `finish_reason` is "length". A text that `llguidance` itself cannot follow fails. Before a stranger's
schema is read here, `check_readable` reads it in a process that can be ended: some would be read for hours.

Each token, also of an end, is one that `llguidance` allows, so what has ended fits as far as that compares exactly:
schema_numbers.py gives it no number that it would round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from legato import sandbox
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.data.text.tokenizers import Tokenizer
from legato.decoding.constraints.schema_ends import Budget, Ends, Mask, OutOfTime
from legato.decoding.constraints.schema_numbers import exact_bounds, steps
from legato.decoding.constraints.schema_sizes import largest_part
from legato.errors import ConfigError, LegatoError, brief
from legato.registry import require_extra

SEPARATORS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LARGEST: Final = 3 << 15  # characters of a schema
LONGEST_END: Final = 1 << 11  # tokens
LARGEST_PART: Final = 1 << 14  # characters that a part of a schema asks for, which are forced at once
LEAP: Final = 1 << 12  # tokens, which are as good as any more
LIMITS: Final = {
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_items_in_row": 12_000,  # an optional key takes four
    "max_lexer_states": 50_000,
}
SECONDS: Final = 2.0  # of computing, in which a stranger's schema has to be read
UNENDED: Final = 1 << 60  # tokens to spare, of a text whose end is not looked for any more
TRIED: Final = 12  # tokens that are tried where room is scarce
# Seconds of computing that looking for ends may take:
READING: Final = 1.0  # while a schema is read
STEP: Final = 0.1  # in a step of a text
TEXT: Final = 0.5  # in all steps of a text, and
TOKEN: Final = 0.0005  # for each token that it may have


@lru_cache(maxsize=256)  # of those that can be read
def check_readable(schema: str) -> None:
    """Refuse a schema that takes too much computing or memory to be read."""
    _largest_part(schema)
    require_extra("serve", "llguidance")
    try:
        sandbox.call("read_schema", apart="schemas", seconds=SECONDS, schema=_as_read(schema), limits=LIMITS)
    except sandbox.OverBudget as problem:
        raise _unusable(f"to read it takes more than {problem}") from None
    except sandbox.Failed as problem:  # what is wrong with most is said where it is read
        if problem.kind == "PanicException":
            raise _unusable("what reads it breaks on it") from None
        if problem.kind in ("ImportError", "ModuleNotFoundError"):
            raise LegatoError(f"the helper process does not find llguidance: {brief(problem, 200)}") from None


def _largest_part(schema: str) -> int:
    """What the largest part of a schema asks for, in characters; refused where that, or all of it, is too much."""
    if len(schema) > LARGEST:
        raise ConfigError(f"the JSON schema has {len(schema):,} characters; {LARGEST:,} are read")
    part = largest_part(json.loads(schema))
    if part > LARGEST_PART:
        raise _unusable(f"a part of it asks for {part:,} characters and more; {LARGEST_PART:,} are written")
    return part


def _as_read(schema: str) -> str:
    """As the library is to read it."""
    try:
        return json.dumps({**exact_bounds(json.loads(schema)), "x-guidance": SEPARATORS})
    except RecursionError:
        raise _unusable("it is nested too deeply") from None


class SchemaGrammar:
    """A schema over a model's tokens."""

    def __init__(self, schema: str, tokenizer: AnyTokenizer, vocabulary: int, ends: Sequence[int]) -> None:
        library = require_extra("serve", "llguidance")
        self.leap = min(_largest_part(schema), LEAP)  # tokens that one more can make an end longer by, and more
        self.vocabulary, self.ends = vocabulary, list(ends)
        self._tokens, self.quotes = _guidance_tokens(tokenizer, vocabulary, self.ends)
        grammar = library.LLMatcher.grammar_from_json_schema(_as_read(schema))
        limits = library.LLParserLimits(**LIMITS, verbose_errors=False)
        self._start = library.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        if self._start.is_error():
            raise _unusable(_first_line(self._start))
        self._start.compute_bitmask()  # else what is forced would be computed while other threads wait
        self.shortest_ways = Ends(self._tokens, vocabulary, self.ends, steps(json.loads(schema)))
        try:
            end = self.shortest_ways.nearest(self._start, LONGEST_END, Budget(READING))
        except OutOfTime:
            end = None
        if end is None:
            raise _unusable(f"no text of at most {LONGEST_END:,} tokens was found that fits it")
        self.end = end  # a text that fits, from the beginning

    @property
    def shortest(self) -> int:
        """The fewest tokens that are known to fit, the end token's included."""
        return len(self.end)

    def matcher(self) -> Any:
        """Where a text begins."""
        return self._start.deep_copy()


@dataclass
class _Text:
    """A text as far as it is written."""

    matcher: Any
    slack: int  # tokens that are left beyond those that an end takes, at least
    seconds: float  # that looking for its end may still take
    free: bool = False  # in a string whose letters are free
    path: list[int] | None = None  # what would end it, where that is known
    before: tuple[list[int], int] | None = None  # what would have ended it a token ago, and that token
    ending: list[int] | None = None  # what is left to write, once it is to end


class SchemaConstraint:
    """The search's constraint: from a prompt's number and what is written to what may follow."""

    def __init__(self, grammar: SchemaGrammar, limits: Sequence[int]) -> None:
        """`limits` are the most tokens of each prompt, the end token's included."""
        self.grammar, self.limits, self.ends = grammar, list(limits), grammar.shortest_ways
        self.failure: LegatoError | None = None  # what a text could not be written for
        if grammar.shortest > min(self.limits):
            raise ConfigError(
                f"{min(self.limits):,} tokens are too few for this schema; it takes {grammar.shortest:,} at least"
            )
        self._texts: dict[tuple[int, tuple[int, ...]], _Text] = {}

    def __call__(self, prompt: int, tokens: list[int]) -> Mask:
        history, grammar = tuple(tokens), self.grammar
        text = self._texts.get((prompt, history)) or self._read(prompt, history)
        if text.ending is not None:
            return self._only(text.ending[:1])
        mask = self.ends.allowed(text.matcher)
        if text.matcher.is_error():
            return self._failed(_first_line(text.matcher), mask)
        text.free = self.ends.in_string(mask)
        if text.slack > grammar.leap:
            return mask
        left, begun = self.limits[prompt] - len(tokens), time.thread_time()
        is_over = text.seconds <= 0  # but for this once: then what is left to write is known
        step = Budget(STEP if is_over else min(STEP, text.seconds))
        try:
            path = self._path(text, left, step, tokens)
            if path is None and is_over:
                raise OutOfTime  # as each token from here on would be
            text.slack, text.path = (-1 if path is None else left - len(path)), path
            if path is None or text.slack > grammar.leap:
                return mask
            if text.slack == 0 or is_over:
                text.ending = path
                return self._only(path[:1])
            return self._with_room(text, mask, path, left, step, tokens)
        except OutOfTime:
            text.slack = UNENDED  # from here on it is free, and cut off where the limit is
            return mask
        finally:
            text.seconds -= time.thread_time() - begun

    def _failed(self, reason: str, mask: Mask) -> Mask:
        self.failure = LegatoError(f"the JSON schema takes too much to follow: {reason}")
        return mask

    def _path(self, text: _Text, left: int, budget: Budget, tokens: list[int]) -> list[int] | None:
        """What ends a text in the tokens that are left; None: nothing that was found."""
        path = text.path
        if path is None and text.before is not None:
            path = self.ends.after(text.matcher, text.before[1], text.before[0], budget)
        known = path is not None and len(path) <= left
        return path if known else self.ends.nearest(text.matcher, left, budget, tokens)

    def _with_room(
        self, text: _Text, mask: Mask, path: list[int], left: int, budget: Budget, tokens: list[int]
    ) -> Mask:
        """What may follow and leaves room for an end: what goes on within a string, and what is tried."""
        grammar = self.grammar
        if text.free and text.slack > 4:  # a letter of several tokens takes so many
            fits = mask & ~grammar.quotes
        else:
            fits = np.zeros_like(mask)
            for token in np.flatnonzero(mask)[:TRIED]:
                try:
                    fits[token] = self._leaves_room(text, [*tokens, int(token)], path, left, budget)
                except OutOfTime:  # what was not tried is not written
                    break
        fits[grammar.ends] = mask[grammar.ends]
        fits[path[0]] = True
        return fits

    def _leaves_room(self, text: _Text, tokens: list[int], path: list[int], left: int, budget: Budget) -> bool:
        """Whether a text can be ended once it takes in the last of these tokens."""
        after = text.matcher.deep_copy()
        if not after.consume_token(tokens[-1]):
            return False
        known = self.ends.after(after, tokens[-1], path, budget)
        if known is not None and len(known) < left:
            return True
        return self.ends.nearest(after, left - 1, budget, tokens) is not None

    def _only(self, tokens: Sequence[int]) -> Mask:
        mask = np.zeros(self.grammar.vocabulary, dtype=bool)
        mask[list(tokens)] = True
        return mask

    def _read(self, prompt: int, history: tuple[int, ...]) -> _Text:
        """The text after one more token than one that is known, or from its beginning; what is shorter is dropped."""
        before = self._texts.get((prompt, history[:-1])) if history else None
        if before is None:
            text = _Text(self.grammar.matcher(), -1, TEXT + TOKEN * self.limits[prompt])
            text.path = None if history else self.grammar.end
            text.matcher.consume_tokens(list(history))
        else:
            token = history[-1]
            inside = before.free and not self.grammar.quotes[token]
            slack = before.slack - (1 if inside else 1 + self.grammar.leap)
            text = _Text(before.matcher.deep_copy(), slack, before.seconds)
            text.matcher.consume_token(token)
            text.before = None if before.path is None else (before.path, token)
            if before.ending and before.ending[0] == token:
                text.ending = before.ending[1:]
        known = {
            key: each for key, each in self._texts.items() if key[0] != prompt or len(key[1]) >= len(history) - 1
        }
        self._texts = {**known, (prompt, history): text}
        return text


def _first_line(matcher: Any) -> str:
    lines = matcher.get_error().strip().splitlines() or [""]
    said = {"oneOf constraints are not supported": "oneOf is not supported; write anyOf"}
    return next((better for start, better in said.items() if lines[0].startswith(start)), brief(lines[0], 200))


def _unusable(reason: str) -> ConfigError:
    return ConfigError(f"the JSON schema cannot be used: {reason}")


class GuidanceTokens(NamedTuple):
    """A vocabulary as the library wants it, and which tokens may end a string, (V,)."""

    tokens: Any
    quotes: Mask


_TOKENS: WeakKeyDictionary[AnyTokenizer, dict[tuple[int, ...], GuidanceTokens]] = WeakKeyDictionary()


def _guidance_tokens(tokenizer: AnyTokenizer, vocabulary: int, ends: list[int]) -> GuidanceTokens:
    """Those of a tokenizer; made once."""
    known = _TOKENS.setdefault(tokenizer, {})
    key = (vocabulary, *ends)
    if key not in known:
        tokens = _new_tokens(tokenizer, vocabulary, ends)
        quotes = np.array(['"' in tokens.decode_str([token]) for token in range(vocabulary)])
        known[key] = GuidanceTokens(tokens, quotes)
    return known[key]


def _new_tokens(tokenizer: AnyTokenizer, vocabulary: int, ends: list[int]) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    last, slices = ends or [tokenizer.eos_id], LLTokenizer.json_slices()
    pieces = tokenizer.pieces
    if pieces is None and isinstance(tokenizer, Tokenizer):
        text = tokenizer.full_library.to_str()
        return LLTokenizer(text, n_vocab=vocabulary, eos_token=last, slices=slices)
    if pieces is None:
        raise ConfigError("a JSON schema needs a tokenizer whose tokens are known as bytes; this model's are not")
    # What is no text is named, so that nobody takes it for some.
    named = [piece or f"<|{index}|>".encode() for index, piece in enumerate(pieces)]
    named += [f"<|{index}|>".encode() for index in range(len(named), vocabulary)]
    special = [index for index in range(len(named)) if index >= len(pieces) or not pieces[index]]
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(named, sorted({*special, *last}), last[0], tokenizer)),
        eos_token=last,
        slices=slices,
    )


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokens: list[bytes], special: list[int], eos: int, tokenizer: AnyTokenizer) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id, self.bos_token_id = tokens, special, eos, None
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return [int(token) for token in self._tokenizer.encode(plain)]
