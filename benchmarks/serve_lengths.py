"""Long texts beside short ones: what ten ordinary clients of `legato serve` notice of one that sends 1 KB to 8 MB.

    python benchmarks/serve_lengths.py [--seconds 8] [--threads 1] [--only tagging,lm]

A tiny model of each task that reads text is trained here, and one process serves them all. For each task ten clients
ask one short question after another, first alone, then beside one client that sends long bodies of each size in turn:
one long text, and many texts that are as long together. The share of the two 99th percentiles is to be 3 at most.
Then eight bodies of 8 MB come at once, memory is read before, at its highest and three seconds later, and SIGTERM is
sent while long texts are being computed. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from clients import percentile
from servers import free_port

import legato
from tiny_tasks import tiny  # type: ignore[import-not-found]

CLIENTS: Final = 10
SIZES: Final = (1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, (8 << 20) - 4096)  # characters of a body
SHARE: Final = 3.0  # of the 99th percentiles
LIMIT: Final = 38.0  # seconds after SIGTERM: the 35 of the server, and some to notice
WORDS: Final = ("the", "dog", "runs", "and", "a", "cat", "sees", "two", "birds", "in", "the", "old", "tree", "near")
PIECE: Final = 1 << 14  # characters that differ, of a text


def sentence(draw: random.Random, characters: int) -> str:
    piece = " ".join(draw.choices(WORDS, k=min(characters, PIECE) // 2 + 1))
    return f"{piece} " * (characters // len(piece)) + piece[: characters % len(piece)]


class Case(NamedTuple):
    """A model to train, the route that asks it, and how texts become a body."""

    task: str
    settings: dict[str, Any]
    route: str
    body: Callable[[list[str]], dict[str, Any]]
    most: int = 256  # texts of a body


def _predict(form: Callable[[str], Any] = lambda text: text) -> Callable[[list[str]], dict[str, Any]]:
    return lambda texts: {"inputs": [form(text) for text in texts]}


def _complete(texts: list[str]) -> dict[str, Any]:
    return {"prompt": texts, "max_tokens": 8, "temperature": 0}


WIDTH: Final = {"model.width": 64}
CASES: Final[dict[str, Case]] = {
    "classification": Case("classification", WIDTH, "predict", _predict()),
    "tagging": Case("tagging", {**WIDTH, "head.crf": True}, "predict", _predict()),
    "qa": Case("qa", WIDTH, "predict", _predict(lambda text: ["who sees two birds", text])),
    "translation": Case("translation", WIDTH, "predict", _predict()),
    "parsing": Case("parsing", WIDTH, "predict", _predict()),
    "mlm": Case("mlm", WIDTH, "predict", _predict(lambda text: f"{text} <mask>")),
    "embedding": Case("embedding", WIDTH, "embeddings", lambda texts: {"input": texts}, 2048),
    "lm": Case("lm", WIDTH, "completions", _complete, 128),
    "transformer": Case(
        "lm",
        {**WIDTH, "model": "gpt2", "model.heads": 2, "data.window": 512},
        "completions",
        _complete,
        128,
    ),
}


def train(name: str, folder: Path) -> Path:
    case = CASES[name]
    settings = {**tiny(case.task, folder / f"{name}-data"), **case.settings}
    if case.settings.get("model"):
        settings.pop("model.layers", None)
    return Path(legato.train(case.task, settings, out=folder / name, quiet=True).run)


class Server:
    """All models behind one process."""

    def __init__(self, runs: dict[str, Path], threads: int) -> None:
        self.port = free_port()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        command = [sys.executable, "-m", "legato", "serve", *(f"{name}={run}" for name, run in runs.items())]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--device", "cpu", "--no-log"],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
        )

    async def wait(self) -> None:
        for _ in range(1200):
            if self.process.poll() is not None:
                break
            with suppress(OSError):
                if (await ask(self.port, "/ready", None))[0] == 200:
                    return
            await asyncio.sleep(0.1)
        self.log.seek(0)
        raise SystemExit(f"the server does not answer:\n{self.log.read().decode(errors='replace')[-2000:]}")

    def resident(self, field: str = "VmRSS") -> float:
        """MiB that the process holds, or (VmHWM) has held at most."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


