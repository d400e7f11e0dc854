"""Masked language modelling: guess the words that are hidden, from those on both sides.

The text is cut into windows between special tokens, [CLS] … [SEP], or into pairs of sentences of which the model
also says whether the second follows the first (`data.next_sentence`). Any model that reads both ways can learn it:
the BERT family, a bidirectional recurrent network, and the window network with a window around the word.

    legato train mlm data.train=A.txt data.valid=B.txt model=bert model.layers=4 out=runs/m
    legato predict runs/m "He ate the cake <mask> the fork."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from pydantic import Field

from legato.config import Section
from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import Batches, WindowShape, mix_seed
from legato.data.batching.masking import Frame, MaskedWindows, Masker, fixed_batches, masked_tokenizer
from legato.data.batching.sentence_pairs import DocumentSentences, SentencePairs, draw_pairs, pair_batch
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.formats.text import Text
from legato.data.positions import INPUT, Reading, named_tokens
from legato.data.sources.corpora import CORPUS_SOURCES
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import ConfigError, DataError, warn
from legato.evaluation.lm import safe_exp
from legato.evaluation.mlm import METRICS, masked_nll, masked_scores, next_sentence_accuracy, pseudo_nll
from legato.folders.loaded import Loaded
from legato.models.base import ModelConfig, SequenceModel
from legato.registry import MODELS
from legato.tasks import defaults
from legato.tasks.base import Plan, Say, Task, TaskJob, as_trained, penalised
from legato.tasks.defaults import Defaults, Given, TrainDefaults, completed
from legato.tasks.mlm.fill_mask import WRITTEN, MaskFiller
from legato.tasks.predictions import Prediction
from legato.tasks.text_data import TextData, read_split, read_splits
from legato.training.job import Loss

WINDOW = 128  # tokens of a row, unless somebody says otherwise or the model reads fewer
VALID_ROWS = 64  # windows scored side by side
SHARE = 0.15  # of the tokens that is hidden
MANY = 200_000  # tokens whose pseudo-perplexity takes a while: each is a pass of its own


class MaskedData(TextData):
    """Where the text is, and what of it is hidden."""

    window: int = Field(WINDOW, ge=8, description="tokens of a row, its special tokens included")
    mask_share: float = Field(SHARE, gt=0, lt=1, description="share of the tokens that is hidden")
    whole_words: bool = Field(False, description="hide all pieces of a word together")
    next_sentence: bool | None = Field(
        None, description="learn from pairs whether the second sentence follows; left out: where the model can"
    )
    max_sentences: int | None = Field(None, ge=1, description="eval: lines that pseudo-perplexity is measured on")


class MaskedOptions(Section):
    """How to predict."""

    nbest: int = Field(5, ge=1)


def _says_no(section: Mapping[str, Any], key: str) -> bool:
    """Whether a section that is not checked yet has `key` switched off."""
    return str(section.get(key)).lower() in ("false", "no", "off", "0")


def _training(given: Given) -> TrainDefaults:
    """Defaults of `train.*` that Transformers want; one that is trained wants smaller steps."""
    usual = TrainDefaults(batch_tokens=4096)
    if given.recurrent:
        return usual
    rate = 1e-4 if given.trained and given.adapt == "full" else 1e-3
    table = TrainDefaults(lr=rate, schedule="linear", weight_decay=0.01, beta2=0.98)
    return {**usual, **completed(given, table, None, None)}


def require_both_ways(config: ModelConfig) -> None:
    """Refuse a model that cannot see what follows a hidden word."""
    model = MODELS.get(config.name)
    if config.reads_both_ways and not config.predicts_masked:
        raise ConfigError(
            f"this {config.name} has no head that guesses words; train one with model.masked_words=true"
        )
    if config.reads_both_ways:
        return
    if config.both_ways:
        setting = next(iter(config.both_ways))
        raise ConfigError(f"model={config.name} must read both ways for mlm; leave out model.{setting}=false")
    reason = "reads one text and writes another" if model.is_encoder_decoder else "reads from left to right"
    reason = reason if config.predicts_masked else "knows no context"
    raise ConfigError(
        f"model={config.name} {reason}, so it cannot guess hidden words; use model=bert, lstm or window"
    )


def hidden_batches(text: Text, tokenizer: AnyTokenizer, window: int, share: float, name: str) -> list[Batch]:
    """A text with the same tokens hidden each time, whatever the model and however it is trained."""
    masker, ids = Masker.of(tokenizer, share), cached_ids(text, tokenizer)
    batches = fixed_batches(ids, masker, Frame.of(tokenizer), rows=VALID_ROWS, window=window)
    if not any(batch.tokens for batch in batches):
        raise DataError(f"{name} holds no token to hide")
    return batches


def pseudo_scores(
    model: SequenceModel, tokenizer: AnyTokenizer, text: Text, window: int, most: int | None
) -> dict[str, Any]:
    """Pseudo-perplexity over the text's lines, or evenly over `most` of them; lines beyond a window are cut."""
    lines = [line for document in text.documents for line in document.split("\n") if line.strip()]
    count = min(most or len(lines), len(lines))
    chosen = [lines[i * len(lines) // count] for i in range(count)]
    special = list(tokenizer.special_ids)
    texts = []
    for ids in tokenizer.encode_many(chosen):
        ids = ids[~np.isin(ids, special)]
        texts += [ids[i : i + window - 2] for i in range(0, len(ids), window - 2)]
    tokens = sum(map(len, texts))
    if most is None and tokens > MANY:
        warn(
            f"pseudo-perplexity hides each of {tokens:,} tokens in turn, which takes a while; "
            "data.max_sentences=200 measures it on so many lines"
        )
    assert tokenizer.mask_id is not None
    nll, tokens = pseudo_nll(model, texts, Frame.of(tokenizer), tokenizer.mask_id)
    return {"pseudo_perplexity": safe_exp(nll / max(tokens, 1)), "sentences": count, "tokens": tokens}


class MaskedJob(TaskJob):
    """Training on a text."""

    task = "mlm"
    use = 'legato predict FOLDER "He ate the cake <mask> the fork."'
    metric = "loss"

    def __init__(self, plan: Plan, say: Say) -> None:
        data, max_length = plan.data, plan.model.max_length
        require_both_ways(plan.model)
        if max_length is not None and data.window > max_length:
            raise ConfigError(f"data.window={data.window} is longer than model.length={max_length}; change one")
        super().__init__(plan, say)
        self.texts = read_splits(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.processors = plan.processors_for(
            lambda: masked_tokenizer(cached_tokenizer(plan.tokenizer, self.texts["train"]))
        )
        self.masker = Masker.of(self.tokenizer, data.mask_share, data.whole_words)
        self.frame = Frame.of(self.tokenizer)
        self.pairs = self._with_pairs()
        self.rows = max(1, plan.train.batch_tokens // data.window)
        ids = cached_ids(self.texts["train"], self.tokenizer)
        self.batches = self._batches(ids)
        self.valid = self._fixed("valid")
        self.valid_pairs = self._fixed_pairs() if self.pairs else []
        lesson = ", in pairs of sentences" if self.pairs else ""
        valid = sum(batch.read for batch in self.valid)
        say(
            f"data: {len(ids):,} training and {valid:,} validation tokens{lesson}, vocabulary "
            f"{self.tokenizer.size:,} ({self.tokenizer.name})"
        )
        first = self.batches.at(0).inputs.token_ids[0, :24].tolist()
        say(f"the model will see: {' '.join(map(self.tokenizer.token, first))} …")

    def _with_pairs(self) -> bool:
        wanted, able = self.plan.data.next_sentence, self.plan.model.predicts_next_sentence
        if wanted and not able:
            raise ConfigError(
                f"model={self.plan.model.name} has no part that tells whether sentences follow each other; "
                "set data.next_sentence=false, or model=bert"
            )
        return able if wanted is None else bool(wanted)

    def _batches(self, ids: Any) -> Batches:
        plan, source = self.plan, self.texts["train"].source
        if not self.pairs:
            shape = WindowShape(self.rows, plan.data.window, plan.seed, name=f"data.train={source}")
            return MaskedWindows(ids, self.masker, self.frame, shape)
        sentences = self._sentences("train")
        return SentencePairs(sentences, self.masker, self.frame, plan.batch_shape(source), window=plan.data.window)

    def _sentences(self, split: str) -> DocumentSentences:
        return DocumentSentences.of(self.texts[split], self.tokenizer, max((self.plan.data.window - 3) // 2, 1))

    def _fixed(self, split: str) -> list[Batch]:
        text, name = self.texts[split], f"data.{split}={self.texts[split].source}"
        return hidden_batches(text, self.tokenizer, self.plan.data.window, SHARE, name)

    def _fixed_pairs(self) -> list[Batch]:
        sentences, window = self._sentences("valid"), self.plan.data.window
        if len(sentences.borders) < 4:
            return []
        draw = np.random.default_rng(mix_seed("valid pairs"))
        pairs = draw_pairs(sentences, window - 3, draw)
        cut = [pairs[i : i + VALID_ROWS] for i in range(0, len(pairs), VALID_ROWS)]
        return [pair_batch(sentences.ids, part, self.masker, self.frame, draw, all_masked=True) for part in cut]

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        """Cross-entropy of the hidden tokens; and of whether sentences follow, where rows are pairs.

        The two means are added, as BERT's are; sums are what the loop wants, so the second is weighted by the first's
        tokens, which are counted where they lie: a recorded step must not remember another batch's number.
        """
        output = model(batch)
        total, reported = masked_nll(model, output, batch, self.plan.train.label_smoothing)
        assert batch.targets is not None
        tokens = (batch.targets != IGNORE).sum()
        if batch.labels is not None:
            follows = model.next_sentence(output.hidden)  # type: ignore[operator]  # (B, 2)
            total = total + F.cross_entropy(follows.float(), batch.labels) * tokens
        return Loss(penalised(total, output, tokens), reported)

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        if split != "valid":
            return masked_scores(model, self._fixed(split))
        told = {"next_sentence_accuracy": next_sentence_accuracy(model, self.valid_pairs)} if self.valid_pairs else {}
        return {**masked_scores(model, self.valid), **told}

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation lines with a word hidden, and the model's first guesses."""
        told: list[str] = []
        guesser = MaskFiller(model, self.tokenizer)
        lines = [line for document in self.texts["valid"].documents for line in document.split("\n")]
        for line in lines:
            words = line.split()
            if len(told) >= count:
                break
            if not 5 <= len(words) <= 25:
                continue
            plain = [number for number, word in enumerate(words) if word.isalpha()]
            place = plain[mix_seed("sample", line) % len(plain)] if plain else 0
            shown = " ".join([*words[:place], "<mask>", *words[place + 1 :]])
            found = guesser.predict([shown], 3)[0]
            if found.problem is None:
                guesses = ", ".join(f"{answer.text} {answer.score:.2f}" for answer in found.answers)
                told.append(f"{shown}\n→ {guesses}   (hidden: {words[place]})")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"window": self.plan.data.window}


class MaskedLanguageModelling(Task):
    """The `mlm` task."""

    name = "mlm"
    pipeline = "fill-mask"
    default_model = "bert"
    summary = "masked language modelling: guess hidden words from both sides"
    Job = MaskedJob
    Data = MaskedData
    generated = CORPUS_SOURCES
    needs = "=FILE, or data.{split}=builtin:stdlib to try"
    tuples = ("text",)
    metrics = METRICS
    Options = MaskedOptions
    continues = True
    lists_answers = True
    compared: ClassVar[Mapping[str, Any]] = {"data.next_sentence": False}

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        config = given.config
        model, data = dict(config.both_ways), {}
        if "next_sentence" in config.pretraining_heads and _says_no(given.data, "next_sentence"):
            model["next_sentence"] = False  # a head that would learn nothing
        if config.has_length():
            model["length"], data["window"] = given.window(WINDOW)
        return Defaults(data, defaults.masked_tokenizer(given), model, _training(given))

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        text = read_split(data, data.test, "test")
        model, tokenizer = loaded.module, loaded.tokenizer
        window = as_trained(data, "window", loaded.about)
        window = min(window, model.max_length or window)
        scores = masked_scores(model, hidden_batches(text, tokenizer, window, data.mask_share, text.source))
        told = pseudo_scores(model, tokenizer, text, window, data.max_sentences)
        return {"data": text.source, "sha256": text.sha256, **scores, **told}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        if loaded.tokenizer.mask_id is None:
            raise DataError(f"{loaded.folder}: its tokenizer has no mask, so nothing can be hidden")
        return MaskFiller(loaded.module, loaded.tokenizer).predict(inputs, options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading | None:
        """A text in which something is hidden; others are read as any text is."""
        if loaded.tokenizer.mask_id is None or not any(mask in given for mask in WRITTEN):
            return None
        filler = MaskFiller(loaded.module, loaded.tokenizer)
        ids = filler.reader.read(given)
        problem = filler.problem(ids)
        if problem is not None:
            raise DataError(problem)
        inputs = filler.frame.rows([ids])
        return Reading(Batch(inputs), {INPUT: named_tokens(loaded.tokenizer, inputs.token_ids[0].tolist())})

    @classmethod
    def show(cls, prediction: Prediction, *, scores: bool = False, alignments: bool = False) -> list[str]:
        """… behind the number of its mask, where a text has several."""
        lines, masks = super().show(prediction, scores=scores), [answer.more["mask"] for answer in prediction.answers]
        several = len(set(masks)) > 1
        return [f"{mask}\t{line}" if several else line for mask, line in zip(masks, lines, strict=True)]
