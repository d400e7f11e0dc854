"""Texts that fit a JSON schema: whatever the model would rather write, and however few tokens there are."""

from __future__ import annotations

import decimal
import json
import threading
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import legato
from answers import Command
from cli.conftest import command as command
from legato.decoding.constraints import json_schema
from legato.decoding.constraints.json_schema import SchemaConstraint, SchemaGrammar, check_readable
from legato.decoding.constraints.schema_ends import Ends
from legato.decoding.constraints.schema_numbers import exact_bounds, steps
from legato.decoding.constraints.schema_sizes import largest_match, largest_part
from legato.errors import ConfigError
from legato.model import Model
from tiny_published import gpt2_folder

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}},
    "required": ["street", "city", "zip"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": ADDRESS,
    "optional": {"type": "object", "properties": {"a": ADDRESS, "b": {"type": "integer"}}},
    "array": {"type": "array", "items": ADDRESS, "maxItems": 3},
    "enum": {"enum": ["red", "a much longer one of the values", 3, None, True]},
    "bounds": {"type": "array", "items": {"type": "integer", "minimum": -7, "maximum": 130}, "minItems": 2},
    "choice": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"anyOf": [{"type": "number"}, ADDRESS]}}]},
    "string": {"type": "string", "minLength": 3, "maxLength": 12},
    "pattern": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"},
    "tree": {
        "$defs": {
            "node": {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
        },
        "$ref": "#/$defs/node",
    },
    "any": {"type": "object"},
    "multiples": {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7919}}, "required": ["n"]},
    "multiples of cents": {"type": "number", "multipleOf": 0.05, "exclusiveMinimum": 0},
    "multiples beyond": {"type": "integer", "multipleOf": 997, "minimum": 10**14},
    "a share": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}},
    "beyond 2^53": {"type": "integer", "exclusiveMinimum": 2**53 + 1, "maximum": 2**53 + 31},
    "digits beyond a double": {"type": "number", "minimum": 0.30000000000000004, "maximum": 0.30000000000001},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("json") / "m", length=512), "cpu")


def grammar_of(model: Model, schema: dict[str, Any]) -> SchemaGrammar:
    return SchemaGrammar(json.dumps(schema), model.tokenizer, model.module.vocabulary, model.loaded.ends)


def drawn(grammar: SchemaGrammar, limit: int, seed: int) -> list[int]:
    """A text of which each token is drawn from those allowed, most often one that opens or goes on."""
    constraint, generator = SchemaConstraint(grammar, [limit]), np.random.default_rng(seed)
    weights = generator.random(grammar.vocabulary) ** 4
    tokens: list[int] = []
    while len(tokens) < limit:
        allowed = constraint(0, tokens) * weights
        token = int(generator.choice(len(allowed), p=allowed / allowed.sum()))
        if token in grammar.ends:
            return tokens
        tokens.append(token)
    raise AssertionError(f"cut off: {tokens}")


def check_fits(text: str, schema: dict[str, Any]) -> None:
    """In exact arithmetic: doubles would call a number a multiple that is none."""
    with decimal.localcontext(decimal.Context(prec=1000)):
        exact = json.loads(json.dumps(schema), parse_float=exact_number)
        jsonschema.validate(json.loads(text, parse_float=exact_number), exact)


