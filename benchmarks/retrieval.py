"""How well and how fast an index finds: NFCorpus, SQuAD's paragraphs, and 100,000 passages in either store.

    python benchmarks/retrieval.py nfcorpus FOLDER --model ENCODER [--split test]
    python benchmarks/retrieval.py squad dev-v1.1.json.gz --model ENCODER
    python benchmarks/retrieval.py scale --passages 100000 [--texts FILE…] [--out postgresql://…]

`nfcorpus` prints nDCG@10 by words, vectors and both, as BEIR scores it; FOLDER holds corpus.jsonl.gz,
queries.jsonl.gz and qrels/SPLIT.tsv. `squad` asks every question for its paragraph, among those of all articles.
`scale` takes passages from files (lines, the first column of tables, rows of jsonl, SQuAD's paragraphs), or draws
such of 80 words (Zipf); vectors of 384 numbers are drawn in clusters, so that it times the index and no encoder,
unless there is a --model. It then changes 1 % of the passages, and searches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from legato.retrieval.index import Index
from legato.retrieval.models import Encoder
from legato.retrieval.records import VectorArray

MODES = ("words", "vectors", "hybrid")
WIDTH = 384
CLUSTERS = 500


def read_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ndcg(ranked: Sequence[str], relevant: dict[str, int], depth: int = 10) -> float:
    """Normalised discounted cumulative gain, with the grade as gain, as trec_eval and BEIR have it."""
    gain = sum(relevant.get(name, 0) / math.log2(rank + 2) for rank, name in enumerate(ranked[:depth]))
    ideal = sorted(relevant.values(), reverse=True)[:depth]
    return gain / sum(grade / math.log2(rank + 2) for rank, grade in enumerate(ideal))


class RememberedVectors:
    """An encoder whose vectors are kept in a file, so that a second store or run need not wait for them."""

    def __init__(self, encoder: Encoder, file: Path | None) -> None:
        self.encoder, self.file, self.name = encoder, file, encoder.name
        self.known: dict[str, VectorArray] = {}
        if file is not None and file.exists():
            with np.load(file) as held:
                self.known = dict(zip(held["texts"].tolist(), held["vectors"], strict=True))

    def encode(self, texts: Sequence[str]) -> VectorArray:
        fresh = [text for text in dict.fromkeys(texts) if text not in self.known]
        if fresh:
            self.known.update(zip(fresh, self.encoder.encode(fresh), strict=True))
        return np.stack([self.known[text] for text in texts])

    def save(self) -> None:
        if self.file is not None:
            np.savez(self.file, texts=np.array(list(self.known)), vectors=np.stack(list(self.known.values())))


def make_index(rows: list[dict[str, Any]], given: argparse.Namespace, folder: Path) -> Index:
    """Each row a document, left whole."""
    from legato.rag import encoder_of
    from legato.retrieval.chunks import Chunking

    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    encoder = encoder_of(given.model, device="cpu")
    kept = None if encoder is None else RememberedVectors(encoder, given.vectors)
    index = Index.create(given.out or str(folder / "index"), kept, Chunking(0, 0))
    index.update([file])
    if kept is not None:
        kept.save()
    return index


def name_of(source: str) -> str:
    return source.partition("#")[2]


def nfcorpus(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    data = Path(given.data)
    queries = {row["_id"]: row["text"] for row in read_lines(data / "queries.jsonl.gz")}
    grades: dict[str, dict[str, int]] = {}
    for line in (data / "qrels" / f"{given.split}.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        grades.setdefault(query, {})[document] = int(grade)
    began = time.perf_counter()
    index = make_index(read_lines(data / "corpus.jsonl.gz"), given, folder)
    figures: dict[str, Any] = {"documents": len(index), "build_s": round(time.perf_counter() - began, 1)}
    for mode in MODES if given.model else MODES[:1]:
        scores = []
        for query, relevant in grades.items():
            hits = index.search(queries[query], 10, mode=mode)
            scores.append(ndcg([name_of(hit.passage.source) for hit in hits], relevant))
        figures[f"ndcg10_{mode}"] = round(sum(scores) / len(scores), 4)
        print(f"nDCG@10 by {mode}: {figures[f'ndcg10_{mode}']:.4f} over {len(scores)} queries", flush=True)
    return figures


def squad(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with gzip.open(given.data, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    rows: list[dict[str, Any]] = []
    questions: list[tuple[str, str]] = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            name = str(len(rows))
            rows.append({"id": name, "title": article["title"].replace("_", " "), "text": paragraph["context"]})
            questions += [(one["question"], name) for one in paragraph["qas"]]
    asked = questions[:: max(1, len(questions) // given.questions)]
    index = make_index(rows, given, folder)
    figures: dict[str, Any] = {"paragraphs": len(rows), "questions": len(asked)}
    for mode in MODES if given.model else MODES[:1]:
        ranks = [
            [name_of(hit.passage.source) for hit in index.search(question, 5, mode=mode)] for question, _ in asked
        ]
        for depth in (1, 5):
            hit = sum(name in ranked[:depth] for ranked, (_, name) in zip(ranks, asked, strict=True))
            figures[f"recall{depth}_{mode}"] = round(hit / len(asked), 4)
        print(f"{mode}: recall@1 {figures[f'recall1_{mode}']:.4f}, @5 {figures[f'recall5_{mode}']:.4f}", flush=True)
    return figures


class DrawnEncoder:
    """Vectors that are drawn, in clusters as real ones lie; the same text has the same one."""

    name = "drawn"

    def __init__(self) -> None:
        self.centres = np.random.default_rng(0).standard_normal((CLUSTERS, WIDTH)).astype(np.float32)

    def encode(self, texts: Sequence[str]) -> VectorArray:
        seeds = [zlib.crc32(text.encode()) for text in texts]
        drawn = np.random.default_rng(seeds[0]).standard_normal((len(texts), WIDTH)).astype(np.float32)
        chosen = self.centres[np.array(seeds) % CLUSTERS]
        return chosen + np.float32(0.8) * drawn


def drawn_texts(count: int, seed: int) -> list[str]:
    """Passages of 80 words, as often as words are."""
    random = np.random.default_rng(seed)
    ranks = np.arange(1, 50_001)
    shares = 1 / ranks
    words = random.choice(ranks, size=(count, 80), p=shares / shares.sum())
    return [" ".join(f"w{number:x}" for number in row) for row in words]


def texts_of(path: Path) -> list[str]:
    """The passages in a file, each once."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        if ".jsonl" in path.name:
            found = [json.loads(line)["text"] for line in file]
        elif ".json" in path.name:
            found = [each["context"] for article in json.load(file)["data"] for each in article["paragraphs"]]
        else:  # no headings of WikiText, and nothing twice
            found = [text for line in file if (text := line.partition("\t")[0].strip()) and text[0] != "="]
    return list(dict.fromkeys(found))


