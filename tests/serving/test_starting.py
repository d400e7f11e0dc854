"""Starting the studio's server: the port, the browser, what is asked."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legato.errors import LegatoError
from legato.serving import local
from legato.serving.studio import Studio


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, where the server ends at once."""
    said: list[str] = []
    monkeypatch.setattr(local, "run_server", lambda app, opened: opened.close())
    monkeypatch.setattr(local, "open_browser", lambda address: said.append(f"browser {address}"))
    return said


def test_a_port_in_use_is_left_for_the_next(runs: Path, served: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        local.serve_studio(Studio(runs / "lstm", "cpu"), served.append, port=port, fragment="#text=a")
    found = re.match(rf"port {port} is in use; (\d+) is taken instead", served[0])
    assert found is not None
    assert served[1] == f"the studio is at http://127.0.0.1:{found[1]}/#text=a (Ctrl-C stops it)"
    assert served[2] == f"browser http://127.0.0.1:{found[1]}/#text=a"


def test_where_no_port_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "TRIED", 1)
    with local.open_port(18_000) as taken, pytest.raises(LegatoError, match=r"no port from .* in use; name another"):
        local.open_port(taken.getsockname()[1])


def test_the_server_listens_on_this_machine_alone() -> None:
    with local.open_port(18_000) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_the_command_opens_a_studio_with_what_is_asked(
    runs: Path, served: list[str], command: Callable[..., Any]
) -> None:
    told = command(
        "inspect", runs / "lstm", "the dog & co", "--serve", "--layers", "0", "--device", "cpu", "--no-browser"
    )
    assert told.code == 0
    assert "/#text=the+dog+%26+co&layers=0 (Ctrl-C stops it)\nthe studio has stopped\n" in told.out
    assert not served
    command("inspect", runs / "lstm", "--serve", "--device", "cpu")
    assert len(served) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "--json"), "--json goes without --serve; leave it out"),
        (("--serve", "--html", "x.html"), "--html goes without --serve"),
        (("--serve", "--layers", "x"), "numbers from 0 with commas"),
        (("--serve", "--port", "0"), "port"),
        (("--serve", "--port", "99999"), "port"),
        (("dog", "--port", "80"), "--port is for --serve; leave it out"),
        (("dog", "--no-browser"), "--no-browser is for --serve; leave it out"),
        ((), "TEXT"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    runs: Path, command: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    answer = command("inspect", runs / "lstm", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_whoever_lacks_the_extra_is_told(
    runs: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("legato.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = command("inspect", runs / "lstm", "--serve")
    assert (answer.code, answer.err) == (
        2,
        'legato: uvicorn is not installed; it comes with: pip install "legato-nn[serve]"\n',
    )
