"""Heads in Hugging Face's form: …ForSequenceClassification, …ForTokenClassification, …ForQuestionAnswering, …ForCTC.

    family                        classes                                                        tags
    bert                          pooler, `classifier`                                           `classifier`
    roberta, xlm-r., camembert    first token, `classifier.dense`, tanh, `classifier.out_proj`   `classifier`
    distilbert                    first token, `pre_classifier`, relu, `classifier`              `classifier`
    gpt2                          last token, `score`, which has no bias                         `classifier`
    llama, mistral, qwen2, qwen3  last token, `score`, which has no bias                         `score`
    vit                           first state, `classifier`
    resnet                        mean of the grid, `classifier.1`
    efficientnet-lite             mean of the grid, `_fc`

`qa_outputs` for spans everywhere, and parakeet_ctc's `ctc_head`, whose last output is the blank. A head of such a
shape is written and read under these names, and so can be any head that somebody else has trained; of other shapes
only the body has a published form (folders/model_folder.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from legato.config import validate
from legato.errors import ConfigError, FolderError
from legato.models.base import SequenceModel
from legato.models.building import limited
from legato.models.model_with_head import BODY, HeadSpec, ModelWithHead
from legato.models.published.family import QA, HeadNames, Published, class_prefix, form_named, form_of
from legato.models.published.tensor_names import From, Names, from_hf, to_hf

PROBLEMS: Final = {  # our kinds of labels, and what config.json calls them
    "classes": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
HEADS: Final = re.compile(rf"(classifier|pre_classifier|score|_fc|ctc_head|{QA})\.")  # how tensors of heads begin


def spec_of(names: HeadNames, kind: str, outputs: int, dropout: float = 0.1) -> HeadSpec:
    """The one shape that they have for a kind of head."""
    told: dict[str, Any] = {"kind": kind, "outputs": outputs, "dropout": dropout, "pool": "first"}
    if kind == "classes":
        told |= {"pool": names.pool, "inner": names.inner, "bias": names.bias}
    return validate(HeadSpec, told)


# --- writing ---------------------------------------------------------------------------------------


def names_of_head(module: ModelWithHead) -> Names:
    """What the head's tensors are called there, and those of the body that a class with such a head calls otherwise.

    Empty where the head has a shape that they do not.
    """
    known = _published(module)
    if known is None:
        return {}
    form, family = known
    names = _own_names(module, family)
    if module.shape.kind == "spans" and family.body_of_spans:
        for name, source in form.names(module.body).items():
            theirs = tuple(_with_other(their, form.body, family.body_of_spans) for their in source.names)
            names[BODY + name] = replace(source, names=theirs)
    return names


def write_head(module: ModelWithHead, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The entries of config.json and all tensors of a model whose head is a published one; None of another."""
    known = _published(module)
    if known is None:
        return None
    form, family = known
    entries, tensors = form.save(module.body)
    kind = module.shape.kind
    if kind == "spans" and family.body_of_spans:
        tensors = {_with_other(name, form.body, family.body_of_spans): tensor for name, tensor in tensors.items()}
    tensors |= to_hf(module, _own_names(module, family))
    entries |= {"model_type": form.model_type, "architectures": [class_prefix(form.architecture) + family.ends[kind]]}
    for entry in family.dropouts.get(kind, ("classifier_dropout",))[:1]:
        entries.setdefault(entry, module.shape.dropout)  # distilbert's taggers have no dropout of their own
    if kind == "ctc":
        entries |= {"vocab_size": module.shape.outputs, "pad_token_id": module.shape.outputs - 1}
    elif kind != "spans":
        names = _names_of_labels(about.get("labels"), module.shape.outputs)
        entries["id2label"] = {str(number): name for number, name in enumerate(names)}
        entries["label2id"] = {name: number for number, name in enumerate(names)}
    if kind == "classes":
        entries["problem_type"] = PROBLEMS.get(str(about.get("kind", "classes")))
    return entries, tensors


