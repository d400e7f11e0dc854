"""How wide a model's weights are to be: what verbs that read texts have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Dtype = Annotated[
    str,
    typer.Option("--dtype", help="Of the weights: float32, bfloat16, float16, or auto, the fastest that is safe."),
]
Quantize = Annotated[str | None, typer.Option("--quantize", help="Bring the model's matrices to int8 or int4.")]
