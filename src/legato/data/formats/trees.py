"""Constituency trees: read from brackets, cleaned, and written as a sequence of symbols.

A text holds trees as the Penn Treebank does, over as many lines as they like (files of them: `treebanks.py`):

    ( (S (NP-SBJ (NNS dogs)) (VP (VBP chase) (NP (NNS cats))) (. .)) )

`clean` leaves what parsers are trained on: no empty elements, no function tags, no wrapper. A model reads
and writes a tree as symbols (Vinyals et al. 2015, "Grammar as a Foreign Language"), without the parts of
speech, each bracket with its label one symbol:

    flatten    (S (NP dogs )NP (VP chase (NP cats )NP )VP . )S
    skeleton   (S (NP <word> )NP (VP <word> (NP <word> )NP )VP <word> )S

`unflatten` and `fill` are the ways back.

Notable here: every function walks a tree with a stack of its own, so a file whose brackets nest ten
thousand deep is read like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from legato.errors import DataError

WORD: Final = "<word>"  # stands for any word in a skeleton
EMPTY: Final = "-NONE-"  # the part of speech of traces and other words that nobody says
WRAPPERS: Final = ("", "TOP", "ROOT", "S1")  # labels around a whole tree that say nothing about it
UNTAGGED: Final = "XX"  # written for a part of speech that is not known
# What treebanks write for a bracket that somebody wrote.
BRACKETS: Final = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_ESCAPES = str.maketrans(BRACKETS)

# Only these separate: another script's space may stand inside a word.
TOKEN = re.compile(r"[()]|[^() \t\n\r\f\v]+")
FUNCTION_TAGS = re.compile(r"(?<!^)[-=].*")


@dataclass(frozen=True, slots=True)
class Word:
    """A leaf: a word and its part of speech, empty where it is not known."""

    text: str
    pos: str = ""

    def __str__(self) -> str:
        """The word in brackets as files hold it; one that has brackets in it is written as treebanks do."""
        return f"({self.pos or UNTAGGED} {self.text.replace('(', '-LRB-').replace(')', '-RRB-')})"


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent: its label and what it consists of, constituents and words in their order.

    >>> print(Tree("NP", (Word("the", "DT"), Word("dog", "NN"))))
    (NP (DT the) (NN dog))
    """

    label: str
    children: tuple[Tree | Word, ...]

    @property
    def leaves(self) -> list[Word]:
        return [step for step in walk(self) if isinstance(step, Word)]

    @property
    def words(self) -> list[str]:
        return [leaf.text for leaf in self.leaves]

    def __str__(self) -> str:
        """The tree in brackets on one line, as files hold it."""
        pieces = []
        for step in walk(self):
            match step:
                case Open(label):
                    pieces.append(f" ({label}")
                case Word():
                    pieces.append(f" {step}")
                case Close():
                    pieces.append(")")
        return "".join(pieces).lstrip()


class Open(NamedTuple):
    label: str


class Close(NamedTuple):
    label: str


Step: TypeAlias = Open | Word | Close


def walk(tree: Tree) -> Iterator[Step]:
    """The tree from left to right: where constituents open and close, and the words."""
    ahead: list[Tree | Word | Close] = [tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, Tree):
            yield Open(node.label)
            ahead.append(Close(node.label))
            ahead.extend(reversed(node.children))
        else:
            yield node


def labels(trees: Iterable[Tree]) -> list[str]:
    """The labels of all constituents, sorted."""
    return sorted({step.label for tree in trees for step in walk(tree) if isinstance(step, Open)})


def longest_chain(tree: Tree) -> int:
    """The most constituents over exactly the same words, each the only child of the one above.

    >>> longest_chain(unflatten("(S (VP (VP go )VP (NP home )NP )VP )S".split()))
    2
    """
    longest = 0
    levels: list[list[int]] = [[]]  # for each open constituent, the chain that each of its children begins
    for step in walk(tree):
        match step:
            case Open():
                levels.append([])
            case Word():
                levels[-1].append(0)
            case Close():
                below = levels.pop()
                levels[-1].append(below[0] + 1 if len(below) == 1 else 1)
                longest = max(longest, levels[-1][-1])
    return longest