def head_note(module: SequenceModel, body: str = "this model's body") -> str | None:
    """That `transformers` cannot load a model's head, and the settings of one that it can; None where it loads it.

    Nothing is said of a model whose body it lacks, either. `body` is what it loads.
    """
    form = form_of(module.body) if isinstance(module, ModelWithHead) else None
    if not isinstance(module, ModelWithHead) or form is None or form.heads is None or names_of_head(module):
        return None
    family, shape = form.heads, module.shape
    like = spec_of(family, shape.kind, shape.outputs)
    ours, theirs = shape.model_dump(), like.model_dump()
    names = [name for name in ("layers", "lstm", "crf", "pool") if ours[name] != theirs[name]]
    found = [f"head.{name}={ours[name]}".lower() for name in names]
    wanted = [f"head.{name}={theirs[name]}".lower() for name in names if name != "pool"]
    if shape.pool == like.pool and (shape.inner, shape.bias) != (like.inner, like.bias):
        found.append(
            f"head.pool={shape.pool} {'without a dense layer' if shape.inner != like.inner else 'and a bias'}"
        )
    if shape.kind == "classes":  # of theirs, only bert's is known by its pooling alone
        wanted.append(f"head.pool={'pooler (where the model has one)' if like.pool == 'pooler' else 'model'}")
    return (
        f"transformers loads {body} alone, without its head: it has none with {' and '.join(found)} (Legato loads "
        f"both); what it loads whole is trained with {' and '.join(wanted)}"
    )


def _published(module: ModelWithHead) -> tuple[type[Published], HeadNames] | None:
    """The body's form and its family, where they have a class with such a head."""
    form = form_of(module.body)
    if form is None or form.heads is None or not _is_theirs(module.shape, form.heads):
        return None
    return form, form.heads


def _is_theirs(shape: HeadSpec, family: HeadNames) -> bool:
    """Whether they have a class with such a head."""
    if shape.kind not in family.ends or (shape.kind == "spans" and shape.outputs != 2):
        return False
    like = spec_of(family, shape.kind, shape.outputs)
    free = {"dropout", "width", "allowed"}  # these change nothing of what is computed
    return shape.model_dump(exclude=free) == like.model_dump(exclude=free)


def _own_names(module: ModelWithHead, family: HeadNames) -> dict[str, From]:
    parts = {"inner": ("weight", "bias"), "head": ("weight", "bias") if module.shape.bias else ("weight",)}
    ones = {"weight": 1} if module.shape.kind == "ctc" else {}
    return {
        f"{our}.{part}": From((f"{their}.{part}",), trailing=ones.get(part, 0))
        for our, their in family.modules(module.shape.kind).items()
        for part in parts[our]
    }


def _with_other(name: str, before: str, after: str) -> str:
    return after + name.removeprefix(before) if name.startswith(before) else name


def _names_of_labels(labels: Any, outputs: int) -> list[str]:
    """The labels, or the names that they give to nameless ones."""
    if isinstance(labels, list) and len(labels) == outputs:
        return [str(label) for label in labels]
    return [f"LABEL_{number}" for number in range(outputs)]


# --- reading ---------------------------------------------------------------------------------------


@dataclass
class PublishedHead:
    """A task's head that a folder holds under their names, and what is left for the body."""

    family: HeadNames
    shape: HeadSpec
    tensors: dict[str, Tensor]
    config: dict[str, Any]  # of the body
    body: dict[str, Tensor]
    about: dict[str, Any]  # what our own key would say: labels and the like

    def on(self, body: SequenceModel, where: str) -> ModelWithHead:
        """The body with this head."""
        try:
            module = limited(lambda: ModelWithHead(body, self.shape), self.tensors, where)
        except ConfigError as problem:
            raise FolderError(f"{where}: {problem}") from None
        names = _own_names(module, self.family) if _is_theirs(module.shape, self.family) else {}
        from_hf(module, names, self.tensors, where)
        return module


