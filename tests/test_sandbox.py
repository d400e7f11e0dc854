"""The process that can be ended: what it computes, what ends it, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legato import sandbox
from legato.errors import LegatoError

SLOW = r"(a+)+$"


def match(patterns: list[str], text: str) -> int | None:
    found: int | None = sandbox.call("first_match", patterns=patterns, text=text)
    return found


def running(process: int) -> bool:
    """Whether a process is there, and not only its last word."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_one_process_serves_many_calls() -> None:
    assert match(["b", "a+"], "aaa") == 1
    first = sandbox._helper().process.pid
    assert match(["b"], "aaa") is None
    assert sandbox._helper().process.pid == first


def test_an_error_inside_leaves_the_process_as_it_is() -> None:
    match(["a"], "a")
    first = sandbox._helper().process.pid
    with pytest.raises(sandbox.Failed) as caught:
        match(["a", "("], "b")
    assert (caught.value.kind, caught.value.stage) == ("error", "1")
    assert sandbox._helper().process.pid == first


def test_what_computes_too_long_is_ended_and_the_next_call_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    with pytest.raises(sandbox.OverBudget, match=r"0\.2 s of computing"):
        match([SLOW], "a" * 40 + "b")
    assert match(["a"], "a") == 0


def test_what_does_not_answer_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    match(["a"], "a")
    monkeypatch.setattr(sandbox, "PATIENCE", 0.2)
    with pytest.raises(sandbox.OverBudget, match=r"0\.2 s of time"):
        match([SLOW], "a" * 40 + "b")


def test_what_was_killed_is_started_again() -> None:
    match(["a"], "a")
    helper = sandbox._helper()
    os.kill(helper.process.pid, signal.SIGKILL)
    helper.process.wait()
    assert match(["a"], "a") == 0


def test_a_forked_process_has_one_of_its_own() -> None:
    match(["a"], "a")
    mine = sandbox._helper().process.pid
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        match(["a"], "a")
        os.write(writer, str(sandbox._helper().process.pid).encode())
        sandbox._close()
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert theirs != mine
    assert sandbox._helper().process.pid == mine
    assert match(["b", "a"], "a") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are listed under /proc")
@pytest.mark.parametrize("end", ["", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_it_ends_with_the_process_that_started_it(end: str) -> None:
    script = (
        "from legato import sandbox; sandbox.call('first_match', patterns=['a'], text='a');"
        f"print(sandbox._helper().process.pid, flush=True); {end}"
    )
    source = str(Path(sandbox.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    process = int(answer.stdout)
    for _ in range(500):
        if not running(process):
            return
        time.sleep(0.01)
    pytest.fail("it is still there")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are listed under /proc")
def test_a_long_call_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    from tiny_documents import drawn, tiny_pdf

    (tmp_path / "a.pdf").write_bytes(tiny_pdf(drawn("Hello") * 3000, pages=2000))
    script = f"""
import os, signal, threading
from legato import sandbox
call = dict(apart="documents", seconds=600, path={str(tmp_path / "a.pdf")!r}, max_pages=9000)
threading.Thread(target=sandbox.call, args=("read_pdf",), kwargs=call).start()
while "documents" not in sandbox._kept:
    pass
print(sandbox._kept["documents"].process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    end = time.monotonic() + 60
    while running(int(answer.stdout)):
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.01)


def test_nothing_of_the_environment_or_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sandbox._close()
    assert match(["a"], "a") == 0


@pytest.mark.parametrize("python", ["#!/bin/sh\nexit 127\n", None], ids=["one that cannot load", "none"])
def test_a_process_that_does_not_start_is_no_fault_of_what_it_was_to_run(
    python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    if python is not None:
        broken.write_text(python)
        broken.chmod(0o755)
    sandbox._close()
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(LegatoError, match="the helper process could not be started"):
        match(["a"], "a")
    monkeypatch.undo()
    assert match(["a"], "a") == 0


def test_python_s_own_libraries_are_found_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, env, **named: started.append(env) or real(*a, env=env, **named)
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    sandbox._close()
    assert match(["a"], "a") == 0
    assert started[0]["LD_LIBRARY_PATH"] == "/opt/python/lib"
    assert "SECRET_TOKEN" not in started[0]
