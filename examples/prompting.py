"""What a prompt is worth beside training: one table of two classifications and of questions with short answers.

    python examples/prompting.py --model SMOLLM2 --encoder MINILM --data ROOT --rows 100 --seeds 3

Rows of the table: SmolLM2 (or any model that writes) with none, one, four and eight examples in its prompt; with the
four examples that are nearest to the text by the encoder's vectors, or with the nearest passages of Wikipedia; the
same model tuned on instructions (T0, by LoRA), which has seen none of these tasks' examples; and the encoder, a sixth
of the size, tuned on examples of the task itself. Columns:

    sst2    sentiment of film reviews, accuracy (ROOT/glue/sst2)
    types   what a question asks for: date, number, person or place, accuracy. The questions are SQuAD's, and their
            types come from their answers, see `type_of` (ROOT/squad, and names from ROOT/conll2003)
    wiki    short answers, exact match and F1 in percent (ROOT/rag-mini-wikipedia)

A seed draws the rows that are scored and the examples, none of them in both; each figure is the mean over the seeds,
± their standard deviation. What is done lies in --out and is not done again: tuned models and every finished figure.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

import legato
from legato.errors import DataError, LegatoError
from legato.evaluation.qa import exact_match, word_f1
from legato.model import Model

Pair = tuple[str, str]  # a text and its label, or a question and its answer

TASKS: Final = ("sst2", "types", "wiki")
SHOTS: Final = (0, 1, 4, 8)
NEAREST: Final = 4  # examples in a prompt that are nearest to its text
PASSAGES: Final = 2  # passages in a prompt
POOL: Final = 2000  # training rows that examples are drawn from, or nearest among
ANSWER: Final = 16  # tokens of an answer
TEMPLATES: Final = {
    "sst2": "Review: {text}\nSentiment: {label}",
    "types": "Question: {text}\nThe answer is a {label}",
}
NAMES: Final = {"sst2": "SST-2", "types": "question types", "wiki": "Wikipedia answers"}
MONTHS: Final = "January|February|March|April|May|June|July|August|September|October|November|December"
DATE: Final = re.compile(rf"^(in |on |the )*(({MONTHS})\b.*|\d{{1,2}} ({MONTHS})\b.*|(1\d|20)\d\ds?|.*\bcentury)$")
NUMBER: Final = re.compile(
    r"^(about |over |around |nearly |approximately )?([$€£]?\d[\d,.]*( ?%| \w+){0,2}|"
    r"(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|fifty|hundreds?|thousands?)"
    r"( \w+)?)$",
    re.IGNORECASE,
)


# --- the data -------------------------------------------------------------------------------------


@dataclass
class Names:
    """Names of people and of places that CoNLL-2003 marks in newspapers."""

    people: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> Names:
        names, kind = cls(), ""
        words: list[str] = []
        for line in [*path.read_text("utf-8").splitlines(), ""]:
            token, *_, tag = line.split() if line.strip() else ("", "O")
            if words and tag[2:] != kind:
                group = {"PER": names.people, "LOC": names.places}.get(kind, names.others)
                group.add(" ".join(words).lower())
                words = []
            if tag != "O":
                words.append(token)
            kind = tag[2:]
        return names

    @cached_property
    def first_names(self) -> set[str]:
        first = {name.split()[0] for name in self.people if " " in name and len(name.split()[0]) > 2}
        return first - {name.split()[0] for name in self.places | self.others}


def type_of(answer: str, names: Names) -> str | None:
    """What kind of thing an answer is: date, number, person or place; None where these rules do not tell.

    A date has a month, is a year or a century; a number is written in digits or words, perhaps with a unit; a place
    is a name that CoNLL-2003 marks as a place and as nothing else; a person is one that it marks as a person, or two
    to four capitalised words of which the first is a first name there. The question is not looked at.
    """
    bare = answer.strip().removeprefix("the ").removeprefix("The ").rstrip(".")
    if DATE.match(bare):
        return "date"
    if NUMBER.match(bare):
        return "number"
    low, words = bare.lower(), bare.split()
    if low in names.places and low not in names.people and low not in names.others:
        return "place"
    capital = all(word[:1].isupper() and word.isalpha() for word in words)
    known = low in names.people and low not in names.places and low not in names.others
    if capital and (known or (2 <= len(words) <= 4 and words[0].lower() in names.first_names)):
        return "person"
    return None


@dataclass
class Rows:
    """A task's training rows and those that are scored."""

    train: list[Pair]
    test: list[Pair]

    @property
    def labels(self) -> list[str]:
        return sorted({label for _, label in self.train})

    def drawn(self, count: int, seed: int, *, balance: bool) -> tuple[list[Pair], list[Pair]]:
        """Training rows in a random order, and `count` rows to score; `balance`: as many of each label as can be."""
        choose = random.Random(seed)
        test = choose.sample(self.test, len(self.test))
        train = choose.sample(self.train, min(POOL, len(self.train)))
        return train, balanced(test, count) if balance else test[:count]