def exact_number(text: str) -> decimal.Decimal | float:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:  # an exponent beyond any
        return float(text)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of time that a busy machine keeps, too."""
    for name in ("READING", "STEP", "TEXT", "TOKEN"):
        monkeypatch.setattr(json_schema, name, 60.0)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_text_fits_its_schema_with_few_tokens_and_with_many(model: Model, name: str) -> None:
    schema = SCHEMAS[name]
    grammar = grammar_of(model, schema)
    for extra in (0, 1, 3, 10, 40, 100):
        for seed in range(3):
            check_fits(model.tokenizer.decode(drawn(grammar, grammar.shortest + extra, seed)), schema)


@pytest.mark.parametrize("name", ["object", "choice", "enum"])
def test_what_a_model_generates_fits(model: Model, name: str) -> None:
    schema = SCHEMAS[name]
    for options in (
        {"search": "greedy"},
        {"search": "sample", "seed": 4, "nbest": 3},
        {"search": "beam", "beams": 2},
    ):
        written = model.hypotheses(
            [[1, 2]], legato.decoding.SearchOptions(**options, max_tokens=60, json_schema=schema)
        )
        for each in written[0]:
            assert each.finished
            jsonschema.validate(json.loads(each.text), schema)


def test_too_few_tokens_are_refused_with_the_least_number(model: Model) -> None:
    grammar = grammar_of(model, ADDRESS)
    least = grammar.shortest
    with pytest.raises(
        ConfigError, match=f"^{least - 1} tokens are too few for this schema; it takes {least} at least$"
    ):
        SchemaConstraint(grammar, [200, least - 1])
    assert len(drawn(grammar, least, 0)) == least - 1  # and the end token


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BAD: dict[str, dict[str, Any]] = {
    "nothing like a type": {"type": "strin"},
    "no properties": {"properties": []},
    "a remote reference": {"$ref": "http://127.0.0.1:9/schema"},
    "a file": {"$ref": "file:///etc/passwd"},
    "itself": {"$ref": "#"},
    "without end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "very deep": deep(400),
    "a look ahead": {"type": "string", "pattern": "(?=a)b"},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "not": {"not": {}},
    "too long": {"type": "string", "minLength": 1_000_000},
    "too many": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
    "too many keys": {"required": [f"k{number}" for number in range(3000)], "type": "object"},
    "a huge enumeration": {"enum": [f"v{number}" for number in range(100_000)]},
    "a pattern that grows": {"type": "string", "pattern": "(.*a){3}.*a.{300}"},
    "a forced text without end": {"type": "array", "items": {"const": "abc" * 20_000}, "minItems": 10**5},
    "a forced text in one branch": {"anyOf": [{"const": 1}, {"type": "string", "pattern": "^((a{100}){100}){100}$"}]},
    "empty bounds": {"type": "integer", "minimum": 5, "maximum": 3},
    "bounds that no double is between": {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 2},
    "a value beyond doubles": {"enum": [{"a": [2**53 + 1]}]},
    "a step of too many digits": {"allOf": [{"multipleOf": 4294967291}, {"multipleOf": 4294967279}]},
    "a step that is no multiple of itself": {"type": "integer", "multipleOf": 42949672.95},
}


@pytest.mark.parametrize("name", BAD)
def test_a_schema_that_cannot_be_used_is_one_line(model: Model, name: str) -> None:
    with pytest.raises(ConfigError, match="the JSON schema") as refusal:
        grammar_of(model, BAD[name])
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("others", [True, False], ids=["and any others", "alone"])
def test_an_object_may_have_thousands_of_optional_keys(model: Model, others: bool) -> None:
    schema = {
        "type": "object",
        "properties": {f"key{number}": {"type": "integer"} for number in range(2300)},
        "additionalProperties": others,
    }
    grammar = grammar_of(model, schema)
    assert model.tokenizer.decode(grammar.end) == "{}"
    matcher = grammar.matcher()
    tokens = model.tokenizer.encode('{"key3": 1, "key2299": 7}')
    assert matcher.try_consume_tokens([int(token) for token in tokens]) == len(tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("bounds", "exact"),
    [
        ({"minimum": -3, "exclusiveMaximum": 0.5}, {"minimum": -3, "exclusiveMaximum": 0.5}),
        ({"minimum": 2**53 + 1}, {"minimum": 9007199254741000}),
        ({"exclusiveMinimum": 2**53}, {"minimum": 9007199254741000}),
        ({"exclusiveMaximum": 10**18, "maximum": 5 * 10**18}, {"maximum": 999999999999999000}),
        ({"exclusiveMinimum": 0.1 + 0.2}, {"minimum": 0.300000000000001}),
        ({"maximum": 1e-30}, {"maximum": 0}),
        (
            {"properties": {"minimum": {"maximum": 1 - 2**60}}},
            {"properties": {"minimum": {"maximum": -1152921504606850000}}},
        ),
        (
            {
                "$defs": {"const": {"maximum": 2**53 + 1}},
                "patternProperties": {"enum": {"maximum": 2**60}},
            },
            {
                "$defs": {"const": {"maximum": 9007199254740990}},
                "patternProperties": {"enum": {"maximum": 1152921504606840000}},
            },
        ),
        ({"properties": {"minimum": 2**53 + 1}}, {"properties": {"minimum": 2**53 + 1}}),
        ({"minimum": True, "exclusiveMaximum": 3.0}, {"minimum": True, "exclusiveMaximum": 3}),
        ({"maximum": 10**400 - 1}, {"maximum": 10**400 - 10**385}),
    ],
)
def test_a_bound_is_rounded_inwards_to_what_is_compared_exactly(
    bounds: dict[str, Any], exact: dict[str, Any]
) -> None:
    assert exact_bounds(bounds) == exact


def test_a_property_called_like_a_keyword_is_a_property() -> None:
    named = {"const": {"multipleOf": 3}, "multipleOf": {"type": "number"}, "enum": {"multipleOf": 5}}
    assert steps({"properties": named}) == [Decimal(3), Decimal(5), Decimal(15)]
    assert steps({"properties": {"multipleOf": 7}, "const": {"multipleOf": 9}}) == []


def test_no_number_beyond_a_bound_is_allowed(model: Model) -> None:
    for bound in (2**53 + 1, 2**56 - 1, 123456789012.34567, 1.2345678901234567e-9):
        step = decimal.Decimal(1) if bound > 2**53 else decimal.Decimal("1e-30")
        for key, side in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", -1), ("exclusiveMaximum", 1)):
            matcher = grammar_of(model, {"type": "number", key: bound}).matcher()
            outside = format(decimal.Decimal(str(bound)) + side * step, "f")
            tokens = [int(token) for token in model.tokenizer.encode(outside)]
            assert matcher.try_consume_tokens(tokens) < len(tokens) or not matcher.is_accepting(), (key, outside)


HOSTILE: dict[str, dict[str, Any]] = {  # and read, or refused, in a while
    "many keys": {"type": "object", "properties": {f"key {number} of them": {} for number in range(1500)}},
    "many stars": {"type": "string", "pattern": "^" + "x*" * 3000 + "y$"},
    "many classes": {"type": "string", "pattern": "^" + "[a-z0-9]" * 7000 + "$"},
    "many alternatives": {"anyOf": [{"type": "string", "pattern": f"^.*{number}.*$"} for number in range(900)]},
}


@pytest.mark.slow
def test_others_go_on_while_a_hostile_schema_is_read(model: Model) -> None:
    """The reading holds no lock that Python's other threads need: they tick along."""
    grammar_of(model, ADDRESS)  # the first one makes the table of tokens
    ended, gaps = threading.Event(), []

    def tick() -> None:
        last = time.monotonic()
        while not ended.is_set():
            time.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    other = threading.Thread(target=tick)
    other.start()
    for schema in HOSTILE.values():
        with suppress(ConfigError):
            grammar_of(model, schema)
    ended.set()
    other.join()
    assert len(gaps) > 10


