"""The settings of the loop, `train.*`, each with the default that works."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from legato.config import Section
from legato.errors import ConfigError

PRECISIONS = {"bfloat16": "bf16", "fp32": "float32"}  # as they are called elsewhere
TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
DEFAULT_LR = {"adamw": 3e-3, "muon": 3e-3, "sgd": 1.0, "asgd": 1.0}


class TrainConfig(Section):
    """How to train. `steps` wins over `epochs`; without either it is ten epochs."""

    steps: int | None = Field(None, ge=1, description="updates in all; none: as many as train.epochs takes")
    epochs: float | None = Field(
        None, gt=0, le=1e9, description="passes over the data, when train.steps is none; none: 10"
    )
    min_steps: int = Field(
        0, ge=0, description="go on beyond train.epochs until so many updates, for small data; train.steps wins"
    )
    batch_tokens: int = Field(2048, ge=1, description="tokens a step, over all accumulation")
    batch_rows: int | None = Field(
        None, ge=1, description="rows a step instead of train.batch_tokens, for tasks whose data are rows"
    )
    accumulate: int = Field(1, ge=1, le=1 << 20, description="split each step's batch into this many smaller ones")

    optimizer: Literal["adamw", "muon", "sgd", "asgd"] = Field(
        "adamw",
        description="muon: orthogonal steps for matrices of layers, adamw for the rest; asgd: SGD, then its average",
    )
    lr: float | None = Field(
        None, gt=0, description="the highest; none: 0.003 for adamw and muon, 1 for sgd and asgd"
    )
    schedule: Literal["constant", "cosine", "linear", "inverse-sqrt", "plateau"] = Field(
        "cosine", description="constant, cosine, linear, inverse-sqrt or plateau"
    )
    warmup: float | None = Field(
        0,
        ge=0,
        description="steps over which the rate rises, or a share of all, as 0.06; none: a tenth, at most 1000",
    )
    layer_decay: float = Field(1.0, gt=0, le=1, description="each layer learns at this share of what is above it")
    head_lr: float | None = Field(None, gt=0, description="highest rate of a task's head; none: as everything")
    encoder_lr: float | None = Field(
        None, ge=0, description="highest rate of model.encoder or model.vision; 0: it stays as it is; none: as all"
    )
    text_lr: float | None = Field(
        None, ge=0, description="highest rate of model.text; 0: it stays as it is; none: as all"
    )
    frozen: tuple[str, ...] = Field(
        (), description="parts of a model that stay as they are: encoder, vision, text; norms: batch norms"
    )
    lr_final: float = Field(0.0, ge=0, le=1, description="share of lr left at the end of cosine and linear")
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="what plateau multiplies the rate with")
    plateau_patience: int = Field(0, ge=0, description="validations without gain before plateau cuts the rate")
    weight_decay: float = Field(0.0, ge=0, description="on matrices; never on biases and gains")
    beta1: float = Field(0.9, ge=0, lt=1, description="of adamw, and of what muon leaves to it")
    beta2: float = Field(0.99, ge=0, lt=1, description="of adamw")
    eps: float = Field(1e-8, gt=0, description="of adamw")
    momentum: float | None = Field(
        None, ge=0, lt=1, description="of sgd, asgd and muon; none: 0.95 for muon, 0 for the others"
    )
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 for none")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target spread over all tokens")
    average: float = Field(
        0.0, ge=0, lt=1, description="share of the steps, the last ones, over which the weights are averaged"
    )
    ema: float = Field(0.0, ge=0, lt=1, description="decay of an exponential moving average of the weights")
    average_patience: int = Field(
        5, ge=1, description="asgd: averaging starts after this many validations without gain"
    )

    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto", description="auto: bf16 where the device multiplies it fast, float32 elsewhere"
    )
    graph: bool = Field(True, description="on a GPU, replay steps of one shape as a CUDA graph")
    compile: Literal["auto", True, False] = Field(
        "auto",
        description="compile the model with torch.compile; auto: a Transformer on a GPU, where the run earns it back",
    )
    recompute: bool = Field(
        False, description="forget a Transformer block's inner results and compute them again: slower, less memory"
    )

    validate_every: int | None = Field(
        None,
        ge=1,
        description="steps; left out: once an epoch, or 20th of train.min_steps; at least four times a run",
    )
    checkpoint_every: int | None = Field(None, ge=1, description="steps; left out: as validate_every")
    keep: int = Field(2, ge=1, description="checkpoints kept besides best and last")
    log_every: int = Field(20, ge=1, description="steps between reports")
    layers_every: int = Field(
        0, ge=0, description="steps between figures of each layer (gradient norm, update/weights); 0: none"
    )
    patience: int = Field(0, ge=0, description="stop after this many validations without gain; 0 never stops")
    samples: int = Field(1, ge=0, le=10_000, description="texts written at each validation")
    tensorboard: Literal["auto", True, False] = Field(
        "auto", description="write TensorBoard events; auto: where TensorBoard is installed"
    )

    def writes_events(self) -> bool:
        """TensorBoard events are written; where `tensorboard=true` and it is not installed, a LegatoError."""
        if self.tensorboard is False:
            return False
        try:
            import_module("torch.utils.tensorboard")  # a folder of one's own may be called tensorboard
        except ImportError:
            if self.tensorboard == "auto":
                return False
            raise ConfigError(
                'train.tensorboard=true needs TensorBoard: pip install "legato-nn[tensorboard]", or set '
                "train.tensorboard=auto"
            ) from None
        return True

    @field_validator("compile", "tensorboard", mode="before")
    @classmethod
    def _words_are_truth_values(cls, value: Any) -> Any:
        return TRUTH.get(value.lower(), value) if isinstance(value, str) else value

    @field_validator("frozen", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("compile", mode="before")
    @classmethod
    def _auto_or_bool(cls, value: Any) -> Any:
        try:
            return TypeAdapter(bool).validate_python(value)
        except ValidationError:
            return value

    @field_validator("precision", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return PRECISIONS.get(value, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _rate(self) -> TrainConfig:
        if self.lr is None:
            object.__setattr__(self, "lr", DEFAULT_LR[self.optimizer])
        if self.warmup is not None and self.warmup > 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is a number of steps, or a share of them below 1; {self.warmup} is neither")
        if (self.ema or self.average) and self.optimizer == "asgd":
            raise ValueError("asgd averages the weights itself; use ema=0 and average=0 with it")
        if self.ema and self.average:
            raise ValueError("ema and average are two averages of the weights; use one")
        return self

    @property
    def momentum_or_default(self) -> float:
        """The momentum, given or not."""
        if self.momentum is not None:
            return self.momentum
        return 0.95 if self.optimizer == "muon" else 0.0

    @property
    def rate(self) -> float:
        assert self.lr is not None
        return self.lr
