"""Tuning an encoder on labelled texts: Legato beside transformers and peft, the same model, data and batches.

    python benchmarks/adapt.py MODEL train.tsv [--device cuda] [--rows 32]
    python benchmarks/adapt.py MODEL train.tsv --device cpu --rows 4 --steps 2 --rounds 2 --warm 1

MODEL is the folder of a BERT-like encoder, train.tsv has a column of texts and one of labels, such as SST-2's. A
classifier on the pooled first token is put on it once, and all sides begin with that: all of it tuned (full), LoRA of
rank 8 on queries and values (lora), or biases and head (bitfit). A step is forward and backward pass, gradients
clipped to a norm of 1, and AdamW, on batches of `--rows` texts of like length. On a GPU the products are bf16 under
autocast and the trained weights float32; on a CPU all is float32. Dropouts are the model's own. The sides:

- *legato*: Legato's own loop with the checks and reports that it makes, its steps replayed as CUDA graphs;
- *peers*: a plain loop as short as it gets around `AutoModelForSequenceClassification`, with `peft` for LoRA; each
  batch cut to its longest text.

Measured: tokens a second in the median round, padding not counted, and the most memory that tensors took (on a CPU:
that the process took); in JSON also the most that PyTorch held. Not measured: reading, recording, the first steps.
The loss of the first batch, in float32 without dropout, must be the same on all sides, or the script fails. The last
line printed is JSON. Needs the peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from sides import Side, choose_sides, finish, run_apart, versions

# Legato and its peers are imported by the process that needs them.

RATE, DECAY, BETAS, CLIP = 1e-4, 0.01, (0.9, 0.999), 1.0
RANK, ALPHA = 8, 16


class Shape(NamedTuple):
    device: str
    data: str
    rows: int
    threads: int
    seed: int


class Round(NamedTuple):
    """What a side tells after some steps."""

    seconds: float
    tokens: int  # padding not counted
    peak: float  # MiB that tensors took so far
    held: float  # MiB that PyTorch held
    loss: float  # of the first batch
    trainable: int


def memory(device: Any) -> tuple[float, float]:
    """Peak MiB so far: of a GPU those of tensors and those held, of the main memory the process's."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20, torch.cuda.max_memory_reserved() / 2**20
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return process, process


def write_classifier(model: str, data: str, folder: Path) -> None:
    """The model with a head for the labels of the data, drawn at random, as transformers keeps it."""
    import torch
    import transformers

    from legato.data.formats.labelled import read_labelled

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    labels = sorted({str(label) for label in read_labelled(data).labels})
    torch.manual_seed(0)
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(
        model, id2label=dict(enumerate(labels)), label2id={label: number for number, label in enumerate(labels)}
    ).float()  # not the type that the weights were kept in
    whole.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def prepare(folder: Path, shape: Shape, adapt: str) -> tuple[Any, Any, Any]:
    """The checked settings, the classification job with its batches, and the loaded model: the same on every side."""
    import torch

    from legato.registry import TASKS
    from legato.runs.config import check, settings_for
    from legato.runs.train import plan_of

    torch.set_num_threads(shape.threads)
    torch.set_float32_matmul_precision("high")
    given = {
        "data.train": shape.data,
        "data.valid": shape.data,
        "from": str(folder),
        "adapt": adapt,
        "adapt.rank": RANK,
        "adapt.alpha": ALPHA,
        "seed": shape.seed,
        "train.steps": 10**6,
        "train.batch_rows": shape.rows,
        "train.lr": RATE,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.weight_decay": DECAY,
        "train.beta1": BETAS[0],
        "train.beta2": BETAS[1],
        "train.clip": CLIP,
        "train.tensorboard": False,
    }
    config = check(settings_for("classification", given))
    plan = plan_of(config, torch.device(shape.device))
    return config, TASKS.get("classification").prepare(plan, lambda text: None), plan.loaded


def legato_side(folder: Path, shape: Shape, adapt: str) -> Any:
    import torch

    from legato.models.base import count_parameters
    from legato.registry import MODELS
    from legato.runs.run_folder import RunFolder
    from legato.runs.train import with_head
    from legato.training.adapt import Base, store_frozen
    from legato.training.adapt import adapt as adapt_model
    from legato.training.display import Display
    from legato.training.loop import Trainer

    device = torch.device(shape.device)
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))  # all on one stream; `Trainer.fit` sees to that itself
    config, job, loaded = prepare(folder, shape, adapt)
    model = MODELS.get(config.model.name)(config.model, job.sizes)
    loaded.put_into(model)
    model = with_head(model, job, loaded).to(device)
    first = job.batches.at(0).to(device)
    model.eval()
    with torch.no_grad():
        loss = float(job.loss(model, first, None).reported) / first.tokens
    model.train()
    adapt_model(model, config.adapt, Base.of(str(folder), loaded))
    if adapt != "full":
        store_frozen(model, device, config.train.precision)
    trainable = count_parameters(model, trainable=True)
    del loaded, first
    run = RunFolder(Path(tempfile.mkdtemp()))
    trainer = Trainer(model, job, config.train, run, seed=0, device=device, display=Display(quiet=True))
    forget_peak(device)

    def answer(steps: int) -> Round:
        started = mark = time.monotonic()
        before = trainer.progress.tokens
        for _ in range(steps):
            trainer._update()
            if trainer.step % config.train.log_every == 0:
                mark = trainer._report(mark)
        finish(device)
        return Round(time.monotonic() - started, trainer.progress.tokens - before, *memory(device), loss, trainable)

    return answer