def escape(word: str) -> str:
    """A word of somebody's text as treebanks write it: no bracket in it reads as the tree's own.

    >>> escape("("), escape("f(x)")
    ('-LRB-', 'f-LRB-x-RRB-')
    """
    return word.translate(_ESCAPES)


# --- cleaning ------------------------------------------------------------------------------------


def bare_label(label: str) -> str:
    """A label without function tags and indices; one that begins with a hyphen (-LRB-) stays as it is.

    >>> bare_label("NP-SBJ-1"), bare_label("NP=2"), bare_label("-LRB-")
    ('NP', 'NP', '-LRB-')
    """
    return label if label.startswith("-") else FUNCTION_TAGS.sub("", label)


def clean(tree: Tree) -> Tree:
    """The tree without empty elements and constituents left empty, function tags, indices and wrapper.

    A wrapper that holds more than one constituent is needed; its label becomes TOP.

    >>> print(clean(next(parse_trees("( (S (NP-SBJ-1 (PRP I)) (VP (VBP go) (NP (-NONE- *-1)))))"))))
    (S (NP (PRP I)) (VP (VBP go)))
    """
    open_children: list[list[Tree | Word]] = [[]]
    for step in walk(tree):
        match step:
            case Open():
                open_children.append([])
            case Word(text, pos):
                if pos != EMPTY:
                    open_children[-1].append(Word(text, bare_label(pos)))
            case Close(label):
                children = open_children.pop()
                if children:
                    open_children[-1].append(Tree(bare_label(label), tuple(children)))
    [whole] = open_children
    if not whole:
        raise DataError(f"nothing is left of the tree {_short(str(tree))}: it holds no words; leave it out")
    [root] = whole
    assert isinstance(root, Tree)
    while root.label in WRAPPERS and len(root.children) == 1 and isinstance(root.children[0], Tree):
        root = root.children[0]
    return Tree("TOP", root.children) if root.label in WRAPPERS else root


# --- sequences of symbols ------------------------------------------------------------------------


def flatten(tree: Tree) -> list[str]:
    """The tree as symbols: brackets with their labels, words, no parts of speech.

    >>> " ".join(flatten(clean(next(parse_trees("(S (NP (NNS dogs)) (VP (VBP bark)))")))))
    '(S (NP dogs )NP (VP bark )VP )S'
    """
    symbols = _symbols(tree)
    for step, symbol in zip(walk(tree), symbols, strict=True):
        if isinstance(step, Word) and symbol.startswith(("(", ")")):
            raise DataError(f"the word '{symbol}' would read as a bracket; write -LRB- and -RRB- for ( and )")
    return symbols


def skeleton(tree: Tree) -> list[str]:
    """The tree as symbols with every word replaced by `WORD`.

    >>> " ".join(skeleton(unflatten(["(NP", "dogs", ")NP"])))
    '(NP <word> )NP'
    """
    return _symbols(tree, WORD)


def _symbols(tree: Tree, word: str | None = None) -> list[str]:
    symbols = []
    for step in walk(tree):
        match step:
            case Open(label):
                symbols.append(f"({label}")
            case Word(text):
                symbols.append(text if word is None else word)
            case Close(label):
                symbols.append(f"){label}")
    return symbols


def unflatten(symbols: Iterable[str]) -> Tree:
    """The tree that `flatten` wrote, or a `DataError` that says which symbol is out of place.

    >>> unflatten(["(NP", "dogs", ")NP"])
    Tree(label='NP', children=(Word(text='dogs', pos=''),))
    """
    return _grow(symbols, lambda symbol: symbol)


