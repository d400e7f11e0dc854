"""Which unit of a model follows a property of the text: quotes, brackets, indentation (Karpathy et al. 2016).

Units are ranked by their correlation with the property on one text, and the best are asked again on another, which
did not choose them. Beside them: the best of a model of the same shape that has learned nothing, chosen and asked
alike, and a linear probe over all units, which says what is there if no unit has it alone.

>>> found = find_units(legato.load("runs/x"), text, held_out)                       # doctest: +SKIP
>>> found["quote"].best[0], found["quote"].untrained, found["quote"].probe          # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder
from legato.errors import DataError, LegatoError
from legato.inspect.text_features import FEATURES, Feature
from legato.inspect.trace import Shaped
from legato.models.base import SequenceModel
from legato.nn.capture import record

STATES: Final = re.compile(r"(?:^|\.)\d+\.(?:hidden|cell)$")
CHUNK: Final = 256  # tokens that are read at once
STRETCH: Final = 4096  # tokens that are read in a row; a longer text is cut, and its parts are read side by side
TOP: Final = 5
FEWEST: Final = 3  # tokens of a document
RIDGE: Final = 1e-2  # of the probe, for each token, where units have a spread of 1

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class UnitMatch:
    """A unit, and how well it follows a property."""

    name: str  # of the tensor, such as lstm.1.cell
    unit: int
    correlation: float  # on the text that it was chosen by
    confirmed: float  # on the other one


@dataclass(frozen=True)
class Followed:
    """What follows one property."""

    best: list[UnitMatch]
    untrained: UnitMatch  # the best of a model that has learned nothing
    probe: float  # the correlation of a linear probe over all units, on the text that it was not fitted to


@dataclass(frozen=True, repr=False)
class Read(Shaped):
    """What a model's units were while it read a text."""

    text: str  # as its tokens have it
    ends: list[int]  # how many characters there are behind each token
    names: list[tuple[str, int]]  # of the columns
    values: Array  # (tokens, units)


@torch.no_grad()
def read_units(module: SequenceModel, tokenizer: AnyTokenizer, text: str) -> Read:
    """Every unit of every layer at each token of a text; a state, where there is one, is carried along."""
    if not (module.can_generate and module.has_readout):
        raise LegatoError(
            f"{module.config.name} does not read from left to right, token by token; give one that does"
        )
    ids = [int(index) for index in tokenizer.encode(text)]
    if len(ids) < FEWEST:
        raise DataError("the text has fewer than three tokens, of which nothing can be said; give a longer one")
    decoder, written, ends = StreamDecoder(tokenizer), "", []
    for index in ids:
        written += decoder.push(index)
        ends.append(len(written))
    rows = max(1, len(ids) // STRETCH)
    length = -(-len(ids) // rows)
    laid = torch.tensor(ids + [0] * (rows * length - len(ids)), device=module.device).view(rows, length)
    parts: dict[str, list[Array]] = {}
    state: Any = None
    step = min(CHUNK, module.max_length or CHUNK)
    for begin in range(0, length, step):
        batch = Batch(Inputs(laid[:, begin : begin + step]))
        with record(lambda name: STATES.search(name) is not None) as trace:
            output = module(batch, state) if module.max_length is None else module(batch)
        state = output.state
        for name, tensors in trace.items():
            whole = torch.stack(tensors, dim=1) if "position" not in trace.axes[name] else tensors[0]
            parts.setdefault(name, []).append(whole.double().cpu().numpy())
    if not parts:
        raise LegatoError(f"{module.config.name} has no states that could follow anything")
    joined = {name: np.concatenate(each, axis=1) for name, each in parts.items()}
    joined = {name: each.reshape(-1, each.shape[-1])[: len(ids)] for name, each in joined.items()}
    names = [(name, unit) for name, each in joined.items() for unit in range(each.shape[1])]
    return Read(written, ends, names, np.concatenate(list(joined.values()), axis=1))


def find_units(
    model: Any,
    text: str | Sequence[str],
    held_out: str | Sequence[str],
    features: Mapping[str, Feature] | None = None,
    top: int = TOP,
) -> dict[str, Followed]:
    """The units that follow each property best, of a model that `legato.load` gave; `features` by their names.

    A text may be several documents: each is read from its beginning, and what one leaves open is not in the next.
    Those of fewer than three tokens are passed over.
    """
    module, tokenizer = model.loaded.module.eval(), model.loaded.tokenizer
    chosen = features or FEATURES
    given = [[each] if isinstance(each, str) else list(each) for each in (text, held_out)]
    texts = [[document for document in each if len(tokenizer.encode(document)) >= FEWEST] for each in given]
    if not all(texts):
        raise DataError("there is no document of three tokens or more in one of the texts; give at least one to each")
    torch.manual_seed(0)
    fresh = type(module)(module.config, module.sizes).to(module.device).eval()
    reads = [[read_units(module, tokenizer, document) for document in each] for each in texts]
    trained = [np.concatenate([read.values for read in each]) for each in reads]
    untrained = [
        np.concatenate([read_units(fresh, tokenizer, document).values for document in each]) for each in texts
    ]
    names, made = reads[0][0].names, {}
    for name, feature in chosen.items():
        wanted = [np.concatenate([at_tokens(read.text, read.ends, feature) for read in each]) for each in reads]
        if any(each.std() == 0 for each in wanted):
            continue  # nothing of the kind is in one of the texts
        made[name] = Followed(
            best=_ranked(names, trained, wanted, top),
            untrained=_ranked(names, untrained, wanted, 1)[0],
            probe=_probed(trained, wanted),
        )
    if not made:
        raise DataError(f"the texts have none of {', '.join(chosen)}; give others")
    return made


def at_tokens(text: str, ends: Sequence[int], feature: Feature) -> Array:
    """A property at the last character of each token, given how many characters there are behind each."""
    values = feature(text)
    return np.array([values[max(0, end - 1)] if len(values) else 0.0 for end in ends])


def correlations(values: Array, wanted: Array) -> Array:
    """Pearson's, of each column (N, D) with (N,); 0 where a column never changes."""
    centred, target = values - values.mean(0), wanted - wanted.mean()
    spread = np.sqrt((centred**2).sum(0) * (target**2).sum())
    return np.divide(centred.T @ target, spread, out=np.zeros(values.shape[1]), where=spread > 1e-12)


def _ranked(names: list[tuple[str, int]], values: list[Array], wanted: list[Array], top: int) -> list[UnitMatch]:
    found, again = (correlations(*each) for each in zip(values, wanted, strict=True))
    order = np.argsort(-np.abs(found), kind="stable")[:top]
    named = ((*names[index], float(found[index]), float(again[index])) for index in order)
    return [UnitMatch(name, unit, here, there) for name, unit, here, there in named]


def _probed(values: list[Array], wanted: list[Array]) -> float:
    """Ridge regression on the first text, asked on the second."""
    mean, spread = values[0].mean(0), values[0].std(0) + 1e-8
    first, second = ((each - mean) / spread for each in values)
    penalty = RIDGE * len(first) * np.eye(first.shape[1])
    weights = np.linalg.solve(first.T @ first + penalty, first.T @ (wanted[0] - wanted[0].mean()))
    return float(correlations((second @ weights)[:, None], wanted[1])[0])