def read_head(
    model_type: str,
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    where: str,
    shape: HeadSpec | None = None,
    labels: Any = None,
) -> PublishedHead | None:
    """The head of a published folder; None where it has none that we know.

    `shape` and `labels` are what our own key says of it. Where the rest of config.json says otherwise, somebody has
    trained the model on with another library, which leaves that key as it was.
    """
    form = form_named(model_type)
    family = None if form is None else form.heads
    kind = None if family is None else _kind_of(config, family)
    if form is None or family is None or kind is None:
        return None
    if shape is not None and not _still_true(shape, labels, kind, config):
        shape = None
    body = {name: tensor for name, tensor in tensors.items() if not HEADS.match(name)}
    head = {name: tensor for name, tensor in tensors.items() if name not in body}
    last = f"{family.modules(kind)['head']}.weight"
    if last not in head:
        raise FolderError(f"{where} lacks the tensor '{last}'")
    about: dict[str, Any] = {}
    if shape is None:
        shape = _shape_of(family, kind, len(head[last]), config, where)
        about = _about(family, shape, config, where)
    if shape.pool == "pooler" and not any(name.endswith("pooler.dense.weight") for name in body):
        raise FolderError(f"{where} lacks the tensor '{form.body}pooler.dense.weight'")
    if kind == "spans" and family.body_of_spans:
        body = {_with_other(name, family.body_of_spans, form.body): tensor for name, tensor in body.items()}
    if family.pool == "last":  # a decoder whose readout is not there
        config = {**config, "tie_word_embeddings": True}
    return PublishedHead(family, shape, head, config, body, about)


def _still_true(shape: HeadSpec, labels: Any, kind: str, config: Mapping[str, Any]) -> bool:
    if shape.kind != kind or kind == "spans":
        return shape.kind == kind
    if kind == "ctc":
        return config.get("vocab_size") == shape.outputs
    found = config.get("id2label")
    names = _names_of_labels(labels, shape.outputs)
    return found is None or found == {str(number): name for number, name in enumerate(names)}


def _kind_of(config: Mapping[str, Any], family: HeadNames) -> str | None:
    named = config.get("architectures")
    named = named if isinstance(named, list) else []
    return next((kind for kind, end in family.ends.items() for name in named if str(name).endswith(end)), None)


def _shape_of(family: HeadNames, kind: str, outputs: int, config: Mapping[str, Any], where: str) -> HeadSpec:
    if kind == "spans" and outputs != 2:
        raise FolderError(f"{where}: '{QA}.weight' has {outputs} rows, not one for the start and one for the end")
    if kind == "ctc" and config.get("vocab_size", outputs) != outputs:
        raise FolderError(f"{where}: '{family.ctc}.weight' has {outputs} rows; vocab_size is {config['vocab_size']}")
    entries = [config.get(name) for name in family.dropouts.get(kind, ("classifier_dropout",))]
    dropout = next((value for value in entries if value is not None), 0.1)
    try:
        return spec_of(family, kind, outputs, dropout)
    except ConfigError as problem:
        raise FolderError(f"{where}/config.json: {problem}") from None


def _about(family: HeadNames, shape: HeadSpec, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    about: dict[str, Any] = {"task": family.task_of[shape.kind]}
    if shape.kind in ("spans", "ctc"):
        return about
    names = _read_labels(config.get("id2label"), shape.outputs, where)
    if shape.kind == "tags":
        return {**about, "labels": names}
    asked = config.get("problem_type")
    kinds = {their: our for our, their in PROBLEMS.items()}
    if asked is not None and asked not in kinds:
        raise FolderError(f"{where}/config.json: problem_type={asked} is unknown; there is {', '.join(kinds)}")
    kind = kinds.get(str(asked), "classes")
    if shape.outputs == 1 and kind == "classes":  # as they take it
        kind = "regression"
    if kind == "regression" and shape.outputs > 1:
        raise FolderError(f"{where}: its head gives {shape.outputs} numbers at once; Legato has only one")
    return {**about, "kind": kind, "labels": [] if kind == "regression" else names}


def _read_labels(found: Any, outputs: int, where: str) -> list[str]:
    """The entry `id2label`, {"0": "negative", …}, in order."""
    if found is None:
        return _names_of_labels(None, outputs)
    named = {str(number): str(name) for number, name in found.items()} if isinstance(found, dict) else {}
    if len(named) != outputs or any(str(number) not in named for number in range(outputs)):
        raise FolderError(
            f"{where}/config.json: id2label should name labels 0 to {outputs - 1}, as many as the head has outputs; "
            f"it names {', '.join(sorted(named)[:5]) or 'none'}{', …' if len(named) > 5 else ''}"
        )
    return [named[str(number)] for number in range(outputs)]
