"""Adapters beside one served model: each by its name, all in one batch, each with the texts of its own model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import legato
from cli.conftest import command as command
from legato.errors import LegatoError
from legato.folders.adapters.peft_files import CONFIG
from legato.serving.adapters import adapter_place, with_adapters
from legato.serving.models import Served
from serving.api_client import api_of, refusal_of
from tiny_adapted import adapted, published_folder, saved
from tiny_published import CHATML, change

ADAPTERS: dict[str, dict[str, Any]] = {
    "polite": {"rank": 4, "alpha": 9.0, "targets": ["all-linear"]},
    "terse": {"rank": 2, "rslora": True},
    "loud": {"rank": 7, "targets": ["up_proj", "o_proj"]},
}
HOWS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 3},
    {"seed": 5, "temperature": 0.7, "top_p": 0.9},
    {"temperature": 0, "stop": ["the", "o"]},
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, its adapters, and another model."""
    home = tmp_path_factory.mktemp("adapters")
    found = {"base": published_folder(home / "base", "llama", width=32, kv_heads=1)}
    change(found["base"] / "tokenizer_config.json", chat_template=CHATML)
    for number, (name, settings) in enumerate(ADAPTERS.items()):
        torch.manual_seed(number)
        found[name] = saved(home / name, *adapted(found["base"], name="lora", **settings))
    found["other"] = published_folder(home / "other", "llama", width=32, layers=1)
    return found


def served(places: dict[str, Path], *adapters: str, models: tuple[str, ...] = ("base",)) -> list[Served]:
    held = [(str(places[name]), Served(name, legato.load(places[name], "cpu"), most_tokens=60)) for name in models]
    return with_adapters(held, [adapter_place(each) for each in adapters])


@pytest.fixture(scope="module")
def client(places: dict[str, Path]) -> Iterator[TestClient]:
    every = served(places, *(f"{name}={places[name]}" for name in ADAPTERS))
    yield api_of(*every)
    for each in every:
        each.close(drain=False)


def test_adapters_are_listed_with_what_they_share(client: TestClient) -> None:
    cards = client.get("/v1/models").json()["data"]
    assert {card["id"]: card.get("parent") for card in cards} == {"base": None} | dict.fromkeys(ADAPTERS, "base")
    assert client.get("/v1/models/base:terse").json()["id"] == "terse"
    assert "did you mean 'terse'?" in refusal_of(client.get("/v1/models/tersee"), 404)


def options_of(how: dict[str, Any]) -> dict[str, Any]:
    """A request's options as `generate` has them."""
    if how.get("temperature") == 0:
        return {key: value for key, value in how.items() if key != "temperature"}
    return {"search": "sample", **how}


def test_texts_of_many_at_once_are_those_of_each_model_alone(client: TestClient, places: dict[str, Path]) -> None:
    jobs = [
        (name, how, prompt) for how in HOWS for name in ("base", *ADAPTERS) for prompt in ("the cat", "a dog runs")
    ]

    def ask(job: tuple[str, dict[str, Any], str]) -> str:
        name, how, prompt = job
        body = {"model": name, "prompt": prompt, "max_tokens": 12, **how}
        return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(ask, jobs))
    alone = {name: legato.load(places[name], "cpu") for name in ("base", *ADAPTERS)}
    for (name, how, prompt), text in zip(jobs, texts, strict=True):
        assert text == alone[name].generate(prompt, max_tokens=12, **options_of(how)), (name, how, prompt)
    assert len(set(texts)) > len(HOWS) * 4


def test_a_stream_and_a_chat_are_written_by_the_adapter(client: TestClient, places: dict[str, Path]) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    body = {"model": "polite", "messages": messages, "max_tokens": 12, "temperature": 0, "stream": True}
    lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")[:-2]
    pieces = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or "" for line in lines]
    assert "".join(pieces) == legato.load(places["polite"], "cpu").chat(messages, max_tokens=12)


def test_vectors_are_the_adapters_own(client: TestClient, places: dict[str, Path]) -> None:
    for name in ("base", "polite"):
        told = client.post("/v1/embeddings", json={"model": name, "input": "the cat", "encoding_format": "float"})
        wanted = legato.load(places[name], "cpu").embed("the cat")
        assert told.json()["data"][0]["embedding"] == pytest.approx(wanted.tolist(), abs=1e-4)


# ── whose an adapter is ───────────────────────────────────────────────────────────────────────────


def test_an_adapter_finds_its_base_among_several(places: dict[str, Path]) -> None:
    every = served(places, f"terse={places['terse']}", models=("other", "base"))
    assert [(each.name, each.base.name if each.base else None) for each in every] == [
        ("other", None),
        ("base", None),
        ("terse", "base"),
    ]


def refusal(places: dict[str, Path], *adapters: str, models: tuple[str, ...] = ("base",)) -> str:
    with pytest.raises(LegatoError) as caught:
        served(places, *adapters, models=models)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_whose_it_is_has_to_be_said_where_that_is_open(places: dict[str, Path], tmp_path: Path) -> None:
    place = places["terse"]
    twins = {**places, "twin": places["base"]}
    assert f"fits base, twin; say whose it is: --adapter base/x={place}" in refusal(
        twins, f"x={place}", models=("base", "twin")
    )
    every = served(twins, f"twin/x={place}", f"base/x={place}", models=("base", "twin"))
    assert [each.name for each in every[2:]] == ["twin:x", "base:x"]
    assert "there is no model 'bse' here; did you mean 'base'?" in refusal(places, f"bse/x={place}")
    assert "was trained for" in refusal(places, f"x={place}", models=("other",))
    assert "was trained for" in refusal(places, f"other/x={place}", models=("base", "other"))
    for given in ("terse", "=x", "a=", "/a=b"):
        assert "write NAME=FOLDER" in refusal(places, given)
    peft = tmp_path / "peft"
    shutil.copytree(place, peft)
    (peft / "legato.json").unlink()
    change(peft / CONFIG, base_model_name_or_path="org/name")
    line = refusal(places, f"x={peft}")
    assert (
        f"is an adapter for org/name, and there is base; if that is the same model, say so: --adapter base/x={peft}"
        in line
    )
    assert [each.name for each in served(places, f"base/x={peft}")] == ["base", "x"]


def test_the_command_names_adapters(places: dict[str, Path], command: Any) -> None:
    words = ["serve", f"m={places['base']}", "--port", "0", "--check", "--device", "cpu"]
    told = command(*words, "--adapter", f"x={places['terse']}", "--adapter", f"m/y={places['loud']}")
    assert "m, x, y would be served" in told.err
    assert told.code == 0
    told = command(*words, "--adapter", f"x={places['base']}")
    assert (told.code, "holds a whole model, not an adapter" in told.err) == (2, True)
