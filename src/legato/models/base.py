"""What every model has: a config section, sizes, a readout, and a way to be counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.config import Section
from legato.data.batching.batch import Batch, Inputs
from legato.data.positions import INPUT, SOURCE, TARGET, Positions
from legato.data.processors import TEXT
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.data.text.text_reader import TextReader
from legato.errors import LegatoError
from legato.nn.losses.vocabulary import better_in_chunks, chunked_nll, smoothed_nll
from legato.nn.quantized.narrowing import narrow_parameters
from legato.nn.readout import padding_parameters, plain_product
from legato.nn.slots.slots import Slots
from legato.nn.state import Output

DEEPEST: Final = 1000  # layers of a stack; the deepest that were published have as many


class ModelConfig(Section):
    """The settings of a model. Subclasses add theirs; `width` is the hidden size everywhere."""

    most: ClassVar[int] = 1 << 17  # of any size: widths, heads, filters
    most_of: ClassVar[Mapping[str, int]] = {
        "layers": 1 << 10,
        "highways": 1 << 10,
        "length": 1 << 24,
        "window": 1 << 24,
        "memory": 1 << 24,
    }

    # What others must know of such models, so that nobody keeps a list of their names. By `network` tasks choose what
    # they know better than the general defaults.
    network: ClassVar[Literal["attention", "recurrent", "window", "characters", "table", "convolutional"]] = (
        "attention"
    )
    both_ways: ClassVar[Mapping[str, Any]] = {}  # the settings with which it reads both ways, where it has a choice
    pretraining_heads: ClassVar[tuple[str, ...]] = ()  # settings that say which heads of pre-training there are
    uses_cls: ClassVar[bool] = False  # whether it reads a text between [CLS] and [SEP]
    masked_tokenizer: ClassVar[Mapping[str, Any]] = {
        "name": "wordpiece",
        "masked": True,
    }  # to guess hidden words with
    free: ClassVar[tuple[str, ...]] = ()  # settings that no weight depends on: others may be chosen with from=MODEL

    name: str

    @classmethod
    def has_length(cls) -> bool:
        """Whether such models read at most `length` tokens: Transformers, which carry no state."""
        return "length" in cls.model_fields

    @property
    def max_length(self) -> int | None:
        """The most tokens that a sequence may have, its `length`; None where any length will do."""
        return self.model_dump(include={"length"}).get("length")

    @property
    def reads_both_ways(self) -> bool:
        """Whether what stands behind a token is read, too."""
        return False

    @property
    def predicts_masked(self) -> bool:
        """Whether there is a readout that says which word was masked, of a model that reads both ways."""
        return True

    @property
    def predicts_next_sentence(self) -> bool:
        return False

    def text_reader(self, tokenizer: AnyTokenizer, max_length: int | None = None) -> TextReader:
        """What reads texts for such a model. `max_length` may be less than it could read."""
        limits = [limit for limit in (self.max_length, max_length) if limit is not None]
        return TextReader(
            tokenizer, min(limits, default=None), self.uses_segments, self.reads_characters, self.uses_cls
        )

    @property
    def uses_segments(self) -> bool:
        """Whether it tells a first text from a second."""
        return False

    @property
    def reads_characters(self) -> bool:
        """Whether it needs the bytes of each word, `inputs.characters`."""
        return False

    @property
    def width_multiple(self) -> int:
        """What its width has to be a multiple of."""
        return 1


class BlocksConfig(ModelConfig):
    """Settings that models of Transformer blocks begin with."""

    layers: int = Field(4, ge=1, le=DEEPEST, description="blocks")
    width: int = Field(256, ge=1, description="hidden size")
    heads: int = Field(4, ge=1, description="attention heads; they divide the width")
    feedforward: int | None = Field(None, ge=1, description="units of the feed-forward layers; left out: 4 × width")

    @property
    def width_multiple(self) -> int:
        return self.heads

    @property
    def inner(self) -> int:
        """Units of the feed-forward layers. SwiGLU has three matrices for two, so it gets two thirds of the units."""
        return self.feedforward or (-(-8 * self.width // 24) * 8 if self.is_gated else 4 * self.width)

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layers are SwiGLU's."""
        return False

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        return self


class CellsConfig(ModelConfig):
    """Settings that models of recurrent cells begin with."""

    network: ClassVar[Any] = "recurrent"

    layers: int = Field(2, ge=1, le=DEEPEST, description="stacked layers")
    width: int = Field(256, ge=1, description="hidden size")
    embedding: int | None = Field(None, ge=1, description="embedding size; the width when left out")
    forget_bias: float = Field(1.0, description="added to the LSTM's forget gate at the start")

    @property
    def inputs(self) -> int:
        return self.embedding or self.width


@dataclass(frozen=True)
class Sizes:
    """What the data fixes of a model: how many different tokens there are, and which of them ends a text."""

    vocabulary: int  # those that are written
    source: int | None = None  # those that an encoder reads, where they are numbered apart; None: the same
    eos: int | None = None  # the EOS token, for a model that is made anew and looks for it


