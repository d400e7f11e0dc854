"""What every test has: a cache of its own, so that none reads what another wrote, and no hub of models to ask."""

from __future__ import annotations

import gc
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from slow.campaign_share import repetition
from thinned import thin

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

os.environ.setdefault("LEGATO_BF16", "off")  # `auto` is float32 on every processor
os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which looks once
# The CPU kernels are compiled once for all tests, and not anew for each cache.
os.environ.setdefault("LEGATO_KERNELS", str(Path(__file__).parent.parent / ".pytest_cache" / "kernels"))
os.fsync = lambda handle: None  # type: ignore[assignment]  # no test outlives a power cut, and each run syncs often

CACHES = itertools.count()
SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)
THREADS = torch.get_num_threads()


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the others compiles both libraries side by side, so that each is compiled once.

    Nothing that is imported or collected is garbage.
    """
    gc.disable()
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        from legato.nn.kernels.library import library, training_library

        with ThreadPoolExecutor() as pool:
            for compiled in (pool.submit(library), pool.submit(training_library)):
                compiled.result()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow as a whole need not be imported to be left out."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    slow = (
        SLOW.search(collection_path.read_text(encoding="utf-8"))
        or collection_path.parent == Path(__file__).parent / "slow"
    )
    return True if slow else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thin(config, items)


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage has to look through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """A failure is repeated with the share of the campaigns that it was of."""
    if exitstatus and config.option.markexpr == "slow":
        terminalreporter.write_line(f"this was {repetition()}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Runs are resumed to the same bits on as many threads, by the same library of products.

    A processor without products of bfloat16 that was asked for one makes PyTorch do without oneDNN from then on.
    """
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)
    if not torch._C._get_mkldnn_enabled():
        torch._C._set_mkldnn_enabled(True)


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made by who writes into it."""
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))))
