"""Texts that fit a JSON schema: after each token, `llguidance` tells which tokens may follow.

What is cut off by the limit of tokens fits nothing. So the constraint knows how a text would be ended soonest from
where it is. While more tokens are left than that takes, and than anything takes that one token can open
(schema_sizes.py), all that fits may follow; then only what leaves room for an end, tried token by token. Values are
separated as `json.dumps` does, and nothing else is space between them: a model may not write blanks until its tokens
are spent.

A schema comes from whoever asks, so reading it and each step have a budget. What exceeds it is refused, or ends with
a failure that the search's caller raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from legato.data.text.any_tokenizer import AnyTokenizer
from legato.data.text.tokenizers import Tokenizer
from legato.decoding.constraints.schema_sizes import largest_part
from legato.errors import ConfigError, LegatoError, brief
from legato.registry import require_extra

SEPARATORS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LARGEST: Final = 1 << 16  # characters of a schema
LONGEST_END: Final = 1 << 11  # tokens
LIMITS: Final = {"step_lexer_fuel": 100_000, "step_max_items": 25_000, "max_lexer_states": 50_000}
LOOP: Final = 12  # times that one token is the nearest to an end before another way is looked for
DEPTH: Final = 32  # characters of such a way
BREADTH: Final = 4  # of them side by side
WAYS: Final = 4  # that are looked for in vain, at most
TRIED: Final = 12  # tokens that are tried where room is scarce
# What ends a value, in a string and elsewhere, the first that may be written.
IN_STRING: Final = ('"', "0", "a", " ")
ELSEWHERE: Final = ("}", "]", ",", ":", '"', "0", "1", "-", "n", "t", "f", "{", "[")
ONLY_IN_STRING: Final = "Z"  # a letter that stands nowhere else in JSON

Mask = NDArray[np.bool_]


class SchemaGrammar:
    """A schema over a model's tokens."""

    def __init__(self, schema: str, tokenizer: AnyTokenizer, vocabulary: int, ends: Sequence[int]) -> None:
        library = require_extra("serve", "llguidance")
        if len(schema) > LARGEST:
            raise ConfigError(f"the JSON schema has {len(schema):,} characters; {LARGEST:,} are read")
        self.vocabulary, self.ends = vocabulary, list(ends)
        self._tokens, self.quotes = _guidance_tokens(tokenizer, vocabulary, self.ends)
        read = json.loads(schema)
        grammar = library.LLMatcher.grammar_from_json_schema(json.dumps({**read, "x-guidance": SEPARATORS}))
        limits = library.LLParserLimits(**LIMITS, verbose_errors=False)
        self._start = library.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        if self._start.is_error():
            raise _unusable(_first_line(self._start))
        self._characters = {chr(code): self._alone(chr(code)) for code in range(32, 127) if chr(code) != "\\"}
        self.leap = largest_part(read)  # tokens that one more token can make an end longer by, and more
        self._ways: dict[bytes, list[int]] = {}  # by a mask: characters to the end of a string
        self._in_vain = 0
        end = self.ending(self._start, LONGEST_END)
        if end is None:
            raise _unusable(f"no text of at most {LONGEST_END:,} tokens was found that fits it")
        self.shortest = len(end)

    def matcher(self) -> Any:
        """Where a text begins."""
        return self._start.deep_copy()

    def allowed(self, matcher: Any) -> Mask:
        """The tokens that may follow, (V,)."""
        mask = np.zeros(self.vocabulary, dtype=bool)
        if matcher.is_stopped() or matcher.is_error():
            mask[self.ends] = True
            return mask
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        known = np.unpackbits(bits, bitorder="little")[: self.vocabulary].astype(bool)
        mask[: len(known)] = known
        return mask

    def in_string(self, mask: Mask) -> bool:
        """Whether any letter may follow."""
        letter = self._characters[ONLY_IN_STRING]
        return letter is not None and bool(mask[letter])

    def ending(self, matcher: Any, most: int) -> list[int] | None:
        """Tokens that would end a text soon, the end token included; None: more than `most`."""
        path: list[int] = []
        matcher = matcher.deep_copy()
        run, run_start, tried = 0, matcher, False
        while len(path) < most + LOOP:  # some of which a way out takes the place of
            if matcher.is_error():
                return None
            if matcher.is_accepting() or matcher.is_stopped():
                return [*path, *self.ends[:1]] if len(path) < most else None
            forced = matcher.compute_ff_tokens()
            if forced:
                if matcher.try_consume_tokens(forced) < len(forced):
                    return None
                path += forced
                run = 0
                continue
            mask = self.allowed(matcher)
            mask[self.ends] = False
            token = self._nearest(mask)
            if token is None:
                return None
            run = run + 1 if path and path[-1] == token else 0
            if run == 0:
                run_start, tried = matcher.deep_copy(), False
            elif run == LOOP and not tried:
                tried, way = True, self._way_out(run_start)
                if way is not None:
                    path, matcher, run = [*path[:-run], *way], run_start, 0
                    matcher.consume_tokens(way)
                    continue
            if not matcher.consume_token(token):
                return None
            path.append(token)
        return None

    def _nearest(self, mask: Mask) -> int | None:
        """Of the tokens that may follow, the one that most likely ends a value."""
        for text in IN_STRING if self.in_string(mask) else ELSEWHERE:
            token = self._characters[text]
            if token is not None and mask[token]:
                return token
        return int(mask.argmax()) if mask.any() else None

    def _way_out(self, matcher: Any) -> list[int] | None:
        """Characters after which a string may end, where a pattern asks for some; looked for breadth first.

        What allows the same tokens after as many characters is taken to be the same.
        """
        start = self.allowed(matcher)
        known = self._ways.get(start.tobytes())
        if known is not None and matcher.validate_tokens(known) == len(known):
            return known
        if self._in_vain >= WAYS:
            return None
        seen = {start.tobytes()}
        quote, level = self._characters['"'], [(list[int](), matcher, start)]
        for _ in range(DEPTH):
            following: dict[bytes, tuple[list[int], Any, Mask]] = {}
            for path, held, mask in level:
                for token in self._characters.values():
                    if token is None or not mask[token] or token == quote:
                        continue
                    after = held.deep_copy()
                    after.consume_token(token)
                    forced = after.compute_ff_tokens()
                    after.consume_tokens(forced)
                    allowed = self.allowed(after)
                    if after.is_error():
                        continue
                    way = [*path, token, *forced]
                    if quote in forced or (quote is not None and allowed[quote]):
                        self._ways[start.tobytes()] = way
                        return way
                    following.setdefault(allowed.tobytes(), (way, after, allowed))
            new_first = sorted(following, key=seen.__contains__)[:BREADTH]
            seen |= set(new_first)
            level = [following[key] for key in new_first]
        self._in_vain += 1
        return None

    def _alone(self, text: str) -> int | None:
        tokens = self._tokens.greedy_tokenize(text)
        return int(tokens[0]) if len(tokens) == 1 else None


