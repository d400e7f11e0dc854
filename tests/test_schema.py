"""JSON and YAML from elsewhere: what passes the reader, and how it refuses the rest."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from legato import plain_yaml, schema
from legato.errors import ConfigError, FolderError, LegatoError, brief, suggest
from legato.plain_yaml import parse_yaml
from legato.schema import (
    OPEN,
    TypedDict,
    fields_of,
    fit,
    parse_json,
    read_json,
    read_json_if_there,
    with_config,
)


@with_config(OPEN)
class Entries(TypedDict, total=False):
    size: int
    names: list[str]
    rate: float | None


def test_entries_that_nobody_reads_are_kept() -> None:
    assert parse_json('{"size": 1, "other": [2.5]}', Entries, "f.json") == {"size": 1, "other": [2.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"size": true}', "f.json: 'size' should be a valid integer, not True"),
        ('{"size": "1"}', "f.json: 'size' should be a valid integer, not '1'"),
        ('{"names": [1]}', "f.json: 'names.0' should be a valid string, not 1"),
        ("[1]", "f.json should hold a JSON object, not [1]"),
        ('{"a": NaN}', "f.json: 'a': NaN is no number"),
        ('{"a": 1e999}', "f.json: 'a': inf is no number"),
        ('{"a": 10000000000000000000000000}', "f.json: 'a': 10000000000000000000000000 is too large a number"),
        ('{"a": ' + "1" * 5000 + "}", "f.json: " + "1" * 59 + "… is too large a number"),
        ('{"a": "\\ud800"}', "f.json: 'a' holds half a character"),
        ('{"' + "k" * 5000 + '": 1}', "f.json has an entry whose name is no name"),
        ("[" * 100_000, "f.json is not valid JSON: it is nested too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "f.json: 'a.a.a' is nested more than 64 deep"),
        (b"\xff", "f.json is not UTF-8 text"),
        ("{", "f.json is not valid JSON"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_its_key(text: str | bytes, message: str) -> None:
    with pytest.raises(FolderError) as refused:
        parse_json(text, Entries, "f.json")
    assert str(refused.value).startswith(message)


@with_config(OPEN)
class Choices(TypedDict, total=False):
    ends: int | list[int] | None
    inner: Entries


def test_where_several_types_would_do_the_key_is_named_alone() -> None:
    with pytest.raises(FolderError) as refused:
        parse_json('{"ends": "x"}', Choices, "f.json")
    assert str(refused.value) == "f.json: 'ends' should be a valid integer or a valid list, not 'x'"
    with pytest.raises(FolderError, match=r"f\.json: 'ends\.1' should be a valid integer, not \[\]"):
        parse_json('{"ends": [1, []]}', Choices, "f.json")
    with pytest.raises(FolderError, match=r"f\.json: 'inner\.size' should be a valid integer, not None"):
        parse_json('{"inner": {"size": null}}', Choices, "f.json")


def test_numbers_beyond_all_measure_are_no_mistake_where_nobody_reads_them() -> None:
    text = '{"model_max_length": 1000000000000000019884624838656}'
    assert parse_json(text, Entries, "f.json", loose=True) == {"model_max_length": 1e30}
    with pytest.raises(FolderError, match=r"'size': 1e\+25 is too large a number"):
        parse_json('{"size": 10000000000000000000000000}', Entries, "f.json", loose=True)
    with pytest.raises(FolderError, match="is too large a number"):
        parse_json('{"a": 1' + "0" * 350 + "}", Entries, "f.json", loose=True)


def test_what_python_writes_of_no_number_is_refused_where_it_is_read() -> None:
    found = parse_json('{"limits": [0.0, Infinity, NaN]}', Entries, "f.json", loose=True)
    assert str(found["limits"]) == "[0.0, inf, nan]"  # type: ignore[typeddict-item]
    with pytest.raises(FolderError, match=r"'size' should be a valid integer, not nan"):
        parse_json('{"size": NaN}', Entries, "f.json", loose=True)


def test_a_dataclass_is_a_schema_of_its_fields() -> None:
    @dataclass
    class Kept:
        step: int = 0
        scores: list[float] = field(default_factory=list)

    assert fit({"scores": [1.5]}, fields_of(Kept), "f.json") == {"scores": [1.5]}
    for value, said in (({"step": "1"}, "'step' should be a valid integer"), ({"stpe": 1}, "'stpe'")):
        with pytest.raises(FolderError, match=said):
            fit(value, fields_of(Kept), "f.json")


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_json_if_there(tmp_path / "none.json", Entries) == {}


def test_a_date_in_yaml_is_a_text() -> None:
    assert parse_yaml("a: 2020-99-99\nb: 2020-01-01", dict, "s.yaml") == {"a": "2020-99-99", "b": "2020-01-01"}


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object:os.system x",
        "a: !!binary abc",
        "a: !!set {x}",
        "a: {1: 2}",
        "a: .inf",
        "a: " + "1" * 5000,
        "a: &a [*a]",
        "a: [",
        "\x00",
        "[" * 10_000,
        "a: &a [1,1,1,1,1,1,1,1]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 8)}]\n" for n in range(12)),
    ],
)
def test_yaml_that_is_no_plain_value_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_yaml(text, dict, "s.yaml")
    assert str(refused.value).startswith("s.yaml")
    assert len(str(refused.value)) < 500


def bomb(line: str, count: int, depth: int) -> str:
    """YAML whose every line names the one before many times."""
    rows = [line.format(n=n, before=",".join([f"*a{n - 1}"] * count)) for n in range(1, depth)]
    return "a0: &a0 {x: 1, y: 2}\n" + "\n".join(rows)


def test_merge_keys_are_refused_before_they_are_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[object] = []
    monkeypatch.setattr(yaml.SafeLoader, "flatten_mapping", lambda loader, node: carried.append(node))
    with pytest.raises(ConfigError, match=r"^s\.yaml: line 2: the merge key << is not read; write the entries out$"):
        parse_yaml(bomb("a{n}: &a{n} {{<<: [{before}]}}", 10, 9), dict, "s.yaml")
    assert len(carried) <= 2
    with pytest.raises(ConfigError, match="merge key"):
        parse_yaml("a: &a {x: 1}\nb: {!!merge x: *a}", dict, "s.yaml")


def test_values_that_aliases_multiply_are_counted_before_they_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    real = schema._problem
    monkeypatch.setattr(plain_yaml, "MAX_VALUES", 1000)
    monkeypatch.setattr(schema, "_problem", lambda value, finite: looked.append(value) or real(value, finite))
    wide = "a: &a [" + "~," * 900 + "]\nb: [" + "*a," * 900 + "]"
    with pytest.raises(ConfigError, match=r"s\.yaml holds more than 1,000 values"):
        parse_yaml(wide, dict, "s.yaml")
    assert len(looked) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" + "a," * 40_000 + "]", "it holds more than 32,768 values; shorten its longest list"),
        ("[" * 60_000, "it is nested too deeply"),
        ("- " * 5_000, "it is nested too deeply"),
    ],
    ids=["long", "deep", "deep block"],
)
def test_yaml_is_counted_while_it_is_read(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "check_values", lambda *given, **named: pytest.fail("it was read to its end"))
    with pytest.raises(ConfigError, match=f"^s.yaml: {said}$"):
        parse_yaml(text, object, "s.yaml")


@pytest.mark.parametrize("text", ["[" + "[]," * 200 + "0]", "[" + '{"a":0},' * 200 + "0]", "[" + "0," * 400 + "0]"])
def test_json_of_very_many_values_is_refused_before_any_is_made(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *given, **named: pytest.fail("it was read"))
    for given in (text, text.encode()):
        with pytest.raises(FolderError, match=r"f\.json holds more than 300 values"):
            parse_json(given, object, "f.json", most=300)


def test_commas_and_brackets_inside_texts_are_not_counted() -> None:
    text = 'a, [b], {c} \\ " é' * 400
    assert parse_json(json.dumps([text, "x"]), object, "f.json", most=300) == [text, "x"]


@pytest.mark.slow
def test_the_largest_vocabularies_are_read() -> None:
    words = {f"w{n},": n for n in range(256_000)}
    found = parse_json(json.dumps({"vocab": words, "merges": [["a", "b"]] * 512_000}), dict, "f.json")
    assert len(found["vocab"]) == 256_000


def test_a_file_of_entries_is_smaller_than_a_vocabulary(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.write(b"{}" + b" " * (1 << 24))
    with pytest.raises(FolderError, match="more than the 16,777,216 that a file of its kind may have"):
        read_json(tmp_path / "a.json", dict)
    assert read_json(tmp_path / "a.json", dict, most=schema.MAX_VOCABULARY) == {}


class Odd:
    pass


def within(depth: int, value: object) -> object:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 2**63, -(2**63), 0.5, math.inf, math.nan, "é", "\ud800", Odd(), (1,), [], {}),
        *({"a": [1, {"b": 2**64}]}, {1: 2}, {"\ud800": 1}, {"k" * 5000: 1}, [0] * 50, [0] * 51, [[0] * 24, [0] * 25]),
        *(within(63, []), within(64, []), within(64, 1), within(65, 1)),
    ],
    ids=lambda value: brief(repr(value), 30),
)
def test_the_quick_look_at_values_says_what_the_one_that_names_them_says(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 50 if isinstance(value, list) and len(value) > 1 else 1000  # of what is nested the depth alone counts
    quick = schema._are_plain(value, most)
    monkeypatch.setattr(schema, "_are_plain", lambda value, most: False)
    try:
        schema.check_values(value, "f.json", most=most)
    except FolderError:
        assert not quick
    else:
        assert quick


def test_pipes_devices_and_folders_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(FolderError, match=str(place)):
            read_json(place, dict)


def test_messages_stay_short_whatever_is_in_them() -> None:
    assert len(str(LegatoError("x" * 10**6))) < 2100
    assert brief(10**5000) == "a number of 16610 bits"
    assert brief("a\nb\ud800") == "a b\\ud800"
    assert suggest("zzz", [f"name{n}" for n in range(1000)]).endswith("and 960 more")
