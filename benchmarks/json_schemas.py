"""JSON that fits a schema: how many of a model's outputs do, and what a token costs with a schema and without.

    python benchmarks/json_schemas.py MODEL [--count 200] [--rows 16] [--only with] [--numbers]

Texts are drawn at temperature 1 through `legato.serving`'s scheduler, as a server draws them, with limits from the
fewest tokens that a schema takes to ample. An output fits where it is whole JSON, `jsonschema` says so, in exact
arithmetic, and it ended by itself. One that the limit cut off (`finish_reason: "length"`) is counted apart, and one
that ended by itself and does not fit is shown: with a schema there should be none. `--numbers` takes schemas with
multiples, bounds and integers beyond 2^53.
"""

from __future__ import annotations

import argparse
import decimal
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


NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: ("Make up some numbers.", object_of(title=TEXT, n=number, list={"type": "array", "items": number}))
    for name, number in {
        "multiples": {"type": "integer", "multipleOf": 7919},
        "few multiples": {"type": "integer", "multipleOf": 7, "minimum": -40, "exclusiveMaximum": 1000},
        "quarters": {"type": "number", "multipleOf": 0.25},
        "cents": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0, "maximum": 99.99},
        "two multiples": {"allOf": [{"type": "integer", "multipleOf": 12}, {"multipleOf": 90}]},
        "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "narrow": {"type": "number", "minimum": -1.5, "maximum": -1.25},
        "width of none": {"type": "number", "minimum": 0.1, "maximum": 0.1},
        "beyond 2^53": {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**60 + 1},
        "number beyond 2^53": {"type": "number", "exclusiveMinimum": -(2**61) - 1, "exclusiveMaximum": -(2**54) - 1},
        "signed 64 bits": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "any integer": {"type": "integer"},
        "any number": {"type": "number"},
        "values": {"enum": [2**53, -0.001, 1e-7, 10**18, 3]},
        "a far step": {"type": "integer", "multipleOf": 997, "exclusiveMinimum": 2**53},
        "many digits": {"type": "number", "minimum": 0.30000000000000004, "maximum": 123456789012345.67},
    }.items()
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
    parser.add_argument("--numbers", action="store_true", help="schemas of numbers, with a schema alone")
    given = parser.parse_args()
    model = legato.load(given.model, "cpu")
    schemas = NUMBERS if given.numbers else SCHEMAS
    limits = {
        name: SchemaGrammar(json.dumps(schema), model.tokenizer, model.module.vocabulary, model.loaded.ends).shortest
        for name, (_, schema) in schemas.items()
    }
    names, extras = list(schemas), (0, 5, 20, 60, 150)
    for constrained in (False, True):
        if given.only == ("without" if constrained else "with") or (given.numbers and not constrained):
            continue
        scheduler = Scheduler(model, rows=given.rows, queue=given.count, patience=3600)
        heard, begun = [], time.perf_counter()
        for number in range(given.count):
            name = names[number % len(names)]
            prompt, schema = schemas[name]
            most = limits[name] + extras[number // len(names) % len(extras)]
            options = SearchOptions(
                search="sample",
                seed=number,
                max_tokens=most,
                json_schema=schema if constrained else None,
            )
            asked = f"{prompt} Answer in JSON."
            is_chat = model.loaded.chat is not None
            ids = (
                model.chat_ids([{"role": "user", "content": asked}])
                if is_chat
                else list(model.tokenizer.encode(asked))
            )
            heard.append((name, Listener()))
            scheduler.submit(ids, options, heard[-1][1])
        for _, each in heard:
            each.ended.wait()
        seconds = time.perf_counter() - begun
        scheduler.close()
        tokens = sum(len(text.tokens) for _, each in heard for text in each.texts)
        outcomes = [(name, text, outcome(text, schemas[name][1])) for name, each in heard for text in each.texts]
        counts = {kind: sum(found == kind for *_, found in outcomes) for kind in ("fits", "length", "wrong")}
        for name, text, found in outcomes:
            if constrained and found == "wrong":
                print(f"WRONG {name}: {text.text}")
        print(
            f"{'with' if constrained else 'without'} a schema, of {given.count}: {counts['fits']} fit, "
            f"{counts['length']} say length, {counts['wrong']} ended and do not fit; {tokens:,} tokens in "
            f"{seconds:.1f} s, {1000 * seconds / tokens:.2f} ms a token, {given.rows} texts side by side",
            flush=True,
        )


def outcome(text: Any, schema: dict[str, Any]) -> str:
    if not text.finished:
        return "length"
    exact = json.loads(json.dumps(schema), parse_float=number)
    try:
        with decimal.localcontext(decimal.Context(prec=2000)):
            jsonschema.validate(json.loads(text.text, parse_float=number), exact)
    except (ValueError, jsonschema.ValidationError):
        return "wrong"
    return "fits"


def number(text: str) -> decimal.Decimal | float:
    """Exact, but for what has more digits in its exponent than a `Decimal` may have."""
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return float(text)


if __name__ == "__main__":
    main()
