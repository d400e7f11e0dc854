"""Chat: tune a model that writes on dialogues, so that it answers.

A dialogue becomes one text by the folder's chat template (or a plain one, which is then saved with the model), and
the loss is on the assistant's answers alone, each up to its EOS token:

    L = - Σ_{t in answers} log P(w_t | w_1 … w_{t-1})

    legato train chat data.train=dialogues.jsonl from=MODEL adapt=lora out=runs/a
    legato generate runs/a --chat "Who are you?"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from legato.config import Section, validate
from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.examples import Example, ExampleBatches, scoring_batches
from legato.data.cache import cached_tokenizer
from legato.data.formats.dialogues import Dialogues, hold_out_dialogues, read_dialogues
from legato.data.formats.text import Text
from legato.data.sources.patterns import Source, source_name
from legato.data.splits import Encoding, SplitData, ValidShare, completed
from legato.data.text.published_tokenizers import read_roles
from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder, Tokenizer
from legato.decoding import SearchOptions, search
from legato.decoding.options import MAX_BEAMS, MAX_NBEST, MAX_TOKENS
from legato.errors import ConfigError, DataError, LegatoError, warn
from legato.evaluation.lm import safe_exp
from legato.evaluation.metrics import metrics
from legato.folders.chat_template import ChatTemplate, plain_chat
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, Task, TaskJob
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.lm.job import next_token_loss
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Loss

LONGEST = 1024  # tokens of a dialogue, unless somebody says otherwise
BLOCK = 1024  # dialogues encoded side by side
# Few shapes on a GPU, so that steps are recorded: widths, and quarters of those for how many tokens are answers.
PAD_TO = 32
QUARTERS = 4


class ChatData(SplitData):
    """Where the dialogues are."""

    train: Source | None = Field(None, description="a csv, tsv, jsonl or parquet file, or a hub name")
    valid: Source | None = Field(None, description="left out: the last share of the training dialogues")
    columns: tuple[str | int, ...] | None = Field(
        None, description="that hold messages, or question and answer; left out: guessed by their names"
    )
    system: str | None = Field(None, description="what a dialogue begins with that has no system message")
    format: str = Field("auto", description="csv, tsv, jsonl or parquet, where the file's ending does not say it")
    encoding: Encoding = "utf-8"
    valid_share: ValidShare = 0.05
    window: int | None = Field(
        None, ge=2, description=f"tokens of a dialogue, more are cut; left out: the model's, at most {LONGEST}"
    )


class ChatOptions(Section):
    """How to answer."""

    beams: int = Field(1, ge=1, le=MAX_BEAMS)
    nbest: int = Field(1, ge=1, le=MAX_NBEST)
    length_penalty: float = Field(1.0, ge=0, le=10)
    max_tokens: int = Field(200, ge=1, le=MAX_TOKENS)


def _read(data: Any, source: Source, split: str) -> Dialogues:
    return read_dialogues(source, data.files(split), columns=data.columns, system=data.system)


def _longest(model: int | None, asked: int | None) -> int:
    if asked is not None and model is not None and asked > model:
        raise ConfigError(f"data.window={asked} is more than the {model} tokens that the model reads; lower it")
    return asked or min(model or LONGEST, LONGEST)


def template_of(tokenizer: AnyTokenizer, loaded: Loaded | None) -> ChatTemplate:
    """The model's own template, or the plain one, which the tokenizer then keeps."""
    if not isinstance(tokenizer, Tokenizer):
        raise DataError("this model's tokenizer has no special tokens for dialogues")
    if loaded is not None and loaded.chat is not None:
        return loaded.chat
    roles = None
    if loaded is not None and tokenizer.follows_own_template:
        roles = {f"{role}_token": token for role, token in read_roles(loaded.folder).items()}
        roles.setdefault("eos_token", tokenizer.token_name(tokenizer.eos_id))
    chat = plain_chat(tokenizer, roles)
    tokenizer.template = chat.source
    return chat


def rows_of(
    dialogues: Dialogues, tokenizer: AnyTokenizer, chat: ChatTemplate, max_length: int, say: Say
) -> list[Example]:
    """Dialogues as rows to learn from: `positions` are those whose next token, the target, belongs to an answer.

    Where dialogues have pictures, a row's `picture` is that of its dialogue.
    """
    assert isinstance(tokenizer, Tokenizer)
    texts, spans, owners = [], [], []
    for number, messages in enumerate(dialogues.rows):
        try:
            for text, answers in chat.answered(messages):
                texts.append(text)
                spans.append(answers)
                owners.append(number)
        except LegatoError as problem:
            raise DataError(f"{dialogues.where(number)}: {problem}") from None
    rows, cut, lost = [], 0, 0
    for (ids, offsets), answers, owner in zip(_encoded(texts, tokenizer), spans, owners, strict=True):
        counted = _counted(ids, offsets, answers, tokenizer)
        if len(ids) > max_length + 1:  # the last one is only guessed
            cut, ids, counted = cut + 1, ids[: max_length + 1], [place for place in counted if place <= max_length]
        if not counted:
            lost += 1
            continue
        positions, targets = [place - 1 for place in counted], [ids[place] for place in counted]
        rows.append(Example(ids[:-1], positions=positions, targets=targets, picture=owner))
    if cut:
        no_answer = f"; {lost:,} have no answer within them and are left out" if lost else ""
        say(f"{dialogues.source}: {cut:,} of {len(texts):,} dialogues are cut to {max_length:,} tokens{no_answer}")
    if not rows:
        raise DataError(f"{dialogues.source} has no answer within {max_length:,} tokens; raise data.window")
    return rows