@dataclass
class _Text:
    """A text as far as it is written."""

    matcher: Any
    slack: int  # tokens that are left beyond those that an end takes, at least
    free: bool = False  # in a string whose letters are free
    ending: list[int] | None = None  # what is left to write, once it is to end


class SchemaConstraint:
    """The search's constraint: from a prompt's number and what is written to what may follow."""

    def __init__(self, grammar: SchemaGrammar, limits: Sequence[int]) -> None:
        """`limits` are the most tokens of each prompt, the end token's included."""
        self.grammar, self.limits = grammar, list(limits)
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
        mask = grammar.allowed(text.matcher)
        if text.matcher.is_error():
            self.failure = LegatoError(f"the JSON schema takes too much to follow: {_first_line(text.matcher)}")
            return mask
        text.free = grammar.in_string(mask)
        if text.slack > grammar.leap:
            return mask
        left = self.limits[prompt] - len(tokens)
        path = grammar.ending(text.matcher, left)
        text.slack = -1 if path is None else left - len(path)
        if path is None or text.slack > grammar.leap:
            return mask
        if text.slack == 0:
            text.ending = path
            return self._only(path[:1])
        return self._with_room(text, mask, path, left)

    def _with_room(self, text: _Text, mask: Mask, path: list[int], left: int) -> Mask:
        """What may follow and leaves room for an end: what goes on within a string, and what is tried."""
        grammar = self.grammar
        if text.free and text.slack > 4:  # a letter of several tokens takes so many
            fits = mask & ~grammar.quotes
        else:
            fits = np.zeros_like(mask)
            for token in np.flatnonzero(mask)[:TRIED]:
                after = text.matcher.deep_copy()
                fits[token] = after.consume_token(int(token)) and grammar.ending(after, left - 1) is not None
        fits[grammar.ends] = mask[grammar.ends]
        fits[path[0]] = True
        return fits

    def _only(self, tokens: Sequence[int]) -> Mask:
        mask = np.zeros(self.grammar.vocabulary, dtype=bool)
        mask[list(tokens)] = True
        return mask

    def _read(self, prompt: int, history: tuple[int, ...]) -> _Text:
        """The text after one more token than one that is known, or from its beginning; what is shorter is dropped."""
        before = self._texts.get((prompt, history[:-1])) if history else None
        if before is None:
            text = _Text(self.grammar.matcher(), -1)
            text.matcher.consume_tokens(list(history))
        else:
            token = history[-1]
            inside = before.free and not self.grammar.quotes[token]
            text = _Text(before.matcher.deep_copy(), before.slack - (1 if inside else 1 + self.grammar.leap))
            text.matcher.consume_token(token)
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
