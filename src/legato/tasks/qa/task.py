"""Question answering by spans: which part of a text answers a question, if any does.

    p(start = i) = softmax(s)_i,   p(end = j) = softmax(e)_j,   (s_t, e_t) = W h_t + b
    loss = -½ (log p(start) + log p(end))

Long texts are read in windows that overlap (batching/qa_windows.py); a window without the answer points at the token
that stands for none. Scores are SQuAD's (evaluation/qa.py). Where some questions have no answer, the threshold above
which none is given is chosen on the validation questions.

    legato train qa data.train=train.json data.valid=dev.json from=MODEL out=runs/q
    legato predict runs/q --context article.txt "Who wrote it?"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import Field

from legato.config import Section, validate
from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import mix_seed
from legato.data.batching.examples import ExampleBatches
from legato.data.batching.qa_windows import QuestionReader, Window
from legato.data.cache import cached_tokenizer
from legato.data.formats.question_splits import split_questions, told_shared
from legato.data.formats.questions import AnswerSpan, Question, QuestionFiles, Questions, read_questions
from legato.data.formats.strays import few
from legato.data.formats.text import Text
from legato.data.positions import Reading, row_reading
from legato.data.sources.files import SPLITS
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.data.splits import Encoding, SplitData, ValidShare
from legato.errors import ConfigError, DataError, FolderError, brief, warn
from legato.evaluation.qa import METRICS, SPAN_SIGNATURE
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.tasks.base import Plan, Say, Task, TaskJob, as_trained, penalised
from legato.tasks.defaults import Defaults, Given, Tuning, row_training, scratch_model, scratch_tokenizer
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.qa.answerer import (
    SHOWN,
    Answerer,
    ScoredSpans,
    answer_scores,
    choose_threshold,
    details_of,
    parts_of,
    span_losses,
)
from legato.tasks.table_inputs import TableInputs, read_inputs
from legato.training.job import Loss

KEPT = ("columns", "article", "no_answer", "window", "stride", "longest_answer")  # that a model folder remembers


class QuestionData(SplitData):
    """Where the questions are, and how texts are read."""

    train: Source | None = Field(None, description="SQuAD's JSON, a csv, tsv, jsonl or parquet file, or a hub name")
    valid: Source | None = Field(None, description="left out: a share of the training questions")
    columns: list[str | int] | None = Field(
        None,
        description="[question,context,answer,place] of a table, the place optional; left out: guessed, and said",
    )
    article: str | int | None = Field(None, description="column that says what texts belong together")
    format: Literal["auto", "squad", "tsv", "csv", "jsonl", "parquet"] = Field("auto", description="of the files")
    encoding: Encoding = "utf-8"
    no_answer: str = Field("ANSWERNOTFOUND", description="the answer that means none; so does an empty one")
    skip_bad: bool = Field(False, description="leave out questions whose answer is not where it should be")
    answers: Literal["common", "all"] = Field(
        "common", description="of several answers to a question, learn the one that most gave, or all"
    )
    split_by: Literal["auto", "article", "context"] = Field(
        "auto", description="what is never on both sides when a share is held out; auto: article where there are many"
    )
    valid_share: ValidShare = 0.1
    test_share: float = Field(0.0, ge=0, lt=1, description="share held out for the test when data.test is left out")
    part: Literal["all", "train", "valid", "test"] = Field(
        "all", description="eval: the part of the file that to score, split as in training"
    )
    window: int = Field(384, ge=16, description="tokens of a row, question and special tokens included")
    stride: int = Field(128, ge=0, description="tokens of context that neighbouring windows share")
    longest_answer: int = Field(30, ge=1, description="tokens")
    threshold: float | None = Field(
        None, description="how far no answer must be ahead to be given; left out: chosen on data.valid"
    )
    metric: Literal["f1", "exact_match", "loss"] = Field("f1", description="what decides which model is best")


class QuestionOptions(Section):
    """How to predict."""

    nbest: int = Field(1, ge=1)
    context: str | None = None  # what all questions are asked of; without it each brings its own behind a tab


# --- reading ---------------------------------------------------------------------------------------


def read_split(data: Any, source: Source, split: str, about: dict[str, Any] | None = None) -> Questions:
    """The questions that `source` names, read as `data` says, or else as in training."""
    kept = {name: as_trained(data, name, about or {}) for name in ("columns", "article", "no_answer")}
    return read_questions(source, QuestionFiles(**asdict(data.files(split)), skip_bad=data.skip_bad, **kept))


def _part_of(test: Questions, data: Any, about: dict[str, Any]) -> Questions:
    """The part of a file that `data.part` names, as it was in training."""
    if data.part == "all":
        return test
    split = about.get("split")
    if split is None:
        raise ConfigError(f"data.part={data.part}: this model's training file was not split; leave it out")
    parts, told = split_questions(test, split["by"], split["valid_share"], split["test_share"])
    if data.part not in parts:
        raise ConfigError(f"data.part={data.part}: there is none, {told}")
    return replace(parts[data.part], notes=[*test.notes, told])


def _windows(
    reader: QuestionReader, asked: Questions, chosen: Sequence[tuple[Question, AnswerSpan | None]]
) -> list[Window]:
    """The windows of questions, each with the answer that is chosen as what to say."""
    pairs = [(question.question, question.context) for question, _ in chosen]
    names = [f"{asked.source}, question {question.id}" for question, _ in chosen]
    return reader.windows(pairs, [answer for _, answer in chosen], names)


def _asked(reader: QuestionReader, asked: Questions) -> tuple[list[str], list[Window]]:
    """The contexts and the windows of questions, with the common answer as what to say."""
    chosen = [(question, question.common) for question in asked.questions]
    return [question.context for question, _ in chosen], _windows(reader, asked, chosen)


def _answerer_of(loaded: Loaded, data: Any) -> Answerer:
    """A loaded model, asked as it was trained unless `data` says otherwise."""
    shape = loaded.module.shape
    if shape is None or shape.kind != "spans":
        raise FolderError(f"{loaded.folder} holds no model for qa: it has no head for spans; train one first")
    names = ("window", "stride", "longest_answer")
    window, stride, max_length = (as_trained(data, name, loaded.about) for name in names)
    reader = loaded.module.config.text_reader(loaded.tokenizer)
    return Answerer(loaded.module, QuestionReader(reader, window, stride), max_length)


# --- training --------------------------------------------------------------------------------------


class QuestionJob(TaskJob):
    """Training on questions."""

    task = "qa"
    use = 'legato predict FOLDER --context article.txt "Who wrote it?"'
    likelihood = False  # the loss is none of tokens

    def __init__(self, plan: Plan, say: Say) -> None:
        data = plan.data
        max_length, usual = plan.model.max_length, QuestionData.model_fields["window"].default
        if max_length is not None and data.window > max_length and data.window != usual:
            raise ConfigError(f"data.window={data.window} is longer than the model's {max_length} tokens; lower it")
        if plan.train.label_smoothing:
            raise ConfigError("train.label_smoothing is not for qa: padding is no place for an answer; leave it out")
        if plan.head.crf:
            raise ConfigError("head.crf=true is for tagging; leave it out")
        super().__init__(plan, say)
        self.split: dict[str, Any] | None = None
        self.questions = self._read(say)
        self.hashes = {split: held.sha256 for split, held in self.questions.items()}
        self.metric = data.metric
        train = self.questions["train"]
        if train.unanswerable == len(train.questions):
            raise DataError(f"data.train={train.source} holds no answers; is that the right column? see data.columns")
        self.silent = any(held.unanswerable for held in self.questions.values())  # whether no answer is an answer
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, _texts_of(train)), pairs=True)
        self.head = validate(HeadSpec, {**plan.head.model_dump(), "kind": "spans", "outputs": 2}, "head")
        self.reader = QuestionReader(plan.model.text_reader(self.tokenizer), data.window, data.stride)
        self.asked = {split: _asked(self.reader, held) for split, held in self.questions.items() if split != "train"}
        every = data.answers == "all"
        chosen = [(q, one) for q in train.questions for one in (dict.fromkeys(q.found) if every else [q.common])]
        self.windows = _windows(self.reader, train, chosen)
        rows = [window.row for window in self.windows]
        self.batches = ExampleBatches(rows, plan.batch_shape(train.source, 32), pad=self.reader.padding)
        self._tell(say)

    def _read(self, say: Say) -> dict[str, Questions]:
        data = self.plan.data

        def read(source: Source, split: str, train: Questions | None) -> Questions:
            questions = read_split(data, source, split)
            for note in questions.notes:
                say(note)
            return questions

        found = data.read(read)
        shares = {"valid_share": 0.0 if "valid" in found else data.valid_share}
        shares["test_share"] = 0.0 if "test" in found else data.test_share
        if any(shares.values()):
            parts, told = split_questions(found["train"], data.split_by, **shares)
            self.split = {"by": data.split_by, **shares}
            say(told)
            found |= parts
        for note in told_shared(found["train"], {split: found[split] for split in found if split != "train"}):
            say(note)
        return {split: found[split] for split in SPLITS if split in found}

    def _tell(self, say: Say) -> None:
        counts = ", ".join(
            f"{len(held.questions):,} {split}"
            + (f" ({held.unanswerable:,} unanswerable)" if held.unanswerable else "")
            for split, held in self.questions.items()
        )
        rows = [window.row for window in self.windows]
        say(
            f"data: {counts} questions; {len(rows):,} training windows of at most {self.reader.max_length} tokens, "
            f"vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})"
        )
        train = self.questions["train"]
        silent, others = train.unanswerable, len(train.questions) - train.unanswerable
        if silent and few(silent, others):
            where = next(question.id for question in train.questions if not question.answerable)
            have = "has" if silent == 1 else "have"
            say(
                f"note: {silent:,} of {len(train.questions):,} training questions {have} no answer ({train.source}, "
                f"question {where}), so the model learns to give none; where that is a slip, fill it in, or remove "
                "the question"
            )
        lengths = [last - first + 1 for first, last in (row.span for row in rows if row.span is not None)]
        max_length, most = max(lengths), self.plan.data.longest_answer
        if max_length > most:
            share = sum(length > most for length in lengths) / len(lengths)
            say(
                f"note: {share:.1%} of the answers learned are longer than data.longest_answer={most} tokens, "
                f"{max_length} at most; they cannot be found whole"
            )
        first = rows[0].ids
        shown = " ".join(self.tokenizer.token(int(token)) for token in first[:24])
        question = self.questions["train"].questions[0]
        say(f"the model will see: {shown}{' …' * (len(first) > 24)} → {question.rights[0] or '(no answer)'}")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        output = model(batch)
        assert output.logits is not None
        total = reported = span_losses(output.logits, batch).sum()
        assert batch.spans is not None
        return Loss(penalised(total, output, (batch.spans[:, 0] != IGNORE).sum()), reported)

    def _ask(self, model: SequenceModel, split: str) -> list[ScoredSpans]:
        return Answerer(model, self.reader, self.plan.data.longest_answer).ask(*self.asked[split])

    def _threshold(self, found: Sequence[ScoredSpans]) -> float | None:
        """What is given; else what is best on the validation questions, where some have no answer."""
        if self.plan.data.threshold is not None or not self.silent:
            return self.plan.data.threshold
        valid = self.questions["valid"]
        return choose_threshold(valid.questions, found) if valid.unanswerable else 0.0

    def validate(self, model: SequenceModel) -> dict[str, float]:
        found = self._ask(model, "valid")
        return answer_scores(self.questions["valid"], found, self._threshold(found))

    def final(self, model: SequenceModel) -> dict[str, Any]:
        scores: dict[str, Any] = {f"valid.{name}": value for name, value in self.validate(model).items()}
        if "test" in self.questions:
            threshold = scores.get("valid.threshold")
            found = answer_scores(self.questions["test"], self._ask(model, "test"), threshold)
            found.pop("threshold", None)
            scores |= {f"test.{name}": value for name, value in found.items()}
        return {**scores, "signature": SPAN_SIGNATURE}

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation questions, what the model answers, and what is right."""
        questions = self.questions["valid"].questions
        chosen = sorted(range(len(questions)), key=lambda number: mix_seed("sample", questions[number].id))[:count]
        told = []
        for number in chosen:
            question = questions[number]
            windows = self.reader.windows([(question.question, question.context)])
            said = Answerer(model, self.reader, self.plan.data.longest_answer).ask([question.context], windows)[0]
            best, share = said.ranked(0.0 if self.silent else None)[0]
            rights = brief(" ‖ ".join(right or "(no answer)" for right in question.rights), SHOWN)
            told.append(f"{question.question}\n→ {best.text or '(no answer)'} {share:.2f}   (right: {rights})")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        kept = self.plan.data.model_dump(include=set(KEPT)) | {"window": self.reader.max_length}
        return {**kept, "threshold": metrics.get("threshold"), "split": self.split}


