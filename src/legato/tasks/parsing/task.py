"""Parsing by the machinery of translation: a sentence in, its constituency tree out as a sequence.

    dogs chase cats   →   (S (NP dogs )NP (VP chase (NP cats )NP )VP )S

The model writes the tree's skeleton, brackets and one symbol for the next word, whatever the word is: so it
need not copy words (Vinyals et al. 2015, "Grammar as a Foreign Language"). A constraint in the search leaves
only what can still become a well-formed tree over the given words, so every output is one. Scores are labelled
brackets as EVALB counts them.

    legato train parsing data.train=wsj.zip!**/wsj_00*.mrg data.valid=wsj.zip!**/wsj_018*.mrg model=transformer
    legato predict RUN "dogs chase cats"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from legato.data.batching.pair_batches import PairBatches
from legato.data.cache import cached_tokenizer
from legato.data.digests import sha256_of
from legato.data.formats.labels import note_of_unseen
from legato.data.formats.text import Text
from legato.data.formats.text_pairs import tidy
from legato.data.formats.trees import WORD, Tree, Treebank, clean, escape, fill, flatten, read_trees, skeleton
from legato.data.positions import Reading
from legato.data.processors import Processors
from legato.data.sources.patterns import Source
from legato.data.splits import SplitData, ValidShare, by_order, completed
from legato.data.text.tokenizers import AnyTokenizer, Ids, Tokenizer, TokenizerConfig
from legato.decoding import Hypothesis, SearchOptions
from legato.decoding.constraints.trees import TreeConstraint
from legato.decoding.options import MAX_BEAMS
from legato.decoding.search_start import SearchStart
from legato.errors import DataError, brief, warn
from legato.evaluation.parsing import BRACKET_SIGNATURE, METRICS, bracket_scores
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Plan, Say, Task
from legato.tasks.defaults import Defaults, Given, encoder_decoder_training
from legato.tasks.encoder_decoder import (
    BeamOptions,
    EncoderDecoderJob,
    TargetTokens,
    batches_of,
    beam_options,
    decode,
    ids_reading,
    longest_of,
    mean_loss,
    require_source,
    search_name,
)
from legato.tasks.predictions import Answer, Prediction


class ParsingData(SplitData):
    """Where the trees are."""

    train: Source | None = Field(
        None, description="a file of bracketed trees, a folder, a pattern, archive.zip!pattern, or a list of them"
    )
    valid: Source | None = Field(None, description="left out: the last share of the training trees")
    encoding: str = Field("utf-8", description="of the files")
    valid_share: ValidShare = 0.1
    max_length: int = Field(400, ge=8, description="tokens; training trees with longer sequences are left out")
    metric: Literal["f1", "loss"] = Field("f1", description="what decides which model is best")
    beams: int = Field(4, ge=1, le=MAX_BEAMS, description="of the scores at the end, and of legato predict")
    length_penalty: float = Field(0.0, ge=0, le=10, description="of the same: scores are log p / length^this")


def _cleaned(bank: Treebank) -> list[Tree]:
    try:
        return [clean(tree) for tree in bank.trees]
    except DataError as problem:
        raise DataError(f"{_name(bank)}: {problem}") from None


def _name(bank: Treebank) -> str:
    first, count = bank.sources[0], len(bank.sources)
    return first if count == 1 else f"{first} and {count - 1} more"


_CLITICS = re.compile(r"(?i)(?<=\w)(n't|'s|'re|'ve|'ll|'d|'m)\b")
_PUNCTUATION = re.compile(
    r"[()\[\]{}]|``|''|\.{2,}|-{2,}"  # wherever they are
    r"|(?<!\w)[\"“”‘]|[\"“”’,;:?!…](?!\w)"  # what opens before a word or closes behind one
    r"|(?<!\.)\.(?=['\"”’)\]}]*$)"  # the full stop at the end
)


def split_words(text: str) -> list[str]:
    """The words of a sentence, split as the Penn Treebank splits them, whether they stand apart already or not.

    Brackets are words, wherever they are; so are quotation marks, commas and the like at a word's edge, the
    full stop at the sentence's end, and endings such as n't and 's. What is a word by itself stays one.

    >>> split_words("Dogs don't (often) bark, cats do.")
    ['Dogs', 'do', "n't", '(', 'often', ')', 'bark', ',', 'cats', 'do', '.']
    """
    apart = _CLITICS.sub(r" \1 ", text.strip())
    return _PUNCTUATION.sub(lambda found: f" {found[0]} ", apart).split()


@dataclass
class Parser:
    """A model with what it takes to put words in and get trees out."""

    model: SequenceModel
    tokenizer: AnyTokenizer
    target: AnyTokenizer

    def __post_init__(self) -> None:
        self.target_tokens = TargetTokens.of(self.target)
        symbols = [self.target.token(index) for index in range(self.target.size)]
        self.opens = {s[1:]: i for i, s in enumerate(symbols) if s.startswith("(")}
        self.closes = {s[1:]: i for i, s in enumerate(symbols) if s.startswith(")")}
        word = self.target.id_of(WORD)
        if word is None or not self.opens:
            raise DataError("the model's target vocabulary has no brackets; was it trained for parsing?")
        self.word = word

    def source_ids(self, words: Sequence[str]) -> Ids:
        return np.array([*self.tokenizer.encode(" ".join(words)), self.tokenizer.eos_id], dtype=np.int32)

    def limit(self, words: int) -> int:
        """The most tokens of a tree, the end among them: those of the Penn Treebank take 4 a word at most."""
        wanted = 5 * words + 16
        return min(wanted, longest_of(self.model) - 1)

    def too_long(self, words: Sequence[str], ids: Ids) -> str | None:
        """Why a sentence cannot be parsed, if it cannot."""
        if not words:
            return "there are no words to parse"
        max_length, least = longest_of(self.model), 3 * len(words) + 8  # a tree's words and brackets: room for most
        if len(ids) > max_length:
            return f"the sentence has {len(ids):,} tokens, more than the model's {max_length:,} positions; split it"
        if least > max_length:
            return (
                f"the sentence has {len(words):,} words, whose tree takes about {least:,} symbols (words and "
                f"brackets), more than the model's {max_length:,} positions; split it"
            )
        return None

    def parse(self, sentences: Sequence[Sequence[str]], options: SearchOptions) -> list[list[Hypothesis]]:
        """Hypotheses whose tokens are the skeleton of a tree over the words, each well-formed."""
        limits = [self.limit(len(words)) for words in sentences]

        def constraint(index: int) -> Any:
            rules = TreeConstraint(self.opens, self.closes, self.word, self.target_tokens.eos, limits[index])
            return rules.for_sentence(len(sentences[index]))

        sources = [self.source_ids(words) for words in sentences]
        return decode(self.model, sources, self.target_tokens, options, limits=limits, constraint=constraint)

    def tree(self, hypothesis: Hypothesis, words: Sequence[str]) -> Tree:
        return fill([self.target.token(index) for index in hypothesis.tokens], words)

    def score(self, gold: Sequence[Tree], options: SearchOptions) -> dict[str, Any]:
        """Labelled brackets of the best trees, and the loss of the right ones."""
        sentences = [tree.words for tree in gold]
        readable = [i for i, words in enumerate(sentences) if self.too_long(words, self.source_ids(words)) is None]
        if not readable:
            raise DataError("no sentence fits the model's positions")
        found = self.parse([sentences[i] for i in readable], options)
        trees = [self.tree(best[0], sentences[i]) for i, best in zip(readable, found, strict=True)]
        scores: dict[str, Any] = {**bracket_scores([gold[i] for i in readable], trees)}
        scores |= {"signature": BRACKET_SIGNATURE, "search": search_name(options)}
        scores |= {key: int(scores[key]) for key in ("sentences", "skipped")}
        scores["well_formed"] = 100 * len(trees) / len(readable)  # the constraint's promise: `tree` raises otherwise
        if len(readable) < len(gold):
            scores["too_long"] = len(gold) - len(readable)
        known = [(self.source_ids(tree.words), ids) for tree in gold if (ids := self.target_ids(tree)) is not None]
        max_length = longest_of(self.model)
        known = [(source, ids) for source, ids in known if max(len(source), len(ids) + 1) <= max_length]
        if known:
            sources, targets = [list(side) for side in zip(*known, strict=True)]
            scores["loss"] = mean_loss(self.model, batches_of(sources, targets, self.target_tokens))
        return scores

    def symbol_ids(self, text: str) -> list[int]:
        """The ids of a tree, or of its beginning, as `predict` writes it, words as `WORD`; −1: no symbol."""
        symbols = (symbol if symbol[0] in "()" else WORD for symbol in text.split())
        found = [self.target.id_of(symbol) for symbol in symbols]
        return [-1 if index is None else index for index in found]

    def target_ids(self, tree: Tree) -> Ids | None:
        """The skeleton's ids; None where it has a label that the model does not know."""
        ids = [self.target.id_of(symbol) for symbol in skeleton(tree)]
        return None if None in ids else np.array(ids, dtype=np.int32)

    def predict(self, texts: Sequence[str], options: SearchOptions) -> list[Prediction]:
        predictions = [Prediction(text) for text in texts]
        sentences: dict[int, list[str]] = {}
        for index, text in enumerate(texts):
            words = split_words(tidy(text))
            if not words:
                predictions[index].answers = [Answer("", 0.0)]
                continue
            try:
                problem = self.too_long(words, self.source_ids(_escaped(words)))
            except DataError as bad:  # half a character, say
                problem = str(bad)
            if problem is None:
                sentences[index] = words
            predictions[index].problem = problem
        found = self.parse([_escaped(words) for words in sentences.values()], options)
        for (index, words), hypotheses in zip(sentences.items(), found, strict=True):
            for hypothesis in hypotheses:
                text = " ".join(flatten(self.tree(hypothesis, _escaped(words))))
                more = {"words": list(words), "logprob": hypothesis.logprob}
                predictions[index].answers.append(Answer(text, hypothesis.score, more))
        return predictions


