"""The index: documents that can be searched, by words, by vectors, or by both fused.

    words      BM25 (bm25.py)
    vectors    the largest cosines with the question's vector
    hybrid     both, by reciprocal rank fusion (fusion.py)

A re-ranker may read the first passages together with the question, and order them anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legato.errors import ConfigError, DataError, FolderError, brief, suggest
from legato.retrieval.bm25 import BM25, IntArray, best_of, terms_of
from legato.retrieval.chunks import Chunking
from legato.retrieval.fusion import reciprocal_rank_fusion
from legato.retrieval.lance_store import LanceStore
from legato.retrieval.manifest import Manifest, check_encoder, record_of, unit_vectors
from legato.retrieval.models import Encoder, Reranker
from legato.retrieval.postgres_store import PostgresStore
from legato.retrieval.records import Filter, Passage, Where, filter_of
from legato.retrieval.store import Store
from legato.retrieval.update import Progress, Update, UpdateReport, dense_lengths

MODES: Final = ("hybrid", "vectors", "words")
DEPTH: Final = 100  # passages of each ranking that are fused
RERANKED: Final = 30  # passages that a re-ranker reads
MOST: Final = 10_000  # passages that can be asked for
LONGEST: Final = 100_000  # characters of a question


@dataclass(frozen=True)
class SearchHit:
    """A passage that was found."""

    passage: Passage
    score: float
    ranks: dict[str, int] = field(default_factory=dict)  # where each ranking had it, from 1

    def as_json(self) -> dict[str, Any]:
        return {"score": self.score, "ranks": self.ranks, **self.passage.as_json()}


def open_store(place: str | Path) -> Store:
    """The store that a place means: a folder, or a database `postgresql://…`."""
    if str(place).startswith(("postgresql://", "postgres://")):
        return PostgresStore(str(place))
    return LanceStore(place)


class Index:
    """Documents that can be searched. Get one with `Index.create` or `Index.open`.

    >>> index = Index.create("runs/index", encoder)                     # doctest: +SKIP
    >>> index.update(["docs/"])                                         # doctest: +SKIP
    >>> index.search("How is it installed?", top=3)                     # doctest: +SKIP
    """

    def __init__(self, store: Store, manifest: Manifest, encoder: Encoder | None = None) -> None:
        self.store, self.manifest, self.encoder = store, manifest, encoder
        self._scorer: BM25 | None = None
        self.report: UpdateReport | None = None  # what the last update did

    @classmethod
    def create(
        cls,
        place: str | Path,
        encoder: Encoder | None = None,
        chunking: Chunking | None = None,
        column: str | None = None,
    ) -> Index:
        """An index at a place: the one that is there, if it was made in the same way, or a new one."""
        if not isinstance(column, str | None):
            raise ConfigError(f"column= names a table's column of texts, not {brief(repr(column))}")
        store = open_store(place)
        found = store.manifest()
        if found is not None:
            if chunking is not None and chunking != found.chunking:
                raise ConfigError(
                    f"{store.place} holds passages of {found.size} words that share {found.overlap}; leave out "
                    "--chunk-size and --overlap, or make another index"
                )
            if encoder is not None and found.encoder is None:
                raise ConfigError(f"{store.place} was made of words alone; leave out --model, or make another index")
            if column is not None and found.column != column:
                raise ConfigError(f"{store.place} was made with --column {found.column}; make another index")
            return cls._checked(store, found, encoder)
        how = chunking or Chunking()
        known = None if encoder is None else record_of(encoder)
        fresh = Manifest(encoder=known, size=how.size, overlap=how.overlap, column=column)
        return cls(store, fresh, encoder)

    @classmethod
    def open(cls, place: str | Path, encoder: Encoder | None = None) -> Index:
        """The index at a place. Without its encoder it searches by words alone."""
        store = open_store(place)
        found = store.manifest()
        if found is None:
            raise store.missing()
        return cls._checked(store, found, encoder)

    @classmethod
    def _checked(cls, store: Store, found: Manifest, encoder: Encoder | None) -> Index:
        if encoder is not None and found.encoder is not None:
            check_encoder(found.encoder, encoder, store.place)
        return cls(store, found, encoder if found.encoder is not None else None)

    def __len__(self) -> int:
        return self.manifest.passages

    def __repr__(self) -> str:
        encoder = self.manifest.encoder
        by = "words" if encoder is None else f"words and vectors of {encoder.name}"
        return f"Index({str(self.store.place)!r}, {len(self):,} passages, by {by})"

    def update(self, places: Sequence[str | Path] = (), progress: Progress | None = None) -> UpdateReport:
        """Read files and folders; what changed is indexed anew, what is gone leaves. Without any: those it is of.

        What cannot be read is in the report, and stays as it was; the others are indexed. A file that is named itself
        and cannot be read is a `DataError` behind that.
        """
        if self.manifest.encoder is not None and self.encoder is None:
            raise ConfigError(
                f"{self.store.place} holds vectors; to update it, give the encoder that it was made with"
            )
        with self.store.locked():
            report = self._finish(Update(self.store, *self._current(), self.encoder, progress).run(places))
        if report.refused:
            count = len(report.refused) - 1
            others = f"; {count:,} more of the files could not be read, the rest is indexed" if count else ""
            raise DataError(f"{report.refused[-1]}{others}")
        return report

    def remove(self, sources: str | Path | Iterable[str | Path]) -> UpdateReport:
        """Take a file or folder out of the index, or several, by what it calls them."""
        names = [str(sources)] if isinstance(sources, str | Path) else [str(source) for source in sources]
        with self.store.locked():
            return self._finish(Update(self.store, *self._current(), self.encoder, None).remove(names))

    def _current(self) -> tuple[Manifest, bool]:
        """What is there now that nobody else writes, and whether that is an index."""
        found = self.store.manifest()
        return (self.manifest.model_copy(deep=True), False) if found is None else (found, True)

    def _finish(self, report: UpdateReport) -> UpdateReport:
        self.manifest = self.store.manifest() or self.manifest
        self._scorer, self.report = None, report
        return report

    # --- searching ---------------------------------------------------------------------------------

    def search(
        self,
        question: str,
        top: int = 5,
        *,
        mode: str | None = None,
        where: Where | None = None,
        reranker: Reranker | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> list[SearchHit]:
        """The passages that fit a question best. `mode` is hybrid, vectors or words; left out: what the index has.

        `where` filters by metadata: `{"language": "en", "year": [2023, 2024]}`, any of several values. `weights` are
        of both rankings.
        """
        filtered = filter_of(where or {})
        mode = self._mode(mode)
        _check_question(question, top)
        if self.manifest.passages == 0:
            raise DataError(f"{self.store.place} holds no passage; index documents first")
        depth = max(DEPTH, top) if mode == "hybrid" or reranker is not None else top
        rankings: dict[str, list[tuple[int, float]]] = {}
        if mode != "vectors":
            rankings["words"] = self._by_words(question, depth, filtered)
        if mode != "words":
            rankings["vectors"] = self._by_vectors(question, depth, filtered)
        ranked = {name: [number for number, _ in found] for name, found in rankings.items()}
        best = reciprocal_rank_fusion(ranked, weights) if mode == "hybrid" else rankings[mode]
        best = best[: RERANKED if reranker is not None and top < RERANKED else top]
        held = self.store.passages([number for number, _ in best])
        places = {name: {n: rank for rank, n in enumerate(found, start=1)} for name, found in ranked.items()}
        hits = [
            SearchHit(held[n], score, {name: ranks[n] for name, ranks in places.items() if n in ranks})
            for n, score in best
            if n in held
        ]
        return hits if reranker is None else self._reranked(question, hits, reranker)[:top]

    def _mode(self, mode: str | None) -> str:
        if mode is None:
            return "hybrid" if self.encoder is not None else "words"
        if mode not in MODES:
            raise ConfigError(f"there is no mode '{mode}'; {suggest(mode, MODES)}")
        if mode != "words" and self.manifest.encoder is None:
            raise ConfigError(f"{self.store.place} holds no vectors; search by words, or make it with an encoder")
        if mode != "words" and self.encoder is None:
            raise ConfigError(f"searching by {mode} needs the encoder of {self.store.place}; give it")
        return mode

    def _by_words(self, question: str, count: int, where: Filter) -> list[tuple[int, float]]:
        terms = Counter(terms_of(question))
        if not terms:
            return []
        if self._scorer is None:
            self._scorer = BM25(self._lengths())
        allowed = self.store.matching(where) if where else None
        return best_of(self._scorer.scores(terms, self.store.postings(sorted(terms))), count, allowed)

    def _lengths(self) -> IntArray:
        ids, lengths = self.store.lengths()
        # A damaged number must not ask for all memory: passages are numbered closely, but for those that left.
        most = int(ids.max(initial=-1)) + 1
        if most > self.manifest.next_passage:
            raise FolderError(f"{self.store.place} is damaged: passages have numbers beyond its own; make it again")
        return dense_lengths(ids, lengths, most)

    def _by_vectors(self, question: str, count: int, where: Filter) -> list[tuple[int, float]]:
        assert self.encoder is not None
        found = self.store.nearest(unit_vectors(self.encoder.encode([question]))[0], count, where)
        # Stores round differently: what is alike but for that comes in the order of its numbers in each of them.
        return sorted(found, key=lambda one: (-round(one[1], 5), one[0]))

    def _reranked(self, question: str, hits: list[SearchHit], reranker: Reranker) -> list[SearchHit]:
        scores = reranker.score(question, [hit.passage.searched_text for hit in hits])
        order = sorted(range(len(hits)), key=lambda number: -scores[number])
        ranked = enumerate(order, start=1)
        return [
            SearchHit(hits[number].passage, scores[number], {**hits[number].ranks, "reranked": rank})
            for rank, number in ranked
        ]

    def refresh(self) -> None:
        """Read anew what is at the place, where somebody else has written it since."""
        found = self.store.manifest()
        if found is None:
            raise self.store.missing()
        if found != self.manifest:
            if found.encoder is not None and self.encoder is not None:
                check_encoder(found.encoder, self.encoder, self.store.place)
            self.manifest, self._scorer = found, None

    def close(self) -> None:
        self.store.close()


def _check_question(question: str, top: int) -> None:
    if not isinstance(question, str) or not isinstance(top, int):
        raise ConfigError(f"a question is a text, and 'top' a number of passages: {brief(repr((question, top)))}")
    if not question.strip():
        raise ConfigError("the question is empty; ask for something")
    if len(question) > LONGEST:
        raise ConfigError(f"the question has {len(question):,} characters, more than {LONGEST:,}; shorten it")
    if not 1 <= top <= MOST:
        raise ConfigError(f"{top:,} passages were asked for; ask for 1 to {MOST:,}")