def pad_answers(rows: Sequence[Example], pad_to: int) -> list[Example]:
    """The rows with room for more answers: as many places as a quarter of the padded row has, or two, three or four.

    So batches of one width come in few shapes. Nothing is learned at a place that is added.
    """
    found = []
    for row in rows:
        positions, targets = row.positions or [], row.targets or []
        quarter = -(-len(row.ids) // pad_to) * pad_to // QUARTERS
        more = -(-len(positions) // quarter) * quarter - len(positions)
        found.append(replace(row, positions=positions + [0] * more, targets=targets + [IGNORE] * more))
    return found


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The ids of each text, and where in it each token stands."""
    for start in range(0, len(texts), BLOCK):  # what the library keeps of a token is large
        for encoding in tokenizer.full_library.encode_batch(texts[start : start + BLOCK], add_special_tokens=False):
            yield list(encoding.ids), encoding.offsets


def _counted(
    ids: list[int], offsets: Sequence[tuple[int, int]], answers: list[tuple[int, int]], tokenizer: AnyTokenizer
) -> list[int]:
    """The places of the tokens that answers consist of: those that begin in one, up to its last special token."""
    counted: list[int] = []
    place = 1  # nothing is guessed before the first token
    for start, stop in answers:
        while place < len(ids) and offsets[place][0] < start:
            place += 1
        first = place
        while place < len(ids) and offsets[place][0] < stop:
            place += 1
        inside = list(range(first, place))
        last = next((at for at in reversed(inside) if ids[at] in tokenizer.special_ids), None)
        if last is not None and not tokenizer.decode(ids[last + 1 : place]).strip():
            inside = list(range(first, last + 1))  # what a template writes behind the token nobody reads
        counted += inside
    return counted


def answer_scores(model: SequenceModel, rows: Sequence[Example], padding: int) -> dict[str, float]:
    """The mean loss of an answer's token, and its perplexity."""
    total, tokens = 0.0, 0
    for _, batch in scoring_batches(rows, pad=padding):
        total += float(next_token_loss(model, batch.to(model.device)).reported)
        tokens += batch.tokens
    loss = total / max(tokens, 1)
    return {"loss": loss, "perplexity": safe_exp(loss), "tokens": tokens}


def _written(model: SequenceModel, prompts: list[list[int]], options: SearchOptions, ends: Iterable[int]) -> Any:
    limits = None
    if model.max_length is not None:
        limits = [min(options.max_tokens, model.max_length - len(ids) + 1) for ids in prompts]
    return search(model, prompts, options, eos=None, stop_tokens=tuple(ends), limits=limits) if prompts else []


def _text(tokenizer: AnyTokenizer, prompt: list[int], written: Sequence[int]) -> str:
    decoder = StreamDecoder(tokenizer, after=prompt)
    return ("".join(decoder.push(token) for token in written) + decoder.finish()).strip()


class ChatJob(TaskJob):
    """Training on dialogues."""

    task = "chat"
    use = 'legato generate FOLDER --chat "Who are you?"'
    metric = "loss"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        model = MODELS.get(plan.model.name)
        writes = model.step is not SequenceModel.step and not plan.model.reads_both_ways
        if model.is_encoder_decoder or not writes:
            raise ConfigError(
                f"model={plan.model.name} does not continue texts, so it cannot learn to answer; "
                "use one that writes, such as model=gpt2, or from=MODEL"
            )
        found = data.read(lambda source, split, train: _read(data, source, split))
        say(f"reading {' and '.join(repr(name) for name in found['train'].columns)} as the dialogue")
        self.dialogues = completed(found, lambda train: hold_out_dialogues(train, data.valid_share))
        train = self.dialogues["train"]
        self.hashes = {split: dialogues.sha256 for split, dialogues in self.dialogues.items()}
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, all_text(train)))
        self.chat = template_of(self.tokenizer, plan.loaded)
        self.max_length = _longest(plan.model.max_length, data.window)
        self.rows = {
            s: rows_of(d, self.tokenizer, self.chat, self.max_length, say) for s, d in self.dialogues.items()
        }
        self.padding = self.tokenizer.pad_id or 0
        self.ends = self._ends(say)
        on_gpu = plan.device.type == "cuda"
        rows = pad_answers(self.rows["train"], PAD_TO) if on_gpu else self.rows["train"]
        self.batches = ExampleBatches(rows, plan.batch_shape(source_name(data.train), PAD_TO), pad=self.padding)
        learned = sum(len(row.targets or ()) for row in self.rows["train"])
        read = sum(len(row.ids) for row in self.rows["train"])
        say(
            f"data: {len(self.rows['train']):,} training and {len(self.rows['valid']):,} validation dialogues; "
            f"{learned:,} of {read:,} tokens are answers"
        )
        say(f"the model will see: {self._seen(self.rows['train'][0])}")

    def _ends(self, say: Say) -> tuple[int, ...]:
        """The tokens that end an answer: the folder's, and the token that the template writes there."""
        before = set() if self.plan.loaded is None else set(self.plan.loaded.ends)
        written = {row.targets[-1] for row in self.rows["train"] if row.targets} & self.tokenizer.special_ids
        if written:
            return tuple(sorted(before | written))
        say("note: the chat template writes no special token behind an answer, so the model may not learn to stop")
        return tuple(sorted(before))

    def _seen(self, row: Example) -> str:
        """A row's first tokens, those that are learned between brackets."""
        assert row.positions is not None
        assert row.targets is not None
        learned = {place + 1 for place in row.positions}
        ids = [*row.ids, row.targets[-1]] if row.positions[-1] == len(row.ids) - 1 else row.ids
        tokens = [self.tokenizer.token(index) for index in ids]
        names = [f"[{token}]" if place in learned else token for place, token in enumerate(tokens)]
        return " ".join(name.replace("\n", "⏎") for name in names[:48]) + (" …" if len(names) > 48 else "")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, None, self.plan.train.label_smoothing)

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        return answer_scores(model, self.rows[split], self.padding)

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """What the model answers to validation questions, and what it should have."""
        told: list[str] = []
        for messages in self.dialogues["valid"].rows:
            first = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
            if len(told) >= count:
                break
            assert isinstance(self.tokenizer, Tokenizer)
            ids = self.tokenizer.encode_template(self.chat.render(messages[:first]))
            if first == 0 or (model.max_length is not None and len(ids) > model.max_length):
                continue
            found = _written(model, [ids], SearchOptions(max_tokens=60), self.ends)
            wanted = messages[first]["content"]
            shown = f"{wanted[:200]}…" if len(wanted) > 200 else wanted
            written = _text(self.tokenizer, ids, found[0][0].tokens)
            told.append(f"{messages[first - 1]['content'][:200]}\n→ {written}   (wanted: {shown})")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"ends": list(self.ends), "window": self.max_length}