def _texts_of(train: Questions) -> Text:
    """All that a vocabulary is made of: each context once, and the questions."""
    contexts = dict.fromkeys(question.context for question in train.questions)
    return Text(train.source, [*contexts, *(question.question for question in train.questions)], train.sha256)


class QuestionAnswering(Task):
    """The `qa` task."""

    name = "qa"
    pipeline = "question-answering"
    summary = "questions to the spans of a text that answer them, or none"
    Job = QuestionJob
    Data = QuestionData
    needs = "=FILE, SQuAD's JSON or a table of questions"
    tuples = ("question context answer", "question context answer answer_start")
    metrics = METRICS
    Options = QuestionOptions
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        window = given.data.get("window") or QuestionData.model_fields["window"].default
        return Defaults(
            model=scratch_model(given, window),  # as many positions as are trained
            tokenizer=scratch_tokenizer(given),
            train=row_training(given, recurrent=2e-3, tuning=Tuning(full=1e-4), beta2=0.999),
        )

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        test = _part_of(read_split(data, data.test, "test", loaded.about), data, loaded.about)
        for note in test.notes:
            warn(note)
        answerer = _answerer_of(loaded, data)
        threshold = data.threshold if data.threshold is not None else loaded.about.get("threshold")
        if threshold is None and test.unanswerable:
            warn(
                f"{test.unanswerable:,} of {len(test.questions):,} questions have no answer, and this model always "
                "gives one: it has no threshold; data.threshold=0 scores it as if it could say nothing"
            )
        found = answerer.ask(*_asked(answerer.reader, test))
        scores = {**answer_scores(test, found, threshold), "signature": SPAN_SIGNATURE}
        told = {"data": test.source, "sha256": test.sha256, "questions": len(test.questions)}
        return {**told, **scores, "details": details_of(test.questions, found, threshold)}

    @classmethod
    def read_inputs(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        texts = 1 if alone else 2  # a question that brings its context
        if columns is not None or not source.lower().removesuffix(".gz").endswith(".json"):
            return read_inputs(source, (about.get("columns") or [])[:texts], columns, texts)
        asked = read_split(QuestionData(), source, "test", dict(about)).questions
        return TableInputs(["\t".join((one.question, one.context)[:texts]) for one in asked])

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        answerer = _answerer_of(loaded, QuestionData())
        return answerer.predict(inputs, options.context, loaded.about.get("threshold"), options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        reader = _answerer_of(loaded, QuestionData()).reader
        windows = reader.windows([parts_of(given)])
        if len(windows) > 1:
            raise DataError(f"the text is read in {len(windows)} windows, and one is looked at; shorten it")
        return row_reading(windows[0].row, loaded.tokenizer, reader.padding)

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        """The answer, behind its probability where scores are asked for."""
        return super().columns(Answer(answer.text, answer.score), scores, alignments)
