"""What happens to a model's folder while it is served changes no answer: replaced, written over, cut short, gone."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from test_serve_for_real import serving

import legato
from cli.conftest import command as command
from legato.serving.models import Served
from tiny_adapted import adapted, published_folder, saved

KINDS = ("wide", "narrow", "adapter")


@pytest.fixture
def places(tmp_path: Path, command: Any) -> dict[str, Path]:
    """Models of each kind, whose weights are read in different ways."""
    wide = published_folder(tmp_path / "wide", "llama", width=64, feedforward=64, length=512)
    narrow = tmp_path / "narrow"
    told = command("export", wide, "--to", "legato", "--quantize", "int8", "--out", narrow)
    assert told.code == 0, told.err
    adapter = saved(tmp_path / "adapter", *adapted(wide, name="lora", rank=2))
    return {"wide": wide, "narrow": narrow, "adapter": adapter}


def overwrite(folder: Path) -> None:
    """Other weights in the same files."""
    for file in folder.glob("*.safetensors"):
        with file.open("r+b") as opened:
            size = file.stat().st_size
            opened.seek(size // 4)
            opened.write(b"\x3c" * (size - size // 4))


def cut_short(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with file.open("r+b") as opened:
            opened.truncate(100)


def replace(folder: Path) -> None:
    """Another model by the same name, as training replaces one."""
    torch.manual_seed(9)
    new = published_folder(folder.with_name(f"new-{folder.name}"), "llama", width=32)
    folder.rename(folder.with_name(f"old-{folder.name}"))
    new.rename(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has mapped")
def test_nothing_that_is_served_lies_in_a_file(places: dict[str, Path]) -> None:
    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return {line.split()[-1] for line in lines if line.endswith((".safetensors", ".gguf"))}

    before = mapped()
    every = [Served(name, legato.load(place, "cpu")) for name, place in places.items()]
    assert mapped() <= before
    for each in every:
        each.close(drain=False)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [replace, overwrite, cut_short, shutil.rmtree])
def test_answers_stay_those_of_the_model_that_was_loaded(
    places: dict[str, Path], harm: Callable[[Path], object]
) -> None:
    expected = {name: legato.load(place, "cpu").generate("the cat", max_tokens=300) for name, place in places.items()}
    with serving(*(f"{name}={place}" for name, place in places.items())) as (process, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)

        def streamed(name: str, begun: threading.Event) -> str:
            pieces = client.completions.create(
                model=name, prompt="the cat", max_tokens=300, temperature=0, stream=True
            )
            text = ""
            for piece in pieces:
                text += piece.choices[0].text
                begun.set()
            return text

        texts: dict[str, str] = {}
        begun = {name: threading.Event() for name in KINDS}
        threads = [
            threading.Thread(target=lambda name=name: texts.update({name: streamed(name, begun[name])}))
            for name in KINDS
        ]
        for thread in threads:
            thread.start()
        assert all(event.wait(60) for event in begun.values())
        for place in places.values():
            harm(place)
        for thread in threads:
            thread.join(120)
        assert texts == expected
        assert {name: streamed(name, threading.Event()) for name in KINDS} == expected
        assert process.poll() is None
