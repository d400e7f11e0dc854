"""The weights that tiny runs end with: one run for each task and family of models, 30 steps on a CPU, hashed.

    python tests/trained_weights.py > before.json      # on the code before a change
    python tests/trained_weights.py before.json        # on the code after it: names what differs

On one machine with one version of PyTorch the hashes stay the same for ever, unless what a step computes was meant to
change. `--keep FOLDER` keeps the runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

from tiny_questions import squad
from tiny_reviews import write_pairs, write_reviews
from tiny_runs import write_text
from tiny_tagged import sentences, write_columns

COMMON: dict[str, Any] = {
    "train.steps": 30,
    "train.validate_every": 15,
    "train.samples": 0,
    "train.tensorboard": "false",
    "train.log_every": 10,
    "device": "cpu",
    "seed": 5,
}
BLOCKS: dict[str, Any] = {"model.layers": 2, "model.width": 16, "model.heads": 2}
LM: dict[str, Any] = {"data.train": "train.txt", "data.valid": "valid.txt", "train.batch_tokens": 128}
PAIRS = {"data.train": "pairs.tsv", "data.valid": "pairs.tsv", "train.batch_tokens": 200, "tokenizer": "char"}
TREES = {"data.train": "trees.mrg", "data.valid": "trees.mrg", "train.batch_tokens": 200}
REVIEWS = {"data.train": "reviews.tsv", "data.valid": "reviews-valid.tsv", "train.batch_rows": 8}
TAGS = {"data.train": "tags.txt", "data.valid": "tags-valid.txt", "train.batch_rows": 8}
QUESTIONS = {"data.train": "squad.json", "data.valid": "squad.json", "train.batch_rows": 8}
ALIKE = {"data.train": "alike.tsv", "data.valid": "alike.tsv", "train.batch_rows": 8}
RECURRENT = {"model.width": 16, "model.layers": 1}

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"lm-{name}": ("lm", {**LM, **RECURRENT, "model": name, "tokenizer": "char", "data.window": 16})
        for name in ("elman", "gru", "lstm")
    },
    "lm-window": ("lm", {**LM, "model": "window", "model.width": 16, "tokenizer": "char", "data.window": 16}),
    "lm-elmo": ("lm", {**LM, **RECURRENT, "model": "elmo", "tokenizer": "word", "train.batch_tokens": 64}),
    "lm-gpt2": ("lm", {**LM, **BLOCKS, "model": "gpt2", "tokenizer": "char", "model.length": 64}),
    **{
        f"lm-{family}": (
            "lm",
            {**LM, **BLOCKS, "model": "llama", "model.family": family, "tokenizer": "char", "model.length": 32},
        )
        for family in ("llama", "mistral", "qwen2", "qwen3")
    },
    "lm-recall": (
        "lm",
        {"data.train": "toy:recall", **RECURRENT, "model": "gru", "train.batch_tokens": 256},
    ),
    **{
        f"mlm-{name}": ("mlm", {**LM, **BLOCKS, "model": name, "model.length": 32, "tokenizer.size": 300})
        for name in ("bert", "roberta", "distilbert")
    },
    "mlm-lstm": ("mlm", {**LM, **RECURRENT, "model": "lstm", "tokenizer": "char"}),
    "mlm-window": ("mlm", {**LM, "model": "window", "model.width": 16, "tokenizer": "char"}),
    **{
        f"translation-{cell}-{attention}": (
            "translation",
            {**PAIRS, **RECURRENT, "model": "seq2seq", "model.cell": cell, "model.attention": attention},
        )
        for cell, attention in (("elman", "none"), ("gru", "dot"), ("lstm", "bilinear"), ("lstm", "mlp"))
    },
    "translation-transformer": ("translation", {**PAIRS, **BLOCKS, "model": "transformer"}),
    "parsing-seq2seq": ("parsing", {**TREES, **RECURRENT, "model": "seq2seq"}),
    "parsing-transformer": ("parsing", {**TREES, **BLOCKS, "model": "transformer"}),
    "tagging-crf": ("tagging", {**TAGS, **RECURRENT, "model": "lstm", "head.crf": "true", "model.characters": 8}),
    "tagging-bert": ("tagging", {**TAGS, **BLOCKS, "model": "bert"}),
    "classification-lstm": ("classification", {**REVIEWS, **RECURRENT, "model": "lstm"}),
    "classification-bert": ("classification", {**REVIEWS, **BLOCKS, "model": "bert"}),
    "classification-gpt2": ("classification", {**REVIEWS, **BLOCKS, "model": "gpt2"}),
    "classification-pairs": (
        "classification",
        {**ALIKE, **RECURRENT, "model": "gru"},
    ),
    "qa-bert": ("qa", {**QUESTIONS, **BLOCKS, "model": "bert"}),
    "qa-lstm": ("qa", {**QUESTIONS, **RECURRENT, "model": "lstm"}),
    "embedding-bert": ("embedding", {**ALIKE, **BLOCKS, "model": "bert"}),
    "word2vec": ("word2vec", {"data.train": "train.txt", "model.width": 16}),
    "chat-gpt2": ("chat", {"data.train": "dialogues.jsonl", "from": "@lm-gpt2", "train.batch_tokens": 128}),
    "classification-lora": ("classification", {**REVIEWS, "from": "@mlm-bert", "adapt": "lora"}),
    "classification-bitfit": ("classification", {**REVIEWS, "from": "@mlm-roberta", "adapt": "bitfit"}),
    "tagging-head": ("tagging", {**TAGS, "from": "@mlm-distilbert", "adapt": "head", "head.layers": "mix"}),
    "tagging-elmo": ("tagging", {**TAGS, "from": "@lm-elmo", "adapt": "head", "head.lstm": 1}),
    "lm-lora": ("lm", {**LM, "from": "@lm-llama", "adapt": "lora"}),
    "embedding-lora": ("embedding", {**ALIKE, "from": "@mlm-bert", "adapt": "lora"}),
}
TREE = "( (S (NP (DT the) (NN {})) (VP (VBZ {}) (NP (DT a) (NN {}))) (. .)) )\n"


def write_data(folder: Path) -> None:
    """Every file that the runs read."""
    write_text(folder / "train.txt", seed=1)
    write_text(folder / "valid.txt", lines=24, seed=2)
    write_reviews(folder / "reviews.tsv", seed=1)
    write_reviews(folder / "reviews-valid.tsv", rows=20, seed=2)
    write_pairs(folder / "alike.tsv", seed=3)
    write_columns(folder / "tags.txt", sentences(60, 1))
    write_columns(folder / "tags-valid.txt", sentences(12, 2))
    squad(folder / "squad.json")
    lines = (folder / "train.txt").read_text().splitlines()
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in lines))
    words = [line.split() for line in lines]
    (folder / "trees.mrg").write_text("".join(TREE.format(*row[:3]) for row in words))
    turns = [
        {"messages": [{"role": "user", "content": line[:3]}, {"role": "assistant", "content": line[4:8]}]}
        for line in lines
    ]
    (folder / "dialogues.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))


def digest_of(run: Path) -> str:
    """The hash of all the tensors that the run's last model has in its folder."""
    found = hashlib.sha256()
    for file in sorted((run / "last").glob("*.safetensors")):
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def train_all(folder: Path, names: list[str]) -> dict[str, str]:
    """The hash of each run, by its name."""
    import torch

    import legato

    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["LEGATO_CACHE"] = str(folder / "cache")
    write_data(folder)
    found = {}
    for name, (task, settings) in RUNS.items():
        if names and name not in names:
            continue
        settings = {
            key: f"runs/{value[1:]}" if isinstance(value, str) and value.startswith("@") else value
            for key, value in {**COMMON, **settings}.items()
        }
        legato.train(task, settings, out=f"runs/{name}", quiet=True)
        found[name] = digest_of(Path("runs") / name)
        print(f"{name}: {found[name]}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, help="hashes to compare with")
    parser.add_argument("--keep", type=Path, help="where the runs are kept")
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    given = parser.parse_args()
    before = json.loads(given.before.read_text()) if given.before else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep.resolve() if given.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = train_all(folder, given.only)
    print(json.dumps(found, indent=1))
    if before is not None:
        differ = [name for name in found if before.get(name) != found[name]]
        print(f"{len(differ)} of {len(found)} differ: {', '.join(differ)}" if differ else "all are the same")
        sys.exit(bool(differ))


if __name__ == "__main__":
    main()
