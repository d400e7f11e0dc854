"""What a family's file in this folder declares, and what is done with it: reading and writing Hugging Face's folders.

A family says how its config.json calls our settings, and how its files call our modules:

    class GPT2(Published):
        entries = {"n_embd": Entry(Size, "width"), "resid_pdrop": Entry(Share, "dropout", 0.1), …}
        fixed = {"scale_attn_weights": True}                    what we have only so
        parts = {"embedding": "wte", …}                         our modules and theirs
        stacks = {"stack.layers.": "h."}                        how the names of a stack's blocks begin
        block = {"attention.qkv": "attn.c_attn", …}             the modules of a block

From these follow the schema of config.json, both directions between entries and settings, and both between tensors:
which of a module's tensors there are (a bias, a head, a readout that is not the embedding) says the module itself.
What a table cannot say, a family does in the methods that it overrides. Entries and settings that stand in a section
have dotted names: `"vision_config.hidden_size": Entry(Size, "vision.width")`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor

from legato.config import validate
from legato.data.processors import Processor
from legato.errors import ConfigError, FolderError, brief
from legato.memory import let_go
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.building import built
from legato.models.published.entries import Entries, Entry, nested, schema_of, value_at
from legato.models.published.tensor_names import From, Names, check_tensors, from_hf, to_hf
from legato.nn.readout import Readout, TokenEmbedding
from legato.registry import PUBLISHED
from legato.schema import fit

PREFIX: Final = "legato-"  # before the names of models that only we have, where config.json says which it is
QA: Final = "qa_outputs"
CLASSES: Final = {  # how the names of their classes with a task's head end
    "classes": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}
TASK_OF: Final = {"classes": "classification", "tags": "tagging", "spans": "qa"}
EMBEDDING, READOUT = "embedding.weight", "output.weight"


@dataclass(frozen=True)
class HeadNames:
    """What the heads of one architecture are like, in their classes for tasks."""

    pool: Literal["pooler", "first", "last", "mean"]
    classes: Mapping[str, str]  # our modules of a head for classes, and theirs
    inner: Literal["none", "tanh", "relu"] = "none"
    bias: bool = True
    tags: str = "classifier"
    ctc: str = "ctc_head"  # a convolution that sees one state
    body_of_spans: str = ""  # how the body's tensors begin where spans are found, if otherwise
    dropouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # entries that say it, of each kind of head
    ends: Mapping[str, str] = field(default_factory=lambda: CLASSES)
    task_of: Mapping[str, str] = field(default_factory=lambda: TASK_OF)

    def modules(self, kind: str) -> Mapping[str, str]:
        """Our modules of such a head, and theirs."""
        others = {"tags": self.tags, "spans": QA, "ctc": self.ctc}
        return self.classes if kind == "classes" else {"head": others[kind]}


class Published:
    """How an architecture is written in Hugging Face's folders: their config, their tensor names."""

    model_type: ClassVar[str]
    architecture: ClassVar[str]  # the class that loads it there
    Model: ClassVar[type[SequenceModel]]  # ours
    Entries: ClassVar[Any] = Entries  # the schema of what is read of config.json; it follows from `entries`
    lora_targets: ClassVar[tuple[str, ...]] = ()  # peft's default for it, in their names; none: ours
    heads: ClassVar[HeadNames | None] = None  # what their classes for tasks call a head

    entries: ClassVar[Mapping[str, Entry]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}  # entries that, where they are there, we have only so
    words: ClassVar[bool] = True  # whether it reads tokens, and has a table of them
    tied: ClassVar[bool] = True  # whether the readout is the embedding where config.json does not say
    body: ClassVar[str] = ""  # how the names of the body's tensors begin, where there is a head beside it
    parts: ClassVar[Mapping[str, str]] = {}  # our modules, or single tensors, and theirs
    stacks: ClassVar[Mapping[str, str]] = {}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}  # several of theirs are one of ours, stacked in order
    turned: ClassVar[bool] = False  # whether a block's matrices lie the other way round there, (inputs, outputs)
    leading: ClassVar[Mapping[str, int]] = {}  # dimensions of one that their tensor has before those of ours …
    trailing: ClassVar[Mapping[str, int]] = {}  # … and behind them, of tensors in a block
    ignored: ClassVar[str] = r"(?!)"  # a regular expression of tensors that are left where they are

    def __init_subclass__(cls) -> None:
        cls.Entries = schema_of(cls.__name__, cls.entries, words=cls.words)

    @classmethod
    def refusal(cls, module: Any) -> str | None:
        """Why `module` cannot be written so; None when it can."""
        return None

    @classmethod
    def processors(cls) -> tuple[str, ...]:
        """The kinds of processors that its models read with."""
        return cls.Model.processors

    @classmethod
    def without_head(cls) -> type[Published]:
        """The form of its models that have no head; another one where their `model_type` is."""
        return cls

    # --- folders that lack files ------------------------------------------------------------------------

    @classmethod
    def entries_of(cls, tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
        """What config.json would say of weights that are published without one; None where they are another's."""
        return None

    @classmethod
    def default_processors(cls, config: Mapping[str, Any]) -> dict[str, Processor]:
        """What pictures or sound are read with, by kind, where a folder does not say it; none where it has to."""
        return {}

    # --- names of tensors ------------------------------------------------------------------------------

    @classmethod
    def names(cls, module: Any) -> Names:
        """What each of our tensors is made of there; a tied one has one name."""
        names: dict[str, From] = {}
        seen: set[int] = set()
        heights = cls.heights(module)
        for name, tensor in module.state_dict(keep_vars=True).items():
            theirs = cls.their_names(name)
            if not theirs or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            inner = _in_block(name)
            owner = module.get_submodule(name.rpartition(".")[0])
            rows = owner.vocabulary if isinstance(owner, TokenEmbedding | Readout) else None
            turned = cls.turned and inner is not None and tensor.dim() == 2
            sizes = None if inner is None else heights.get(inner[2].rpartition(".")[0])
            trailing = 0 if inner is None else cls.trailing.get(inner[2], 0)
            names[name] = From(theirs, sizes, turned, rows, cls.leading.get(name, 0), trailing)
        return names

    @classmethod
    def their_names(cls, name: str) -> tuple[str, ...]:
        """Theirs of one tensor of ours; none where they do not have it."""
        inner = _in_block(name)
        table: Mapping[str, str | tuple[str, ...]] = cls.parts
        before = ""
        if inner is not None:
            stack, number, name = inner
            table, before = cls.block, f"{cls.stacks[stack]}{number}."
        owner, _, part = name.rpartition(".")
        theirs = (table[name],) if name in table else table.get(owner, ())
        end = "" if name in table else f".{part}"
        return tuple(f"{before}{their}{end}" for their in ((theirs,) if isinstance(theirs, str) else theirs))

    @classmethod
    def heights(cls, module: Any) -> Mapping[str, tuple[int, ...]]:
        """Rows of each of their matrices that one of ours, in a block, is made of; left out: as many each."""
        return {}

    @classmethod
    def renamed(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A folder's tensors as they are called now, with `body` where a folder without heads leaves it out."""
        if any(name.startswith(cls.body) for name in tensors):
            return dict(tensors)
        outside = tuple(
            their.partition(".")[0] + "." for their in cls.parts.values() if not their.startswith(cls.body)
        )
        return {
            name if name.startswith(outside) or re.search(cls.ignored, name) else cls.body + name: tensor
            for name, tensor in tensors.items()
        }

    # --- writing ---------------------------------------------------------------------------------------

    @classmethod
    def save(cls, module: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The entries of config.json, and the tensors under their published names."""
        return cls.entries_written(module), to_hf(module, cls.names(module))

    @classmethod
    def entries_written(cls, module: Any) -> dict[str, Any]:
        """The entries of config.json."""
        settings = cls.written_settings(module)
        entries = {
            name: entry.written(value_at(settings, entry.setting))
            for name, entry in cls.entries.items()
            if entry.setting is not None
        }
        entries |= {"architectures": [cls.architecture_of(module)], **cls.other_entries(module)}
        if cls.words:
            entries |= {"vocab_size": module.vocabulary, "tie_word_embeddings": module.config.tied}
        return nested(entries)

    @classmethod
    def architecture_of(cls, module: Any) -> str:
        """Their class for this module."""
        return cls.architecture if module.has_readout else class_prefix(cls.architecture) + "Model"

    @classmethod
    def written_settings(cls, module: Any) -> dict[str, Any]:
        """The settings as entries have them: what ours may leave out is said."""
        settings: dict[str, Any] = module.config.model_dump()
        return settings

    @classmethod
    def other_entries(cls, module: Any) -> dict[str, Any]:
        """Entries that are no setting of ours."""
        return {}

    # --- reading ---------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str, into: SequenceModel | None = None
    ) -> SequenceModel:
        """The module that a folder holds, read `into` another if it is given; `where` names it in an error."""
        config = fit(dict(config), cls.Entries, f"{where}/config.json")
        refuse_unless(config, cls.fixed, where)
        found = cls.renamed(config, tensors)
        settings = cls.settings(config, found, where)
        try:
            ours: ModelConfig = validate(cls.Model.Config, settings)
        except ConfigError as problem:
            raise FolderError(f"{where}/config.json: {problem}") from None
        copies = cls.copies(settings)
        left = {
            name: tensor for name, tensor in found.items() if name not in copies and not re.search(cls.ignored, name)
        }

        def check(plan: SequenceModel) -> None:
            check_tensors(plan, cls.names(plan), left, where)

        module = built(lambda: cls.Model(ours, cls.sizes(config)), left, check, where, drawn=False, into=into)
        from_hf(module, cls.names(module), left, where)
        return module

    @classmethod
    def copies(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Tensors that are others again: a readout that is the embedding is there a second time in some folders."""
        return cls.their_names(READOUT) if settings.get("tied") else ()

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        """Our settings, from the entries and from which tensors there are."""
        settings: dict[str, Any] = {}
        said: dict[str, str] = {}  # which entry says a setting
        for name, entry in cls.entries.items():
            value = entry.read(config, name, where)
            if entry.setting is None:
                continue
            if settings.setdefault(entry.setting, value) != value:
                first = said[entry.setting]
                counts = f"{value_at(config, first)} and {value_at(config, name)}"
                raise FolderError(f"{where}/config.json: Legato needs {first} and {name} to be equal, not {counts}")
            said.setdefault(entry.setting, name)
        if cls.words:
            settings["tied"] = cls._is_tied(config, tensors)
        return nested(settings)

    @classmethod
    def _is_tied(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
        """Whether a folder's readout is its embedding. A copy that differs is none, whatever the config says."""
        if not config.get("tie_word_embeddings", cls.tied):
            return False
        both = [tensors[name] for our in (EMBEDDING, READOUT) for name in cls.their_names(our) if name in tensors]
        if len(both) < 2:
            return True
        alike = both[0].dtype == both[1].dtype  # then they are compared where they lie
        same = torch.equal(*both) if alike else torch.equal(both[0].float(), both[1].float())
        for each in both:
            let_go(each)
        return same

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> Sizes:
        return Sizes(config["vocab_size"] if cls.words else 0)


def refuse_unless(config: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Refuse a folder whose entries, where there are any, ask for what we do not have."""
    for name, value in expected.items():
        there = value_at(config, name)
        if there is not None and there != value:
            raise FolderError(f"{where}/config.json: {name} is {brief(there)}; Legato has only {value}")


def class_prefix(architecture: str) -> str:
    """How the names of an architecture's classes begin.

    >>> class_prefix("BertForMaskedLM"), class_prefix("GPT2LMHeadModel"), class_prefix("ViTModel")
    ('Bert', 'GPT2', 'ViT')
    """
    return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", architecture)


def described(tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """What config.json would say of weights that are published without one; None where no family knows them."""
    found = (PUBLISHED.get(family).entries_of(tensors) for family in PUBLISHED.names())
    return next((entries for entries in found if entries is not None), None)


def form_named(model_type: str) -> type[Published] | None:
    """The published form that config.json names; None for what has none, such as a model that only we have."""
    if model_type.startswith(PREFIX) or model_type not in PUBLISHED:
        return None
    form: type[Published] = PUBLISHED.get(model_type)
    return form


def form_of(module: SequenceModel) -> type[Published] | None:
    """Hugging Face's form of a model without a head; None where it has none."""
    if module.published_as is None:
        return None
    form: type[Published] = PUBLISHED.get(module.published_as)
    return form if form.refusal(module) is None else None


def _in_block(name: str) -> tuple[str, str, str] | None:
    """The stack, the number of the block and the rest of a tensor's name; None outside of blocks.

    >>> _in_block("stack.layers.3.attention.qkv.weight")
    ('stack.layers.', '3', 'attention.qkv.weight')
    >>> _in_block("vision.stack.layers.3.attention_norm.bias")
    ('vision.stack.layers.', '3', 'attention_norm.bias')
    """
    found = re.fullmatch(r"((?:\w+\.)+?layers\.)(\d+)\.(.+)", name)
    return None if found is None else (found[1], found[2], found[3])
