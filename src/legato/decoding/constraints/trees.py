"""What may come next while a tree is written as symbols, so that it can only end as a tree.

The symbols are those of a skeleton in `data/formats/trees.py`: an opening and a closing bracket for each label, and
one symbol for a word. Under the constraint a hypothesis has one root, closes every bracket by its own label,
leaves none empty, has exactly as many words as the sentence, and ends by `eos` within `max_tokens`. Nothing
else is forbidden but towers: more than `max_unary` constituents over the same words, each the only child of
the one above, which a model that repeats itself would build for ever.

Every state that is reached can be completed, because two reserves are kept.

- Tokens: the words to come, a closing bracket for each open one, and `eos` fit in what is left of
  `max_tokens`. A new constituent costs two.
- Words: an open constituent without a child needs one. So does a tower that got too high: when the newest
  open constituent would close as level `l` of its tower, and the `n` open ones above it have no other child,
  they close as levels l + 1, …, l + n, unless some get a second child, which makes them level 1 again. With at
  most M levels that takes ⌊(l − 1 + n) / M⌋ words; the towers above that one count likewise, with l = 1.

A word is allowed, or a new constituent, where the words left afterwards still cover this. That forbids no
more than it must: every tree that keeps the rules can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from legato.errors import LegatoError

MAX_UNARY = 5  # one more than the highest tower in the public sample of the Penn Treebank


class Constituent(NamedTuple):
    """An open constituent."""

    close: int  # its closing bracket
    parent: Constituent | None  # as it was when this one opened
    depth: int  # 1 for the root
    above: int  # open constituents right above that have no other child than the one that leads here: n
    reserved: int  # words that the towers above those need
    level: int = 0  # as which it would close in its tower now: l; 0 as long as it has no child

    def with_child(self, level: int) -> Constituent:
        """After a child that is a word, level 0, or a constituent that closed as `level`."""
        return self._replace(level=1 if self.level else level + 1)


class TreeState(NamedTuple):
    """A tree as far as it is written. Without an open constituent it is not begun, complete or ended."""

    newest: Constituent | None
    words: int  # to come; −1 after the end token


class TreeConstraint:
    """The rules for one vocabulary of brackets; `for_sentence` applies them to a sentence.

    `open_ids` and `close_ids` give the two tokens of each label. `max_tokens` is the search's, which counts
    `eos` too.

    >>> rules = TreeConstraint({"NP": 1}, {"NP": 2}, word_id=3, eos=0, max_tokens=20)
    >>> allowed = rules.for_sentence(1)
    >>> [sorted(allowed(tokens)) for tokens in ([], [1], [1, 3], [1, 3, 2])]
    [[1], [1, 3], [2], [0]]
    """

    def __init__(
        self,
        open_ids: Mapping[str, int],
        close_ids: Mapping[str, int],
        word_id: int,
        eos: int,
        max_tokens: int,
        max_unary: int = MAX_UNARY,
    ) -> None:
        if not open_ids or open_ids.keys() != close_ids.keys():
            raise LegatoError("a tree needs labels, and each label both an opening and a closing bracket")
        ids = [*open_ids.values(), *close_ids.values(), word_id, eos]
        if len(set(ids)) < len(ids):
            raise LegatoError("the brackets of a tree, its word and its end must be different tokens")
        if max_unary < 1:
            raise LegatoError(f"max_unary={max_unary}: it is 1 at least, for a constituent over its words")
        self.word, self.eos = word_id, eos
        self.max_tokens, self.max_unary = max_tokens, max_unary
        self.closes = {open_ids[label]: close_ids[label] for label in open_ids}

    def for_sentence(self, words: int) -> Callable[[list[int]], Collection[int]]:
        """From the tokens so far to those allowed next, in a tree over so many words."""
        if words < 1:
            raise LegatoError("there is no tree over a sentence without words")
        if words + 3 > self.max_tokens:
            raise LegatoError(
                f"max_tokens={self.max_tokens} is too few for a tree over {words} words, "
                f"which takes {words + 3} at least; {4 * words + 10} are enough as a rule"
            )
        return SentenceConstraint(self, words)

    def allowed(self, state: TreeState, used: int) -> tuple[int, ...]:
        """What may follow a state that took `used` tokens; never nothing before the end."""
        newest, words = state
        if newest is None:
            return () if words < 0 else (self.eos,) if words == 0 else tuple(self.closes)
        may_open = (
            used + words + newest.depth + 3 <= self.max_tokens  # all that is left, and two brackets more
            and words >= self._needed(self._inside(newest, 0))
        )
        may_shift = words > self._needed(newest.with_child(0))
        may_close = 1 <= newest.level <= self.max_unary and (newest.parent is not None or words == 0)
        return (
            *(self.closes if may_open else ()),
            *((self.word,) if may_shift else ()),
            *((newest.close,) if may_close else ()),
        )

    def after(self, state: TreeState, token: int) -> TreeState:
        """The state after an allowed token."""
        newest, words = state
        if token == self.word and newest is not None:
            return TreeState(newest.with_child(0), words - 1)
        if token in self.closes:
            return TreeState(self._inside(newest, self.closes[token]), words)
        if newest is None:
            return TreeState(None, -1)
        return TreeState(newest.parent and newest.parent.with_child(newest.level), words)

    def _inside(self, newest: Constituent | None, close: int) -> Constituent:
        """A constituent that opens inside the newest one."""
        if newest is None:
            return Constituent(close, None, depth=1, above=0, reserved=0)
        if newest.level == 0:
            return Constituent(close, newest, newest.depth + 1, newest.above + 1, newest.reserved)
        # As another child it ends the tower: the newest constituent will close as level 1.
        return Constituent(close, newest, newest.depth + 1, 0, newest.reserved + newest.above // self.max_unary)

    def _needed(self, newest: Constituent) -> int:
        """How many words a tree needs to be completed."""
        child = 0 if newest.level else 1
        levels = newest.level - 1 + child + newest.above
        return child + levels // self.max_unary + newest.reserved


class SentenceConstraint:
    """The constraint over one sentence.

    The search asks for histories that are one token longer than those it asked for before. So the states of the
    last two lengths are kept, and a step is one token's work; any other history is read from its beginning.
    """

    def __init__(self, rules: TreeConstraint, words: int) -> None:
        self.rules = rules
        self.start = TreeState(None, words)
        self.length = 0
        self.states: dict[tuple[int, ...], TreeState] = {(): self.start}  # of histories of that length
        self.earlier: dict[tuple[int, ...], TreeState] = {}  # of histories one token shorter

    def __call__(self, tokens: list[int]) -> tuple[int, ...]:
        history = tuple(tokens)
        if len(history) != self.length:
            self.earlier = self.states if len(history) == self.length + 1 else {}
            self.states, self.length = {}, len(history)
        state = self.states.get(history)
        if state is None:
            state = self.states[history] = self._read(history)
        return self.rules.allowed(state, len(history))

    def _read(self, history: tuple[int, ...]) -> TreeState:
        parent = self.earlier.get(history[:-1])
        state, begin = (self.start, 0) if parent is None else (parent, len(history) - 1)
        for used in range(begin, len(history)):
            if history[used] not in self.rules.allowed(state, used):
                raise ValueError(f"token {used + 1} of the tree, {history[used]}, was not allowed there")
            state = self.rules.after(state, history[used])
        return state
