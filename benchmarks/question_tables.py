"""Tables to classify, made of other annotations: questions by what they ask for, sentences by the names in them.

    python benchmarks/question_tables.py questions dev-v1.1.json.gz questions-train.tsv questions-test.tsv
    python benchmarks/question_tables.py names eng.train eng.testa names-train.tsv names-test.tsv

`questions` is like TREC's coarse classes (Li and Roth 2002), derived by a rule from SQuAD's questions and answers:
date, number, human, location, description, entity; what it says nothing of is left out, and questions on every
third article are for the test. `names` has several labels a sentence, the kinds of names that CoNLL-2003 marks in it;
sentences without any are left out. Rows are drawn with a fixed seed: 1,000 to learn from, 500 to score on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROWS = {"train": 1000, "test": 500}
THINGS = 3  # words of an answer that names one
NUMBER = re.compile(r"\d|\b(one|two|three|four|five|six|seven|eight|nine|ten|half|centur(y|ies))\b")
TIMES = "year|date|day|month|decade|century"
MEASURES = "many|much|long|old|far|large|big|tall|high|often|fast"
REASONS = "reason|purpose|goal"
PEOPLE = "person|people|man|woman|king|emperor|president|team|company|organi[sz]ation|group|author"
PLACES = "city|country|state|river|place|town|region|island|county|continent|building"
KINDS = {  # what a question says, by what it asks for; the first that fits
    "date": rf"^when\b|\bwhen (was|were|is|are|did|does|do|will)\b|\b(what|which) ({TIMES})\b",
    "number": rf"\bhow ({MEASURES})\b|\b(what|which) (percent\w*|number|age)\b",
    "human": rf"\b(who|whom|whose)\b|\b(what|which) (\w+ )?({PEOPLE})\b",
    "location": rf"\bwhere\b|\b(what|which) (\w+ )?({PLACES})\b",
    "description": rf"\bwhy\b|^how\b|^what (does|did|do) .*\b(mean|do|cause)\b|\bwhat (was|is) the ({REASONS})\b",
}


def kind_of(question: str, answer: str) -> str | None:
    """What a question asks for; None where neither its words nor its answer say it."""
    question, answer = question.strip().lower(), answer.lower()
    for kind, pattern in KINDS.items():
        if re.search(pattern, question):
            return kind
    thing = re.search(r"\b(what|which)\b", question) and len(answer.split()) <= THINGS
    return "entity" if thing and not NUMBER.search(answer) else None


def questions(file: Path) -> dict[str, list[tuple[str, str]]]:
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        articles = json.load(opened)["data"]
    found: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for number, article in enumerate(articles):
        for asked in (asked for paragraph in article["paragraphs"] for asked in paragraph["qas"]):
            kind = kind_of(asked["question"], asked["answers"][0]["text"])
            if kind is not None:
                found["test" if number % 3 == 2 else "train"].append((asked["question"], kind))
    return found


def names(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    words: list[str] = []
    kinds: set[str] = set()
    for line in (*lines, ""):
        parts = line.split()
        if parts and parts[0] != "-DOCSTART-":
            words.append(parts[0])
            kinds |= {parts[-1][2:]} - {""}
            continue
        if kinds:
            yield " ".join(words), ";".join(sorted(kinds))
        words, kinds = [], set()


def write(file: Path, rows: list[tuple[str, str]], count: int) -> None:
    chosen = random.Random(0).sample(rows, count)
    lines = [f"{' '.join(text.split())}\t{label}\n" for text, label in chosen]
    file.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("questions", "names"))
    parser.add_argument("files", nargs="+", type=Path, help="what is read, one or two, and the two to write")
    options = parser.parse_args()
    *read, train, test = options.files
    if options.kind == "questions":
        rows = questions(read[0])
    else:
        rows = {
            split: list(names(file.read_text(encoding="utf-8").splitlines()))
            for split, file in zip(("train", "test"), read, strict=True)
        }
    for split, file in (("train", train), ("test", test)):
        write(file, rows[split], ROWS[split])


if __name__ == "__main__":
    main()
