"""A model that knows which texts go with which pictures: their vectors, how well each finds the other, and what a
person asks for: classes by their names, the nearest texts, the nearest pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from legato.data.batching.picture_batches import Pixels
from legato.data.formats.captions import Captions
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import reads_as_text
from legato.data.image.pictures import is_picture_file
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import ConfigError, LegatoError, brief
from legato.evaluation.embedding import unit
from legato.evaluation.metrics import DetailTable
from legato.evaluation.retrieval import recalls, retrieval_details
from legato.folders.loaded import Loaded
from legato.folders.sentence_encoder import SentenceEncoder
from legato.input_files import path_of
from legato.models.clip import CLIPModel, class_prompts
from legato.nn.losses.contrast import text_keys
from legato.tasks.embedding.picture_vectors import PictureVectors
from legato.tasks.embedding.text_vectors import TextIndex, TextVectors, VectorArray, embedded_once, index_of
from legato.tasks.picture_data import image_processor, readable
from legato.tasks.picture_inputs import read_pictures
from legato.tasks.predictions import Answer, Prediction

LABEL: Final = "{label}"  # what stands for a label in a template
TEXTS: Final = 256  # read side by side in scoring; changes no result


@dataclass
class Matcher:
    """A model with what it takes to put pictures and texts in and get vectors out."""

    model: CLIPModel
    tokenizer: AnyTokenizer
    processor: ImageProcessor

    def __post_init__(self) -> None:
        self.texts = TextVectors(self.model, self.tokenizer, SentenceEncoder(), own=True)
        self.pictures = PictureVectors(self.model, self.processor)

    @classmethod
    def of(cls, loaded: Loaded) -> Matcher:
        if not isinstance(loaded.module, CLIPModel):
            raise LegatoError(f"{loaded.folder} holds {loaded.module.config.name}, which makes no vectors of both")
        return cls(loaded.module, loaded.tokenizer, image_processor(loaded))

    # --- scores ---------------------------------------------------------------------------------------

    def vectors(self, data: Captions, pixels: Pixels) -> tuple[VectorArray, VectorArray]:
        """Of all pictures (N, E), and of all captions in their order (M, E)."""
        texts = [text for each in data.captions for text in each]
        return self.pictures.embed_pixels(pixels), self.texts.embed(texts, TEXTS)

    def score(self, data: Captions, images: VectorArray, texts: VectorArray) -> dict[str, Any]:
        """How well each side finds the other."""
        counts = {"pictures": len(images), "captions": len(texts)}
        return {**recalls(images, texts, owners(data)), **counts}

    @torch.no_grad()
    def loss(self, data: Captions, images: VectorArray, texts: VectorArray, rows: int) -> float:
        """The mean loss of pairs, so many side by side: those with every picture's first caption first."""
        numbers = {text: number for number, text in enumerate({text: 0 for each in data.captions for text in each})}
        pairs, first = list[tuple[int, int, int, int]](), 0
        for picture, each in enumerate(data.captions):
            pairs += [(turn, picture, first + turn, numbers[text]) for turn, text in enumerate(each)]
            first += len(each)
        pairs.sort()
        total, device = 0.0, self.model.device
        for start in range(0, len(pairs), rows):
            _, owner, caption, key = (list(column) for column in zip(*pairs[start : start + rows], strict=True))
            left, right = (torch.from_numpy(part).to(device) for part in (images[owner], texts[caption]))
            keys = torch.tensor([owner, key], device=device).t()
            total += float(self.model.contrastive_losses(left, right, keys).sum())
        return total / len(pairs)

    def details(self, data: Captions, images: VectorArray, texts: VectorArray) -> list[DetailTable]:
        """The worst pictures."""
        captions = [text for each in data.captions for text in each]
        return retrieval_details(images, texts, owners(data), data.names, captions)

    # --- answers --------------------------------------------------------------------------------------

    @torch.no_grad()
    def classify(
        self, inputs: Sequence[Any], labels: Sequence[str], template: str = LABEL, nbest: int = 1
    ) -> list[Prediction]:
        """Which of the labels each picture is of, the likeliest first: by their names alone (zero-shot)."""
        prompts = class_prompts(_labels(labels), [_template(template)])
        device = self.model.device
        classes = torch.from_numpy(self.texts.embed(prompts, TEXTS)).to(device)
        self.texts.reader.warn_of_cuts()
        made, read = readable(list(inputs), self.processor)
        for given, prediction in zip(inputs, made, strict=True):
            if isinstance(given, str) and reads_as_text(given):
                prediction.problem = (
                    f"'{brief(given)}' is no file, and labels are chosen for pictures; what is nearest to a text is "
                    "found with --search, in a file of texts or a folder of pictures"
                )
        if not read:
            return made
        images = torch.from_numpy(self.pictures.embed(list(read.values()))).to(device)
        for number, shares in zip(read, self.model.class_probabilities(images, classes).tolist(), strict=True):
            order = sorted(range(len(labels)), key=lambda label: (-shares[label], label))
            every = dict(zip(labels, shares, strict=True))
            made[number].answers = [
                Answer(labels[label], shares[label], {"probability": shares[label], "probabilities": every})
                for label in order[:nbest]
            ]
        return made

    def search(self, loaded: Loaded, inputs: Sequence[Any], place: str, nbest: int = 5) -> list[Prediction]:
        """The lines of a file, or the pictures of a folder, nearest to each picture or text."""
        path = path_of(place)
        of_pictures = path.is_dir() or path.suffix.lower() == ".tar"
        index, numbers = self._index_of_pictures(place) if of_pictures else index_of(loaded, place)
        made, queries = self._queries(inputs)
        if queries:
            hits = index.search_vectors(torch.stack(list(queries.values())).numpy(), nbest)
            for number, found in zip(queries, hits, strict=True):
                made[number].answers = [
                    Answer(
                        hit.text,
                        hit.score,
                        {"cosine": hit.score, "picture" if of_pictures else "line": numbers[hit.number]},
                    )
                    for hit in found
                ]
        self.texts.reader.warn_of_cuts()
        return made

    def _index_of_pictures(self, place: str) -> tuple[TextIndex, list[int]]:
        """The pictures' names with their vectors, and their numbers from 1; made once for each model and folder."""
        found = read_pictures(place)
        names = dict(enumerate(map(str, found.names or ()), start=1))
        changed = [None if picture.path is None else picture.path.stat().st_mtime_ns for picture in found.texts]
        known = ([str(path_of(place)), *found.texts], changed)
        names, held = embedded_once(self.model, known, lambda: (names, unit(self.pictures.embed(found.texts))))
        return TextIndex(self.texts, list(names.values()), held), list(names)

    def _queries(self, inputs: Sequence[Any]) -> tuple[list[Prediction], dict[int, torch.Tensor]]:
        """A prediction for each input, and the vectors of those that can be read: what is no file is a text."""
        texts = (isinstance(given, str) and not is_picture_file(given) for given in inputs)
        said = [number for number, is_text in enumerate(texts) if is_text]
        shown = [number for number in range(len(inputs)) if number not in set(said)]
        made = [Prediction(str(given)) for given in inputs]
        found: dict[int, torch.Tensor] = {}
        seen, read = readable([inputs[number] for number in shown], self.processor)
        for number, prediction in zip(shown, seen, strict=True):
            made[number] = prediction
        if read:
            vectors = torch.from_numpy(self.pictures.embed(list(read.values())))
            found |= {shown[place]: vector for place, vector in zip(read, vectors, strict=True)}
        for number in said:
            made[number].problem = None if inputs[number].strip() else "the text is empty"
        asked = [number for number in said if made[number].problem is None]
        if asked:
            vectors = torch.from_numpy(self.texts.embed([inputs[number] for number in asked], TEXTS))
            found |= dict(zip(asked, vectors, strict=True))
        return made, found


def owners(data: Captions) -> list[int]:
    """The number of the picture that each caption describes."""
    return [number for number, each in enumerate(data.captions) for _ in each]


def pair_keys(pictures: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """What tells pictures and texts of a batch apart, (B, 2), of the pictures' numbers (B,) and tokens (B, T)."""
    return torch.stack([pictures, text_keys(ids)], 1)


def _labels(labels: Sequence[str]) -> Sequence[str]:
    if not all(label.strip() for label in labels):
        raise ConfigError("a label is empty; write them as --labels a,b,c")
    twice = next((label for number, label in enumerate(labels) if label in labels[:number]), None)
    if twice is not None:
        raise ConfigError(f"the label '{brief(twice)}' stands there twice; name each once")
    return labels


def _template(template: str) -> str:
    if template.count(LABEL) != 1:
        raise ConfigError(f"a template has {LABEL} once, in the label's place; this one does not: {brief(template)}")
    return template.replace("{}", "").replace(LABEL, "{}")
