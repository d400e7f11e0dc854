"""Documents made searchable, searched and asked, with models of ours: retrieval-augmented generation.

index = legato.index("docs/", out="runs/index", model="org/encoder")
index.search("How is it installed?")
legato.ask("runs/index", "How is it installed?", model="org/chat").text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from legato.config import validate
from legato.data.sources.memory_tables import file_names, memory_table
from legato.decoding import SearchOptions
from legato.errors import ConfigError, DataError, FolderError
from legato.folders.atomic import clear_errors
from legato.input_files import path_of
from legato.loading import load
from legato.model import Model
from legato.output_files import replacing_file
from legato.retrieval.answers import CitedAnswer, answer, extract
from legato.retrieval.chunks import OVERLAP, SIZE, Chunking
from legato.retrieval.index import Index, open_store
from legato.retrieval.models import Span
from legato.retrieval.records import VectorArray, Where
from legato.retrieval.update import Progress

Place = str | Path
POSITIVE: Final = ("relevant", "true", "yes", "1", "label_1", "entailment", "positive")


class ModelEncoder:
    """A model of ours as an index asks it for vectors."""

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name

    def encode(self, texts: Sequence[str]) -> VectorArray:
        return self.model.embed(list(texts))


class CrossEncoder:
    """A `classification` model of pairs as a re-ranker: how likely a passage is relevant, or its value."""

    def __init__(self, model: Model) -> None:
        if model.task != "classification":
            raise ConfigError(f"{model.folder} is a model for {model.task}; a re-ranker is one for classification")
        if model.about.get("pair") is False:
            raise ConfigError(f"{model.folder} reads single texts; a re-ranker reads a question and a passage")
        self.model = model

    def score(self, question: str, passages: Sequence[str]) -> list[float]:
        asked = [f"{_one_line(question)}\t{_one_line(passage)}" for passage in passages]
        scores = []
        for prediction in self.model.predictions(asked):
            if prediction.problem is not None:
                raise ConfigError(f"{self.model.folder} cannot rank this: {prediction.problem}")
            best = prediction.answers[0]
            shares: dict[str, float] = best.more.get("probabilities", {})
            named = next((name for name in shares if name.lower() in POSITIVE), None)
            last = shares[list(shares)[-1]] if shares else best.score
            scores.append(float(shares[named] if named is not None else last))
        return scores


class ChatWriter:
    """A model that writes, as it is asked for answers: by its chat template, or as plain text where it has none."""

    def __init__(self, model: Model) -> None:
        model.check_generates()
        self.model = model

    @cached_property
    def special_tokens(self) -> Sequence[str]:
        library = getattr(self.model.tokenizer, "full_library", None)
        if library is None:
            return ()
        return tuple(token.content for token in library.get_added_tokens_decoder().values())

    def _prompt(self, messages: Sequence[dict[str, str]]) -> str | list[int]:
        if self.model.loaded.chat is not None:
            return self.model.chat_ids(list(messages))
        return "\n\n".join(message["content"] for message in messages) + "\nAnswer:"

    def fits(self, messages: Sequence[dict[str, str]], room: int) -> bool:
        most = self.model.module.max_length
        return most is None or len(self.model.prompt_ids(self._prompt(messages))) + min(room, most // 4) <= most

    def write(self, messages: Sequence[dict[str, str]], max_tokens: int, emit: Callable[[str], None]) -> str:
        stop = [] if self.model.loaded.chat is not None else ["\n\n", "\nQuestion:"]
        options = validate(SearchOptions, {"search": "greedy", "max_tokens": max_tokens, "stop": stop})
        return self.model.write(self._prompt(messages), options, emit).text


class SpanFinder:
    """A `qa` model as it is asked for the words of a passage."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def answer(self, question: str, passages: Sequence[str]) -> list[Span]:
        asked = [f"{_one_line(question)}\t{_one_line(passage)}" for passage in passages]
        found = self.model.predictions(asked)
        return [
            Span(one.answers[0].text, float(one.answers[0].score)) if one.problem is None else Span("", 0.0)
            for one in found
        ]


