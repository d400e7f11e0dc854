"""How fast each parameter learns, as a share of the run's rate.

    a layer      d^(n + 1 - i)                layer i of n, embeddings being i = 0: what is general changes least
    the head     train.head_lr / train.lr     what is drawn anew may learn faster than what is tuned

The first is discriminative fine-tuning (Howard & Ruder 2018) as BEiT does it, `train.layer_decay`; what lies above
the layers has the whole rate.
"""

from __future__ import annotations

import re

from legato.errors import ConfigError
from legato.models.base import SequenceModel
from legato.training.adapt import head_parameters
from legato.training.config import TrainConfig

_LAYER = re.compile(r".*?\blayers\.(\d+)\.")


def rate_shares(model: SequenceModel, config: TrainConfig) -> dict[str, float]:
    """For each trained parameter, what the schedule's rate is multiplied with."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    shares = dict.fromkeys(names, 1.0)
    head = head_parameters(model)
    if config.layer_decay < 1:
        depths, above = _depths([name for name, _ in model.named_parameters() if name not in head], model.config.name)
        tuned = [name for name in names if name in depths]
        if not tuned:
            raise ConfigError("train.layer_decay is for layers that are tuned, and here the head alone is trained")
        shares |= {name: config.layer_decay ** (above - depths[name]) for name in tuned}
    if config.head_lr is not None:
        if not head:
            raise ConfigError("train.head_lr is for tasks that put a head on a model, such as classification")
        shares |= {name: config.head_lr / config.rate for name in names if name in head}
    return shares


def _depths(names: list[str], model: str) -> tuple[dict[str, int], int]:
    """The layer of each parameter, from 1; 0 for what lies below the first. And the number of what lies above."""
    numbered = [int(found[1]) + 1 if (found := _LAYER.match(name)) else None for name in names]
    top = max((number for number in numbered if number is not None), default=0)
    if not top:
        raise ConfigError(f"train.layer_decay is for models of layers, and model={model} has none")
    first = next(place for place, number in enumerate(numbered) if number is not None)
    around = [0 if place < first else top + 1 for place in range(len(names))]
    depths = [beside if number is None else number for number, beside in zip(numbered, around, strict=True)]
    return dict(zip(names, depths, strict=True)), top + 1
