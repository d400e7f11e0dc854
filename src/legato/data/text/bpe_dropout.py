"""BPE-dropout: the same text cut otherwise in every epoch (Provilkov et al. 2020, algorithm 1).

    repeat:   drop each merge that is possible now with probability p
              apply the first of those that remain, or stop if none does

"First" is by the order in which merges were learned. With p = 0 this is BPE as the library does it;
with p = 1 a word falls into its bytes.

Notable here:
- merges never cross words, so a sentence is drawn as its words are. A text is cut into words once; for
  each word there are 32 cuts (`VARIANTS`), made when it is first met; an epoch's sentence is a lookup;
- the v-th cut of a word depends on (seed, word, v) alone, and which v an occurrence takes on (seed,
  epoch, side, sentence, place). So a batch is still a pure function of the step, in any process;
- all sentences of a batch are looked up together, and all cuts of its new words are made together, one
  merge of each at a time: word by word they take six times as long, and a GPU waits for them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from legato.data.batching.batches import Array, mix_seed
from legato.data.text.tokenizers import Tokenizer, whole_text
from legato.data.text.vocabularies import BEFORE_BLANK, cut
from legato.errors import ConfigError

VARIANTS: Final = 32
NEVER: Final = np.iinfo(np.int32).max  # the rank of a merge that does not exist
AT_ONCE: Final = 1 << 16  # bytes of words whose cuts are made together


@dataclass(frozen=True)
class WordSymbols:
    """Sentences as numbers of words, end to end; `side` keeps their draws apart from other sentences'."""

    side: str
    flat: Array
    starts: Array
    lengths: Array


