"""One word in many sentences: the vectors that a model has of it there, beside the one of its type.

    v_n = 1/|w| Σ_{t ∈ w} h_{t,l}                   the states of layer l at the word's tokens in sentence n
    v_n − v̄ = (p_n1, p_n2, …) A                     principal axes, the rows of A, by singular values
    p = A (e − v̄)                                   where the vector e lies that the embedding has of the word

A model of types (word2vec) has one point for all sentences; one that reads the context has a cloud, in which senses
lie apart. How far is measured among the vectors themselves, and not among their shadows in the plane.

>>> found = word_senses(legato.load("MODEL"), "die", ["They die.", "He threw the die.", "A die has six sides."],
...                     senses=["verb", "noun", "noun"])                             # doctest: +SKIP
>>> found.points.shape, found.silhouette                                            # doctest: +SKIP
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from legato.data.batching.examples import Example, scoring_batches
from legato.data.text.text_reader import TextReader
from legato.errors import DataError, LegatoError, brief
from legato.evaluation.embedding import unit
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.inspect.trace import Shaped
from legato.tasks.tagging.tagger import read_words
from legato.tasks.tagging.word_splitting import word_places

FEWEST: Final = 3  # sentences: fewer lie in a line, whatever they are

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, repr=False)
class Senses(Shaped):
    """A word's vectors in N sentences."""

    word: str
    sentences: list[str]
    vectors: Array  # (N, D)
    points: Array  # (N, 2), in the plane of the two principal axes
    type_point: Array | None  # (2,), of the embedding's vector; None where that is of another width
    explained: Array  # (2,), the share of the vectors' variance along each axis
    cosines: Array  # (N, N)
    nearest: list[int]  # (N), the number of the sentence whose vector is most like each one's
    silhouette: (
        float | None
    )  # by cosine: 1 where senses lie apart, 0 or less where they do not; None: none were given
    same_sense: float | None  # the share of sentences whose nearest has their sense


def word_senses(
    model: Any, word: str, sentences: Sequence[str], *, layer: int = -1, senses: Sequence[str] | None = None
) -> Senses:
    """The first place of a word in each sentence, in any case, as a layer has it: 0 is what is embedded, −1 the last.

    `senses` names that of each sentence.
    """
    loaded: Loaded = model.loaded
    if len(sentences) < FEWEST:
        raise DataError(f"{len(sentences)} sentences with '{brief(word)}' span no plane; give {FEWEST} at least")
    if senses is not None and len(senses) != len(sentences):
        raise DataError(f"there are {len(senses)} senses for {len(sentences)} sentences; give one for each")
    split = [[text[start:end] for start, end in word_places(text, "treebank")] for text in sentences]
    places = [_place(word, words, number) for number, words in enumerate(split, start=1)]
    states = word_states(loaded, split)
    vectors = []
    for number, (place, layers) in enumerate(zip(places, states, strict=True), start=1):
        if layers is None:
            raise DataError(f"sentence {number} is longer than {loaded.folder} reads; shorten it")
        if not -len(layers) <= layer < len(layers):
            raise LegatoError(f"{loaded.folder} has the layers 0 to {len(layers) - 1}, and no layer {layer}")
        vectors.append(layers[layer][place])
    cloud = np.stack(vectors)
    points, axes, explained = principal_plane(cloud)
    kind = type_vector(loaded, split, places)
    cosines = unit(cloud) @ unit(cloud).T
    nearest = np.argmax(cosines - 3 * np.eye(len(cloud)), axis=1).tolist()
    return Senses(
        word,
        list(sentences),
        cloud,
        points,
        axes @ (kind - cloud.mean(0)) if kind.shape == cloud.shape[1:] else None,
        explained,
        cosines,
        nearest,
        None if senses is None else _silhouette(cloud, senses),
        None if senses is None else float(np.mean([senses[n] == senses[near] for n, near in enumerate(nearest)])),
    )


def _place(word: str, words: Sequence[str], number: int) -> int:
    found = [place for place, other in enumerate(words) if other.casefold() == word.casefold()]
    if not found:
        raise DataError(f"'{brief(word)}' is no word of sentence {number}, '{brief(' '.join(words))}'")
    return found[0]