def index(
    places: Place | Sequence[Place] | Any = (),
    *,
    out: Place,
    model: Place | Model | None = None,
    chunk_size: int | None = None,
    overlap: int | None = None,
    column: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Index:
    """Make documents searchable, or bring an index up to date: files and folders; without any, those that it is of.

    In place of files there may be texts or a table in memory, each row a document; a copy lies beside the index.

    `model` is an encoder; without one a new index is of words alone. `out` is a folder, or `postgresql://…`. What was
    done is told by the index's `report`.

    >>> legato.index("docs/", out="runs/index", model="org/encoder").search("install")      # doctest: +SKIP
    """
    chunking = None
    if chunk_size is not None or overlap is not None:
        how = Chunking(SIZE if chunk_size is None else chunk_size, 0)
        chunking = replace(how, overlap=min(OVERLAP, how.size // 5) if overlap is None else overlap)
    documents = _places(places, out)
    made = Index.create(out, encoder_of(model, out, device, dtype), chunking, column)
    made.update(documents, progress)
    return made


def _places(places: Any, out: Place) -> list[Place]:
    """Files and folders; of a table in memory, the copy that lies beside the index."""
    if isinstance(places, str | Path):
        return [places]
    names = isinstance(places, list | tuple) and all(isinstance(name, str | Path) for name in places)
    # A document has more than one word; a mistyped folder has not.
    if names and (file_names(places) is not None or not any(str(name).split()[1:] for name in places)):
        return list(places)
    table = memory_table("documents", places, ["text"])
    if "://" in str(out):
        raise DataError(f"{table.name}: an index in a database is of files; write the documents to one, and name it")
    copy = path_of(f"{str(out).rstrip('/')}-documents.parquet")
    with clear_errors(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(copy) as fresh:
            table.write(fresh)
    return [copy]


def open_index(
    place: Place,
    model: Place | Model | None = None,
    *,
    device: str = "auto",
    dtype: str = "float32",
    words: bool = False,
) -> Index:
    """The index at a place, with the encoder that it was made with; `words`: without, to search by words alone."""
    return Index.open(place, None if words else encoder_of(model, place, device, dtype))


def ask(
    place: Place | Index,
    question: str,
    model: Place | Model,
    *,
    top: int = 5,
    mode: str | None = None,
    where: Where | None = None,
    rerank: Place | Model | None = None,
    max_tokens: int = 256,
    emit: Callable[[str], None] = lambda piece: None,
    device: str = "auto",
) -> CitedAnswer:
    """Answer a question from an index: by a model that writes, or by a `qa` model in a passage's own words.

    >>> found = legato.ask("runs/index", "How is it installed?", model="org/chat")          # doctest: +SKIP
    >>> found.text, [found.hits[n - 1].passage.source for n in found.citations]             # doctest: +SKIP
    """
    held = place if isinstance(place, Index) else open_index(place, device=device, words=mode == "words")
    reranker = None if rerank is None else CrossEncoder(model_of(rerank, device))
    writer = model_of(model, device)
    hits = held.search(question, top, mode=mode, where=where, reranker=reranker)
    if writer.task == "qa":
        found = extract(question, hits, SpanFinder(writer))
        emit(found.text)
        return found
    return answer(question, hits, ChatWriter(writer), max_tokens, emit)


def model_of(model: Place | Model, device: str = "auto", **width: Any) -> Model:
    """A model, or the one at a place."""
    return model if isinstance(model, Model) else load(model, device, **width)


def encoder_of(
    model: Place | Model | None, place: Place | None = None, device: str = "auto", dtype: str = "float32"
) -> ModelEncoder | None:
    """An encoder of a model; without one, of that which the index at a place was made with."""
    if model is None and place is not None:
        known = open_store(place).manifest()
        model = None if known is None or known.encoder is None else known.encoder.name
    if model is None:
        return None
    if isinstance(model, Model):
        return ModelEncoder(model, str(model.folder.resolve()))
    path = path_of(model, error=FolderError)
    name = str(path.resolve()) if path.exists() else str(model)
    return ModelEncoder(load(model, device, dtype=dtype), name)


def _one_line(text: str) -> str:
    """Without tabs, which part a question from its passage."""
    return " ".join(text.split())
