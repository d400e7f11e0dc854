"""What nobody foresaw: where memory, depth, numbers or the file system end, one line says so; the rest is ours."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

import pytest
import torch

import legato.cli.doctor
from legato.errors import LegatoError, brief, listed, reason_of, suggest
from refusals import is_one_line


class PanicException(BaseException):
    """As pyo3 raises it."""


def fail_to_allocate() -> None:
    torch.empty(1 << 55)


def fail_to_count() -> None:
    torch.empty(1 << 40, 1 << 40)


def raising(problem: BaseException) -> Any:
    def fail() -> None:
        raise problem

    return fail


@pytest.mark.parametrize(
    ("fail", "parts"),
    [
        (raising(MemoryError()), ("not enough memory",)),
        (raising(MemoryError("Unable to allocate 7.28 TiB for an array")), ("not enough memory", "7.28 TiB")),
        (raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")), ("not enough memory",)),
        (fail_to_allocate, ("not enough memory",)),
        (fail_to_count, ("larger than can be worked with",)),
        (raising(RecursionError("maximum recursion depth exceeded")), ("nested too deeply",)),
        (raising(OverflowError("Python int too large to convert to C long")), ("larger than can be worked with",)),
        (raising(struct.error("'i' format requires -2147483648 <= number")), ("larger than can be worked with",)),
        (raising(ValueError("Exceeds the limit (4300 digits) for integer string conversion")), ("4300 digits",)),
        (raising(ValueError("Maximum allowed dimension exceeded")), ("larger than can be worked with",)),
        (raising(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")), ("no character", "UTF-8")),
        (raising(OSError(errno.ENOSPC, "No space left on device", "a/b")), ("the disk is full", "a/b")),
        (raising(PermissionError(errno.EACCES, "Permission denied", "a/b")), ("a/b may not be read or written",)),
        (raising(OSError(errno.ENAMETOOLONG, "File name too long", "a/b")), ("a/b", "File name too long")),
        (raising(OSError(errno.EMFILE, "Too many open files")), ("too many files are open",)),
        (raising(FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b")), ("a/b", "No such file")),
        (raising(OSError("cannot identify image file")), ("cannot identify image file",)),
        (raising(PanicException("called `Result::unwrap()` on an `Err` value")), ("a library broke off",)),
    ],
)
def test_what_the_machine_cannot_do_is_one_line(
    fail: Any, parts: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.runs.doctor.diagnose", fail)
    is_one_line(command("doctor"), *parts)


@pytest.mark.parametrize("problem", [KeyError("a"), TypeError("b"), AttributeError("c"), ValueError("d" * 10_000)])
def test_what_is_wrong_in_the_program_stays_our_fault(
    problem: Exception, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.runs.doctor.diagnose", raising(problem))
    answer = command("doctor")
    assert answer.code == 1
    assert "a fault of ours" in answer.err
    assert len(answer.err) < 500
    assert reason_of(problem) is None


def test_debug_shows_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["legato", "doctor", "--debug"])
    monkeypatch.setattr("legato.runs.doctor.diagnose", raising(MemoryError()))
    with pytest.raises(MemoryError):
        legato.cli.main()


def test_no_message_is_long_whatever_is_put_into_it() -> None:
    many, long = [f"name{number}" for number in range(100_000)], "x" * 100_000
    assert len(str(LegatoError(f"{long} is wrong; do this"))) < 500
    assert str(LegatoError(f"{long} is wrong; do this")).endswith("is wrong; do this")
    for shown in (
        listed(many),
        listed([long] * 100_000),
        suggest("zzz", many),
        suggest(long, [long] * 10),
        brief(many),
    ):
        assert len(shown) < 500
    assert listed(many).endswith(" more")
    assert listed(["a", "b"], quote="'") == "'a', 'b'"


@pytest.mark.parametrize(("words", "left"), [(["models"], "0"), (["models", "--debug"], "1")])
def test_a_panic_of_a_library_prints_no_backtrace(
    words: list[str], left: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    assert command(*words).code == 0
    assert os.environ["RUST_BACKTRACE"] == left