def all_text(dialogues: Dialogues) -> Text:
    """All that is said, for a tokenizer to learn from; the plain template's words stand in it, too."""
    said = ["\n".join(f"User:\n{m['content']}\nAssistant:\n" for m in row) for row in dialogues.rows]
    return Text(dialogues.source, said, dialogues.sha256)


class Chat(Task):
    """The `chat` task."""

    name = "chat"
    pipeline = "text-generation"
    default_model = "gpt2"
    summary = "instruction tuning: learn to answer from dialogues"
    Job = ChatJob
    Data = ChatData
    needs = "=FILE, a jsonl of dialogues"
    tuples = ("messages", "question answer")
    metrics = (
        *metrics("loss", "perplexity", better="down", headline=True),
        *metrics("tokens"),
    )
    Options = ChatOptions
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        window = given.data.get("window")
        rate = 1e-3 if given.adapt != "full" or not given.trained else 1e-4
        usual = TrainDefaults(lr=rate, schedule="linear", warmup=None, weight_decay=0.01) if given.adamw else {}
        usual["epochs"] = None if "steps" in given.train else 3 if given.trained else 10
        limited = window is not None and given.config.has_length()
        return Defaults(model={"length": window} if limited else {}, train=usual)  # as many positions as are trained

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        dialogues = _read(data, data.test, "test")
        chat = template_of(loaded.tokenizer, loaded)
        asked = loaded.about.get("window") if data.window is None else data.window  # as it was trained
        max_length = _longest(loaded.module.max_length, asked)
        rows = rows_of(dialogues, loaded.tokenizer, chat, max_length, lambda note: warn(note))
        scores = answer_scores(loaded.module, rows, loaded.tokenizer.pad_id or 0)
        return {"data": dialogues.source, "sha256": dialogues.sha256, **scores}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        """What the model answers to each question."""
        tokenizer, max_length = loaded.tokenizer, loaded.module.max_length
        chat = template_of(tokenizer, loaded)
        assert isinstance(tokenizer, Tokenizer)
        prompts = [tokenizer.encode_template(chat.render([{"role": "user", "content": text}])) for text in inputs]
        found = [Prediction(text) for text in inputs]
        for prediction, ids in zip(found, prompts, strict=True):
            if max_length is not None and len(ids) > max_length:
                prediction.problem = f"it has {len(ids):,} tokens, but the model reads {max_length:,} at most"
        alone = options.beams == options.nbest == 1
        kind = {"search": "greedy"} if alone else {"search": "beam", "beams": options.beams}
        how = validate(SearchOptions, {**options.model_dump(exclude={"beams"}), **kind})
        fits = [number for number, prediction in enumerate(found) if prediction.problem is None]
        written = _written(loaded.module, [prompts[number] for number in fits], how, loaded.ends)
        for number, best in zip(fits, written, strict=True):
            found[number].answers = [Answer(_text(tokenizer, prompts[number], h.tokens), h.score) for h in best]
        return found