class BpeDropout:
    """Draws cuts of texts for a `bpe` tokenizer.

    >>> dropout = BpeDropout(tokenizer, p=0.1, seed=0)  # doctest: +SKIP
    >>> words = dropout.read(["A dog runs."], "source", after=[tokenizer.eos_id])  # doctest: +SKIP
    >>> [tokenizer.token(i) for i in dropout.draw(words, np.array([0]), epoch=3)[0]]  # doctest: +SKIP
    ['A', ' d', 'og', ' runs', '.', '<eos>']
    """

    def __init__(self, tokenizer: Tokenizer, p: float, seed: int) -> None:
        if tokenizer.name != "bpe":
            raise ConfigError(
                f"BPE-dropout leaves out merges of tokenizer=bpe; tokenizer={tokenizer.name} has none, so set it to 0"
            )
        if not 0 <= p <= 1:
            raise ConfigError(f"BPE-dropout of {p} is no probability; set it between 0 and 1")
        if any(not token.special for token in tokenizer.library.get_added_tokens_decoder().values()):
            raise ConfigError("BPE-dropout cannot cut text around added tokens; use a tokenizer without them")
        self.p, self.seed = p, seed
        self._normalizer, self._pre_tokenizer = tokenizer.library.normalizer, tokenizer.library.pre_tokenizer
        self._merges = _Merges(json.loads(tokenizer.library.to_str())["model"], tokenizer.size)
        # Nothing is left to chance at the ends of the scale.
        self.variants = VARIANTS if 0 < p < 1 else 1
        # Of each word its bytes' ids and a number to draw by; of each cut where it lies and how long it is.
        self._numbers: dict[str | int, int] = {}
        self._bytes = _Store()
        self._seeds = np.zeros(0, dtype=np.uint64)
        self._cuts = _Store()

    def read(
        self,
        texts: Iterable[str],
        side: str,
        *,
        before: Sequence[int] | None = None,
        after: Sequence[int] = (),
    ) -> WordSymbols:
        """Cut texts into words, once. `before` has one id for each text to begin with; all end with `after`."""
        known: dict[str, list[int]] = {}  # chunks between spaces: most are seen again and again
        fresh: list[str | int] = []
        flat: list[int] = []
        ends = []

        def number(word: str | int) -> int:
            found = self._numbers.get(word)
            if found is None:
                found = self._numbers[word] = len(self._numbers)
                fresh.append(word)
            return found

        for row, text in enumerate(texts):
            if before is not None:
                flat.append(number(before[row]))
            text = self._normalizer.normalize_str(whole_text(text)) if self._normalizer else text
            for chunk in cut(text, BEFORE_BLANK, 1):  # where the library cuts as well
                numbers = known.get(chunk)
                if numbers is None:
                    words = self._pre_tokenizer.pre_tokenize_str(whole_text(chunk))
                    numbers = known[chunk] = [number(word) for word, _ in words]
                flat += numbers
            flat += map(number, after)
            ends.append(len(flat))
        self._learn(fresh)
        lengths = np.diff(np.array(ends, dtype=np.int64), prepend=0)
        return WordSymbols(side, np.array(flat, dtype=np.int32), np.cumsum(lengths) - lengths, lengths)

    def draw(self, words: WordSymbols, rows: Array, epoch: int) -> tuple[Array, Array]:
        """The ids of many sentences in one epoch, end to end, and how many each has."""
        sizes = words.lengths[rows]
        within = _ranges(sizes)  # each word's place in its sentence
        cuts = words.flat[np.repeat(words.starts[rows], sizes) + within].astype(np.int64) * self.variants
        if self.variants > 1:
            base = np.uint64(mix_seed(self.seed, "dropout", epoch, words.side))
            sentence = _scatter(rows.astype(np.uint64) + base)
            chance = _scatter(np.repeat(sentence, sizes) + within.astype(np.uint64))
            cuts += (chance % np.uint64(self.variants)).astype(np.int64)
        lengths = self._cuts.lengths[cuts]
        if len(cuts) and lengths.min() < 0:
            self._make(np.unique(cuts[lengths < 0] // self.variants))
            lengths = self._cuts.lengths[cuts]
        before = np.concatenate([[0], np.cumsum(lengths)])  # ids before each word
        return self._cuts.gather(cuts), np.diff(before[np.cumsum(sizes)], prepend=0)

    def _learn(self, words: list[str | int]) -> None:
        """Take new words in. One that is a number is an id by itself, a tag or an end."""
        ids = self._merges.ids
        rows = [[word] if isinstance(word, int) else [ids[byte] for byte in word if byte in ids] for word in words]
        new = self._bytes.extend(len(words))
        self._bytes.put(new, np.array([i for row in rows for i in row], dtype=np.int32), np.array([*map(len, rows)]))
        seeds = [mix_seed(self.seed, word) for word in words]
        self._seeds = np.append(self._seeds, np.array(seeds, dtype=np.uint64))
        self._cuts.extend(len(words) * self.variants)

    def _make(self, words: Array) -> None:
        """Make all cuts of these words, words of like lengths together."""
        words = words[np.argsort(self._bytes.lengths[words], kind="stable")]
        while len(words):
            bytes_so_far = self._bytes.lengths[words] * np.arange(1, len(words) + 1) * self.variants
            count = max(1, int(np.count_nonzero(bytes_so_far <= AT_ONCE)))
            for cuts, ids in self._segment(words[:count]):
                own = ids != self._merges.none
                self._cuts.put(cuts, ids[own], own.sum(axis=1))
            words = words[count:]

    def _segment(self, words: Array) -> Iterator[tuple[Array, Array]]:
        """All cuts of these words: those that are ready after 0, 1, … merges, and their ids, padded."""
        merges, sizes = self._merges, self._bytes.lengths[words]
        within = np.arange(int(sizes.max()) + 1)
        ids = self._bytes.flat.take(self._bytes.starts[words][:, None] + within, mode="clip")
        ids[within >= sizes[:, None]] = merges.none
        ranks = merges.rank(ids[:, :-1], ids[:, 1:])
        # One row a cut from here on: (N, W) ids, and (N, W - 1) ranks of each with its right neighbour.
        ids, ranks = ids.repeat(self.variants, axis=0), ranks.repeat(self.variants, axis=0)
        variants = np.arange(self.variants)
        cuts = (words[:, None] * self.variants + variants).ravel()
        seeds = _scatter(self._seeds[words][:, None] + variants.astype(np.uint64)).ravel()
        for step in itertools.count():
            kept = ranks
            if self.p > 0:
                draws = np.arange(ranks.shape[1], dtype=np.uint64) + np.uint64(step << 32)
                chance = _scatter(seeds[:, None] + draws) >> np.uint64(11)  # of 2**53
                kept = np.where(chance < np.uint64(self.p * 2**53), NEVER, ranks)
            place = kept.argmin(axis=1)  # of equals the leftmost, as in the library
            best = kept[np.arange(len(kept)), place]
            ready = best == NEVER
            if ready.any():
                yield cuts[ready], ids[ready]
                if ready.all():
                    return
                going = ~ready
                cuts, seeds, place, best = cuts[going], seeds[going], place[going], best[going]
                ids, ranks = ids[going], ranks[going]
            ids, ranks = merges.apply(ids, ranks, place, best)


class _Merges:
    """Which two ids become which third, and in which order they were learned."""

    def __init__(self, model: dict[str, Any], size: int) -> None:
        self.ids: dict[str, int] = model["vocab"]
        self.none = size  # an id that no token has
        pairs = [(self.ids[left], self.ids[right], self.ids[left + right]) for left, right in model["merges"]]
        left, right, merged = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
        keys = left * size + right
        self._ranks = np.append(np.argsort(keys, kind="stable"), NEVER).astype(np.int32)
        # Behind the last key stands one that no pair has, so that a search always ends on a key.
        self._keys = np.append(np.sort(keys), np.iinfo(np.int64).max)
        self._merged = merged.astype(np.int32)

    def rank(self, left: Array, right: Array) -> Array:
        keys = left.astype(np.int64) * self.none + right
        keys[right == self.none] = -1
        found = np.searchsorted(self._keys, keys)
        return np.where(self._keys[found] == keys, self._ranks[found], np.int32(NEVER))

    def apply(self, ids: Array, ranks: Array, place: Array, best: Array) -> tuple[Array, Array]:
        """Merge the ids at `place` and `place + 1` of each row, and rank the two pairs that are new there."""
        rows, (count, width) = np.arange(len(ids)), ids.shape
        ids[rows, place] = self._merged[best]
        stay = np.ones((count, width), dtype=bool)
        stay[rows, place + 1] = False
        ids = ids[stay].reshape(count, width - 1)
        stay = np.ones((count, width - 1), dtype=bool)
        stay[rows, place] = False
        ranks = ranks[stay].reshape(count, width - 2)
        here = ids[rows, place]
        ranks[rows, place] = self.rank(here, ids[rows, place + 1])
        inner = np.flatnonzero(place)
        before = place[inner] - 1
        ranks[inner, before] = self.rank(ids[inner, before], here[inner])
        return ids, ranks


class _Store:
    """Short sequences of ids that are added as they are made, in one array."""

    def __init__(self) -> None:
        self.flat = np.zeros(1 << 10, dtype=np.int32)
        self.starts = np.zeros(0, dtype=np.int64)
        self.lengths = np.zeros(0, dtype=np.int64)  # -1 where there is none yet
        self._used = 0

    def extend(self, count: int) -> Array:
        """Room for `count` more; their numbers."""
        first = len(self.lengths)
        self.starts = np.append(self.starts, np.zeros(count, dtype=np.int64))
        self.lengths = np.append(self.lengths, np.full(count, -1, dtype=np.int64))
        return np.arange(first, first + count)

    def put(self, which: Array, flat: Array, lengths: Array) -> None:
        """Sequences that lie end to end, each with its length."""
        end = self._used + len(flat)
        if end > len(self.flat):
            self.flat = np.append(self.flat, np.zeros(end, dtype=np.int32))
        self.flat[self._used : end] = flat
        self.starts[which] = self._used + np.cumsum(lengths) - lengths
        self.lengths[which] = lengths
        self._used = end

    def gather(self, which: Array) -> Array:
        lengths = self.lengths[which]
        return self.flat[np.repeat(self.starts[which], lengths) + _ranges(lengths)]


def _ranges(lengths: Array) -> Array:
    """0, 1, … up to each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _scatter(number: Array) -> Array:
    """splitmix64: neighbouring numbers to numbers that have nothing in common."""
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