FAR: dict[str, dict[str, Any]] = {  # from its end
    "a long string": {"type": "string", "pattern": "^[^x]{900}$"},
    "many strings": {"type": "array", "minItems": 60, "items": {"type": "string", "pattern": "^[ab]{9}$"}},
    "many numbers": {"type": "array", "minItems": 90, "items": {"type": "integer", "minimum": 0, "maximum": 10**9}},
}


@pytest.mark.parametrize("name", FAR)
@pytest.mark.usefixtures("unhurried")
def test_a_far_end_that_is_known_is_not_looked_for_with_each_token(
    model: Model, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar, looked = grammar_of(model, FAR[name]), []
    nearest = Ends.nearest
    monkeypatch.setattr(Ends, "nearest", lambda *given: looked.append(1) or nearest(*given))
    monkeypatch.setattr(json_schema, "TRIED", 1)
    tokens = drawn(grammar, grammar.shortest + 10, 0)
    jsonschema.validate(json.loads(model.tokenizer.decode(tokens)), FAR[name])
    assert len(looked) < len(tokens) / 3


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_text_whose_time_is_over_is_ended_as_soon_as_can_be(
    model: Model, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = grammar_of(model, SCHEMAS[name])
    monkeypatch.setattr(json_schema, "TEXT", 0.0)
    monkeypatch.setattr(json_schema, "TOKEN", 0.0)
    for extra in (0, 3, 40, 100):
        tokens = drawn(grammar, grammar.shortest + extra, 0)
        check_fits(model.tokenizer.decode(tokens), SCHEMAS[name])
        if extra <= grammar.leap:
            assert [*tokens, *grammar.ends[:1]] == grammar.end


def test_a_text_whose_end_is_not_found_in_time_goes_on_to_its_limit(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = grammar_of(model, {"type": "string", "minLength": 5})
    constraint = SchemaConstraint(grammar, [grammar.shortest + 9])
    monkeypatch.setattr(Ends, "after", lambda *given: None)  # no end is known
    monkeypatch.setattr(json_schema, "STEP", 0.0)
    tokens = list(grammar.end[:1])
    for _ in range(4):
        assert constraint(0, tokens).sum() > 1
        tokens.append(grammar.end[1])
    assert constraint.failure is None


def test_a_strangers_schema_is_read_where_that_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "SECONDS", 0.3)
    check_readable(json.dumps(ADDRESS))
    check_readable('{"type": "strin"}')  # of which the model's own reader says what is wrong
    with pytest.raises(ConfigError, match=r"^the JSON schema cannot be used: to read it takes more than 0\.3 s of"):
        check_readable('{"type": "integer", "multipleOf": 99999999}')
    with pytest.raises(ConfigError, match="characters; 98,304 are read"):
        check_readable(json.dumps({"enum": ["x" * 99_000]}))
    check_readable(json.dumps(ADDRESS))


def test_a_schema_that_takes_too_much_on_the_way_fails_and_is_not_called_done(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def is_error(self) -> bool:
            return True

        def is_stopped(self) -> bool:
            return False

        def get_error(self) -> str:
            return "lexer fuel"

    monkeypatch.setattr(SchemaGrammar, "matcher", lambda self: Broken())
    monkeypatch.setattr(Broken, "consume_tokens", lambda self, tokens: False, raising=False)
    with pytest.raises(legato.LegatoError, match="the JSON schema takes too much to follow: lexer fuel"):
        model.generate([1, 2], max_tokens=40, json_schema={"type": "string"})


def test_an_end_is_known_to_take_longer_once_something_is_opened() -> None:
    assert largest_part({"type": "boolean"}) == 5
    named = {"properties": {"name": {"enum": ["a", "Annabel"]}}, "required": ["name"]}
    assert largest_part({"anyOf": [{"type": "null"}, {"items": named}]}) == len('{"name": "Annabel"}') + 2
    assert (
        largest_part({"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"const": "abcdef"}]}}, "$ref": "#/$defs/x"})
        == 8
    )


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("^[0-9]{5}$", 5),
        ("^(ab|[a-z]{20}){3}c*$", 61),
        (r"\{\d{4}[]a]{5}[^]{2}]{3}[\]{]", 14),
        ("((a{100}){100}){100}", 10**6),
        ("a{0,3}b?|c", 2),
        ("a{99999999999}", 1 << 20),
        ("a{00000000000300}", 300),
        ("a{100}{100}", 10**4),
        (r"\x{20000}\u{123}\p{Letter}{3}", 5),
        ("((((", 0),
        ("a)b|[", 3),
        ("\\", 1),
    ],
)
def test_what_a_pattern_asks_for_is_seen(pattern: str, size: int) -> None:
    assert largest_match(pattern) == size


def test_it_may_be_given_on_the_command_line(model: Model, tmp_path: Path, command: Command) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(ADDRESS), encoding="utf-8")
    for given in (str(tmp_path / "schema.json"), json.dumps(ADDRESS)):
        words = ("the cat", "--json-schema", given, "--max-tokens", 80, "--json", "--device", "cpu")
        answer = command("generate", model.folder, *words)
        assert answer.code == 0, answer.err
        (line,) = answer.out.splitlines()
        jsonschema.validate(json.loads(json.loads(line)["results"][0]["text"]), ADDRESS)
