"""What an index says of itself: the encoder, how passages were cut, which folders it is of, what its segments are."""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from legato.errors import FolderError, LegatoError
from legato.retrieval.chunks import MAX_SIZE, Chunking
from legato.retrieval.models import Encoder
from legato.retrieval.records import VectorArray

FORMAT: Final = 1
MOST: Final = 1 << 40
# Texts whose vectors tell encoders apart, whatever they are called and however wide their weights are.
PROBES: Final = ("The cat sat on the mat.", "How is interest on a loan computed?", "Zwei Züge fahren nach Bern.")
LIKENESS: Final = 0.97  # the least cosine of two vectors that the same encoder made, in int8 for instance

Count = Annotated[int, Field(ge=0, le=MOST)]


class EncoderRecord(BaseModel):
    """The encoder that vectors were made with."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=4096)  # where to load it from
    width: int = Field(ge=1, le=1 << 16)
    probes: list[list[float]] = Field(max_length=len(PROBES))


class Manifest(BaseModel):
    """What an index says of itself; it changes with every commit."""

    model_config = ConfigDict(extra="forbid")

    format: int = FORMAT
    complete: bool = False  # whether the last update came to its end
    encoder: EncoderRecord | None = None
    size: int = Field(0, ge=0, le=MAX_SIZE)
    overlap: int = Field(0, ge=0, le=MAX_SIZE)
    column: str | None = None  # of tables, the one that holds the text
    roots: dict[str, str] = Field(
        default_factory=dict
    )  # the files and folders it is of, by what the index calls them
    removed: list[str] = Field(default_factory=list)  # of what is in those, what was taken out and stays out
    next_passage: Count = 0
    next_segment: Count = 0
    segments: dict[int, Count] = Field(default_factory=dict)  # how many postings each has
    versions: dict[str, Count] = Field(default_factory=dict)  # of the tables, where a store keeps several
    passages: Count = 0
    documents: Count = 0

    def without_passages(self) -> Manifest:
        """This manifest before anything was read."""
        return self.model_copy(
            update={"next_passage": 0, "next_segment": 0, "segments": {}, "passages": 0, "documents": 0}
        )

    @property
    def chunking(self) -> Chunking:
        return Chunking(self.size, self.overlap)


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """A manifest from its JSON; `where` is for errors."""
    try:
        found = Manifest.model_validate_json(text)
        _ = found.chunking
    except (ValidationError, RecursionError, LegatoError):
        raise FolderError(
            f"{where} is damaged: what it says of itself cannot be read; make the index again"
        ) from None
    if found.format != FORMAT:
        raise FolderError(f"{where} has format {found.format}, and this version reads {FORMAT}; make the index again")
    return found


def record_of(encoder: Encoder) -> EncoderRecord:
    """What tells an encoder from others."""
    vectors = unit_vectors(encoder.encode(list(PROBES)))
    rounded = [[round(float(value), 5) for value in vector] for vector in vectors]
    return EncoderRecord(name=encoder.name, width=vectors.shape[1], probes=rounded)


def check_encoder(known: EncoderRecord, encoder: Encoder, where: str) -> None:
    """Refuse an encoder whose vectors are not those of the index."""
    found = record_of(encoder)
    same = found.width == known.width and all(len(probe) == known.width for probe in known.probes)
    if same:
        old, new = np.array(known.probes, dtype=np.float32), np.array(found.probes, dtype=np.float32)
        same = old.shape == new.shape and bool(((old * new).sum(axis=1) >= LIKENESS).all())
    if not same:
        raise FolderError(
            f"{where} was made with another encoder ({known.name}, {known.width} numbers a vector) than "
            f"{encoder.name}; leave out --model, or make another index with this one"
        )


def unit_vectors(vectors: Any) -> VectorArray:
    """Vectors brought to length one; one of zeros stays."""
    found = np.asarray(vectors, dtype=np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-12))
