"""A model that turns texts into texts, with what it takes to put text in and get text out.

What the encoder reads is the tag that asks for a language, where the model has several, the text's subwords and
the EOS token. `Translator` scores pairs by their loss, BLEU and chrF, and predicts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from legato.data.formats.text_pairs import Pairs, tidy
from legato.data.text.tokenizers import AnyTokenizer, Ids
from legato.decoding import Hypothesis, SearchOptions
from legato.errors import ConfigError, DataError, LegatoError, listed, suggest
from legato.evaluation.translation import translation_scores
from legato.models.base import SequenceModel
from legato.tasks.base import word_alignment, word_numbers
from legato.tasks.encoder_decoder import (
    TargetTokens,
    align,
    batches_of,
    beam_options,
    decode,
    longest_of,
    mean_loss,
    search_name,
)
from legato.tasks.predictions import Answer, Prediction

TAG = re.compile(r">>([\w-]+)<<")  # what somebody may type before a text
NAMED = 12  # languages in a message; published models may write hundreds


def tag_token(language: str) -> str:
    """The token that asks for a language; the spelling is Marian's."""
    return f">>{language}<<"


@dataclass
class Translator:
    """A model with what it takes to put text in and get text out."""

    model: SequenceModel
    tokenizer: AnyTokenizer
    target: AnyTokenizer
    start: int | None = None

    def __post_init__(self) -> None:
        self.target_tokens = TargetTokens.of(self.target, self.start)
        names = (self.tokenizer.token(index) for index in sorted(self.tokenizer.special_ids))
        # The languages that it can be asked for.
        self.tags = [name[2:-2] for name in names if name.startswith(">>") and name.endswith("<<")]

    def source_ids(self, text: str, tag: str | None = None) -> Ids:
        """A source as the encoder reads it: the tag, the text, the EOS token."""
        head = [] if tag is None else [self._tag_id(tag)]
        return np.array([*head, *self.tokenizer.encode(text), self.tokenizer.eos_id], dtype=np.int32)

    def _tag_id(self, tag: str) -> int:
        index = self.tokenizer.id_of(tag_token(tag))
        if index is None:
            there = suggest(tag, self.tags) if self.tags else "it has one direction only, so leave the language out"
            raise ConfigError(f"the model has no language '{tag}'; {there}")
        return index

    def limit(self, source: Ids, most: int | None = None) -> int:
        """The most tokens to write for a source: generous, but no endless loops."""
        wanted = most or 2 * len(source) + 24
        return min(wanted, longest_of(self.model) - 1)

    def translate(
        self, sources: Sequence[Ids], options: SearchOptions, most: int | None = None
    ) -> list[list[Hypothesis]]:
        limits = [self.limit(source, most) for source in sources]
        return decode(self.model, sources, self.target_tokens, options, limits=limits, text_of=self.target.decode)

    def score(self, pairs: Pairs, options: SearchOptions) -> dict[str, Any]:
        """Loss, BLEU and chrF of pairs, with their signatures."""
        sources = [self.source_ids(text, tag) for text, tag in zip(pairs.sources, tags_of(pairs), strict=True)]
        targets = list(self.target.encode_many(pairs.targets))
        max_length = longest_of(self.model)
        fits = [
            i for i, (s, t) in enumerate(zip(sources, targets, strict=True)) if max(len(s), len(t) + 1) <= max_length
        ]
        if not fits:
            raise DataError(f"{pairs.source} has no pair that fits the model's {max_length} positions")
        loss = mean_loss(
            self.model, batches_of([sources[i] for i in fits], [targets[i] for i in fits], self.target_tokens)
        )
        readable = [i for i, source in enumerate(sources) if len(source) <= max_length]
        found = self.translate([sources[i] for i in readable], options)
        written = [""] * len(sources)  # what cannot be read is translated as nothing, and counts so
        for i, best in zip(readable, found, strict=True):
            written[i] = self.target.decode(best[0].tokens)
        scores: dict[str, Any] = {"loss": loss, **self._scores_by_tag(pairs, written)}
        exact = np.mean([a == b for a, b in zip(written, pairs.targets, strict=True)])
        scores |= {"accuracy": float(exact), "sentences": len(written), "search": search_name(options)}
        if len(readable) < len(sources):
            scores["too_long"] = len(sources) - len(readable)
        return scores

    def _scores_by_tag(self, pairs: Pairs, written: list[str]) -> dict[str, Any]:
        scores: dict[str, Any] = translation_scores(written, pairs.targets)
        names = pairs.origins or pairs.tags or []  # a table has only the target's language
        groups = sorted(set(names))
        for group in groups if len(groups) > 1 else []:
            rows = [i for i, name in enumerate(names) if name == group]
            part = translation_scores([written[i] for i in rows], [pairs.targets[i] for i in rows])
            scores |= {f"bleu_{group}": part["bleu"], f"chrf_{group}": part["chrf"]}
        return scores

    def predict(self, texts: Sequence[str], options: Any, about: dict[str, Any]) -> list[Prediction]:
        predictions = [Prediction(text) for text in texts]
        search = beam_options(about, options.beams, options.length_penalty, options.nbest)
        if options.to is not None:
            self._tag_id(options.to)  # wrong for every text
        asked = [self._split_tag(tidy(text), options.to) for text in texts]
        if any(said for _, said in asked) and not any(tag for tag, _ in asked):
            self._require_tag(None)  # nobody said, so it is no one line's fault
        sources: dict[int, Ids] = {}
        for index, (tag, said) in enumerate(asked):
            if not said:
                predictions[index].answers = [Answer("", 0.0)]  # nothing to say of nothing
                continue
            try:  # one bad line does not stop the others
                sources[index] = self._tagged_ids(said, tag)
            except LegatoError as problem:
                predictions[index].problem = str(problem)
        found = self.translate(list(sources.values()), search, options.max_tokens)
        for (index, ids), hypotheses in zip(sources.items(), found, strict=True):
            predictions[index].answers = [self._answer(ids, h, options.alignments) for h in hypotheses]
        return predictions

    def read(self, text: str) -> Ids:
        """A text as the encoder reads it, which may begin with the tag of a language."""
        tag, said = self._split_tag(tidy(text), None)
        return self._tagged_ids(said, tag)

    def _tagged_ids(self, said: str, tag: str | None) -> Ids:
        self._require_tag(tag)
        ids, max_length = self.source_ids(said, tag), longest_of(self.model)
        if len(ids) > max_length:
            raise DataError(f"{len(ids):,} tokens, more than the model's {max_length:,}; split the text")
        return ids

    def _require_tag(self, tag: str | None) -> None:
        if tag is None and self.tags:
            raise ConfigError(f"the model writes {listed(self.tags, NAMED)}; say which, with --to {self.tags[0]}")

    def _split_tag(self, text: str, to: str | None) -> tuple[str | None, str]:
        """The language that is asked for, and the text without the tag that may be written before it."""
        typed = TAG.match(text) if self.tags else None
        return (to, text) if typed is None else (typed[1], text[typed.end() :].strip())

    def _answer(self, source: Ids, hypothesis: Hypothesis, alignments: bool) -> Answer:
        more: dict[str, Any] = {"logprob": hypothesis.logprob, "finished": hypothesis.finished}
        if alignments:
            weights = align(self.model, source, hypothesis.tokens, self.target_tokens)[: len(hypothesis.tokens)]
            read, written = source.tolist(), hypothesis.tokens
            numbers = word_numbers(self.tokenizer, read), word_numbers(self.target, written)
            more |= {
                "source_tokens": [self.tokenizer.token(i) for i in read],
                "target_tokens": [self.target.token(i) for i in written],
                "alignment": [[round(float(w), 4) for w in row] for row in weights],  # target tokens × source tokens
                "word_alignment": word_alignment(weights, *numbers),  # pairs of source word and target word
            }
        return Answer(self.target.decode(hypothesis.tokens), hypothesis.score, more)


def tags_of(pairs: Pairs) -> list[str | None]:
    return list(pairs.tags) if pairs.tags else [None] * len(pairs.sources)