def fill(skeleton: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of a skeleton over these words, which may be any: brackets, too.

    >>> fill(["(NP", "<word>", ")NP"], ["dogs"]).words
    ['dogs']
    """
    places = sum(symbol == WORD for symbol in skeleton)
    if places != len(words):
        raise DataError(f"the tree has places for {places} words, and the sentence has {len(words)}")
    remaining = iter(words)
    return _grow(skeleton, lambda symbol: next(remaining) if symbol == WORD else None)


def _grow(symbols: Iterable[str], word_of: Callable[[str], str | None]) -> Tree:
    """A tree from its symbols; `word_of` gives the word of a symbol that is no bracket, if it stands for one."""
    opened: list[tuple[str, list[Tree | Word]]] = []
    root: Tree | None = None
    for number, symbol in enumerate(symbols, start=1):
        if root is not None:
            raise _misplaced(number, symbol, "the tree is already complete")
        if symbol.startswith("("):
            opened.append((symbol[1:], []))
            continue
        if not opened:
            raise _misplaced(number, symbol, "no bracket is open here")
        label, children = opened[-1]
        if not symbol.startswith(")"):
            word = word_of(symbol)
            if word is None:
                raise _misplaced(number, symbol, f"neither a bracket nor {WORD}")
            children.append(Word(word))
            continue
        if symbol[1:] != label:
            raise _misplaced(number, symbol, f"the open bracket is '({label}'")
        if not children:
            raise _misplaced(number, symbol, "the constituent is empty")
        opened.pop()
        node = Tree(label, tuple(children))
        if opened:
            opened[-1][1].append(node)
        else:
            root = node
    if root is None:
        unclosed = " ".join(f"({_short(label)}" for label, _ in opened[:10])
        raise DataError(f"the tree is incomplete: '{_short(unclosed)}' is open" if opened else "there are no symbols")
    return root


def _misplaced(number: int, symbol: str, why: str) -> DataError:
    return DataError(f"symbol {number}, '{_short(symbol)}': {why}")


# --- brackets ------------------------------------------------------------------------------------


@dataclass
class _Bracket:
    """A bracket as far as it has been read."""

    start: int
    label: str = ""
    children: list[Tree | Word] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # what stands in it without a bracket of its own


def parse_trees(text: str, name: str = "text") -> Iterator[Tree]:
    """The bracketed trees in a text; `name` is what an error calls it.

    A bracket around a single word is the word with its part of speech.

    >>> [tree.words for tree in parse_trees("(NP (DT a) (NN dog)) (NP (NNS cats))")]
    [['a', 'dog'], ['cats']]
    """

    def problem(place: int, what: str) -> DataError:
        return DataError(f"{name}, line {text.count(chr(10), 0, place) + 1}: {what}")

    opened: list[_Bracket] = []
    for found in TOKEN.finditer(text):
        token = found[0]
        if token == "(":
            opened.append(_Bracket(found.start()))
            continue
        if not opened:
            if token == ")":
                raise problem(found.start(), "unbalanced bracket: this one closes nothing; remove it")
            raise problem(found.start(), f"'{_short(token)}' is in no bracket; remove it")
        bracket = opened[-1]
        if token != ")":
            if bracket.label or bracket.children:
                bracket.words.append(token)
            else:
                bracket.label = token
            continue
        opened.pop()
        node: Tree | Word
        if bracket.children and not bracket.words:
            node = Tree(bracket.label, tuple(bracket.children))
        elif len(bracket.words) == 1 and not bracket.children:
            node = Word(bracket.words[0], bracket.label)
        elif bracket.words:
            word = _short(bracket.words[0])
            raise problem(bracket.start, f"'{word}' has no part of speech of its own; write ({UNTAGGED} {word})")
        else:
            what = f"constituent '({_short(bracket.label)} )'" if opened else "tree"
            raise problem(bracket.start, f"empty {what}; remove it")
        if opened:
            opened[-1].children.append(node)
        else:
            yield node if isinstance(node, Tree) else Tree("", (node,))
    if opened:
        raise problem(opened[0].start, f"unbalanced bracket: {len(opened)} not closed in the tree that begins here")


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