def principal_plane(vectors: Array) -> tuple[Array, Array, Array]:
    """Points (N, 2), the two axes (2, D), whose largest component is positive, and the variance's shares (2,).

    >>> points, axes, shares = principal_plane(np.array([[0.0, 0, 3], [0, 0, -3], [1, 0, 0], [-1, 0, 0]]))
    >>> (axes.round(6) + 0.0).tolist(), shares.round(3).tolist()
    ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [0.9, 0.1])
    """
    centred = vectors - vectors.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(1)[:, None], axis=1))
    total = (sizes**2).sum()
    known = total > 1e-10 * (vectors**2).sum()  # what is less is rounding: all are one vector
    return centred @ axes.T, axes, sizes[:2] ** 2 / total if known else np.zeros(2)


def _silhouette(vectors: Array, senses: Sequence[str]) -> float:
    if not 1 < len(set(senses)) < len(senses):
        raise DataError(f"{len(set(senses))} senses in {len(senses)} sentences; give two at least, one of them twice")
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(vectors, list(senses), metric="cosine"))


# --- words as a model reads them ---------------------------------------------------------------------


def word_states(loaded: Loaded, sentences: Sequence[Sequence[str]]) -> list[list[Array] | None]:
    """The states of each sentence's words in every layer, (W, D) each, that of the embedded input first.

    A word's is the mean of its tokens'. None stands for a sentence that is longer than the model reads.
    """
    reader, rows = _read(loaded, sentences)
    module, behind = loaded.module.eval(), len(reader.alone[1])
    fits = [n for n, row in enumerate(rows) if module.max_length is None or len(row.ids) <= module.max_length]
    found: list[list[Array] | None] = [None] * len(rows)
    for chosen, batch in scoring_batches([rows[n] for n in fits], pad=reader.padding) if fits else ():
        with torch.no_grad():
            layers = [state.float().cpu() for state in module.states(batch.to(module.device))]
        for layer in layers:
            check_finite(layer, module)
        for place, number in enumerate(fits[index] for index in chosen):
            starts, end = rows[number].positions or [], len(rows[number].ids) - behind
            sizes = np.diff([*starts, end])[:, None]
            values = (layer[place, :end].double().numpy() for layer in layers)  # (T, D)
            found[number] = [np.add.reduceat(each, starts) / sizes for each in values]
    return found


def type_vector(loaded: Loaded, sentences: Sequence[Sequence[str]], places: Sequence[int]) -> Array:
    """The embedding's vector of the word at `places`, (D,): of several tokens the mean, of several spellings the
    commonest. Without a table of tokens it is what is embedded of the word alone."""
    reader, rows = _read(loaded, sentences)
    spelt: Counter[tuple[int, ...]] = Counter()
    for row, place in zip(rows, places, strict=True):
        ends = [*(row.positions or []), len(row.ids) - len(reader.alone[1])]
        spelt[tuple(row.ids[ends[place] : ends[place + 1]])] += 1
    ids = list(spelt.most_common(1)[0][0])
    word = sentences[0][places[0]]
    if not reader.characters and loaded.tokenizer.unk_id in ids:
        raise DataError(f"{loaded.folder} does not know '{brief(word)}'; choose another word")
    table = loaded.module.token_table
    if table is None:
        alone = word_states(loaded, [[word]])[0]
        assert alone is not None
        return alone[0][0]
    with torch.no_grad():
        return table(torch.tensor(ids, device=loaded.module.device)).double().mean(0).cpu().numpy()


def _read(loaded: Loaded, sentences: Sequence[Sequence[str]]) -> tuple[TextReader, list[Example]]:
    """Sentences as a model reads them, whole, with where each word's tokens begin."""
    module = loaded.module
    if loaded.processors.others or not loaded.processors.has_text or module.is_encoder_decoder:
        raise LegatoError(f"{loaded.folder}: {module.config.name} has no states of a text's words; give one that has")
    for number, words in enumerate(sentences, start=1):
        if not words:
            raise DataError(f"sentence {number} has no words; leave it out")
    reader = replace(module.config.text_reader(loaded.tokenizer), max_length=None)
    zero_digits = bool(loaded.about.get("zero_digits", False))  # as a tagger's words are
    return reader, reader.sentences([read_words(words, zero_digits) for words in sentences])