def unseen_note(target: AnyTokenizer, trees: Sequence[Tree], where: str) -> str | None:
    """A line about labels that the model does not know; None where there are none."""
    opened = [[symbol for symbol in skeleton(tree) if symbol.startswith("(")] for tree in trees]
    unseen = [[symbol[1:] for symbol in symbols if target.id_of(symbol) is None] for symbols in opened]
    return note_of_unseen(f"{where} has labels", unseen, "trees")


def _escaped(words: Sequence[str]) -> list[str]:
    """Words as in the trees that the model learned from, and as it is to write them."""
    return [escape(word) for word in words]


class ParsingJob(EncoderDecoderJob):
    """Training on trees."""

    task = "parsing"
    Predictor = Parser
    parts: dict[str, list[Tree]]
    use = 'legato predict FOLDER "dogs chase cats"'

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        self.metric = plan.data.metric
        self.parts, self.hashes = self._read()
        self.valid = self.parts["valid"]
        words = [" ".join(tree.words) for tree in self.parts["train"]]
        symbols = [" ".join(skeleton(tree)) for tree in self.parts["train"]]
        self.processors = Processors(
            self._tokenizer(plan.tokenizer, words, "words"),
            self._tokenizer(TokenizerConfig(name="word"), symbols, "symbols"),
        )
        self.target_tokens = TargetTokens.of(self.target)
        self.batches = self._batches(words, symbols)
        labels = sum(self.target.token(i).startswith("(") for i in range(self.target.size))
        say(f"data: {self.counts} trees, {self.tokenizer.size:,} subwords → {labels} labels")
        say(f"the model will see: {words[0]} → {symbols[0]}")
        for split, trees in self.parts.items():
            if note := unseen_note(self.target, trees, f"data.{split}"):
                say(f"note: {note}")

    def _read(self) -> tuple[dict[str, list[Tree]], dict[str, str]]:
        data = self.plan.data
        banks = data.read(lambda source, split, train: read_trees(source, data.files(split)))
        hashes = {split: bank.sha256 for split, bank in banks.items()}

        def hold_out(train: list[Tree]) -> dict[str, list[Tree]]:
            parts = by_order(len(train), data.valid_share, "data.train", "tree")
            hashes["valid"] = f"the last {len(parts['valid'])} trees of data.train"
            return {part: [train[row] for row in rows] for part, rows in parts.items()}

        return completed({split: _cleaned(bank) for split, bank in banks.items()}, hold_out), hashes

    def _tokenizer(self, config: TokenizerConfig, texts: list[str], side: str) -> Tokenizer:
        digest = sha256_of([f"{self.hashes['train']} {len(texts)} {side}"])
        return cached_tokenizer(config, Text("the trees", texts, digest))

    def _batches(self, words: list[str], symbols: list[str]) -> PairBatches:
        encoded, end = self.tokenizer.encode_many(words), self.tokenizer.eos_id
        sources = [np.append(ids, end).astype(np.int32) for ids in encoded]
        targets = list(self.target.encode_many(symbols))
        return self.paired(sources, targets, replace(self.plan.batch_shape(""), name="data.train"))

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        parser = self.predictor(model)
        chosen = sorted(self.valid, key=lambda tree: len(tree.words))
        chosen = [tree for tree in chosen if 5 <= len(tree.words) <= 12]
        chosen = [tree for tree in chosen if not parser.too_long(tree.words, parser.source_ids(tree.words))][:count]
        found = parser.parse([tree.words for tree in chosen], SearchOptions()) if chosen else []
        return [" ".join(flatten(parser.tree(best[0], tree.words))) for tree, best in zip(chosen, found, strict=True)]


