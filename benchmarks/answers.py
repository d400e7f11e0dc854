"""How good answers are from a model alone, with passages, and by a reader: `rag-mini-wikipedia`.

    python benchmarks/answers.py FOLDER --model CHAT [--reader QA] [--encoder ENCODER] [--questions 200]

FOLDER holds infos.csv (passages) and questions.csv (question, answer); the first 100 questions are left out, to
develop on. Exact match and F1 are SQuAD's, with their standard error; numbers of sources are taken out of what is
scored. No passage is marked as the right one: one that holds the answer's words counts as such, of questions whose
answer is not yes or no. `--save` writes each answer; `--seconds` ends earlier, with as many questions as each way had
time for. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import legato
from legato.evaluation.qa import exact_match, normalised, word_f1
from legato.rag import ChatWriter, SpanFinder, encoder_of
from legato.retrieval.answers import answer, extract
from legato.retrieval.chunks import Chunking
from legato.retrieval.index import Index, SearchHit
from retrieval import RememberedVectors

DEVELOPED = 100  # questions to develop on
ALONE = "Answer the question in as few words as possible."
Way = Callable[[str, list[SearchHit]], tuple[str, list[int]]]


def read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def make_index(data: Path, folder: Path, given: argparse.Namespace) -> Index:
    passages = [row[-1] for row in read_rows(data / "infos.csv") if row[-1].strip()]
    file = folder / "passages.jsonl"
    file.write_text("".join(f"{json.dumps({'id': n, 'text': text})}\n" for n, text in enumerate(passages)))
    encoder = encoder_of(given.encoder, device="cpu")
    kept = None if encoder is None else RememberedVectors(encoder, given.vectors)
    index = Index.create(str(folder / "index"), kept, Chunking(0, 0))
    index.update([file])
    if kept is not None:
        kept.save()
    return index


def holds(hit: SearchHit, right: str) -> bool:
    return f" {normalised(right)} " in f" {normalised(hit.passage.text)} "


def is_open(right: str) -> bool:
    return normalised(right) not in ("yes", "no")


def ways(given: argparse.Namespace) -> dict[str, Way]:
    found: dict[str, Way] = {}
    if given.reader is not None:
        reader = SpanFinder(legato.load(given.reader, "cpu"))

        def read(question: str, hits: list[SearchHit]) -> tuple[str, list[int]]:
            told = extract(question, hits, reader)
            return (told.text if told.answered else ""), told.citations

        found["reader"] = read
    if given.model is not None:
        writer = ChatWriter(legato.load(given.model, "cpu", quantize=given.quantize))

        def alone(question: str, hits: list[SearchHit]) -> tuple[str, list[int]]:
            messages = [{"role": "system", "content": ALONE}, {"role": "user", "content": question}]
            return writer.write(messages, given.tokens, lambda piece: None), []

        def retrieved(question: str, hits: list[SearchHit]) -> tuple[str, list[int]]:
            told = answer(question, hits, writer, given.tokens)
            return (re.sub(r"\[[\d,; ]+\]", "", told.text) if told.answered else ""), told.citations

        found |= {"alone": alone, "retrieved": retrieved}
    return found


def mean(values: Sequence[float]) -> tuple[float, float]:
    """In percent, with its standard error."""
    middle = sum(values) / len(values)
    spread = math.sqrt(sum((value - middle) ** 2 for value in values) / max(len(values) - 1, 1) / len(values))
    return round(100 * middle, 1), round(100 * spread, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", help="a model that chats")
    parser.add_argument("--quantize", choices=["int8", "int4"])
    parser.add_argument("--reader", help="a qa model")
    parser.add_argument("--encoder", help="left out: passages are found by words alone")
    parser.add_argument("--vectors", type=Path, help="an .npz that keeps the encoder's vectors from run to run")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--top", type=int, default=3, help="passages that a model is given")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=math.inf, help="that each way may take")
    parser.add_argument("--save", type=Path, help="a jsonl file for the answers")
    given = parser.parse_args()
    rows = read_rows(given.data / "questions.csv")[DEVELOPED:]
    folder = Path(tempfile.mkdtemp(prefix="legato-answers-"))
    try:
        index = make_index(given.data, folder, given)
        figures = measure(index, rows, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"benchmark": "answers", **figures}))


def measure(index: Index, rows: list[list[str]], given: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"passages": len(index), "mode": "words" if given.encoder is None else "hybrid"}
    asked = [row for row in rows if is_open(row[1])]
    found = [[holds(hit, right) for hit in index.search(question, 5)] for question, right in asked]
    for depth in (1, 3, 5):
        figures[f"held_at_{depth}"] = mean([float(any(one[:depth])) for one in found])
    print(f"{len(asked)} questions with an answer in words: {figures}", flush=True)
    chosen = rows[:: max(1, len(rows) // given.questions)][: given.questions]
    for name, way in ways(given).items():
        began, exact, f1, open_f1, cited = (
            time.perf_counter(),
            list[float](),
            list[float](),
            list[float](),
            list[float](),
        )
        for question, right in chosen:
            if time.perf_counter() - began > given.seconds:
                break
            hits = index.search(question, given.top)
            text, numbers = way(question, hits)
            exact.append(exact_match(text, right))
            f1.append(word_f1(text, right))
            if is_open(right):
                open_f1.append(f1[-1])
                if numbers and any(holds(hit, right) for hit in hits):
                    cited.append(float(any(holds(hits[number - 1], right) for number in numbers)))
            if given.save is not None:
                with given.save.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"way": name, "question": question, "right": right, "answer": text}) + "\n")
        if not exact:
            continue
        told = {"questions": len(exact), "exact": mean(exact), "f1": mean(f1)}
        told |= {"f1_open": mean(open_f1)} if open_f1 else {}
        told |= {"cited_right": mean(cited), "cited_of": len(cited)} if cited else {}
        figures[name] = told
        print(f"{name}: {told}", flush=True)
    return figures


if __name__ == "__main__":
    main()
