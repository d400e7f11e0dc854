"""What a model folder holds, once it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.data.processors import HasProcessors, Processors
from legato.data.text.tokenizers import Tokenizer
from legato.errors import LegatoError
from legato.folders.chat_template import ChatTemplate
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import SequenceModel
from legato.models.model_with_head import body_of
from legato.nn.adapters.lora_by_row import BASE
from legato.nn.quantized import Deferred, hold_layers, read_deferred
from legato.nn.quantized.deferred import put


@dataclass(repr=False)
class Loaded(HasProcessors):
    """What a model folder holds."""

    folder: Path
    module: SequenceModel
    processors: Processors  # what it reads and writes with
    task: str
    about: dict[str, Any] = field(default_factory=dict)  # the "legato" key
    first_token: int | None = None  # that writing begins with; left out: the EOS token
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    ends: tuple[int, ...] = ()  # the tokens that end a continuation
    chat: ChatTemplate | None = None
    sentences: SentenceEncoder | None = None  # how a text becomes one vector, where the folder says it
    digest: str | None = None  # of the weights, where they are not all in the folder (adapters/)
    bases: tuple[Path, ...] = ()  # the folders of the models below, where it is an adapter
    adapter: int = BASE  # of those that share the module, by row (lora_by_row.py)
    read_into: Callable[[SequenceModel], SequenceModel] | None = None  # the weights, where `module` is a sketch yet

    @property
    def start(self) -> int:
        """The token that writing begins with."""
        return self.target.eos_id if self.first_token is None else self.first_token

    @property
    def reads_and_writes(self) -> str:
        """What an encoder–decoder does, for messages."""
        others = {"image": "describes pictures", "audio": "writes down what is said"}
        found = (does for kind, does in others.items() if kind in self.processors.others)
        return next(found, "turns one text into another")

    @property
    def generates(self) -> bool:
        """Whether its model continues texts."""
        return self.module.can_generate and not self.module.is_encoder_decoder

    def check_generates(self) -> None:
        """Refuse a model that does not continue texts."""
        if self.module.is_encoder_decoder:
            raise LegatoError(f"{self.folder} {self.reads_and_writes}: use legato predict")
        if not self.module.can_generate:
            held = "reads both ways" if self.task in ("lm", "mlm") else f"was trained for {self.task}"
            raise LegatoError(f"{self.folder} holds a model that {held}, so it cannot generate")

    def check_chats(self) -> None:
        """Refuse a model that is not talked to."""
        self.check_generates()
        if self.chat is None or not isinstance(self.tokenizer, Tokenizer):
            raise LegatoError(f"{self.folder} has no chat template, so it is no model to talk to: leave out --chat")

    def __repr__(self) -> str:
        return f"Loaded({str(self.folder)!r}, {self.task}, {self.module.config.name})"

    def put_into(self, model: SequenceModel) -> set[str]:
        """Begin `model` with the folder's weights; what only `model` has stays as it was made: its tensors' names.

        A sketch's body shares them afterwards, to be asked for names and numbers; it is no model that runs.
        """
        body = body_of(self.module)
        held = set(body.state_dict())
        if self.read_into is None:
            state = body.state_dict()
            hold_layers(model, state)  # the narrow matrices, where there are any
            places = model.state_dict(keep_vars=True).items()
            deferred = {name: tensor for name, tensor in places if isinstance(tensor, Deferred)}
            model.load_state_dict({name: state[name] for name in state if name not in deferred}, strict=False)
            for name in deferred.keys() & state.keys():
                put(deferred[name], state[name])
        else:
            read = self.read_into(model).state_dict(keep_vars=True)
            held |= set(read)
            body.load_state_dict({name: read[name] for name in body.state_dict()}, assign=True)
            self.read_into = None
        alone = set(model.state_dict()) - held
        if not alone:  # else there is a matrix that no file has
            read_deferred(model)
        return alone
