"""Which precision a run has: what a device multiplies fast, unless it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from legato.config import validate
from legato.errors import ConfigError
from legato.runs.train import train
from legato.training import devices
from legato.training.config import TrainConfig
from legato.training.devices import autocast, choose_dtype, multiplies_bf16, precision_of, why_bf16
from tiny_tasks import tiny

CPU = torch.device("cpu")
PROCESSORS = {
    "flags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile amx_int8": "AMX",
    "flags\t\t: fpu avx512f avx512_bf16": "AVX512-BF16",
    "Features\t: fp asimd sve bf16 i8mm": "BF16 matrix instructions",
    "flags\t\t: fpu avx2 avx512f": None,
    "Features\t: fp asimd asimdhp asimddp": None,
    "": None,
}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("LEGATO_BF16", raising=False)
    return lambda line: monkeypatch.setattr(devices, "processor", lambda: (line,))


@pytest.mark.parametrize(("line", "has"), PROCESSORS.items())
def test_auto_is_bf16_where_a_processor_multiplies_it_fast(line: str, has: str | None, processor: Any) -> None:
    processor(line)
    fast, why = why_bf16(CPU)
    assert fast == multiplies_bf16(CPU) == (has is not None)
    assert has is None or has in why
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if fast else torch.float32)
    assert precision_of("auto", CPU) == ("bf16" if fast else "float32")
    with autocast(CPU, "auto"):
        assert torch.is_autocast_enabled("cpu") == fast


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (9, 0), (12, 0)])
def test_auto_is_bf16_from_ampere_on(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setenv("LEGATO_BF16", "off")  # which is of processors
    fast, why = why_bf16(torch.device("cuda", 0))
    assert fast == (capability >= (8, 0))
    assert why.startswith(f"compute capability {capability[0]}.{capability[1]}")


def test_what_is_said_is_done_whatever_is_fast(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("flags: amx_bf16")
    with autocast(CPU, "float32"):
        assert not torch.is_autocast_enabled("cpu")
    monkeypatch.setenv("LEGATO_BF16", "off")
    assert why_bf16(CPU) == (False, "LEGATO_BF16=off")
    with autocast(CPU, "bf16"):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("given", "meant"), [("bfloat16", "bf16"), ("bf16", "bf16"), ("fp32", "float32"), ("auto", "auto")]
)
def test_a_precision_has_one_name(given: str, meant: str) -> None:
    assert validate(TrainConfig, {"precision": given}).precision == meant


def test_another_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        validate(TrainConfig, {"precision": "int8"})
    with pytest.raises(ConfigError, match="precision"):
        validate(TrainConfig, {"precision": ["bf16"]})


@pytest.mark.parametrize(("given", "told"), [("auto", True), ("bfloat16", False), ("float32", False)])
def test_a_run_says_where_auto_means_bf16_on_a_processor(
    given: str, told: bool, processor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processor("flags: avx512_bf16")
    settings = {**tiny("lm", tmp_path), "train.steps": 1, "train.precision": given}
    train("lm", settings, out=tmp_path / "run")
    said = "precision: bf16, since the processor has AVX512-BF16; train.precision=float32 is the other"
    assert (said in capsys.readouterr().err) == told
