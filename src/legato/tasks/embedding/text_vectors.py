"""Texts as vectors: which layers of a model are read, and how the tokens' states become one.

    states h_0 … h_L = model(text)          the embedded input, and what every layer leaves
    h = combine(h_0 … h_L)                  the last, a sum, several side by side, a mix (nn/pooling.py)
    v = pool(h)                             mean, first (cls), last or largest over the tokens (nn/pooling.py)

A sentence encoder says itself how its vectors are made (folders/sentence_encoder.py), a model of texts and pictures
makes them itself (`SequenceModel.makes_vectors`); of any other the last layer's mean is taken, unless somebody asks
for more. `legato embed`, `legato.sklearn.Embedder` and the task
`embedding` all go this way.

Search by meaning finds the lines whose vectors have the largest cosines with a text's. All lines are compared with
it, so what is found is exact; their vectors are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.data.batching.examples import Example, collate_examples
from legato.data.items import texts_of
from legato.data.sources.files import load_text, resolve_path
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import ConfigError, DataError, LegatoError, brief, suggest
from legato.evaluation.embedding import nearest, unit
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import SequenceModel
from legato.models.model_with_head import ModelWithHead
from legato.nn.pooling import WAYS, combine_layers
from legato.tasks.predictions import Answer, Prediction

VectorArray = np.ndarray[Any, np.dtype[np.float32]]
# What people call the ways to pool, and what sentence encoders' folders call them.
POOL_MODES: Final = {"mean": "mean", "cls": "cls", "first": "cls", "max": "max", "last": "lasttoken"}
TOKENS: Final = "none"  # no pooling: a vector for each token
SIDE_BY_SIDE: Final = 64  # lines of a file that is searched; changes no result


def rows_of(texts: Sequence[str], tokenizer: AnyTokenizer, reader: TextReader, how: SentenceEncoder) -> list[Example]:
    """Each text as a model reads it: for a published model between the special tokens of its own file."""
    held = [how.before + text for text in texts] if how.before else texts
    if isinstance(tokenizer, Tokenizer) and tokenizer.follows_own_template and not reader.characters:
        rows, most = tokenizer.encode_many_with_special_tokens(held, reader.max_length), reader.max_length
        full = [text for text, ids in zip(held, rows, strict=True) if most is not None and len(ids) >= most]
        reader.cut += sum(len(tokenizer.encode_with_special_tokens(text)) > (most or 0) for text in full)
        return [Example(ids or [tokenizer.eos_id]) for ids in rows]
    return reader.texts(held)


class TextVectors:
    """Makes vectors of texts with one model, in one way."""

    def __init__(
        self,
        module: SequenceModel,
        tokenizer: AnyTokenizer,
        how: SentenceEncoder,
        layers: str = "last",
        *,
        own: bool = False,
    ) -> None:
        """`own`: the vectors are those that the model itself makes of a text."""
        if module.is_encoder_decoder:
            raise LegatoError(
                f"{module.config.name} reads one text and writes another, and has no vectors for a text; "
                "use an encoder, a decoder or a recurrent model"
            )
        if layers not in WAYS:
            raise ConfigError(f"there is no layers={layers}; {suggest(layers, WAYS)}")
        self.module, self.tokenizer, self.how, self.layers, self.own = module, tokenizer, how, layers, own
        self.body = module.body if isinstance(module, ModelWithHead) else module
        if self.body.can_generate and "cls" in how.modes:
            raise ConfigError(
                f"the first token of {module.config.name} has read nothing else, since it reads from left to right; "
                "pool by last or mean"
            )
        self.reader = module.config.text_reader(tokenizer, max_length=how.most)

    @classmethod
    def of(
        cls, loaded: Loaded, *, layers: str | None = None, pool: str | None = None, normalize: bool | None = None
    ) -> TextVectors:
        """What a model folder says of its vectors, with what is asked for laid over it."""
        how = loaded.sentences or SentenceEncoder()
        own = loaded.module.makes_vectors and layers in (None, "last") and pool is None
        if own and normalize is False:
            raise ConfigError(f"the vectors of {loaded.module.config.name} have length one; leave out --no-normalize")
        if pool is not None and pool != TOKENS:
            if pool not in POOL_MODES:
                raise ConfigError(f"there is no pool={pool}; {suggest(pool, [*POOL_MODES, TOKENS])}")
            how = replace(how, modes=(POOL_MODES[pool],))
        if normalize is not None:
            how = replace(how, normalise=normalize)
        return cls(loaded.module, loaded.tokenizer, how, layers or "last", own=own)

    def rows(self, texts: Sequence[str]) -> list[Example]:
        """Each text as the model reads it."""
        return rows_of(texts_of(texts), self.tokenizer, self.reader, self.how)

    def states(self, batch: Batch) -> Tensor:
        """The tokens' states (B, T, D), of the layers that were chosen."""
        if self.layers == "last":
            return self.body(batch).hidden
        every = self.body.states(batch)
        widths = {state.shape[-1] for state in every[1:] or every}
        if self.layers == "mix":
            widths |= {every[0].shape[-1]}
        if len(widths) > 1 and self.layers not in ("first", "second-to-last", "concat-last-4"):
            wide = " and ".join(map(str, sorted(widths)))
            raise LegatoError(f"layers={self.layers} adds up layers, and this model's are {wide} wide")
        learned = self.module.mix if isinstance(self.module, ModelWithHead) else None
        if self.layers == "mix" and learned is not None:
            return learned(every)
        return combine_layers(every, self.layers)

    def pooled(self, batch: Batch) -> Tensor:
        """A vector for each text of a batch, (B, D)."""
        if self.own:
            return self.body.text_vectors(batch.inputs).float()
        hidden = self.states(batch).float()
        return self.how.pool(hidden, _lengths(batch))

    @torch.no_grad()
    def embed(
        self, texts: Sequence[str], batch_size: int = 32, done: Callable[[int], None] | None = None
    ) -> VectorArray:
        """A vector for each text, (N, D); `done` is told how many more there are after each batch."""
        found: VectorArray | None = None
        for chosen, batch in self._batches(texts, batch_size, done):
            vectors = self.pooled(batch).cpu().numpy()
            check_finite(vectors, self.module)
            if found is None:
                found = np.empty((len(texts), vectors.shape[1]), dtype=np.float32)
            found[chosen] = vectors
        return np.zeros((0, self.width), dtype=np.float32) if found is None else found

    @torch.no_grad()
    def tokens(
        self, texts: Sequence[str], batch_size: int = 32, done: Callable[[int], None] | None = None
    ) -> list[tuple[list[str], VectorArray]]:
        """The tokens of each text, and a vector for each of them (T, D)."""
        found: list[Any] = [None] * len(texts)
        for chosen, batch in self._batches(texts, batch_size, done):
            hidden = self.states(batch).float()
            hidden = torch.nn.functional.normalize(hidden, dim=-1) if self.how.normalise else hidden
            lengths = _lengths(batch).tolist()
            for row, ids, states, length in zip(chosen, batch.inputs.token_ids, hidden, lengths, strict=True):
                vectors = states[:length].cpu().numpy()
                check_finite(vectors, self.module)
                found[row] = ([self.tokenizer.token(index) for index in ids[:length].tolist()], vectors)
        return found

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        with torch.no_grad():
            batch = collate_examples(self.reader.texts(["a"]), pad=self.reader.padding).to(self.module.device)
            return int(self.pooled(batch).shape[1])

    def _batches(self, texts: Sequence[str], size: int, done: Callable[[int], None] | None) -> Any:
        """The texts' numbers and their batch; those of like length go together, so that little is padded."""
        if not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError(f"a batch needs at least one text, not {brief(repr(size))}")
        device = self.module.device
        rows = self.rows(texts)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row].ids))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            yield chosen, collate_examples([rows[row] for row in chosen], pad=self.reader.padding).to(device)
            if done is not None:
                done(len(chosen))


