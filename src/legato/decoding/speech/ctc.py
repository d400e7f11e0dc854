"""Connectionist temporal classification: what a sequence of frames says, where no frame is tied to a token.

    B(path)        merges repeats, then drops blanks: B(a a – a b b) = a a b
    p(y | x)       = Σ over paths with B(path) = y of ∏_t p(path_t | x)          (Graves et al. 2006)

Notable here:

- `greedy` is B of the most probable path, which need not be the most probable y;
- `prefix_beam` searches for the y itself (Graves 2012, section 7.5; Hannun et al. 2014): each prefix has the sum over
  its paths that end in a blank and over those that do not, since only after a blank does the same token begin anew:

      blank'(y)      = total(y) p(–)                                  total = blank + nonblank
      nonblank'(y)   = nonblank(y) p(y_n)  +  p(y_n) · (blank(y⁻) if y_n = y_{n-1} else total(y⁻))     y = y⁻ y_n

  with a language model's log probabilities of each next token where one is given (`Fusion`, shallow fusion);
- `align` is the most probable path of a given y (Viterbi): when each token was said;
- `log_likelihood` is log p(y | x).

All take log probabilities (B, T, V), how many frames each row has (B,), and which token is the blank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.decoding.scores import best
from legato.errors import DataError, LegatoError, NotFiniteError
from legato.nn.losses.ctc import label_states, may_skip_blank

LOW: Final = float("-inf")
NextTokens = Callable[[list[list[int]]], Tensor]  # N prefixes to log probabilities of what follows each, (N, V)


@dataclass(frozen=True)
class Fusion:
    """What a prefix is worth beside its frames: weight · log p(y) of a language model, and a bonus for each token.

    Its tokens have the numbers that they have among the frames' V; the blank's column is not read. With `end` a
    finished y has the log probability of that token added, too.
    """

    next_tokens: NextTokens | None = None
    weight: float = 0.0
    length_bonus: float = 0.0
    end: int | None = None


class Transcript(NamedTuple):
    """A token sequence that a row's frames may say."""

    tokens: list[int]
    logprob: float  # log p(y | x), over the paths that the beam kept
    score: float  # what it was ranked by: the same with what `Fusion` adds


class TokenSpan(NamedTuple):
    """When a token was said: the first and the last of its frames, and the sum of its log probabilities in them."""

    token: int
    first: int
    last: int
    logprob: float


class Alignment(NamedTuple):
    """The most probable path of a token sequence."""

    spans: list[TokenSpan]
    logprob: float  # of the path, blanks included


def frames_needed(tokens: Sequence[int]) -> int:
    """How many frames a token sequence takes at least: one for each, and a blank between two that are equal.

    >>> frames_needed([5, 5, 7])
    4
    """
    return len(tokens) + sum(one == other for one, other in pairwise(tokens))


def alignable(frames: int, tokens: Sequence[int]) -> bool:
    """Whether so many frames can say these tokens."""
    return frames_needed(tokens) <= frames


