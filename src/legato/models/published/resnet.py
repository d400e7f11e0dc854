"""The residual network in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from legato.data.image.image_processor import Side
from legato.models.base import SequenceModel
from legato.models.published.entries import ACTIVATIONS, Entry, Flag, Size
from legato.models.published.family import HeadNames, Published
from legato.models.resnet import ResNetModel

STAGES: Final = 64  # more than any has, since each halves the grid
Stages = Annotated[list[Size], Field(min_length=1, max_length=STAGES)]
RENAMED: Final = (  # our names and theirs, in this order
    (r"^stem\.", "embedder.embedder."),
    (r"^stages\.", "encoder.stages."),
    (r"\.blocks\.(\d+)\.", r".layers.\1."),
    (r"\.convolutions\.", ".layer."),
    (r"\.norm\.", ".normalization."),
)


class ResNet(Published):
    """The map between `ResNetModel` and theirs of that name, with whatever head."""

    model_type: ClassVar[str] = "resnet"
    architecture: ClassVar[str] = "ResNetForImageClassification"
    Model: ClassVar[type[SequenceModel]] = ResNetModel
    heads: ClassVar[HeadNames | None] = HeadNames(
        "mean",
        {"head": "classifier.1"},
        dropouts={"classes": ()},
        ends={"classes": "ForImageClassification"},
        task_of={"classes": "image-classification"},
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        "embedding_size": Entry(Size, "embedding", 64),
        "hidden_sizes": Entry(Stages, "widths", [256, 512, 1024, 2048]),
        "depths": Entry(Stages, "depths", [3, 4, 6, 3]),
        "layer_type": Entry(str, "block", "bottleneck", {"basic": "basic", "bottleneck": "bottleneck"}),
        "hidden_act": Entry(str, "activation", "relu", ACTIVATIONS),
        "downsample_in_first_stage": Entry(Flag, "downsample_in_first_stage", False),
        "downsample_in_bottleneck": Entry(Flag, "downsample_in_bottleneck", False),
        "image_size": Entry(Side, "image", 224),  # which theirs does not say: any will do
    }
    words: ClassVar[bool] = False
    fixed: ClassVar[Mapping[str, Any]] = {"num_channels": 3}
    body: ClassVar[str] = "resnet."
    ignored: ClassVar[str] = r"^classifier\."

    @classmethod
    def refusal(cls, module: Any) -> str | None:
        if module.config.stem == "7x7":
            return None
        return f"Hugging Face's ResNet begins with stem=7x7 alone, and this one with stem={module.config.stem}"

    @classmethod
    def their_names(cls, name: str) -> tuple[str, ...]:
        for ours, theirs in RENAMED:
            name = re.sub(ours, theirs, name)
        return (cls.body + name,)