def rows_of(batch: Any, device: Any) -> tuple[dict[str, Any], Any]:
    """The texts of Legato's batch and their labels as the peers take them, no wider than the longest text."""
    import torch

    there = batch.labels >= 0
    lengths = (
        batch.inputs.lengths[there]
        if batch.inputs.lengths is not None
        else torch.full((batch.rows,), batch.inputs.ids.shape[1])
    )
    width = int(lengths.max())
    mask = (torch.arange(width) < lengths[:, None]).long()
    inputs = {"input_ids": batch.inputs.ids[there, :width], "attention_mask": mask}
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
    return moved, batch.labels[there].to(device, non_blocking=True)


def adapt_peer(model: Any, adapt: str, targets: Any) -> Any:
    """What is trained of a classifier of transformers; LoRA by peft."""
    if adapt == "lora":
        import peft

        config = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=ALPHA, target_modules=targets)
        return peft.get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        wanted = adapt == "full" or name.startswith("classifier") or (adapt == "bitfit" and name.endswith("bias"))
        parameter.requires_grad_(wanted)
    return model


def peer_optimizer(model: Any) -> tuple[list[Any], Any]:
    """The trained parameters, and AdamW that lets only matrices decay."""
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return parameters, torch.optim.AdamW([g for g in groups if g["params"]], lr=RATE, betas=BETAS, fused=True)


def peer_side(folder: Path, shape: Shape, adapt: str) -> Any:
    import torch
    import torch.nn.functional as F
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device(shape.device)
    _, job, _ = prepare(folder, shape, "full")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(device)
    inputs, labels = rows_of(job.batches.at(0), device)
    model.eval()
    with torch.no_grad():
        loss = float(F.cross_entropy(model(**inputs).logits, labels))
    model.train()
    model = adapt_peer(model, adapt, ["query", "value"])
    parameters, optimizer = peer_optimizer(model)
    trainable = sum(p.numel() for p in parameters)
    step = 0
    forget_peak(device)

    def answer(steps: int) -> Round:
        nonlocal step
        started, tokens = time.monotonic(), 0
        for _ in range(steps):
            batch = job.batches.at(step)
            inputs, labels = rows_of(batch, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                total = F.cross_entropy(model(**inputs).logits.float(), labels)
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            step += 1
            tokens += batch.read
        finish(device)
        return Round(time.monotonic() - started, tokens, *memory(device), loss, trainable)

    return answer


def forget_peak(device: Any) -> None:
    """What loading took is not counted."""
    import gc

    import torch

    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


SIDES = {
    "legato full": (legato_side, "full"),
    "legato lora": (legato_side, "lora"),
    "legato bitfit": (legato_side, "bitfit"),
    "transformers full": (peer_side, "full"),
    "peft lora": (peer_side, "lora"),
    "transformers bitfit": (peer_side, "bitfit"),
}
PEERS = {"legato full": "transformers full", "legato lora": "peft lora", "legato bitfit": "transformers bitfit"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="the folder of an encoder")
    parser.add_argument("data", help="texts with labels: tsv, csv, jsonl or parquet")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--rows", type=int, default=32, help="texts a step")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="in a round")
    parser.add_argument("--warm", type=int, default=200, help="steps before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--sides", default=",".join(SIDES), help="which of the six, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    if importlib.util.find_spec("peft") is None:
        raise SystemExit('peft is not installed; the peers come with: pip install -e ".[bench]"')
    shape = Shape(options.device, options.data, options.rows, options.threads, options.seed)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_classifier, options.model, options.data, folder)
        sides = {name: Side(SIDES[name][0], folder, shape, SIDES[name][1]) for name in chosen}
        warm = {name: side(options.warm) for name, side in sides.items()}
        rounds: dict[str, list[float]] = {name: [] for name in sides}  # tokens a second
        last: dict[str, Round] = {}
        for _ in range(options.rounds):
            for name, side in sides.items():
                told = last[name] = side(options.steps)
                rounds[name].append(told.tokens / told.seconds)

    losses = {name: first.loss for name, first in warm.items()}
    trainable = {name: first.trainable for name, first in warm.items()}
    peaks = {name: told.peak for name, told in last.items()}
    speeds = {name: statistics.median(values) for name, values in rounds.items()}
    print(f"{'':20s}{'trainable':>12s}{'tokens/s':>12s}   {'from':>10s} to {'':10s}{'MiB':>8s}   first loss")
    for name, values in rounds.items():
        spread = f"{min(values):10,.0f} to {max(values):10,.0f}"
        figures_of = f"{trainable[name]:12,d}{speeds[name]:12,.0f}   {spread}{peaks[name]:8,.0f}"
        print(f"{name:20s}{figures_of}   {losses[name]:.5f}")
    compared = {ours: theirs for ours, theirs in PEERS.items() if ours in speeds and theirs in speeds}
    figures: dict[str, Any] = {
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "peak_mib": {name: round(peak, 1) for name, peak in peaks.items()},
        "held_mib": {name: round(told.held, 1) for name, told in last.items()},
        "trainable": trainable,
        "first_loss": losses,
        "speed_over_peer": {ours: round(speeds[ours] / speeds[theirs], 3) for ours, theirs in compared.items()},
        "memory_over_peer": {ours: round(peaks[ours] / peaks[theirs], 3) for ours, theirs in compared.items()},
    }
    for ours, theirs in compared.items():
        ratio, share = figures["speed_over_peer"][ours], figures["memory_over_peer"][ours]
        print(f"{ours} is {ratio:.2f} × as fast as {theirs}, with {share:.2f} × the memory")
    from importlib.metadata import version

    with_peft = {**versions(), "peft": version("peft")}
    print(json.dumps({"benchmark": "adapt", **vars(options), "versions": with_peft, **figures}))
    if max(losses.values()) - min(losses.values()) > 1e-4 * min(losses.values()):
        raise SystemExit("the first losses differ, so this is no comparison")


if __name__ == "__main__":
    main()