async def ask(port: int, path: str, body: bytes | None) -> tuple[int, bytes]:
    """The status of an answer, and its content."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await exchange(reader, writer, port, path, body)
    finally:
        writer.close()


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, path: str, body: bytes | None
) -> tuple[int, bytes]:
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body or b'')}\r\n\r\n"
    writer.write(head.encode() + (body or b""))
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lengths = [line for line in answer.split("\r\n") if line.lower().startswith("content-length:")]
    content = await reader.readexactly(int(lengths[0].partition(":")[2])) if lengths else b""
    return int(answer.split()[1]), content


def body_of(name: str, texts: list[str]) -> bytes:
    return json.dumps({"model": name, **CASES[name].body(texts)}).encode()


async def ordinary(port: int, name: str, until: float, seed: int, times: list[float], problems: Counter[str]) -> None:
    """One short question after another, on one connection."""
    draw, path = random.Random(seed), f"/v1/{CASES[name].route}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        body, begun = body_of(name, [sentence(draw, 60)]), time.perf_counter()
        status, content = await exchange(reader, writer, port, path, body)
        times.append(time.perf_counter() - begun)
        if status != 200:
            problems[f"{status} {content[:100]!r}"] += 1
    writer.close()


def long_bodies(name: str, seed: int = 1) -> list[tuple[int, str, bytes]]:
    """Bodies of each size: of one text, and of many."""
    draw, made = random.Random(seed), list[tuple[int, str, bytes]]()
    for size in SIZES:
        made.append((size, "one", body_of(name, [sentence(draw, size - 200)])))
        count = min(CASES[name].most, size // 240 + 1)
        made.append((size, "many", body_of(name, [sentence(draw, size // count - 40)] * count)))
    return made


async def long_one(
    port: int,
    name: str,
    bodies: list[tuple[int, str, bytes]],
    statuses: dict[str, Counter[int]],
    slowest: dict[str, float],
) -> None:
    for size, kind, body in itertools.cycle(bodies):
        begun, what = time.perf_counter(), f"{kind} {size >> 10} KB"
        status, _ = await ask(port, f"/v1/{CASES[name].route}", body)
        statuses.setdefault(what, Counter())[status] += 1
        slowest[what] = max(slowest.get(what, 0.0), time.perf_counter() - begun)


async def measure(server: Server, name: str, seconds: float) -> dict[str, Any]:
    """The latencies of ten clients, alone and beside one that sends long bodies."""
    figures: dict[str, Any] = {}
    bodies = long_bodies(name)
    await asyncio.gather(*(ordinary(server.port, name, time.perf_counter() + 1, 0, [], Counter()) for _ in range(4)))
    for phase in ("alone", "beside"):
        times, problems = list[float](), Counter[str]()
        statuses, slowest = dict[str, Counter[int]](), dict[str, float]()
        until, other = time.perf_counter() + seconds, None
        if phase == "beside":
            other = asyncio.create_task(long_one(server.port, name, bodies, statuses, slowest))
        await asyncio.gather(*(ordinary(server.port, name, until, seed, times, problems) for seed in range(CLIENTS)))
        if other is not None:
            if other.done():
                await other  # it broke off
            other.cancel()  # its connection closes, and what it asked for is dropped
        figures[phase] = {
            "p50_ms": round(1000 * percentile(times, 0.5), 1),
            "p99_ms": round(1000 * percentile(times, 0.99), 1),
            "most_ms": round(1000 * max(times), 1),
            "answers": len(times),
            "problems": dict(problems),
        }
        if other is not None:
            figures["statuses"] = {what: dict(counts) for what, counts in statuses.items()}
            figures["slowest_s"] = {what: round(value, 2) for what, value in slowest.items()}
    figures["share"] = round(figures["beside"]["p99_ms"] / figures["alone"]["p99_ms"], 2)
    figures["resident_mib"] = round(server.resident())
    return figures


async def memory(server: Server, names: list[str]) -> dict[str, Any]:
    """Eight bodies of 8 MB at once to each model."""
    await asyncio.sleep(3)
    before = server.resident()
    with suppress(OSError):
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the highest begins anew
    statuses: Counter[int] = Counter()
    for name in names:
        body = body_of(name, [sentence(random.Random(1), SIZES[-1] - 200)])
        answers = await asyncio.gather(*(ask(server.port, f"/v1/{CASES[name].route}", body) for _ in range(8)))
        statuses.update(status for status, _ in answers)
    highest = server.resident("VmHWM")
    await asyncio.sleep(3)
    return {
        "before_mib": round(before),
        "highest_mib": round(highest),
        "after_mib": round(server.resident()),
        "statuses": dict(statuses),
    }


async def ending(server: Server, names: list[str]) -> dict[str, Any]:
    """SIGTERM while the longest texts that are read are being computed for clients that wait."""
    tasks = []
    for name in names:
        texts = [sentence(random.Random(2), 8_000)] * min(CASES[name].most, 256)
        tasks.append(asyncio.create_task(ask(server.port, f"/v1/{CASES[name].route}", body_of(name, texts))))
    await asyncio.sleep(2)
    begun = time.perf_counter()
    server.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, 120)
    seconds = time.perf_counter() - begun
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    server.log.seek(0)
    said = server.log.read().decode(errors="replace").splitlines()
    kinds = Counter(str(answer[0]) if isinstance(answer, tuple) else type(answer).__name__ for answer in answers)
    return {"seconds": round(seconds, 1), "status": status, "answers": dict(kinds), "said": said[-1] if said else ""}


async def run(options: argparse.Namespace, runs: dict[str, Path]) -> dict[str, Any]:
    server = Server(runs, options.threads)
    try:
        await server.wait()
        figures: dict[str, Any] = {}
        print(f"{'':16s}{'alone p50, p99 ms':>20s}{'beside p50, p99 ms':>20s}{'share':>7s}{'MiB':>7s}", flush=True)
        for name in runs:
            made = figures[name] = await measure(server, name, options.seconds)
            alone, beside = made["alone"], made["beside"]
            problems = alone["problems"] | beside["problems"] or ""
            print(
                f"{name:16s}{alone['p50_ms']:11.1f}{alone['p99_ms']:9.1f}{beside['p50_ms']:11.1f}{beside['p99_ms']:9.1f}"
                f"{made['share']:7.2f}{made['resident_mib']:7,d}  {problems}",
                flush=True,
            )
        figures["memory"] = await memory(server, list(runs))
        print(f"memory: {figures['memory']}", flush=True)
        figures["ending"] = await ending(server, list(runs))
        print(f"SIGTERM: {figures['ending']}", flush=True)
        return figures
    finally:
        server.process.kill()
        server.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8, help="of a phase: each task has two")
    parser.add_argument("--threads", type=int, default=1, help="of the server's kernels")
    parser.add_argument("--only", default=",".join(CASES), help="tasks, with commas")
    parser.add_argument("--runs", type=Path, help="where models are kept from one time to the next")
    options = parser.parse_args()
    names = options.only.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.runs or Path(temporary)
        folder.mkdir(exist_ok=True)
        runs = {name: folder / name if (folder / name).exists() else train(name, folder) for name in names}
        figures = asyncio.run(run(options, runs))
    right = {
        "shares": all(figures[name]["share"] <= SHARE for name in names),
        "memory": figures["memory"]["after_mib"] <= 1.2 * figures["memory"]["before_mib"] + 32,
        "ending": figures["ending"]["seconds"] <= LIMIT,
    }
    print(json.dumps({"benchmark": "serve_lengths", "seconds": options.seconds, **right, "figures": figures}))


if __name__ == "__main__":
    main()