def write_rows(file: Path, texts: list[str]) -> None:
    lines = (json.dumps({"id": number, "text": text}) for number, text in enumerate(texts))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def scale(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from legato.rag import encoder_of
    from legato.retrieval.chunks import Chunking

    file = folder / "rows.jsonl"
    texts = [text for path in given.texts for text in texts_of(path)] or drawn_texts(given.passages, 1)
    texts = list(dict.fromkeys(texts))[: given.passages]
    if len(texts) < given.passages:
        print(f"there are {len(texts):,} passages in these files")
    write_rows(file, texts)
    place = given.out or str(folder / "index")
    encoder = encoder_of(given.model, device="cpu") if given.model else DrawnEncoder()
    index = Index.create(place, encoder, Chunking(0, 0))
    began, computed = time.perf_counter(), time.process_time()
    index.update([file])
    build, build_cpu = time.perf_counter() - began, time.process_time() - computed
    changed = len(texts) // 100
    step = len(texts) // changed
    texts[::step] = [f"{text} changed" for text in texts[::step]]
    write_rows(file, texts)
    began, computed = time.perf_counter(), time.process_time()
    report = index.update([file])
    again, again_cpu = time.perf_counter() - began, time.process_time() - computed
    assert report.changed == len(texts[::step]), report
    figures: dict[str, Any] = {"passages": len(index), "build_s": round(build, 1), "changed_1pct_s": round(again, 2)}
    figures["changed_share"] = round(again / build, 4)
    figures["changed_share_cpu"] = round(
        again_cpu / build_cpu, 4
    )  # of this process, which other work does not change
    figures["mb"] = round(size_of(index, place) / 1e6, 1)
    chosen = np.random.default_rng(3).permutation(len(texts))[: given.searches + 20]
    questions = [" ".join(texts[number].split()[:6]) for number in chosen]
    for mode in MODES:
        for question in questions[:20]:
            index.search(question, mode=mode)
        times = []
        for question in questions[20:]:
            began = time.perf_counter()
            index.search(question, mode=mode)
            times.append(1000 * (time.perf_counter() - began))
        figures[f"p50_ms_{mode}"], figures[f"p99_ms_{mode}"] = (
            round(float(np.quantile(times, q)), 1) for q in (0.5, 0.99)
        )
    print(json.dumps(figures, indent=1))
    return figures


def size_of(index: Index, place: str) -> int:
    if "://" not in place:
        return sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
    name = index.store.name  # type: ignore[attr-defined]
    query = (
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
        "WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    )
    return int(index.store._rows(query, [name])[0][0])  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["nfcorpus", "squad", "scale"])
    parser.add_argument("data", nargs="?", help="a folder of NFCorpus, a file of SQuAD")
    parser.add_argument("--model", help="an encoder; left out: words alone, in `scale` drawn vectors")
    parser.add_argument("--split", default="test", help="of NFCorpus's queries: train, dev or test")
    parser.add_argument("--vectors", type=Path, help="an .npz that keeps the encoder's vectors from run to run")
    parser.add_argument("--out", help="where the index goes; left out: a folder that is removed")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="files with passages; left out: drawn ones")
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--questions", type=int, default=2000, help="of SQuAD's, evenly taken")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="legato-retrieval-"))
    try:
        figures = {"nfcorpus": nfcorpus, "squad": squad, "scale": scale}[given.what](given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    store = "postgresql" if "://" in (given.out or "") else "lancedb"
    print(json.dumps({"benchmark": f"retrieval-{given.what}", "store": store, **figures}))


if __name__ == "__main__":
    main()