def read_sst2(root: Path) -> Rows:
    folder = root / "glue" / "sst2"
    with gzip.open(folder / "train.tsv.gz", "rt", encoding="utf-8") as file:
        train = file.read()
    parts = []
    for text in (train, (folder / "dev.tsv").read_text("utf-8")):
        lines = (line.split("\t", 1) for line in text.splitlines()[1:])
        parts.append([(sentence.strip(), ("negative", "positive")[int(label)]) for label, sentence in lines])
    return Rows(*parts)


def read_types(root: Path) -> Rows:
    """Questions of SQuAD's articles; those of every fourth one are scored."""
    names = Names.read(root / "conll2003" / "eng.train")
    with gzip.open(root / "squad" / "dev-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    rows = Rows([], [])
    for number, article in enumerate(articles):
        for question in (asked for paragraph in article["paragraphs"] for asked in paragraph["qas"]):
            kinds = {type_of(answer["text"], names) for answer in question["answers"]}
            if len(kinds) == 1 and (kind := kinds.pop()) is not None:  # where all who answered are of one mind
                (rows.train if number % 4 else rows.test).append((" ".join(question["question"].split()), kind))
    return rows


def read_wiki(root: Path) -> Rows:
    """The first 100 questions are for examples, as others are scored."""
    with (root / "rag-mini-wikipedia" / "questions.csv").open(encoding="utf-8", newline="") as file:
        pairs = [(row["question"].strip(), row["answer"].strip()) for row in csv.DictReader(file)]
    return Rows(pairs[:100], pairs[100:])


READERS: Final[dict[str, Callable[[Path], Rows]]] = {"sst2": read_sst2, "types": read_types, "wiki": read_wiki}


def balanced(rows: Sequence[Pair], count: int) -> list[Pair]:
    """The first rows, as many of each label as can be."""
    of_each: dict[str, list[Pair]] = {}
    for row in rows:
        of_each.setdefault(row[1], []).append(row)
    taken = [row for own in of_each.values() for row in own[: -(-count // len(of_each))]]
    first = {row: number for number, row in enumerate(rows)}
    found = sorted(taken, key=lambda row: first[row])
    return found[:count]


# --- the ways -------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The models, and what is done already."""

    model: Path
    encoder: Path
    data: Path
    out: Path
    rows: int
    steps: int  # that the model is tuned on instructions
    tuned: int  # examples of its task that the encoder is tuned on
    width: dict[str, str]  # dtype and quantize, with which the model that writes is read
    device: str
    adapted: Path | None = None  # the model as tuned on instructions, where that is there already

    @cached_property
    def writer(self) -> Model:
        return legato.load(self.model, self.device, **self.width)

    @cached_property
    def tuned_writer(self) -> Model:
        """The same model, tuned on T0's instructions by LoRA."""
        run = self.out / "t0"
        if self.adapted is not None:
            return legato.load(self.adapted, self.device, **self.width)
        self._train(
            run,
            "chat",
            {
                "data.train": str(self.data / "t0" / "train.jsonl.gz"),
                "data.valid": str(short_dialogues(self.data / "t0" / "valid.jsonl.gz", self.out)),
                "data.window": 256,
                "from": str(self.model),
                "adapt": "lora",
                "train.steps": self.steps,
                "train.batch_tokens": 1024,
                "train.validate_every": max(1, self.steps // 4),
                "train.checkpoint_every": max(1, self.steps // 4),
                "train.samples": 0,
            },
        )
        return legato.load(run, self.device, **self.width)

    @cached_property
    def vectors(self) -> Model:
        return legato.load(self.encoder, self.device)

    @cached_property
    def passages(self) -> list[str]:
        with (self.data / "rag-mini-wikipedia" / "infos.csv").open(encoding="utf-8", newline="") as file:
            return [text for row in csv.DictReader(file) if (text := " ".join(row["text"].split()))]

    @cached_property
    def passage_vectors(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.vectors.embed(self.passages, normalize=True))

    def classifier(self, task: str, train: Sequence[Pair], seed: int) -> Model:
        """The encoder, tuned on examples of the task."""
        run, file = self.out / f"{task}-{seed}", self.out / f"{task}-{seed}.tsv"
        file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in train), "utf-8")
        settings = {"from": str(self.encoder), "data.train": str(file), "data.columns": ["text", "label"]}
        how = {"train.epochs": 3, "train.batch_rows": 16, "train.lr": 1e-4, "train.samples": 0, "seed": seed}
        self._train(run, "classification", {**settings, **how})
        return legato.load(run, self.device)

    def reader(self) -> Model:
        """The encoder, tuned to find answers in SQuAD's paragraphs."""
        run = self.out / "reader"
        settings: dict[str, Any] = {
            "data.train": str(self.data / "squad" / "dev-v1.1.json.gz"),
            "data.split_by": "article",
        }
        settings |= {"data.answers": "all", "data.window": 192, "data.valid_share": 0.02, "data.test_share": 0.0}
        how: dict[str, Any] = {
            "train.steps": max(1, self.tuned // 16),
            "train.batch_rows": 16,
            "train.lr": 1e-4,
            "train.samples": 0,
        }
        self._train(run, "qa", {"from": str(self.encoder), **settings, **how})
        return legato.load(run, self.device)

    def _train(self, run: Path, task: str, settings: dict[str, Any]) -> None:
        if (run / "result.json").exists():
            return
        print(f"prompting: training {run}", flush=True)
        if (run / "config.yaml").exists():
            legato.train({"resume": str(run), "train.log_every": 20})
        else:
            legato.train(task, {**settings, "out": str(run), "device": self.device, "train.log_every": 20})


def short_dialogues(source: Path, out: Path, each: int = 3, characters: int = 1200) -> Path:
    """A few short dialogues of each template that is held out: enough to see whether the loss falls."""
    taken: list[str] = []
    count: dict[str, int] = {}
    with gzip.open(source, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            short = sum(len(message["content"]) for message in row["messages"]) < characters
            if short and count.setdefault(row["template"], 0) < each:
                count[row["template"]] += 1
                taken.append(line)
    path = out / "t0-valid.jsonl"
    path.write_text("".join(taken), "utf-8")
    return path


def nearest(queries: np.ndarray[Any, Any], others: np.ndarray[Any, Any], count: int) -> list[list[int]]:
    """Of each query, (N, D), the `count` others (M, D) with the largest cosines, the nearest last."""
    found = np.argsort(-(queries @ others.T), axis=1, kind="stable")[:, :count]
    return [row[::-1].tolist() for row in found]


def right_labels(
    model: Model, task: str, labels: Sequence[str], test: Sequence[Pair], shots: Any
) -> dict[str, float]:
    """Accuracy of prompted labels; `shots` are the same for all texts, or a list of them for each text."""
    texts, how = [text for text, _ in test], {"labels": labels, "template": TEMPLATES[task]}
    if shots and isinstance(shots[0], list):
        found = [model.classifications([text], shots=own, **how)[0] for text, own in zip(texts, shots, strict=True)]
    else:
        found = model.classifications(texts, shots=shots, **how)
    answers = [each.answers[0].text if each.answers else "" for each in found]
    return {"accuracy": 100 * statistics.mean(a == b for a, (_, b) in zip(answers, test, strict=True))}


def short_answer(question: str, passages: Sequence[str] = ()) -> str:
    above = "".join(f"Passage: {passage}\n" for passage in passages)
    return f"{above}Question: {question}\nAnswer:"


def answer_figures(answers: Sequence[str], test: Sequence[Pair]) -> dict[str, float]:
    pairs = [(answer.strip().rstrip("."), right) for answer, (_, right) in zip(answers, test, strict=True)]
    return {
        "exact_match": 100 * statistics.mean(exact_match(*pair) for pair in pairs),
        "f1": 100 * statistics.mean(word_f1(*pair) for pair in pairs),
    }


def written_answers(
    model: Model, test: Sequence[Pair], shots: Sequence[Pair], passages: Sequence[Sequence[str]] | None
) -> list[str]:
    """The line that the model writes behind each question."""
    above = "".join(f"{short_answer(question)} {answer}\n\n" for question, answer in shots)
    own = [()] * len(test) if passages is None else passages
    prompts = [above + short_answer(question, seen) for (question, _), seen in zip(test, own, strict=True)]
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))  # side by side of one length
    answers = [""] * len(prompts)
    for start in range(0, len(order), 16):
        part = order[start : start + 16]
        found = model.generate([prompts[n] for n in part], search="greedy", max_tokens=ANSWER, stop=["\n"])
        for number, text in zip(part, found, strict=True):
            answers[number] = text
    return answers


@dataclass
class Way:
    """A row of the table."""

    name: str
    shots: int = 0
    tuned: bool = False  # on instructions
    retrieved: bool = False
    encoder: bool = False  # the tuned encoder


WAYS: Final = (
    *(Way(f"{count} example{'s' * (count != 1)}", count) for count in SHOTS),
    Way("retrieved", NEAREST, retrieved=True),
    Way("tuned on T0", tuned=True),
    Way("tuned on T0, 4 examples", 4, tuned=True),
    Way("tuned on T0, retrieved", NEAREST, tuned=True, retrieved=True),
    Way("tuned encoder", encoder=True),
)


def figures_of(bench: Bench, task: str, way: Way, rows: Rows, seed: int) -> dict[str, float]:
    """What a way scores on a task with the rows and examples of a seed."""
    train, test = rows.drawn(bench.rows, seed, balance=task != "wiki")
    if task == "wiki":
        return wiki_figures(bench, way, train, test)
    if way.encoder:
        model = bench.classifier(task, train[: bench.tuned], seed)
        answers = [found.answers[0].text for found in model.predictions([text for text, _ in test])]
        return {"accuracy": 100 * statistics.mean(a == b for a, (_, b) in zip(answers, test, strict=True))}
    model = bench.tuned_writer if way.tuned else bench.writer
    shots: Any = balanced(train, way.shots) if way.shots else []
    if way.retrieved:
        texts, others = (
            np.asarray(bench.vectors.embed([text for text, _ in part], normalize=True)) for part in (test, train)
        )
        shots = [[train[number] for number in own] for own in nearest(texts, others, way.shots)]
    return right_labels(model, task, rows.labels, test, shots)


def wiki_figures(bench: Bench, way: Way, train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, float]:
    passages = None
    if way.retrieved or way.encoder:
        questions = np.asarray(bench.vectors.embed([question for question, _ in test], normalize=True))
        passages = [[bench.passages[n] for n in own] for own in nearest(questions, bench.passage_vectors, PASSAGES)]
    if way.encoder:
        assert passages is not None
        asked = [f"{question}\t{' '.join(own[::-1])}" for (question, _), own in zip(test, passages, strict=True)]
        found = [each.answers[0].text if each.answers else "" for each in bench.reader().predictions(asked)]
        return answer_figures(found, test)
    model = bench.tuned_writer if way.tuned else bench.writer
    shots = [] if way.retrieved else train[: way.shots]
    return answer_figures(written_answers(model, test, shots, passages), test)


# --- the table ------------------------------------------------------------------------------------


def cell(values: Sequence[dict[str, float]], name: str) -> str:
    given = [value[name] for value in values]
    spread = f" ± {statistics.stdev(given):.1f}" if len(given) > 1 else ""
    return f"{statistics.mean(given):.1f}{spread}"


def table(found: dict[tuple[str, str], list[dict[str, float]]], tasks: Sequence[str]) -> str:
    """Markdown: a row for each way, a column for each figure."""
    columns = [
        (task, name) for task in tasks for name in (("exact_match", "f1") if task == "wiki" else ("accuracy",))
    ]
    heads = [f"{NAMES[task]}, {name.replace('_', ' ')}" for task, name in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for way in WAYS:
        cells = [cell(found[way.name, task], name) if (way.name, task) in found else "" for task, name in columns]
        if any(cells):
            lines.append(f"| {way.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--model", required=True, type=Path, help="a model that writes, such as SmolLM2-135M-Instruct")
    parse.add_argument("--encoder", required=True, type=Path, help="a sentence encoder, such as all-MiniLM-L6-v2")
    parse.add_argument("--data", required=True, type=Path, help="the folder of glue/, squad/, conll2003/, t0/, …")
    parse.add_argument("--rows", type=int, default=200, help="that are scored, for each seed")
    parse.add_argument("--seeds", type=int, default=3)
    parse.add_argument("--only", default=",".join(TASKS))
    parse.add_argument("--adapted", type=Path, help="the model as tuned on instructions; left out: it is tuned here")
    parse.add_argument("--steps", type=int, default=80, help="of instruction tuning")
    parse.add_argument("--tuned", type=int, default=1600, help="examples that the encoder is tuned on")
    parse.add_argument("--dtype", default="float32")
    parse.add_argument("--quantize", default="none", help="int8: the model that writes, in 8 bits")
    parse.add_argument("--device", default="auto")
    parse.add_argument("--out", type=Path, default=Path("runs/prompting"), help="keeps what is done")
    parse.add_argument("--json", type=Path, help="a file for the figures")
    given = parse.parse_args()
    tasks = given.only.split(",")
    for task in tasks:
        if task not in TASKS:
            raise DataError(f"there is no task '{task}'; --only takes {', '.join(TASKS)}")
    if given.rows < 1 or given.seeds < 1:
        raise DataError("--rows and --seeds are 1 at least")
    given.out.mkdir(parents=True, exist_ok=True)
    width = {"dtype": given.dtype, **({} if given.quantize == "none" else {"quantize": given.quantize})}
    models = (given.model, given.encoder, given.data, given.out)
    bench = Bench(*models, given.rows, given.steps, given.tuned, width, given.device, given.adapted)
    store = given.out / "figures.jsonl"
    done = {line["key"]: line for line in map(json.loads, store.read_text().splitlines())} if store.exists() else {}
    told = [*map(str, models[:3]), given.adapted, given.rows, given.steps, given.tuned, width]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    try:
        rows = {task: READERS[task](given.data) for task in tasks}
    except OSError as problem:
        raise DataError(f"--data lacks {problem.filename}") from None
    for way in WAYS:
        for task in tasks:
            for seed in range(given.seeds):
                key = hashlib.sha256(repr([*told, task, way, seed]).encode()).hexdigest()[:16]
                if key not in done:
                    start = time.perf_counter()
                    figures = figures_of(bench, task, way, rows[task], seed)
                    line = {"key": key, "task": task, "way": way.name, "seed": seed, "figures": figures}
                    done[key] = line | {"seconds": round(time.perf_counter() - start, 1)}
                    with store.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
                    shown = "  ".join(f"{name} {value:.1f}" for name, value in figures.items())
                    print(f"prompting: {task}, {way.name}, seed {seed}: {shown}", flush=True)
                found.setdefault((way.name, task), []).append(done[key]["figures"])
    print(table(found, tasks))
    summary = json.dumps(
        {
            "rows": given.rows,
            "seeds": given.seeds,
            **width,
            "figures": [{"way": way, "task": task, "seeds": values} for (way, task), values in found.items()],
        }
    )
    print(summary)
    if given.json is not None:
        given.json.write_text(summary + "\n")


if __name__ == "__main__":
    try:
        main()
    except LegatoError as problem:
        raise SystemExit(f"prompting: {problem}") from None