class SequenceModel(nn.Module):
    """The base of every architecture in `models/`.

    A subclass names its config class, builds itself from `(config, sizes)`, and has `output` and `forward`, or
    `read` where it carries no state to the next segment. One that generates also has `start`, `prefill` and `step`,
    and `encode` where it reads a source first (see `nn/state.py`).
    """

    Config: ClassVar[type[ModelConfig]]
    summary: ClassVar[str]  # one line for `legato models`
    is_encoder_decoder: ClassVar[bool] = False  # whether there is an encoder, which needs `batch.source`
    processors: ClassVar[tuple[str, ...]] = (TEXT,)  # the kinds of processors that it reads with (data/processors.py)
    part_names: ClassVar[tuple[str, ...]] = ()  # settings that name a model inside it, which may be a trained one
    one_state: ClassVar[bool] = False  # whether it leaves one state of all that it reads, and not one for each token
    makes_vectors: ClassVar[bool] = False  # whether it makes a vector of a text or a picture itself: `text_vectors`
    detects: bool = False  # whether what it says are boxes, each with its classes
    two_ways: ClassVar[bool] = False  # whether it is two language models, a forward and a backward one
    usual_task: ClassVar[str | None] = None  # what it is for where its folder does not say; None: it reads words
    published: ClassVar[str | None] = None  # Hugging Face's `model_type` for what it is when so shaped
    lora_targets: ClassVar[tuple[str, ...]] = ("attention.qkv",)  # the matrices that LoRA takes where nothing is said
    joint: ClassVar[str | None] = None  # the module between its parts, which is trained where little else is
    lora_part: ClassVar[str] = ""  # how the paths of those begin where nothing is said: a part's name and a dot
    plain_head: ClassVar[Mapping[str, Any]] = {"pool": "mean"}  # what Hugging Face's library has, see `default_head`
    has_readout: bool = True  # whether there is `output`; where it was dropped, a task's head took its place
    folder: Path | None = None  # that it was read from, for messages
    adapter: Any = None  # how little of it was trained (`folders/adapters/saving.py`); None: all of it
    merged: Any = None  # the adapters that it was made with, likewise
    original: str | None = None  # the digest of the weights that narrow ones were made of, where it is known
    shape: Any = None  # of the head that a task has put on it (`HeadSpec` in model_with_head.py)

    def __init__(self, config: Any, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    @classmethod
    def processors_of(cls, config: Any) -> tuple[str, ...]:
        """The kinds of processors that a model of these settings reads with; for most, whatever they are."""
        return cls.processors

    @property
    def published_as(self) -> str | None:
        """Hugging Face's `model_type` for what it is when so shaped; for most, `published`."""
        return self.published

    @property
    def source_encoder(self) -> SequenceModel | None:
        """The model in it that reads the source, where one was put in the place of its own encoder."""
        return None

    @property
    def vocabulary(self) -> int:
        return self.sizes.vocabulary

    @property
    def max_length(self) -> int | None:
        """The most tokens that a sequence may have; None where any length will do."""
        length: int | None = self.config.max_length
        return length

    def train(self, mode: bool = True) -> Self:
        if mode:
            for name in ("_recorded_steps", "_runners"):  # of its writing: their memory is for training now
                self.__dict__.pop(name, None)
        return super().train(mode)

    def refuse_longer(self, length: int) -> None:
        """Refuse a sequence of more tokens than the model can take."""
        if self.max_length is not None and length > self.max_length:
            raise LegatoError(f"a sequence of {length} tokens is too long: this model goes up to {self.max_length}")

    @property
    def device(self) -> torch.device:
        return next(chain(self.parameters(), self.buffers())).device  # tables alone may all be narrow, buffers

    @property
    def can_generate(self) -> bool:
        """Whether the model writes from left to right."""
        return type(self).step is not SequenceModel.step

    def forward(self, batch: Batch, state: Any = None) -> Output:
        return Output(self.read(batch))

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """The states of the last layer, (B, T, D); those of all are added to `every`, where that is given."""
        raise LegatoError(f"{self.config.name} does not show the states of its layers")

    def slots(self, groups: int, width: int, capacity: int, like: Any, source_length: int) -> Slots | None:
        """Places of fixed shapes for `groups` of `width` rows, for states such as `like`, whose sources are up to
        `source_length` long. None: its states have no fixed shapes."""
        return None

    def reset_state(self, state: Any, keep: Tensor) -> Any:
        """The stream state with the rows where `keep` (B,) is False as they are at the start of a text."""
        raise NotImplementedError

    def smallest_batch(self) -> Batch:
        """Something that it can read, to see what comes out."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        characters = torch.zeros(1, 1, 8, dtype=torch.long, device=self.device)
        return Batch(Inputs(ids, characters=characters if self.config.reads_characters else None))

    def state_lengths(self, inputs: Inputs) -> Tensor | None:
        """How many of its states each row has, (B,); None: all."""
        return None if self.one_state else inputs.lengths

    def states(self, batch: Batch) -> list[Tensor]:
        """What every layer leaves, (B, T, D) each: the embedded input first, what `forward` gives last."""
        every: list[Tensor] = []
        self.read(batch, every)
        return every

    @property
    def streams(self) -> Mapping[str, str]:
        """Which stream each part of it reads (data/positions.py), by how the names begin that the part captures.

        The longest beginning counts, in whole words between dots; the empty one is for all others.
        """
        return {"encoder": SOURCE, "": TARGET} if self.is_encoder_decoder else {"": INPUT}

    def stream_positions(self, read: Mapping[str, Positions]) -> dict[str, Positions]:
        """What stands at the positions of every stream, given those of the batch; for most, those are all."""
        return dict(read)

    @property
    def token_table(self) -> nn.Module | None:
        """The table of the tokens' vectors, where there is one."""
        return self._modules.get("embedding")

    @property
    def parts(self) -> dict[str, SequenceModel]:
        """The models inside it, by the settings that name them."""
        return {} if self.source_encoder is None else {"encoder": self.source_encoder}

    @property
    def tag_crf(self) -> Any:
        """What scores neighbouring tags together (nn/losses/crf.py), where a task's head does so."""
        return None

    @property
    def has_pooler(self) -> bool:
        """Whether a layer makes one vector of a text's first state, as BERT's does."""
        return False

    def default_head(self, plain: bool) -> dict[str, Any]:
        """How a head for classes reads a text where nothing is said: `pool`, `inner` and `bias` of its `HeadSpec`.

        `plain`: the last layer is read, as it is.
        """
        return dict(self.plain_head) if plain else {"pool": "mean"}

    def drop_readout(self) -> None:
        """Remove what only guesses words, where a task's head takes its place."""
        if self.has_readout:
            del self.output
            self.has_readout = False

    def text_vectors(self, inputs: Inputs) -> Tensor:
        """One vector for each text, (B, E), of a model that `makes_vectors`."""
        raise NotImplementedError

    def drop_pooler(self) -> None:
        """Remove it, where there is one and nothing reads it."""

    output: nn.Linear  # the last layer, whose rows may be the embedding's

    def transform(self, hidden: Tensor) -> Tensor:
        """Hidden states to what the last layer reads; for most models they are that already."""
        return hidden

    def readout(self, hidden: Tensor) -> Tensor:
        """Hidden states (…, D) to logits (…, V)."""
        states = self.transform(hidden)  # first: a model without a readout says so here
        if not self.has_readout:
            raise LegatoError(f"this {self.config.name} guesses no words: it was trained for another task")
        logits: Tensor = self.output(states)
        return logits

    def nll(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Summed negative log-likelihood of `targets` (…) given hidden states (…, D), read out in chunks where many.

        Twice: with smoothed labels, to learn from, and without.
        """
        hidden, targets, output = hidden.flatten(0, -2), targets.flatten(), self.plain_output  # (N, D), (N,)
        if output is None or not better_in_chunks(output.weight, self.vocabulary, targets.numel()):
            return smoothed_nll(self.readout(hidden), targets, smoothing)
        return chunked_nll(self.transform(hidden), output.weight, output.bias, targets, self.vocabulary, smoothing)

    @property
    def plain_output(self) -> nn.Linear | None:
        """The last layer, where logits are its product with what `transform` gives and nothing else.

        Then a loss may make them chunk by chunk. None where something else happens on the way.
        """
        own = type(self).readout is not SequenceModel.readout or "readout" in self.__dict__
        return self.output if self.has_readout and not own and plain_product(self.output) else None

    def encode(self, batch: Batch) -> Any:
        """The memory of `batch.source`, one row each, for `start`."""
        raise NotImplementedError

    def ctc_logits(self, memory: Any) -> Tensor | None:
        """What is said at each state of a source's memory, (B, S, V + 1), of a model that also learns CTC."""
        return None

    def align(self, batch: Batch) -> Tensor:
        """How much each target token looks at each source token, (B, T, S); rows sum to one."""
        raise NotImplementedError

    def start(self, rows: int, capacity: int, memory: Any = None) -> Any:
        raise NotImplementedError

    def prefill(self, inputs: Inputs, state: Any) -> Tensor:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        raise NotImplementedError


def count_parameters(module: nn.Module, *, trainable: bool = False) -> int:
    """Parameters, or only those that are trained; a tied one counts once, what pads a vocabulary not at all."""
    whole = sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)
    narrow = 0 if trainable else narrow_parameters(module)
    return whole + narrow - padding_parameters(module, trainable=trainable)


def measure(model: type[SequenceModel], config: ModelConfig, sizes: Sizes) -> int:
    """How many parameters such a model would have, without making it."""
    with torch.device("meta"):
        return count_parameters(model(config, sizes))
