"""JSON that fits a schema: how many of a model's outputs do, and what a token costs with a schema and without.

    python benchmarks/json_schemas.py MODEL [--count 200] [--rows 16] [--only with]

Texts are drawn at temperature 1 through `legato.serving`'s scheduler, as a server draws them, with limits from the
fewest tokens that a schema takes to ample. An output counts where it is whole JSON, `jsonschema` says that it fits,
and it ended by itself: one that the limit cut off has failed.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import jsonschema

import legato
from legato.decoding import SearchOptions
from legato.decoding.constraints.json_schema import SchemaGrammar
from legato.serving.scheduler import Done, Piece, Scheduler

TEXT = {"type": "string"}


def object_of(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


ADDRESS = object_of(street=TEXT, city=TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$"})
SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": (
        "Invent a person.",
        object_of(
            ("email",),
            name=TEXT,
            age={"type": "integer", "minimum": 0, "maximum": 120},
            email={"type": "string", "format": "email"},
            address=ADDRESS,
        ),
    ),
    "labels": (
        "What is the sentiment of: a gem of a film?",
        object_of(
            label={"enum": ["positive", "negative", "neutral"]},
            score={"type": "number", "minimum": 0, "maximum": 1},
            reasons={"type": "array", "items": TEXT, "maxItems": 3},
        ),
    ),
    "order": (
        "Order two pizzas and a salad.",
        object_of(
            ("note",),
            items={
                "type": "array",
                "minItems": 1,
                "maxItems": 5,
                "items": object_of(name=TEXT, count={"type": "integer", "minimum": 1, "maximum": 20}),
            },
            delivery={"anyOf": [{"type": "null"}, ADDRESS]},
            note=TEXT,
        ),
    ),
    "event": (
        "When do we meet?",
        object_of(title=TEXT, day={"type": "string", "format": "date"}, allDay={"type": "boolean"}),
    ),
    "tree": (
        "Sketch the contents of a book.",
        {
            "$defs": {"part": object_of(title=TEXT, parts={"type": "array", "items": {"$ref": "#/$defs/part"}})},
            "$ref": "#/$defs/part",
        },
    ),
}


class Listener:
    def __init__(self) -> None:
        self.texts: list[Any] = []
        self.ended = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, Piece):
            return
        self.texts = event.texts if isinstance(event, Done) else []
        self.ended.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rows", type=int, default=16, help="texts side by side")
    parser.add_argument("--only", choices=["with", "without"], help="one of the two")
    given = parser.parse_args()
    model = legato.load(given.model, "cpu")
    limits = {
        name: SchemaGrammar(json.dumps(schema), model.tokenizer, model.module.vocabulary, model.loaded.ends).shortest
        for name, (_, schema) in SCHEMAS.items()
    }
    names, extras = list(SCHEMAS), (0, 5, 20, 60, 150)
    for constrained in (False, True):
        if given.only == ("without" if constrained else "with"):
            continue
        scheduler = Scheduler(model, rows=given.rows, queue=given.count, patience=3600)
        heard, begun = [], time.perf_counter()
        for number in range(given.count):
            name = names[number % len(names)]
            prompt, schema = SCHEMAS[name]
            most = limits[name] + extras[number // len(names) % len(extras)]
            options = SearchOptions(
                search="sample",
                seed=number,
                max_tokens=most,
                json_schema=schema if constrained else None,
            )
            ids = model.chat_ids([{"role": "user", "content": f"{prompt} Answer in JSON."}])
            heard.append((name, Listener()))
            scheduler.submit(ids, options, heard[-1][1])
        for _, each in heard:
            each.ended.wait()
        seconds = time.perf_counter() - begun
        scheduler.close()
        tokens = sum(len(text.tokens) for _, each in heard for text in each.texts)
        fitting = sum(fits(each.texts, SCHEMAS[name][1]) for name, each in heard)
        print(
            f"{'with' if constrained else 'without'} a schema: {fitting} of {given.count} fit; {tokens:,} tokens in "
            f"{seconds:.1f} s, {1000 * seconds / tokens:.2f} ms a token, {given.rows} texts side by side",
            flush=True,
        )


def fits(texts: list[Any], schema: dict[str, Any]) -> bool:
    try:
        (text,) = texts
        jsonschema.validate(json.loads(text.text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return bool(text.finished)


if __name__ == "__main__":
    main()
