"""ViT: Legato and Hugging Face's ViT under torch.compile, the same weights and pictures, side by side.

    python benchmarks/vit.py [--device cuda] [--layers 12] [--width 768] [--image 224] [--batch 128]
    python benchmarks/vit.py --infer [--batch 256]
    python benchmarks/vit.py --mode max-autotune-no-cudagraphs
    python benchmarks/vit.py --device cpu --layers 2 --width 64 --image 32 --batch 2 --steps 2 --rounds 2

ViT-B/16 with a head of 1,000 classes, from random weights on random pictures, without dropout. Training is forward
and backward pass, gradients clipped to a norm of 1, and AdamW with decay on matrices, in every step; with `--infer`
it is the classes' scores alone, without gradients. On a GPU training has bf16 products under autocast and float32
weights, and with `--infer` all is bf16; on a CPU all is float32. The sides:

- *legato*: Legato's own loop, its steps replayed as a CUDA graph; with `--infer` the model as it is loaded;
- *legato compiled*: the same, compiled;
- *huggingface*: a plain loop as short as it gets around `ViTForImageClassification`, model and loss compiled together
  by `torch.compile`, fused AdamW. `--mode` is that of `torch.compile`; left out, its default in training, and with
  `--infer` max-autotune-no-cudagraphs, as for Legato.

Measured: pictures a second in the median round, and the device's peak memory. Not measured: decoding, compiling,
recording, the first steps. The loss of the first batch must be the same on all sides, or the script fails. The last
line printed is JSON. Needs the peer: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sides import Side, add_rounds, choose_sides, compare, legato_steps, peer_steps, prepare, run_apart, timed

CLASSES, PATCH, BATCHES = 1000, 16, 4
AUTOTUNE = "max-autotune-no-cudagraphs"


class Shape(NamedTuple):
    device: str
    batch: int
    image: int
    threads: int
    seed: int
    infer: bool
    mode: str | None  # of the peer's torch.compile


def write_model(folder: Path, layers: int, width: int, image: int, seed: int) -> None:
    """A ViT with random weights, as Hugging Face keeps it."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        image_size=image,
        patch_size=PATCH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.num_labels = CLASSES
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": image, "width": image}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


class Pictures:
    """Random pictures with random classes, a few batches of them in turn: the same on every side."""

    steps_per_epoch = 1 << 20

    def __init__(self, shape: Shape) -> None:
        import torch

        from legato.data.batching.batch import Batch, Inputs

        draw, device = torch.Generator().manual_seed(shape.seed), torch.device(shape.device)
        dtype = torch.bfloat16 if shape.infer and device.type == "cuda" else torch.float32
        self.tokens_per_step = shape.batch * (shape.image // PATCH) ** 2
        self.batches = []
        for _ in range(BATCHES):
            values = torch.randn(shape.batch, 3, shape.image, shape.image, generator=draw).to(device, dtype)
            labels = torch.randint(CLASSES, (shape.batch,), generator=draw).to(device)
            self.batches.append(Batch(Inputs(values=values), labels=labels, tokens=shape.batch))

    def at(self, step: int) -> Any:
        return self.batches[step % BATCHES]


def scorer(scores: Callable[[Any], Any], pictures: Pictures) -> Callable[[int], None]:
    """Steps that are the scores of classes alone."""
    import torch

    @torch.inference_mode()
    def make_steps(steps: int) -> None:
        for step in range(steps):
            scores(pictures.at(step))

    return make_steps


def legato_side(folder: Path, shape: Shape, compiled: bool) -> Any:
    import torch
    import torch.nn.functional as F

    from legato.folders.model_folder import read_model
    from legato.training.job import Job, Loss

    device = prepare(shape.device, shape.threads)
    pictures = Pictures(shape)
    model: Any = read_model(str(folder)).module.float().to(device).train()
    model.shape = model.shape.model_copy(update={"dropout": 0.0})

    def loss_of(model: Any, batch: Any) -> Any:
        return F.cross_entropy(model(batch).logits.float(), batch.labels, reduction="sum")

    if shape.infer:
        model = model.to(pictures.at(0).inputs.values.dtype).eval()
    with torch.no_grad():
        first = float(loss_of(model, pictures.at(0))) / shape.batch
    if shape.infer:
        if compiled:
            model.compile(mode=AUTOTUNE)
        return timed(scorer(lambda batch: model(batch).logits, pictures), device, first)

    class RandomPictures(Job):
        """The least of a task that the loop needs."""

        batches = pictures
        metric = "loss"

        def loss(self, model: Any, batch: Any, state: Any) -> Any:
            total = loss_of(model, batch)
            return Loss(total, total)

    return timed(legato_steps(model, RandomPictures(), device, compiled, {"batch_rows": shape.batch}), device, first)


def huggingface_side(folder: Path, shape: Shape, compiled: bool) -> Any:
    import torch
    import torch.nn.functional as F
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = prepare(shape.device, shape.threads)
    pictures = Pictures(shape)
    model = transformers.ViTForImageClassification.from_pretrained(folder).float().to(device).train()
    if shape.infer:
        model = model.to(pictures.at(0).inputs.values.dtype).eval()

    def loss_of(values: Any, labels: Any) -> Any:
        return F.cross_entropy(model(pixel_values=values).logits.float(), labels)

    first_batch = pictures.at(0)
    with torch.no_grad():
        first = float(loss_of(first_batch.inputs.values, first_batch.labels))
    if shape.infer:
        scores: Any = torch.compile(model, mode=shape.mode or AUTOTUNE) if compiled else model
        return timed(scorer(lambda batch: scores(pixel_values=batch.inputs.values).logits, pictures), device, first)
    quick = torch.compile(loss_of, mode=shape.mode) if compiled else loss_of
    steps = peer_steps(model, lambda batch: quick(batch.inputs.values, batch.labels), pictures, device)
    return timed(steps, device, first)


SIDES = {
    "legato": (legato_side, False),
    "legato compiled": (legato_side, True),
    "huggingface": (huggingface_side, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--infer", action="store_true", help="scores of classes instead of training")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    parser.add_argument("--image", type=int, default=224, help="pixels of a picture's side, a multiple of 16")
    parser.add_argument("--batch", type=int, default=128, help="pictures a step")
    modes = ("default", "reduce-overhead", "max-autotune", AUTOTUNE)
    parser.add_argument("--mode", choices=modes, help="of the peer's torch.compile")
    add_rounds(parser, SIDES)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    shape = Shape(
        options.device, options.batch, options.image, options.threads, options.seed, options.infer, options.mode
    )

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, options.image, options.seed)
        sides = {name: Side(SIDES[name][0], folder, shape, SIDES[name][1]) for name in chosen}
        compare("vit", "pictures", options.batch, sides, options)


if __name__ == "__main__":
    main()
