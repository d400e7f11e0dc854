"""Models, adapters and runs as this version saves them, packed with what they say: later ones must read them.

    python tests/trained_weights.py --keep RUNS
    python tests/save_models.py RUNS tests/saved/0.1.0.tar.xz

`tests/folders/test_saved_before.py` unpacks every archive in `tests/saved`, and asks the models the same again.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
TEXT, TSV = "valid.txt", "reviews-valid.tsv"
# Runs, and what their models are scored on.
SCORED: dict[str, dict[str, str]] = {
    "lm-gru": {"test": TEXT},
    "lm-window": {"test": TEXT},
    "lm-gpt2": {"test": TEXT},
    "lm-llama": {"test": TEXT},
    "lm-lora": {"test": TEXT},
    "mlm-bert": {"test": TEXT},
    "mlm-distilbert": {"test": TEXT},
    "translation-gru-dot": {"test": "pairs.tsv"},
    "translation-transformer": {"test": "pairs.tsv"},
    "parsing-seq2seq": {"test": "trees.mrg"},
    "classification-lstm": {"test": TSV},
    "classification-lora": {"test": TSV},
    "tagging-crf": {"test": "tags-valid.txt"},
    "tagging-head": {"test": "tags-valid.txt"},
    "qa-lstm": {"test": "squad.json"},
    "embedding-bert": {"test": "alike.tsv"},
    "chat-gpt2": {"test": "dialogues.jsonl"},
    "word2vec": {"test": TEXT},
}
RESUMED = ("lm-gru", "classification-lora")  # runs that are kept whole


def scores_of(folder: Path) -> dict[str, dict[str, float]]:
    """What each model in `folder` scores; figures that hang on one best answer are left out."""
    import legato

    os.chdir(folder)
    found = {}
    for name, data in SCORED.items():
        scores: dict[str, Any] = legato.load(Path("runs") / name / "best", device="cpu").evaluate(**data)
        smooth = ("loss", "perplexity", "masked_perplexity", "pseudo_perplexity", "spearman", "mrr")
        found[name] = {key: float(scores[key]) for key in smooth if key in scores and math.isfinite(scores[key])}
        assert found[name], name
    return found


def main() -> None:
    runs, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    out.parent.mkdir(exist_ok=True)
    expected = scores_of(runs)
    with tarfile.open(out, "w:xz", preset=9) as archive, tempfile.TemporaryDirectory() as folder:
        for file in sorted(path for path in runs.iterdir() if path.is_file()):
            archive.add(file, file.name)
        for name in SCORED:
            whole = name in RESUMED
            archive.add(runs / "runs" / name / ("" if whole else "best"), f"runs/{name}" + ("" if whole else "/best"))
        told = Path(folder) / "expected.json"
        told.write_text(json.dumps(expected, indent=1))
        archive.add(told, "expected.json")


if __name__ == "__main__":
    main()
