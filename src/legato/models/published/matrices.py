"""A model's tensors and matrices under the names that others know them by.

Where the architecture is a published one, those are Hugging Face's; elsewhere they are our own. An adapter names the
matrices that it changes so, and a file that holds a part of a model names its tensors so.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.models.base import SequenceModel
from legato.models.building import MOST_TENSORS, sketch
from legato.models.model_with_head import BODY, ModelWithHead
from legato.models.published.family import form_of
from legato.models.published.heads import names_of_head
from legato.models.published.tensor_names import From, Names
from legato.nn.linear import Linear
from legato.nn.quantized import Narrow, is_quantized
from legato.nn.readout import Readout

LOW_RANK = ".low_rank."  # what those of an adapter have in their names


@dataclass(frozen=True)
class Matrix:
    """A published matrix: rows of one of our linear layers."""

    layer: Linear
    path: str  # of that layer in the model
    start: int
    end: int
    turned: bool = False  # theirs is (inputs, outputs)

    @property
    def shape(self) -> tuple[int, int]:
        return self.end - self.start, self.layer.in_features


def names_of(module: SequenceModel, *, narrow: bool = False) -> Names:
    """Where each of a model's tensors is in files: the published names, or ours where there are none.

    With `narrow` also what matrices would be called that are no tensors, being narrow.
    """
    state = module.state_dict(keep_vars=True)
    held = {name: tensor for name, tensor in state.items() if LOW_RANK not in name}
    if narrow:
        layers = (named for named in module.named_modules() if isinstance(named[1], Narrow))
        held |= {f"{name}.weight": layer.blocks for name, layer in layers}
    known: dict[str, From] = {}
    if isinstance(module, ModelWithHead):
        known = {f"{BODY}{name}": source for name, source in names_of(module.body, narrow=narrow).items()}
        known |= names_of_head(module)
    else:
        form = form_of(module)
        if form is not None:
            known = dict(form.names(_wide(module)))
    seen = {id(held[name]) for name in known if name in held}  # a tied one has its other name
    own = {name: From((name,)) for name, tensor in held.items() if name not in known and id(tensor) not in seen}
    return {name: source for name, source in {**known, **own}.items() if name in held}


def _wide(module: SequenceModel) -> SequenceModel:
    """The model, or where its matrices are narrow a sketch of what it was before: it has the published tensors."""
    if not is_quantized(module):
        return module
    plan = sketch(lambda: type(module)(module.config, module.sizes), MOST_TENSORS)
    if not module.has_readout:
        plan.drop_readout()
    return plan


def published_head(module: ModelWithHead) -> bool:
    """Whether the head is one that a class of theirs has."""
    return bool(names_of_head(module))


def matrices_of(module: SequenceModel) -> dict[str, Matrix]:
    """Every linear layer of the body that can have an adapter, by its published path, in order."""
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, Linear) and not isinstance(layer, Readout)
    }
    if isinstance(module, ModelWithHead):  # the head is trained as it is
        layers = {name: layer for name, layer in layers.items() if name.startswith(BODY)}
    names = names_of(module, narrow=True)
    found: dict[str, Matrix] = {}
    for path, layer in layers.items():
        source = names.get(f"{path}.weight")
        if source is None or source.trailing:  # theirs is a convolution, which adapters take otherwise
            continue
        start = 0
        for name, rows in zip(source.names, source.heights(layer.out_features), strict=True):
            found[name.removesuffix(".weight")] = Matrix(layer, path, start, start + rows, source.turned)
            start += rows
    return found
