"""Serving: `legato serve` beside `transformers serve` and llama.cpp's servers, the same weights and the same clients.

    python benchmarks/serve.py MODEL --sides legato,transformers,transformers-batching --clients 1,8,64 [--rounds 3]
    python benchmarks/serve.py MODEL --sides legato-int8,llama-cpp-python-q8_0 --llama-cpp VENV/bin/python
    python benchmarks/serve.py MODEL --device cuda --dtype bfloat16 --sides legato,transformers-batching
    python benchmarks/serve.py MODEL --overload 60      # twice as many requests as are answered
    python benchmarks/serve.py MODEL --fairness         # short among long prompts; a prompt's shared beginning
    python benchmarks/serve.py MODEL --soak 1800        # memory under a light mixed load
    python benchmarks/serve.py --url http://localhost:8000 --model chat --clients 1,8,64,256 --words 96 --tokens 64

Each client asks one question after another (chat, streamed, greedy, prompts of 8 to 160 words, answers of 32 to 96
tokens) for `--seconds`, the rounds of all sides in turn; every round has questions of its own. Tokens are those of
the texts that came in that time, by the model's tokenizer. Times to the first text and of whole answers count those
that still waited at the end, by their age then. Servers stay up; a round begins when its server is idle.
The clients' own share of a core is printed. The last line is JSON.

`--url` drives any server that speaks OpenAI's API and that runs already, vLLM's too: `--model` is what the model is
called there, `--words` and `--tokens` are what each prompt and answer has (`--ignore-eos` for servers that know it).
Tokens are then those that the server counts. The clients are spread over processes, so that they are no bottleneck.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clients import (
    Address,
    Answer,
    Client,
    Fixed,
    Question,
    body_of,
    client_processes,
    closed_loop,
    many_closed_loops,
    open_loop,
    percentile,
    questions,
)
from servers import SIDES, Place, Server
from sides import versions

WARM = Question("Say hello.", 8)


class Counter:
    """Tokens of texts, by the model's tokenizer."""

    def __init__(self, model: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def settle(server: Server) -> None:
    """Wait until a server has nothing left of what was given up."""
    answer = asyncio.run(Client(server.port).ask(body_of(server.model, WARM)))
    if not answer.complete:
        raise SystemExit(f"{server.name} does not answer: {answer.problem}")


def figures_of(answers: list[Answer], begun: float, end: float, count: Counter | None) -> dict[str, Any]:
    """Without a counter tokens are the server's; an answer that was still written then has as many as pieces."""
    last = min(end, max((answer.ended or end) for answer in answers))
    firsts = [answer.first(end) for answer in answers if answer.status in (0, 200)]
    whole = [answer.latency(end) for answer in answers if answer.status in (0, 200)]
    if count is None:
        tokens = sum(len(answer.pieces) if answer.tokens is None else answer.tokens for answer in answers)
    else:
        tokens = sum(count(answer.text) for answer in answers)
    return {
        "tokens_per_second": round(tokens / (last - begun), 1),
        "first_p50": round(percentile(firsts, 0.5), 3),
        "first_p99": round(percentile(firsts, 0.99), 3),
        "whole_p50": round(percentile(whole, 0.5), 3),
        "whole_p99": round(percentile(whole, 0.99), 3),
        "answered": sum(answer.complete for answer in answers),
        "unanswered": sum(answer.ended is None for answer in answers),
        "errors": sum(answer.problem is not None for answer in answers),
    }


def one_round(server: Server, clients: int, seconds: float, seed: int, count: Counter) -> dict[str, Any]:
    settle(server)
    begun, own, theirs = time.perf_counter(), own_seconds(), server.seconds()
    answers = asyncio.run(closed_loop(server.port, server.model, questions(seed), clients=clients, seconds=seconds))
    end, used = time.perf_counter(), own_seconds() - own
    problems = {answer.problem for answer in answers if answer.problem}
    for problem in sorted(problems)[:3]:
        print(f"  {server.name}: {problem}", flush=True)
    cores = {"client_cores": round(used / (end - begun), 3)}
    return {
        **figures_of(answers, begun, end, count),
        **cores,
        "server_cores": round((server.seconds() - theirs) / (end - begun), 2),
    }


def compare(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    count, servers = Counter(place.model), list[Server]()
    try:
        for name in options.sides.split(","):
            servers.append(Server(name, place))
        for server in servers:
            server.wait()
            settle(server)
            print(f"{server.name} is ready, {server.resident():,.0f} MiB", flush=True)
        print(f"{'':24s}{'clients':>8s}{'tokens/s':>10s}{'from':>8s}{'to':>8s}", end="")
        print("   first text p50, p99 s   whole p50, p99 s   answered, open, errors", flush=True)
        figures: dict[str, Any] = {}
        for clients in map(int, options.clients.split(",")):
            seconds = options.seconds or (60 if clients > 16 else 30 if clients > 1 else 20)
            rounds: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
            for number in range(options.rounds):
                for server in servers:
                    made = one_round(server, clients, seconds, 1000 * clients + number, count)
                    rounds[server.name].append(made)
            figures[str(clients)] = {name: tell(name, clients, made) for name, made in rounds.items()}
            tell_ratios(figures[str(clients)])
        return figures
    finally:
        for server in servers:
            server.stop()


def tell(name: str, clients: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table; the medians of the rounds, and sums of what is counted."""
    speeds = sorted(made["tokens_per_second"] for made in rounds)
    shown = {
        key: round(statistics.median(made[key] for made in rounds), 3)
        for key in rounds[0]
        if key not in ("answered", "unanswered", "errors")
    }
    counts = {key: sum(made[key] for made in rounds) for key in ("answered", "unanswered", "errors")}
    print(
        f"{name:24s}{clients:8d}{shown['tokens_per_second']:10,.1f}{speeds[0]:8,.1f}{speeds[-1]:8,.1f}"
        f"{shown['first_p50']:14.2f}{shown['first_p99']:9.2f}{shown['whole_p50']:12.2f}{shown['whole_p99']:8.2f}"
        f"{counts['answered']:10d}{counts['unanswered']:6d}{counts['errors']:6d}"
        f"   (clients {shown['client_cores']:.2f} of a core, server {shown['server_cores']:.2f})",
        flush=True,
    )
    return {**shown, **counts, "rounds": speeds}


def tell_ratios(figures: dict[str, Any]) -> None:
    for own in [name for name in figures if name.startswith("legato")]:
        ratios = {
            name: round(figures[own]["tokens_per_second"] / max(other["tokens_per_second"], 0.1), 2)
            for name, other in figures.items()
            if not name.startswith("legato")
        }
        figures[own]["over"] = ratios
        if ratios:
            print(f"  {own}: " + ", ".join(f"{ratio:.2f} × {name}" for name, ratio in ratios.items()), flush=True)


# ── more than is answered ─────────────────────────────────────────────────────────────────────────


def overload(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    """Questions at twice the rate that is answered: who is accepted, who is refused, and how long they wait."""
    queue = options.queue
    server = Server("legato", Place(**{**vars(place), "more": (*place.more, "--max-queue", str(queue))}))
    try:
        server.wait()
        settle(server)
        begun = time.perf_counter()
        probe = asyncio.run(
            closed_loop(server.port, server.model, questions(1), clients=place.rows, seconds=options.overload)
        )
        settled = begun + options.overload / 2  # by then texts end as fast as they come
        rate = sum(answer.complete and (answer.ended or 0) > settled for answer in probe) / (options.overload / 2)
        settle(server)
        begun = time.perf_counter()
        answers = asyncio.run(
            open_loop(server.port, server.model, questions(2), rate=2 * rate, seconds=options.overload)
        )
        seconds = time.perf_counter() - begun
        accepted = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 429]
        settle(server)
        figures = {
            "rows": place.rows,
            "queue": queue,
            "capacity_per_second": round(rate, 2),
            "sent": len(answers),
            "accepted": len(accepted),
            "complete": sum(answer.complete for answer in accepted),
            "refused": len(refused),
            "with_retry_after": sum(answer.retry_after is not None for answer in refused),
            "lost": sum(not answer.complete and answer.status != 429 for answer in answers),
            "problems": sorted({answer.problem or "" for answer in answers if answer.status not in (200, 429)})[:3],
            "accepted_p50": round(percentile([answer.latency(0) for answer in accepted], 0.5), 2),
            "accepted_p99": round(percentile([answer.latency(0) for answer in accepted], 0.99), 2),
            "first_p99": round(percentile([answer.first(0) for answer in accepted], 0.99), 2),
            "refused_p99": round(percentile([answer.latency(0) for answer in refused], 0.99), 3),
            "bound": round((place.rows + queue) / max(rate, 0.01), 1),  # all who may be there, answered at that rate
            "seconds": round(seconds, 1),
        }
        for key, value in figures.items():
            print(f"{key:24s}{value!s:>12}")
        return figures
    finally:
        server.stop()


# ── a server that runs already ────────────────────────────────────────────────────────────────────


def drive(options: argparse.Namespace) -> dict[str, Any]:
    """Closed loops against a server at an address, with prompts and answers of one length."""
    url = urlsplit(options.url if "//" in options.url else f"//{options.url}")
    address = Address(url.hostname or "127.0.0.1", url.port or 80, options.key)
    more: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if options.ignore_eos:
        more["ignore_eos"] = True
    fixed = Fixed(options.words, options.tokens, more)
    probe = asyncio.run(Client(address).ask(body_of(options.model_name, WARM, **more)))
    if not probe.complete:
        raise SystemExit(f"{options.url} does not answer: {probe.problem}")
    print(
        f"{'clients':>8s}{'tokens/s':>10s}{'answers/s':>11s}   first text p50, p99 s   whole p50, p99 s   errors",
        end="",
    )
    print("   cores of the clients", flush=True)
    figures = {}
    for clients in map(int, options.clients.split(",")):
        processes, rounds = client_processes(clients), []
        for number in range(options.rounds):
            begun = time.perf_counter()
            answers, used = many_closed_loops(
                address,
                options.model_name,
                fixed,
                clients=clients,
                seconds=options.seconds or 20,
                seed=1000 * (clients + number),
                processes=processes,
            )
            for problem in sorted({answer.problem for answer in answers if answer.problem})[:3]:
                print(f"  {problem}", flush=True)
            begun = min(answer.begun for answer in answers)
            end = max(answer.ended or begun for answer in answers)
            made = figures_of(answers, begun, begun + (options.seconds or 20), None)
            made["answers_per_second"] = round(made["answered"] / (end - begun), 2)
            made["client_cores"] = round(used / (end - begun), 2)
            rounds.append(made)
        best = {key: statistics.median(made[key] for made in rounds) for key in rounds[0]}
        print(
            f"{clients:8d}{best['tokens_per_second']:10,.0f}{best['answers_per_second']:11.1f}"
            f"{best['first_p50']:12.3f}{best['first_p99']:10.3f}{best['whole_p50']:14.3f}{best['whole_p99']:8.3f}"
            f"{best['errors']:9.0f}{best['client_cores']:14.2f} in {processes}",
            flush=True,
        )
        figures[str(clients)] = {**best, "rounds": rounds}
    return figures


# ── short among long, and what begins alike ───────────────────────────────────────────────────────


def fairness(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    """Times to the first text: alone, while long prompts are read, and after a system prompt that others had."""
    server = Server("legato-int8" if options.sides.startswith("legato-int8") else "legato", place)
    try:
        server.wait()
        settle(server)
        alone = [asyncio.run(_first(server, question)) for question in islice(_short(3), 8)]
        among, longs = asyncio.run(_among(server, options.long))
        system = next(questions(7, (600, 601), (1, 1))).text
        first, later, other = asyncio.run(_shared(server, system))
        figures = {
            "short_alone": _spread(alone),
            "short_among_long": _spread(among),
            "long": _spread(longs),
            "shared_first": round(first, 3),
            "shared_later": _spread(later),
            "not_shared": _spread(other),
        }
        for key, value in figures.items():
            print(f"{key:24s}{value}")
        return figures
    finally:
        server.stop()


def _short(seed: int) -> Any:
    return questions(seed, (8, 16), (8, 8))


async def _first(server: Server, question: Question) -> float:
    client = Client(server.port)
    answer = await client.ask(body_of(server.model, question))
    client.close()
    if not answer.complete:
        raise SystemExit(f"{server.name}: {answer.problem}")
    return answer.first(0)


async def _among(server: Server, words: int) -> tuple[list[float], list[float]]:
    """Of short questions, one after another, while four long ones are read; and of the long ones."""
    longs = [
        asyncio.create_task(_first(server, question)) for question in islice(questions(5, (words, words), (8, 8)), 4)
    ]
    await asyncio.sleep(0.5)
    shorts, source = [], _short(6)
    while not all(task.done() for task in longs):
        shorts.append(await _first(server, next(source)))
    return shorts, [await task for task in longs]


async def _shared(server: Server, system: str) -> tuple[float, list[float], list[float]]:
    """With one long system prompt for the first time and again, and with others as long."""
    asked = list(islice(_short(8), 9))
    first, *later = [await _first(server, question._replace(system=system)) for question in asked]
    others = [next(questions(100 + seed, (600, 601), (1, 1))).text for seed in range(4)]
    return first, later, [await _first(server, asked[n]._replace(system=text)) for n, text in enumerate(others)]


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "p50": round(percentile(values, 0.5), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
        "count": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", help="a folder with a chat model")
    parser.add_argument("--url", help="a server that runs already, in place of MODEL")
    parser.add_argument("--model", dest="model_name", help="what the model is called there")
    parser.add_argument("--key", help="an API key for it")
    parser.add_argument("--words", type=int, default=96, help="of each prompt, with --url")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, with --url")
    parser.add_argument("--ignore-eos", action="store_true", help="ask the server at --url to write on past an end")
    parser.add_argument("--sides", default="legato,transformers", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, help="of a round; left out, 20, 30 or 60 by the number of clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64, help="texts side by side")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; llama.cpp's sides stay on the CPU")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-cpp", default="python3", help="the Python that has llama-cpp-python[server]")
    parser.add_argument("--xllamacpp", default="python3", help="the Python that has xllamacpp")
    parser.add_argument("--more", default="", help="words for legato serve")
    parser.add_argument(
        "--overload", type=float, metavar="SECONDS", help="send twice as much as is answered, so long"
    )
    parser.add_argument("--queue", type=int, default=64, help="who may wait, with --overload")
    parser.add_argument("--fairness", action="store_true", help="short among long, and what begins alike")
    parser.add_argument("--long", type=int, default=2500, help="words of the long prompts of --fairness")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="watch memory for so long")
    options = parser.parse_args()
    if options.url is not None:
        if options.model_name is None:
            parser.error("--url needs --model, what the model is called there")
        report(options, drive(options))
        return
    if options.model is None:
        parser.error("give the folder of a MODEL, or the --url of a server")
    place = Place(
        options.model.resolve(),
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
        rows=options.rows,
        llama_cpp=options.llama_cpp,
        xllamacpp=options.xllamacpp,
        more=tuple(options.more.split()),
    )
    if options.overload:
        figures = overload(options, place)
    elif options.fairness:
        figures = fairness(options, place)
    elif options.soak:
        from soak import soak

        figures = soak(options.soak, place)
    else:
        figures = compare(options, place)
    report(options, figures)


def report(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """The last line."""
    about = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    print(json.dumps({"benchmark": "serve", **about, "versions": versions(), "figures": figures}))


if __name__ == "__main__":
    main()
