"""A campaign: everything is imported and every example made once, then cases run in two processes side by side."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import pkgutil
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from campaign_share import select

COUNT: Final = 10_000  # cases
BLOCKS: Final = 20  # of cases drawn by hypothesis
WORKERS: Final = 2
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
}
LIBRARIES: Final = (
    *("torch", "numpy", "pyarrow.parquet", "tokenizers", "safetensors.torch", "sentencepiece"),
    *("jinja2.sandbox", "huggingface_hub", "sklearn.linear_model", "sklearn.feature_extraction.text", "scipy.stats"),
    *("sacrebleu", "seqeval.metrics", "matplotlib.pyplot", "rich.table", "yaml", "ctranslate2", "ctranslate2.specs"),
    *("torch._dynamo", "torch.utils.checkpoint", "torch.utils.tensorboard", "concurrent.futures"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="run this one, and show what it left")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0, help="of another set of cases")
    parser.add_argument(
        "--share", action="store_true", help="run only the share that LEGATO_CAMPAIGN says, or a tenth"
    )
    parser.add_argument("--only", help="scenarios whose names hold this")
    parser.add_argument("--report", help="a JSON file for what was found")
    parser.add_argument("--quiet", action="store_true", help="say nothing on the way")
    parser.add_argument("--keep", action="store_true", help="leave the last case's folder, and say where it is")
    given = parser.parse_args()
    home = prepare_process()
    try:
        report = (
            _one(home, given.case)
            if given.case
            else campaign(
                home, given.count, given.seed, given.only or "", not given.quiet, select if given.share else list
            )
        )
        if given.report:
            Path(given.report).write_text(json.dumps(report, indent=1))
        if not given.case:
            print(told(report))
    finally:
        if given.keep:
            print(f"kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    sys.exit(bool(report["failures"]))


def prepare_process() -> Path:
    """A folder in memory where there is one, and a process that has imported everything and started no thread."""
    os.environ.update(ENVIRONMENT)
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="legato-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    os.environ["HF_HOME"] = str(home / "hf")
    os.environ["LEGATO_CACHE"] = str(home / "cache")
    import torch

    torch.set_num_threads(1)
    import legato

    for module in pkgutil.walk_packages(legato.__path__, "legato."):
        if not module.name.endswith("__main__"):
            _import(module.name)
    for name in LIBRARIES:
        _import(name)
    torch.compile = lambda model, *_, **__: model  # it takes longer than any case may
    os.environ["LEGATO_KERNELS"] = str(home / "kernels")  # compiled once, not in each case's own cache
    from legato.nn.kernels.library import library, training_library

    library(), training_library()
    return home


def _import(name: str) -> None:
    with contextlib.suppress(Exception):
        importlib.import_module(name)


def campaign(
    home: Path,
    count: int,
    seed: int = 0,
    only: str = "",
    show: bool = False,
    choose: Callable[[Iterable[Any]], list[Any]] = list,
) -> dict[str, Any]:
    """Run those of `count` cases that `choose` takes; what failed, and how long it took."""
    from fuzzing.cases import Workshop
    from fuzzing.scenarios import scenarios

    began = time.monotonic()
    shop = Workshop(home)
    shop.prepare([name for name in scenarios() if only in name])
    prepared = time.monotonic() - began
    cases = choose(shop.cases(count - count // 10, seed))
    drawn = max(1, count // 10 // BLOCKS)  # by hypothesis, in each block
    blocks = choose(range(seed * BLOCKS, seed * BLOCKS + count // 10 // drawn))
    gc.collect()
    gc.freeze()  # so that forked processes do not copy what a collection would touch
    context = multiprocessing.get_context("fork")
    following = context.Value("i", 0)
    expected = len(cases) + drawn * len(blocks)
    logs = [home / f"log-{number}.jsonl" for number in range(WORKERS)]
    workers = [
        context.Process(target=_work, args=(shop, cases, following, log, drawn, blocks[number::WORKERS]))
        for number, log in enumerate(logs)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        multiprocessing.connection.wait([worker.sentinel for worker in workers if worker.is_alive()], 20)
        if show:
            done = [len(log.read_bytes().splitlines()) for log in logs if log.exists()]
            print(
                f"{sum(done):,} of {expected:,} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
            )
    rows = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    seconds = time.monotonic() - began
    codes: dict[str, int] = {}
    for row in rows:
        codes[str(row["code"])] = codes.get(str(row["code"]), 0) + 1
    return {
        "cases": len(rows),
        "targets": sum(len(example.targets) for example in shop.examples.values()),
        "scenarios": len(shop.examples),
        "preparing": round(prepared, 1),
        "seconds": round(seconds, 1),
        "codes": codes,
        "slowest": sorted(((row["seconds"], row["case"]) for row in rows), reverse=True)[:20],
        "by_scenario": _by_scenario(rows),
        "failures": [row for row in rows if row["failure"]],
        "whole": len(rows) >= expected - len(blocks),
    }


def _by_scenario(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        entry = found.setdefault(row["case"].split()[0], [0, 0.0])
        entry[0] += 1
        entry[1] = round(entry[1] + row["seconds"], 2)
    return found


def _work(shop: Any, cases: list[Any], following: Any, log: Path, drawn: int, blocks: list[int]) -> None:
    """One of the processes side by side: its part of the cases, then blocks that hypothesis draws."""
    from fuzzing.combinations import combine
    from fuzzing.trial import end_with_parent

    end_with_parent()
    with log.open("w", buffering=1) as file:

        def record(case: Any, outcome: Any, failure: str | None) -> None:
            row = {
                "case": str(case),
                "code": outcome.code,
                "seconds": round(outcome.seconds, 3),
                "peak": outcome.peak >> 20,
                "failure": failure,
            }
            if failure:
                row |= {"err": outcome.err[-1500:], "out": outcome.out[-300:], "problem": outcome.problem}
            file.write(json.dumps(row) + "\n")

        while True:
            with following.get_lock():
                place = following.value
                following.value += 1
            if place >= len(cases):
                break
            record(cases[place], *shop.run(cases[place], log.stem))
        for block in blocks:
            combine(shop, drawn, block, log.stem, record)


def _one(home: Path, line: str) -> dict[str, Any]:
    from fuzzing.cases import Case, Workshop

    case = Case.read(line)
    shop = Workshop(home)
    shop.prepare([case.scenario])
    outcome, failure = shop.run(case)
    print(outcome.out, end="")
    print(outcome.err, end="", file=sys.stderr)
    print(
        f"exit code {outcome.code}, {outcome.seconds:.2f} s, {outcome.peak >> 20} MB above the start",
        outcome.problem,
    )
    print(f"failure: {failure}")
    return {"failures": [str(case)] if failure else []}


def grouped(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Failures by what went wrong and where, the most frequent first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in report["failures"]:
        groups.setdefault(row["failure"], []).append(row)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def told(report: dict[str, Any]) -> str:
    """The report as text: figures, then each kind of failure with a line that repeats it."""
    speed = report["cases"] / max(report["seconds"] - report["preparing"], 1e-9)
    lines = [
        f"{report['cases']:,} cases, {report['targets']:,} targets in {report['scenarios']} scenarios: "
        f"{report['seconds']:.0f} s, {report['preparing']:.0f} of them preparing, {speed:.1f} cases a second",
        f"exit codes: {report['codes']}; {len(report['failures']):,} failures of {len(grouped(report))} kinds",
    ]
    for name, rows in grouped(report).items():
        shortest = min(rows, key=lambda row: len(row["case"]))
        lines += [f"\n{len(rows)} × {name}", f'    python tests/slow/fuzz.py --case "{shortest["case"]}"']
        lines += [f"    {line[:300]}" for line in shortest["err"].splitlines()[-1:]]
    return "\n".join(lines)
