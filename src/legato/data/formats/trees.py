"""Constituency trees: read from brackets, cleaned, and written as a sequence of symbols.

A text holds trees as the Penn Treebank does, over as many lines as they like. `read_trees` reads files of them: plain
or gzipped, a folder, those that match a pattern, those in a zip.

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

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from legato.data.digests import sha256_of, sized
from legato.data.sources.files import FileOptions, decode, load_bytes, no_file, resolve_path, unify_newlines
from legato.data.sources.patterns import IN_ZIP, matching_files, zip_members
from legato.errors import DataError, brief

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
        return "".join(")" if isinstance(step, Close) else f" {step}" for step in walk(self)).lstrip()


class Open(NamedTuple):
    label: str

    def __str__(self) -> str:
        return f"({self.label}"


class Close(NamedTuple):
    label: str

    def __str__(self) -> str:
        return f"){self.label}"


TreeStep: TypeAlias = Open | Word | Close


def walk(tree: Tree) -> Iterator[TreeStep]:
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
        raise DataError(f"nothing is left of the tree {brief(str(tree), 40)}: it holds no words; leave it out")
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
    for word in tree.words:
        if word.startswith(("(", ")")):
            raise DataError(f"the word '{word}' would read as a bracket; write -LRB- and -RRB- for ( and )")
    return [step.text if isinstance(step, Word) else str(step) for step in walk(tree)]


def skeleton(tree: Tree) -> list[str]:
    """The tree as symbols with every word replaced by `WORD`.

    >>> " ".join(skeleton(unflatten(["(NP", "dogs", ")NP"])))
    '(NP <word> )NP'
    """
    return [WORD if isinstance(step, Word) else str(step) for step in walk(tree)]


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
        unclosed = " ".join(f"({brief(label, 40)}" for label, _ in opened[:10])
        raise DataError(
            f"the tree is incomplete: '{brief(unclosed, 40)}' is open" if opened else "there are no symbols"
        )
    return root


def _misplaced(number: int, symbol: str, why: str) -> DataError:
    return DataError(f"symbol {number}, '{brief(symbol, 40)}': {why}")


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
            raise problem(found.start(), f"'{brief(token, 40)}' is in no bracket; remove it")
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
            word = brief(bracket.words[0], 40)
            raise problem(bracket.start, f"'{word}' has no part of speech of its own; write ({UNTAGGED} {word})")
        else:
            what = f"constituent '({brief(bracket.label, 40)} )'" if opened else "tree"
            raise problem(bracket.start, f"empty {what}; remove it")
        if opened:
            opened[-1].children.append(node)
        else:
            yield node if isinstance(node, Tree) else Tree("", (node,))
    if opened:
        raise problem(opened[0].start, f"unbalanced bracket: {len(opened)} not closed in the tree that begins here")


# --- files of trees -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Treebank:
    """Trees as their files have them, the files' names, and the hash that names their content."""

    trees: list[Tree]
    sources: list[str]
    sha256: str


def read_trees(source: str | list[str], files: FileOptions = FileOptions()) -> Treebank:
    """The trees of a file (plain or .gz), of a folder's .mrg files, of a pattern, or of files in a zip.

    A pattern's `*`, `?` and `[0-9]` stand for parts of names, `**` for any folders. In a zip the files are
    named after a `!`, by a pattern too: `treebank.zip!treebank/combined/wsj_018*.mrg`; a zip alone means
    all its .mrg files. Files that one source names come in the order of their names; a list joins several
    sources.
    """
    trees: list[Tree] = []
    names: list[str] = []
    content: list[bytes] = []
    sources = [source] if isinstance(source, str) else source
    if not sources:
        raise DataError("there is no source of trees; name a file, a folder or a pattern")
    for name, data in (file for part in sources for file in _files(part, files.root)):
        text = unify_newlines(decode(Path(name), data, files.encoding))
        found = list(parse_trees(text, name))
        if not found:
            raise DataError(f"{name} holds no tree; give a file with trees in brackets")
        trees += found
        names.append(name)
        content += sized([text], lambda row: names[-1])
    return Treebank(trees, names, sha256_of(content))


def _files(source: str, root: str | None) -> Iterator[tuple[str, bytes]]:
    """The name and content of each file that a source names."""
    path = resolve_path(source, root)
    in_zip = IN_ZIP.fullmatch(source)
    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*") if file.name.lower().endswith((".mrg", ".mrg.gz")) and file.is_file()
        )
        if not found:
            raise DataError(f"{path} has no .mrg file in it; name its files by a pattern, such as {path}/*.txt")
    elif path.suffix.lower() == ".zip" and path.exists():
        yield from zip_members(path, "**/*.mrg")
        return
    elif path.exists():
        found = [path]
    elif in_zip is not None:
        yield from zip_members(resolve_path(in_zip["zip"], root), in_zip["pattern"])
        return
    elif glob.has_magic(str(path)):
        found = matching_files(path)
        if not found:
            raise DataError(f"no file matches {path}; check the pattern, or set data.root to the folder it starts in")
    else:
        raise no_file(path)
    for file in found:
        yield str(file), load_bytes(file)
