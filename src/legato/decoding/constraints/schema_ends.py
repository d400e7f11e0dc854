"""How a text that has to fit a schema is ended soonest from where it is: tokens that write what is still open.

There is no need to ask for all tokens that may follow, which takes as long as the vocabulary is large: a few single
characters are tried, of which one ends almost any value. Whoever sends a schema decides how much is to be tried, so
each text, and each schema while it is read, has so much *time* for it, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from legato.decoding.constraints.schema_numbers import completions

LOOP: Final = 12  # times that one token is the nearest to an end before another way is looked for
REPEATS: Final = 4  # more, after which a number's end is looked for again
DEPTH: Final = 32  # characters of such a way
BREADTH: Final = 4  # of them side by side
WAYS: Final = 4  # that are looked for in vain, at most
WAY: Final = 0.1  # seconds that such a way is looked for, at most
# What ends a value, in a string and elsewhere, the first that may be written.
IN_STRING: Final = ('"', "0", "a", " ")
ELSEWHERE: Final = ("}", "]", ",", ":", '"', "0", "1", "-", "n", "t", "f", "{", "[")
BEHIND_NUMBER: Final = ("}", "]", ",")
NUMBER_TOKENS: Final = 256  # of a text, in which its last number is looked for
ONLY_IN_STRING: Final = "Z"  # a letter that stands nowhere else in JSON

Mask = NDArray[np.bool_]


class OutOfTime(Exception):
    """More was to be tried than there is time for."""


class Budget:
    """Seconds of a thread's computing: the clock stands still while others have the processor."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    @property
    def left(self) -> float:
        return self._end - time.thread_time()

    def check(self) -> None:
        if self.left < 0:
            raise OutOfTime


