"""EfficientNet-Lite as it is published for PyTorch: weights alone, under the names of TensorFlow's layers.

There is no config.json beside them, so their names say what they are, and the number of blocks and the width of the
last say which variant. Nor is there a processor; that of the model's settings takes its place. A model is never
written so, but under our own names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from torch import Tensor

from legato.data.image.image_processor import Side
from legato.data.processors import Processor
from legato.models.base import SequenceModel
from legato.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from legato.models.published.entries import Entry
from legato.models.published.family import HeadNames, Published
from legato.models.published.tensor_names import From, Names

VARIANTS: Final = (  # Lite0 to Lite4: the coefficients of width and depth, pixels of a picture's side
    (1.0, 1.0, 224),
    (1.0, 1.1, 240),
    (1.1, 1.2, 260),
    (1.2, 1.4, 280),
    (1.4, 1.8, 300),
)
PARTS: Final = {  # our convolutions and theirs, each with its norm
    "stem": ("_conv_stem", "_bn0"),
    "top": ("_conv_head", "_bn1"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
Coefficient = Annotated[float, Field(gt=0, le=16)]


class EfficientNetLite(Published):
    """The map between `EfficientNetLiteModel` and its published weights."""

    model_type: ClassVar[str] = "efficientnet-lite"
    architecture: ClassVar[str] = "EfficientNetLiteForImageClassification"
    Model: ClassVar[type[SequenceModel]] = EfficientNetLiteModel
    heads: ClassVar[HeadNames | None] = HeadNames(
        "mean",
        {"head": "_fc"},
        dropouts={"classes": ()},
        ends={"classes": "ForImageClassification"},
        task_of={"classes": "image-classification"},
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        "width_coefficient": Entry(Coefficient, "width_coefficient", 1.0),
        "depth_coefficient": Entry(Coefficient, "depth_coefficient", 1.0),
        "image_size": Entry(Side, "image", 224),
    }
    words: ClassVar[bool] = False
    ignored: ClassVar[str] = r"^_fc\."

    @classmethod
    def entries_of(cls, tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
        blocks = sum(bool(re.fullmatch(r"_blocks\.\d+\._project_conv\.weight", name)) for name in tensors)
        last = tensors.get(f"_blocks.{blocks - 1}._project_conv.weight")
        if "_conv_stem.weight" not in tensors or last is None or not last.dim():
            return None
        for width, depth, image in VARIANTS:
            config = EfficientNetLiteConfig(width_coefficient=width, depth_coefficient=depth, image=image)
            if (sum(config.depths), config.widths[-1]) == (blocks, len(last)):
                break
        else:
            return None
        return {
            "model_type": cls.model_type,
            "architectures": [cls.architecture if "_fc.weight" in tensors else "EfficientNetLiteModel"],
            "width_coefficient": width,
            "depth_coefficient": depth,
            "image_size": image,
        }

    @classmethod
    def default_processors(cls, config: Mapping[str, Any]) -> dict[str, Processor]:
        return {"image": EfficientNetLiteConfig(image=config.get("image_size", 224)).image_processor()}

    @classmethod
    def names(cls, module: Any) -> Names:
        starts = {"stem": "", "top": ""}  # how the names of theirs begin
        blocks = [(number, block) for number, stage in enumerate(module.stages) for block in range(len(stage))]
        starts |= {f"stages.{stage}.{block}": f"_blocks.{at}." for at, (stage, block) in enumerate(blocks)}
        names: dict[str, From] = {}
        for name in module.state_dict():
            path, owner, part = name.rsplit(".", 2)  # stages.1.0.expand, norm, weight
            block, _, convolution = path.rpartition(".")
            theirs = PARTS[convolution][owner == "norm"]
            names[name] = From((f"{starts[block or convolution]}{theirs}.{part}",))
        return names
