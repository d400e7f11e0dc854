"""The tree of a search: every token that was considered, those that were kept, and what became of them.

    tree = decoding_tree(legato.load("runs/t"), "A dog runs.", strategy="beam", width=4)
    tree.hypotheses[0].text                     # what `predict` writes
    tree.nodes[17].text, tree.nodes[17].kept    # a token, and whether the search went on with it

It is the search itself that is recorded (`decoding/search.py`, by its observer), so its hypotheses are the search's
own: of a language model those of `generate`, of others those of `predict` with as many beams. What a search of one
input begins with is in `search_start.py`; `prefix` is a constraint in it, so that the tokens of another branch have
their probabilities, too.

`parse_tree` makes nodes of a tree that a parser wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from legato.config import validate
from legato.data.formats.trees import Close, Open, Word, unflatten, walk
from legato.data.positions import shown_token
from legato.decoding import SearchOptions, search
from legato.decoding.candidates import Candidates
from legato.decoding.frontier import Frontier, Hypothesis, ranked
from legato.decoding.options import MAX_BEAMS
from legato.decoding.scores import best
from legato.decoding.search_start import SearchStart
from legato.errors import ConfigError, DataError, brief
from legato.folders.loaded import Loaded
from legato.inspect.search_start import search_start
from legato.inspect.trace import Shaped

Strategy = Literal["beam", "greedy", "sample"]
CANDIDATES: Final = 4  # of each open hypothesis
MOST_CANDIDATES: Final = 100


@dataclass(frozen=True)
class TreeNode:
    """A token behind the tokens of its parents."""

    id: int  # its place in `DecodingTree.nodes`
    parent: int | None  # None: the root, which stands for what was there before
    step: int  # 0: the root
    token: int
    text: str  # of the token, as people see it
    logprob: float  # of the token, under the model
    score: float  # of all tokens up to here: log p, not normalised
    rank: int  # from 1, by that score, among all that might have come at this step of the search
    kept: bool  # whether the search went on with it, or ended there; else it was pruned
    finished: bool = False  # whether a hypothesis ended there, rather than by the number of steps


@dataclass(frozen=True)
class TreeHypothesis:
    """What a search wrote."""

    node: int  # the last one
    text: str
    tokens: list[int]
    score: float  # log p / length^α, what hypotheses are ranked by
    logprob: float
    finished: bool


@dataclass(frozen=True, repr=False)
class DecodingTree(Shaped):
    """A search, step by step."""

    strategy: Strategy
    options: SearchOptions
    before: int  # tokens that the decoder reads before the first step
    forced: int  # steps whose tokens somebody has chosen
    nodes: list[TreeNode]  # the root first, then step by step
    hypotheses: list[TreeHypothesis]  # all that closed, best first: of those the first are the search's answer

    @property
    def steps(self) -> int:
        return self.nodes[-1].step

    def path(self, node: int) -> list[TreeNode]:
        """The nodes from the first step to this one."""
        found: list[TreeNode] = []
        place: int | None = node
        while place is not None and place > 0:
            found.append(self.nodes[place])
            place = self.nodes[place].parent
        return found[::-1]


@torch.no_grad()
def decoding_tree(
    model: Any,
    given: Any,
    *,
    strategy: Strategy = "beam",
    width: int = 4,
    nbest: int = 1,
    length_penalty: float | None = None,
    steps: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    candidates: int = CANDIDATES,
    prefix: str | Sequence[int] | None = None,
) -> DecodingTree:
    """A search of a model, which `legato.load` gave, on one input: a text, or what else its task reads.

    A beam search is `width` hypotheses wide, and looks for the `nbest` of them, by scores that are log p / length to
    the power of `length_penalty`, left out: of what the model's folder says; a sample is `nbest` walks from one
    root, drawn with `temperature` and `seed`. `steps` are the most tokens, left out: as many as the task allows, and
    24 where a language model goes on. Of what was pruned, the tree has the best `candidates` of each hypothesis.
    `prefix` is what the search has to begin with: a text, or tokens.

    >>> decoding_tree(model, "A dog runs.", prefix="Eine")                              # doctest: +SKIP
    """
    loaded: Loaded = model if isinstance(model, Loaded) else model.loaded
    _check(strategy, width, nbest, steps, temperature, candidates)
    loaded.module.eval()
    start = search_start(loaded, given)
    most = min(start.limit, start.usual if steps is None else steps)
    forced = _prefix_ids(start, loaded, prefix, most)
    asked: dict[str, Any] = {"search": strategy, "nbest": nbest, "max_tokens": most, "seed": seed}
    asked |= {"length_penalty": start.length_penalty if length_penalty is None else length_penalty}
    asked |= {"beams": width if strategy == "beam" else None}
    options = validate(SearchOptions, {**asked, "temperature": temperature})
    recorder = _Recorder(start, candidates)
    search(
        start.model,
        [start.prompt],
        options,
        eos=None,
        stop_tokens=start.ends,
        suppress=start.suppress,
        suppress_first=start.suppress_first,
        limits=[most],
        memory=start.memory,
        sources=None if start.source is None else [start.source],
        constraint=_forcing(forced, start.allowed),
        processor=start.processor,
        normalised=start.normalised,
        text_of=start.text_of,
        observer=recorder,
    )
    return recorder.tree(strategy, options, len(forced))


def _check(strategy: str, width: int, nbest: int, steps: int | None, temperature: float, candidates: int) -> None:
    if strategy not in get_args(Strategy):
        known = ", ".join(get_args(Strategy))
        raise ConfigError(f"there is no strategy '{brief(str(strategy), 40)}'; use one of {known}")
    if not 1 <= width <= MAX_BEAMS:
        raise ConfigError(f"width={width}: a search is 1 to {MAX_BEAMS:,} hypotheses wide")
    if steps is not None and steps < 1:
        raise ConfigError(f"steps={steps}: a search takes 1 step at least")
    if not 0 <= candidates <= MOST_CANDIDATES:
        raise ConfigError(f"candidates={candidates}: 0 to {MOST_CANDIDATES} of each hypothesis are kept to be seen")
    if nbest < 1 or (strategy == "beam" and nbest > width) or (strategy == "greedy" and nbest > 1):
        most = {"greedy": "1, greedy search finds one", "beam": f"1 to width={width}"}.get(strategy, "1 at least")
        raise ConfigError(f"nbest={nbest}: it is {most}")
    if temperature != 1 and strategy != "sample":
        raise ConfigError(f"temperature={temperature:g} is for strategy='sample'; leave it out")


# --- another branch -----------------------------------------------------------------------------------


def _prefix_ids(start: SearchStart, loaded: Loaded, prefix: str | Sequence[int] | None, most: int) -> list[int]:
    """The tokens that a search is made to begin with."""
    if prefix is None or len(prefix) == 0:
        return []
    said = f"the prefix '{brief(prefix, 40)}'" if isinstance(prefix, str) else "the prefix"
    ids = start.encoded(prefix) if isinstance(prefix, str) else [int(token) for token in prefix]
    unknown = start.tokenizer.unk_id if isinstance(prefix, str) else None  # a model may write it, a text does not
    never = {*start.suppress, *start.ends}
    if not ids:
        raise DataError(f"{said} has no token in it")
    for number, token in enumerate(ids, start=1):
        if not 0 <= token < start.model.vocabulary or token == unknown:
            raise DataError(f"{said}: token {number} is none that {loaded.folder} can write; use words that it knows")
        if token in never or (number == 1 and token in start.suppress_first):
            raise DataError(f"{said}: token {number}, {shown_token(start.tokenizer, token)}, is never written there")
        if start.allowed is not None and token not in start.allowed(ids[: number - 1]):
            shown = shown_token(start.tokenizer, token)
            raise DataError(f"{said}: token {number}, {shown}, cannot stand there in a tree over these words")
    if len(ids) >= most:
        raise DataError(f"{said} has {len(ids)} tokens, and the search {most} steps; shorten it, or take more steps")
    return ids


def _forcing(prefix: list[int], inner: Callable[[list[int]], Collection[int]] | None) -> Any:
    """A constraint of the search: first the tokens of the prefix, then what `inner` allows."""
    if not prefix and inner is None:
        return None

    def allowed(_: int, made: list[int]) -> Collection[int] | None:
        if len(made) < len(prefix):
            return (prefix[len(made)],)
        return None if inner is None else inner(made)

    return allowed


# --- recording ----------------------------------------------------------------------------------------

Pair = tuple[int, int]  # a row before a step, and a token behind it


@dataclass(frozen=True)
class _OpenRow:
    """A hypothesis before a step, and what may follow it."""

    path: tuple[int, ...]
    score: np.float32
    logprobs: Tensor  # (V,), −∞ where it may not
    totals: Tensor  # (V,), with the score
    best: list[int]  # the likeliest tokens


@dataclass
class _Recorder:
    """Makes nodes of what a search on one prompt does."""

    start: SearchStart
    candidates: int
    places: dict[tuple[int, ...], int] = field(default_factory=dict)  # nodes by the tokens that lead to them
    nodes: list[TreeNode] = field(default_factory=list)
    rows: dict[int, _OpenRow] = field(default_factory=dict)
    frontier: Frontier | None = None

    def __post_init__(self) -> None:
        last = self.start.prompt[-1]
        self.places[()] = 0
        self.nodes.append(TreeNode(0, None, 0, last, shown_token(self.start.tokenizer, last), 0.0, 0.0, 1, True))

    def scored(self, logits: Tensor, forbidden: Tensor, frontier: Frontier) -> None:
        self.frontier = frontier
        self.rows = {row: self._open_row(row, logits[row], forbidden) for row in frontier.open_rows()}

    def _open_row(self, row: int, logits: Tensor, forbidden: Tensor) -> _OpenRow:
        assert self.frontier is not None
        path, score = self.frontier.history(row)[0], self.frontier.scores.ravel()[row]
        raw = logits.float().cpu()
        found = raw.clone() if self.start.normalised else raw.log_softmax(-1)  # (V,)
        found[forbidden.cpu()] = -torch.inf
        if self.start.allowed is not None:
            never = torch.ones(len(found), dtype=torch.bool)
            never[list(self.start.allowed(path))] = False
            found[never] = -torch.inf
        values, tokens = best(found[None], self.candidates + 1)  # one of them may be kept
        some = [token for value, token in zip(values[0].tolist(), tokens[0].tolist(), strict=True) if value > -np.inf]
        return _OpenRow(tuple(path), score, found, found + float(score), some)

    def advanced(self, candidates: Candidates, frontier: Frontier) -> None:
        width = frontier.width
        for group in range(len(frontier.groups)):
            places = range(group * width, (group + 1) * width)
            rows = {row: self.rows[row] for row in places if row in self.rows}
            if rows:
                kept = self._kept(places, frontier)
                ended, others = self._chosen(group, candidates, frontier)
                others |= self._likeliest(rows, {*kept, *ended})
                self._add(rows, {**others, **kept, **ended}, {*kept, *ended}, set(ended))

    def _kept(self, places: range, frontier: Frontier) -> dict[Pair, float]:
        """What goes on, with its score."""
        step, scores = frontier.steps[-1], frontier.scores.ravel()
        return {
            (int(step.parents[row]), int(step.tokens[row])): float(scores[row])
            for row in places
            if scores[row] > -np.inf
        }

    def _chosen(
        self, group: int, candidates: Candidates, frontier: Frontier
    ) -> tuple[dict[Pair, float], dict[Pair, float]]:
        """Of the search's own candidates those that ended a hypothesis, and the others."""
        ended: dict[Pair, float] = {}
        others: dict[Pair, float] = {}
        for place, gain in enumerate(candidates.gains[group]):
            row, token = int(candidates.parents[group, place]), int(candidates.tokens[group, place])
            row += group * frontier.width
            if row in self.rows and gain > -np.inf:
                ends = frontier.ends[token] and place < frontier.width
                (ended if ends else others)[row, token] = float(self.rows[row].score + gain)
        return ended, others if self.candidates else {}

    def _likeliest(self, rows: dict[int, _OpenRow], kept: set[Pair]) -> dict[Pair, float]:
        """Of each hypothesis the best that were pruned."""
        found: dict[Pair, float] = {}
        for row, each in rows.items():
            pruned = [token for token in each.best if (row, token) not in kept]
            found |= {(row, token): float(each.totals[token]) for token in pruned[: self.candidates]}
        return found

    def _add(self, rows: dict[int, _OpenRow], scores: dict[Pair, float], kept: set[Pair], ended: set[Pair]) -> None:
        """Nodes of one step of one search, best first."""
        everything = torch.cat([row.totals for row in rows.values()])
        for (row, token), score in sorted(scores.items(), key=lambda item: -item[1]):
            path = (*rows[row].path, token)
            is_kept, is_ended = (row, token) in kept, (row, token) in ended
            if path in self.places:  # another walk was here
                node = self.nodes[self.places[path]]
                node = replace(node, kept=node.kept or is_kept, finished=node.finished or is_ended)
                self.nodes[node.id] = node
                continue
            self.places[path] = len(self.nodes)
            self.nodes.append(
                TreeNode(
                    id=len(self.nodes),
                    parent=self.places[path[:-1]],
                    step=len(path),
                    token=token,
                    text=shown_token(self.start.tokenizer, token),
                    logprob=float(rows[row].logprobs[token]),
                    score=score,
                    rank=1 + int((everything > rows[row].totals[token]).sum()),
                    kept=is_kept,
                    finished=is_ended,
                )
            )

    def tree(self, strategy: Strategy, options: SearchOptions, forced: int) -> DecodingTree:
        assert self.frontier is not None
        closed = ranked(chain(*(group.values() for group in self.frontier.closed.values())))
        hypotheses = [self._hypothesis(each) for each in closed]
        return DecodingTree(strategy, options, len(self.start.prompt), forced, self.nodes, hypotheses)

    def _hypothesis(self, closed: Hypothesis) -> TreeHypothesis:
        path = tuple(closed.tokens)
        node = self.places[path]
        if len(closed.token_logprobs) > len(closed.tokens):  # ended by a token
            ends = (self.places.get((*path, end)) for end in self.start.ends)
            node = max((end for end in ends if end is not None), key=lambda end: self.nodes[end].score)
        elif closed.finished:
            self.nodes[node] = replace(self.nodes[node], finished=True)
        text = self.start.written(closed.tokens)
        return TreeHypothesis(node, text, closed.tokens, closed.score, closed.logprob, closed.finished)


# --- learned trees ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParseNode:
    """A constituent, or a word."""

    label: str
    children: tuple[int, ...] = ()  # places in the list of nodes; a word has none


def parse_tree(text: str) -> list[ParseNode]:
    """The nodes of a tree as `predict` of a parser writes it, the root first, from left to right.

    >>> [(node.label, node.children) for node in parse_tree("(S (NP dogs )NP (VP bark )VP )S")]
    [('S', (1, 3)), ('NP', (2,)), ('dogs', ()), ('VP', (4,)), ('bark', ())]
    """
    labels: list[str] = []
    children: list[list[int]] = []
    opened: list[int] = []
    for step in walk(unflatten(text.split())):
        if isinstance(step, Close):
            opened.pop()
            continue
        if opened:
            children[opened[-1]].append(len(labels))
        if isinstance(step, Open):
            opened.append(len(labels))
        labels.append(step.text if isinstance(step, Word) else step.label)
        children.append([])
    return [ParseNode(label, tuple(below)) for label, below in zip(labels, children, strict=True)]