class Parsing(Task):
    """The `parsing` task."""

    name = "parsing"
    default_model = "transformer"
    summary = "sentences to constituency trees, every one well-formed"
    Job = ParsingJob
    Data = ParsingData
    needs = " to a file or folder of bracketed trees"
    metrics = METRICS
    Options = BeamOptions

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        require_source(str(given.model["name"]), cls.name)
        sized = given.tokenizer.get("name", "bpe") not in ("byte", "char", "word")
        return Defaults(tokenizer={"size": 4000} if sized else {}, train=encoder_decoder_training(given))

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        bank = read_trees(data.test, data.files("test"))
        parser = Parser(loaded.module, loaded.tokenizer, loaded.target)
        given = data.model_dump(include={"beams", "length_penalty"} & data.model_fields_set)
        gold = _cleaned(bank)
        scores = parser.score(gold, beam_options(loaded.about, **given))
        if note := unseen_note(parser.target, gold, "data.test"):
            warn(note)
        return {"data": _name(bank), "sha256": bank.sha256, **scores}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        parser = Parser(loaded.module, loaded.tokenizer, loaded.target)
        search = beam_options(loaded.about, options.beams, options.length_penalty, options.nbest)
        return parser.predict(inputs, search)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        parser, words = Parser(loaded.module, loaded.tokenizer, loaded.target), split_words(tidy(given))
        ids = parser.source_ids(_escaped(words))
        problem = parser.too_long(words, ids)
        if problem is not None:
            raise DataError(problem)
        symbols = parser.symbol_ids(written or "")
        if -1 in symbols:
            unknown = (written or "").split()[symbols.index(-1)]
            raise DataError(f"'{brief(unknown)}' is no bracket that {loaded.folder} writes; leave it out")
        return ids_reading(loaded, ids.tolist(), symbols)

    @classmethod
    def search_start(cls, loaded: Loaded, given: Any, start: SearchStart) -> SearchStart:
        parser = Parser(loaded.module, loaded.tokenizer, loaded.target)
        words = _escaped(split_words(tidy(given)))
        limit = parser.limit(len(words))
        rules = TreeConstraint(parser.opens, parser.closes, parser.word, parser.target_tokens.eos, limit)

        def written(tokens: Sequence[int]) -> str:
            symbols = [parser.target.token(index) for index in tokens]
            try:
                return " ".join(flatten(fill(symbols, words)))
            except DataError:  # not yet a tree
                left = iter(words)
                return " ".join(next(left, symbol) if symbol == WORD else symbol for symbol in symbols)

        allowed = rules.for_sentence(len(words))
        return replace(
            start, limit=limit, usual=limit, written=written, encoded=parser.symbol_ids, allowed=allowed, text_of=None
        )
