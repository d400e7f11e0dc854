"""Search by meaning: the lines whose vectors have the largest cosines with a text's.

All lines are compared with it, so what is found is exact; their vectors are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from legato.data.sources.files import load_text, resolve_path
from legato.errors import ConfigError, DataError
from legato.evaluation.embedding import nearest, unit
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Answer, Prediction
from legato.tasks.embedding.text_vectors import TextVectors, Vectors

SIDE_BY_SIDE: Final = 64  # texts; changes no result


@dataclass(frozen=True)
class SearchHit:
    """A line that is like a query."""

    text: str
    score: float  # the cosine of the two
    number: int  # of the line, from 0


class TextIndex:
    """Lines and their vectors, for queries to be compared with."""

    def __init__(self, vectors: TextVectors, lines: Sequence[str], held: Vectors | None = None) -> None:
        """`held` are the lines' vectors, at length one, where they are known already."""
        if not lines:
            raise DataError("there is nothing to search in; give at least one line")
        self.vectors, self.lines = vectors, lines
        self.held: Vectors = unit(vectors.embed(lines, SIDE_BY_SIDE)) if held is None else held  # (N, D)

    def search(self, queries: Sequence[str], nbest: int = 5) -> list[list[SearchHit]]:
        """The `nbest` lines with the largest cosines for each query, best first; of equals the earlier one."""
        if nbest < 1:
            raise ConfigError(f"nbest={nbest}: ask for one line at least")
        if not queries:
            return []
        numbers, scores = nearest(unit(self.vectors.embed(queries)), self.held, nbest)
        return [
            [SearchHit(self.lines[number], float(score), int(number)) for number, score in zip(*found, strict=True)]
            for found in zip(numbers, scores, strict=True)
        ]


# Of each model the file that it searched last: which one, its lines by their numbers, and their vectors.
_searched: WeakKeyDictionary[SequenceModel, tuple[Any, dict[int, str], Vectors]] = WeakKeyDictionary()


def search_file(loaded: Loaded, texts: Sequence[str], place: str, nbest: int = 5) -> list[Prediction]:
    """The lines of a file most like each text, best first; blank lines are none."""
    index, numbers = _index_of(loaded, place)
    asked = [text for text in texts if text.strip()]
    answers = iter(index.search(asked, nbest))
    index.vectors.reader.warn_of_cuts()
    found = []
    for text in texts:
        if not text.strip():
            found.append(Prediction(text, problem="the text is empty"))
            continue
        lines = [
            Answer(hit.text, hit.score, {"cosine": hit.score, "line": numbers[hit.number]}) for hit in next(answers)
        ]
        found.append(Prediction(text, lines))
    return found


def _index_of(loaded: Loaded, place: str) -> tuple[TextIndex, list[int]]:
    """The file's lines with their vectors, and their numbers from 1; made once for each model and file."""
    path = resolve_path(place)
    if not path.exists():
        raise DataError(f"there is no file {path} to search in; check the path")
    known = (str(path), path.stat().st_mtime_ns, path.stat().st_size)
    held, vectors = _searched.get(loaded.module), TextVectors.of(loaded)
    if held is None or held[0] != known:
        lines = {number: line.strip() for number, line in enumerate(load_text(path).split("\n"), start=1)}
        lines = {number: line for number, line in lines.items() if line}
        if not lines:
            raise DataError(f"{path} holds no line to search in")
        held = (known, lines, TextIndex(vectors, list(lines.values())).held)
        _searched[loaded.module] = held
    return TextIndex(vectors, list(held[1].values()), held[2]), list(held[1])