class Ends:
    """Ends of texts over one vocabulary, by a schema."""

    def __init__(self, tokens: Any, vocabulary: int, ends: Sequence[int], steps: Sequence[Decimal] = ()) -> None:
        """`steps` are those that numbers of the schema go by."""
        self.vocabulary, self.ends, self._steps = vocabulary, list(ends), list(steps)
        self._library = tokens
        self.characters = {chr(code): self._alone(chr(code)) for code in range(32, 127) if chr(code) != "\\"}
        self._in_string = self._known(IN_STRING)
        self._elsewhere = self._known(ELSEWHERE)
        self._letter = self.characters[ONLY_IN_STRING]
        self._ways: dict[bytes, list[int]] = {}  # by a mask: characters to the end of a string
        self._in_vain = 0

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
        return self._letter is not None and bool(mask[self._letter])

    def holds(self, matcher: Any, path: Sequence[int], budget: Budget) -> bool:
        """Whether a text would be ended by these tokens."""
        budget.check()
        return bool(matcher.validate_tokens(list(path)) == len(path))

    def after(self, matcher: Any, token: int, before: Sequence[int], budget: Budget) -> list[int] | None:
        """What ends a text that took in a token, where it is what ended it before, or some of that; else None."""
        if before[0] == token:
            return list(before[1:])
        spelled = len(self._library.decode_str([token]))
        for written in dict.fromkeys((spelled, 1, 0)):  # as many characters, one, or none of that end
            path = list(before[written:])
            if path and self.holds(matcher, path, budget):
                return path
        return None

    def nearest(self, matcher: Any, most: int, budget: Budget, written: Sequence[int] = ()) -> list[int] | None:
        """Tokens that would end a text soon, the end token included; None: more than `most`.

        `written` are the tokens of the text; a number that they end with is completed by what it is.
        """
        path: list[int] = []
        matcher = matcher.deep_copy()
        run, run_start, tried = 0, matcher, False
        while len(path) < most + LOOP:  # some of which a way out takes the place of
            budget.check()
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
            last = path[-1] if path else None
            token = self._next(matcher, last, budget)
            if token is None:
                return None
            run = run + 1 if last == token else 0
            if run == 0:
                run_start, tried = matcher.deep_copy(), False
            elif run == LOOP and not tried:
                tried, way = True, self._number_end(run_start, [*written, *path[:-run]])
                way = self._way_out(run_start, budget) if way is None else way
                if way is not None:
                    path, matcher, run = [*path[:-run], *way], run_start, 0
                    matcher.consume_tokens(way)
                    continue
            elif (
                run > LOOP and run % REPEATS == 0 and token == self.characters["0"]
            ):  # a number may be long enough now
                way = self._number_end(matcher, [*written, *path])
                if way is not None:
                    path, run = [*path, *way], 0
                    matcher.consume_tokens(way)
                    continue
            if not matcher.consume_token(token):
                return None
            path.append(token)
        return None

    def _next(self, matcher: Any, last: int | None, budget: Budget) -> int | None:
        """Of the tokens that may follow, the one that most likely ends a value."""
        inside = self._letter is not None and self._follows(matcher, self._letter)
        for token in self._in_string if inside else self._elsewhere:
            if self._follows(matcher, token):
                return token
        if last is not None and self._follows(matcher, last):
            return last
        budget.check()
        mask = self.allowed(matcher)
        mask[self.ends] = False
        return int(mask.argmax()) if mask.any() else None

    def _follows(self, matcher: Any, token: int) -> bool:
        return bool(matcher.validate_tokens([token]))

    def _number_end(self, matcher: Any, written: Sequence[int]) -> list[int] | None:
        """Digits after which the number that a text ends with may end; None: none that was found."""
        text = self._library.decode_str(list(written[-NUMBER_TOKENS:]))
        for digits in completions(text, self._steps):
            path = self._known(digits)
            if len(path) < len(digits) or matcher.validate_tokens(path) < len(path):
                continue
            behind = [*self._known(BEHIND_NUMBER), *self.ends[:1]]
            if any(matcher.validate_tokens([*path, token]) > len(path) for token in behind):
                return path
        return None

    def _way_out(self, matcher: Any, budget: Budget) -> list[int] | None:
        """Characters after which a string may end, where a pattern asks for some."""
        start = self.allowed(matcher)
        known = self._ways.get(start.tobytes())
        if known is not None and matcher.validate_tokens(known) == len(known):
            return known
        if self._in_vain >= WAYS:
            return None
        seconds = min(WAY, budget.left / 2)
        try:
            way = self._broad_way_out(matcher, start, Budget(seconds))
        except OutOfTime:
            way = None
        if way is not None:
            self._ways[start.tobytes()] = way
        elif seconds == WAY:
            self._in_vain += 1
        return way

    def _broad_way_out(self, matcher: Any, start: Mask, budget: Budget) -> list[int] | None:
        """… breadth first. What allows the same tokens after as many characters is taken to be the same."""
        seen = {start.tobytes()}
        quote, level = self.characters['"'], [(list[int](), matcher, start)]
        for _ in range(DEPTH):
            following: dict[bytes, tuple[list[int], Any, Mask]] = {}
            for path, held, mask in level:
                for token in self.characters.values():
                    if token is None or not mask[token] or token == quote:
                        continue
                    budget.check()
                    after = held.deep_copy()
                    after.consume_token(token)
                    forced = after.compute_ff_tokens()
                    after.consume_tokens(forced)
                    allowed = self.allowed(after)
                    if after.is_error():
                        continue
                    way = [*path, token, *forced]
                    if quote in forced or (quote is not None and allowed[quote]):
                        return way
                    following.setdefault(allowed.tobytes(), (way, after, allowed))
            new_first = sorted(following, key=seen.__contains__)[:BREADTH]
            seen |= set(new_first)
            level = [following[key] for key in new_first]
        return None

    def _alone(self, text: str) -> int | None:
        tokens = self._library.greedy_tokenize(text)
        return int(tokens[0]) if len(tokens) == 1 else None

    def _known(self, characters: Sequence[str]) -> list[int]:
        return [token for text in characters if (token := self.characters[text]) is not None]