def greedy(log_probs: Tensor, lengths: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The most probable path's tokens (B, T), padded with blanks, and how many there are (B,); all on the device."""
    path = log_probs.argmax(-1)  # (B, T)
    new = path != F.pad(path[:, :-1], (1, 0), value=-1) if path.shape[1] else path.bool()
    kept = new & (path != blank) & _inside(log_probs, lengths)
    order = kept.int().argsort(dim=1, descending=True, stable=True)
    return path.masked_fill(~kept, blank).gather(1, order), kept.sum(1)


def log_likelihood(log_probs: Tensor, lengths: Tensor, tokens: Sequence[Sequence[int]], blank: int) -> Tensor:
    """log p(y | x) of one token sequence for each row, (B,), −∞ where it does not fit its frames."""
    padded, counts = _tokens(log_probs, tokens, blank)
    at = torch.device("cpu") if log_probs.device.type == "mps" else log_probs.device  # MPS has no such kernel
    losses = F.ctc_loss(
        F.pad(log_probs.float(), (0, 0, 0, 1)).transpose(0, 1).to(at),  # it wants a frame, even if no row has one
        padded.to(at),
        lengths.long().to(at),
        counts.to(at),
        blank=blank,
        reduction="none",
    )
    return -losses.to(log_probs.device)


def align(log_probs: Tensor, lengths: Tensor, tokens: Sequence[Sequence[int]], blank: int) -> list[Alignment]:
    """The most probable path of one token sequence for each row.

    States are the tokens with a blank before, between and behind them, 2N + 1 of them; a frame stays in its state,
    goes to the next, or over a blank to the next token where that is another one.
    """
    padded, counts = _tokens(log_probs, tokens, blank)
    for row, (frames, wanted) in enumerate(zip(lengths.tolist(), tokens, strict=True)):
        if not alignable(frames, wanted):
            raise DataError(
                f"row {row}: {len(wanted)} tokens take {frames_needed(wanted)} frames at least, and there are "
                f"{frames}; leave the row out, or subsample its frames less"
            )
    states = label_states(padded, blank)  # (B, S)
    skips = may_skip_blank(states, blank)
    emitted = log_probs.float().gather(2, states.unsqueeze(1).expand(-1, log_probs.shape[1], -1))  # (B, T, S)
    inside = _inside(log_probs, lengths)  # (B, T)
    # Before the first frame a path stands in the first blank: it may stay there or go to the first token.
    scores = torch.full_like(states, LOW, dtype=emitted.dtype)
    scores[:, 0] = 0
    moves = torch.zeros_like(emitted, dtype=torch.int8)
    for t in range(emitted.shape[1]):
        before = F.pad(scores, (2, 0), value=LOW)  # (B, 2 + S)
        ways = torch.stack([scores, before[:, 1:-1], before[:, :-2].masked_fill(~skips, LOW)])  # (3, B, S)
        highest, move = ways.max(0)
        moves[:, t] = torch.where(inside[:, t, None], move, 0)
        scores = torch.where(inside[:, t, None], highest + emitted[:, t], scores)
    last = 2 * counts.unsqueeze(1)  # (B, 1), the blank behind the last token; the path may end in that token, too
    ends = torch.cat([last, (last - 1).clamp(min=0)], dim=1)
    totals, end = scores.gather(1, ends).max(1)
    return _walk_back(emitted, inside, moves, ends.gather(1, end.unsqueeze(1)), totals, tokens)


def _walk_back(
    emitted: Tensor, inside: Tensor, moves: Tensor, at: Tensor, totals: Tensor, tokens: Sequence[Sequence[int]]
) -> list[Alignment]:
    """From each row's last state to its first, and what lies on the way."""
    path = torch.zeros_like(inside, dtype=torch.long)  # (B, T)
    for t in range(path.shape[1] - 1, -1, -1):
        path[:, t : t + 1] = at
        at = at - moves[:, t].gather(1, at)
    said = emitted.gather(2, path.unsqueeze(2)).squeeze(2).masked_fill(~inside, 0)  # (B, T)
    rows, _, count = emitted.shape
    sums = emitted.new_zeros(rows, count).scatter_add(1, path, said).tolist()  # of each state
    path = path.masked_fill(~inside, count)
    states = torch.arange(count, device=path.device).expand(rows, -1).contiguous()  # (B, S)
    firsts = torch.searchsorted(path, states).tolist()  # a path never goes back
    behind = torch.searchsorted(path, states, right=True).tolist()
    found = []
    for row, (wanted, total) in enumerate(zip(tokens, totals.tolist(), strict=True)):
        if total == LOW:
            raise DataError(f"row {row}: its frames give these tokens a probability of 0; leave the row out")
        spans = [
            TokenSpan(token, firsts[row][state], behind[row][state] - 1, sums[row][state])
            for state, token in zip(range(1, 2 * len(wanted), 2), wanted, strict=True)
        ]
        found.append(Alignment(spans, total))
    return found


def prefix_beam(
    log_probs: Tensor,
    lengths: Tensor,
    blank: int,
    *,
    beams: int = 8,
    fusion: Fusion | None = None,
    max_tokens: int | None = 40,
    min_logprob: float | None = None,
) -> list[list[Transcript]]:
    """Up to `beams` transcripts of each row, best first.

    At each frame prefixes grow by the frame's `max_tokens` most probable tokens only, and by none whose log
    probability is below `min_logprob`; a prefix that stays as it is, or is met again, is never pruned so.
    """
    if beams < 1 or (max_tokens is not None and max_tokens < 1):
        raise LegatoError(f"beams={beams}, max_tokens={max_tokens}: each is 1 at least")
    log_probs = log_probs.detach()
    choices = log_probs.clone()
    choices[..., blank] = LOW  # no prefix grows by it
    if min_logprob is not None:
        choices.masked_fill_(choices < min_logprob, LOW)
    count = min(max_tokens or choices.shape[-1], choices.shape[-1])
    chosen, tokens = choices.topk(count, dim=-1)  # (B, T, k)
    # What is left is small, and each step of it asks what is in the beam: the host does it, in double precision.
    said = log_probs.cpu().float()
    if said.isnan().any():
        raise NotFiniteError("the frames' log probabilities hold NaN; look at the model that made them")
    beam = Beam(len(said), beams, blank, fusion or Fusion())
    # Padding is a frame that says blank for sure, which changes no prefix.
    inside = _inside(said, lengths.cpu())
    padding = torch.full_like(said[:1, :1], LOW).index_fill_(2, torch.tensor([blank]), 0.0)
    said = torch.where(inside.unsqueeze(2), said, padding)
    chosen = chosen.cpu().float().masked_fill_(~inside.unsqueeze(2), LOW)
    for frame, values, ids in zip(said.unbind(1), chosen.unbind(1), tokens.cpu().unbind(1), strict=True):
        beam.advance(frame.double(), values.double(), ids)
    return beam.transcripts()


class Beam:
    """The prefixes of all rows, K each. A prefix is a node of its row's trie, so that it is known when met again."""

    def __init__(self, rows: int, size: int, blank: int, fusion: Fusion) -> None:
        self.blank, self.fusion = blank, fusion
        self.blanks = torch.full((rows, size), LOW, dtype=torch.double)  # (B, K): log p of paths that end in a blank
        self.blanks[:, 0] = 0  # the empty prefix
        self.nonblanks = torch.full_like(self.blanks, LOW)
        self.added = torch.zeros_like(self.blanks)  # what fusion adds
        self.nodes = torch.full((rows, size), -1)  # −1: nobody
        self.nodes[:, 0] = 0
        self.parents = torch.full_like(self.nodes, -2)
        self.last = torch.full_like(self.nodes, blank)  # the last token; the empty prefix has none
        self.trie: list[list[tuple[int, int]]] = [[(-2, blank)] for _ in range(rows)]  # parent and token of each node
        self.known: list[dict[tuple[int, int], int]] = [{} for _ in range(rows)]
        self.next_scores: Tensor | None = None  # (B, K, V) where a language model is asked
        if fusion.next_tokens is not None and fusion.weight != 0:
            self.next_scores = fusion.next_tokens([[]]).cpu().double().repeat(rows, size, 1)
        self.prefixes: dict[tuple[int, int], list[int]] = {(row, 0): [] for row in range(rows)}  # for that model

    def advance(self, frame: Tensor, values: Tensor, tokens: Tensor) -> None:
        """One frame: log probabilities (B, V) and the tokens that prefixes may grow by, (B, k) both."""
        total = torch.logaddexp(self.blanks, self.nonblanks)  # (B, K)
        same = frame.gather(1, self.last)  # p(y_n)
        blanks = total + frame[:, self.blank, None]
        nonblanks = self.nonblanks + same
        # y is in the beam, and so is y⁻: what y⁻ grows into is y, and no candidate of its own.
        parent = self.parents.unsqueeze(2) == self.nodes.unsqueeze(1)  # (B, y, y⁻)
        again = self.last.unsqueeze(2) == self.last.unsqueeze(1)  # y_n = y_{n-1}
        grown = torch.where(again, self.blanks.unsqueeze(1), total.unsqueeze(1))
        grown = grown.masked_fill_(~parent, LOW).amax(2)  # there is one at most
        nonblanks = torch.logaddexp(nonblanks, grown + same)

        extended = torch.where(  # (B, K, k)
            tokens.unsqueeze(1) == self.last.unsqueeze(2), self.blanks.unsqueeze(2), total.unsqueeze(2)
        ) + values.unsqueeze(1)
        children = (parent.unsqueeze(3) & (self.last.unsqueeze(2) == tokens.unsqueeze(1)).unsqueeze(2)).any(1)
        extended.masked_fill_(children, LOW)
        bonus = self._bonus(tokens)
        ranks = torch.cat(
            [
                torch.logaddexp(blanks, nonblanks) + self.added,
                (extended + self.added.unsqueeze(2) + bonus).flatten(1),
            ],
            dim=1,
        )
        size = total.shape[1]
        highest, which = best(ranks, size)  # (B, K)
        self._select(highest > LOW, which, blanks, nonblanks, extended, bonus, tokens)

    def _bonus(self, tokens: Tensor) -> Tensor:
        """What fusion adds to each prefix for each token (B, k), broadcastable to (B, K, k)."""
        if self.next_scores is None:
            return torch.full((1, 1, 1), self.fusion.length_bonus, dtype=torch.double)
        size = self.next_scores.shape[1]
        scores = self.next_scores.gather(2, tokens.unsqueeze(1).expand(-1, size, -1))
        return self.fusion.weight * scores + self.fusion.length_bonus

    def _select(
        self,
        alive: Tensor,
        which: Tensor,
        blanks: Tensor,
        nonblanks: Tensor,
        extended: Tensor,
        bonus: Tensor,
        tokens: Tensor,
    ) -> None:
        """Let these candidates, prefixes that stay and then those that grew, be the beam."""
        size, choices = extended.shape[1:]
        grew = which >= size
        grown = (which - size).clamp(min=0)
        old = torch.where(grew, torch.div(grown, choices, rounding_mode="floor"), which)  # (B, K)
        token = torch.where(grew, tokens.gather(1, grown % choices), self.last.gather(1, old))
        added = self.added.gather(1, old)
        more = bonus.expand_as(extended).flatten(1).gather(1, grown)
        self.added = torch.where(alive, torch.where(grew, added + more, added), 0.0)
        self.blanks = blanks.gather(1, old).masked_fill_(grew | ~alive, LOW)
        self.nonblanks = torch.where(grew, extended.flatten(1).gather(1, grown), nonblanks.gather(1, old))
        self.nonblanks.masked_fill_(~alive, LOW)
        nodes = self.nodes.gather(1, old)
        self.parents = torch.where(grew, nodes, self.parents.gather(1, old)).masked_fill_(~alive, -2)
        self.last = token
        grew &= alive
        self.nodes = self._named(nodes.masked_fill(~alive, -1), grew)
        if self.next_scores is not None:
            self.next_scores = self.next_scores.take_along_dim(old.unsqueeze(2), dim=1)
            self._ask(self.next_scores, grew)

    def _named(self, nodes: Tensor, grew: Tensor) -> Tensor:
        """The nodes of prefixes, where some grew from those given by their last token."""
        rows, places = grew.nonzero(as_tuple=True)
        if not len(rows):
            return nodes
        pairs = zip(rows.tolist(), nodes[rows, places].tolist(), self.last[rows, places].tolist(), strict=True)
        names = []
        for row, parent, token in pairs:
            known, trie = self.known[row], self.trie[row]
            node = known.get((parent, token))
            if node is None:
                node = known[parent, token] = len(trie)
                trie.append((parent, token))
            names.append(node)
        nodes[rows, places] = torch.tensor(names)
        return nodes

    def _ask(self, scores: Tensor, new: Tensor) -> None:
        """Put what the language model says of new prefixes among its log probabilities (B, K, V)."""
        rows, places = new.nonzero(as_tuple=True)
        if not len(rows) or self.fusion.next_tokens is None:
            return
        at = rows.tolist()
        columns = (each[rows, places].tolist() for each in (self.nodes, self.parents, self.last))
        grown = {
            (row, node): [*self.prefixes[row, parent], token]
            for row, node, parent, token in zip(at, *columns, strict=True)
        }
        scores[rows, places] = self.fusion.next_tokens([*grown.values()]).to(scores)
        names = [(row, node) for row, line in enumerate(self.nodes.tolist()) for node in line if node >= 0]
        self.prefixes = {name: grown.get(name) or self.prefixes[name] for name in names}

    def _tokens(self, row: int, node: int) -> list[int]:
        """A prefix, from its node back to the first."""
        tokens = []
        while node > 0:
            node, token = self.trie[row][node]
            tokens.append(token)
        return tokens[::-1]

    def transcripts(self) -> list[list[Transcript]]:
        """What each row's frames say, best first."""
        log_probs = torch.logaddexp(self.blanks, self.nonblanks)
        scores = log_probs + self.added
        if self.next_scores is not None and self.fusion.end is not None:
            scores = scores + self.fusion.weight * self.next_scores[..., self.fusion.end]
        found = []
        for row, line in enumerate(self.nodes.tolist()):
            ranked = sorted(
                (
                    Transcript(self._tokens(row, node), logprob, score)
                    for node, logprob, score in zip(line, log_probs[row].tolist(), scores[row].tolist(), strict=True)
                    if node >= 0 and score > LOW
                ),
                key=lambda one: -one.score,
            )
            found.append(ranked)
        return found


def _inside(log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Which frames are no padding, (B, T)."""
    return torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None].to(log_probs.device)


def _tokens(log_probs: Tensor, tokens: Sequence[Sequence[int]], blank: int) -> tuple[Tensor, Tensor]:
    """Token sequences as one tensor (B, N), padded with blanks, and their lengths (B,)."""
    rows, _, size = log_probs.shape
    if len(tokens) != rows:
        raise LegatoError(f"{len(tokens)} token sequences for {rows} rows of frames; give one for each")
    for row, line in enumerate(tokens):
        wrong = next((token for token in line if token == blank or not 0 <= token < size), None)
        if wrong is not None:
            raise LegatoError(
                f"row {row}: {wrong} is no token to align: those are 0 to {size - 1} but the blank, {blank}"
            )
    longest = max((len(line) for line in tokens), default=0)
    padded = torch.tensor([[*line, *[blank] * (longest - len(line))] for line in tokens], dtype=torch.long)
    counts = torch.tensor([len(line) for line in tokens], dtype=torch.long)
    return padded.view(rows, longest).to(log_probs.device), counts.to(log_probs.device)