def _lengths(batch: Batch) -> Tensor:
    """The tokens of each text, (B,), also where all have as many."""
    ids, lengths = batch.inputs.token_ids, batch.inputs.lengths
    return torch.full(ids.shape[:1], ids.shape[1], device=ids.device) if lengths is None else lengths


# --- search by meaning -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchHit:
    """A line that is like a query."""

    text: str
    score: float  # the cosine of the two
    number: int  # of the line, from 0


class TextIndex:
    """Lines and their vectors, for queries to be compared with."""

    def __init__(self, vectors: TextVectors, lines: Sequence[str], held: VectorArray | None = None) -> None:
        """`held` are the lines' vectors, at length one, where they are known already."""
        if not lines:
            raise DataError("there is nothing to search in; give at least one line")
        self.vectors, self.lines = vectors, lines
        self.held: VectorArray = unit(vectors.embed(lines, SIDE_BY_SIDE)) if held is None else held  # (N, D)

    def search(self, queries: Sequence[str], nbest: int = 5) -> list[list[SearchHit]]:
        """The `nbest` lines with the largest cosines for each query, best first; of equals the earlier one."""
        return self.search_vectors(self.vectors.embed(queries), nbest) if queries else []

    def search_vectors(self, queries: VectorArray, nbest: int = 5) -> list[list[SearchHit]]:
        """The same for queries that are vectors already, (Q, D)."""
        if not isinstance(nbest, int | np.integer) or nbest < 1:
            raise ConfigError(f"nbest={brief(nbest)}: ask for one line at least")
        numbers, scores = nearest(unit(queries), self.held, nbest)
        return [
            [SearchHit(self.lines[number], float(score), int(number)) for number, score in zip(*found, strict=True)]
            for found in zip(numbers, scores, strict=True)
        ]


SearchedItems = tuple[dict[int, str], VectorArray]
"""What is searched in: its lines, or names, by their numbers from 1, and a vector of length one for each (N, D)."""

# Of each model what it searched in last, behind what tells that from anything else.
_searched: WeakKeyDictionary[SequenceModel, tuple[Any, SearchedItems]] = WeakKeyDictionary()


def embedded_once(model: SequenceModel, known: Any, make: Callable[[], SearchedItems]) -> SearchedItems:
    """What `make` gives, or gave for the same `known` when the model searched last."""
    held = _searched.get(model)
    if held is None or held[0] != known:
        held = (known, make())
        _searched[model] = held
    return held[1]


def search_file(loaded: Loaded, texts: Sequence[str], place: str, nbest: int = 5) -> list[Prediction]:
    """The lines of a file most like each text, best first; blank lines are none."""
    index, numbers = index_of(loaded, place)
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


def index_of(loaded: Loaded, place: str) -> tuple[TextIndex, list[int]]:
    """The file's lines with their vectors, and their numbers from 1; made once for each model and file."""
    path = resolve_path(place)
    if not path.exists():
        raise DataError(f"there is no file {path} to search in; check the path")
    vectors = TextVectors.of(loaded)

    def embedded() -> SearchedItems:
        lines = {number: line.strip() for number, line in enumerate(load_text(path).split("\n"), start=1)}
        lines = {number: line for number, line in lines.items() if line}
        if not lines:
            raise DataError(f"{path} holds no line to search in")
        return lines, TextIndex(vectors, list(lines.values())).held

    known = (str(path), path.stat().st_mtime_ns, path.stat().st_size)
    lines, held = embedded_once(loaded.module, known, embedded)
    return TextIndex(vectors, list(lines.values()), held), list(lines)
