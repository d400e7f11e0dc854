"""Texts to translate, from the command line, files and the shell: each line gets its own, whatever it holds."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from legato.cli.lines import Lines
from refusals import is_one_line
from tiny_pairs import (
    CAT,
    DOG,
    HUND,
    KATZE,
)

# ── predicting: what comes in ─────────────────────────────────────────────────────────────────────


def test_texts_on_the_command_line_are_translated_in_order(command: Any, home: Path) -> None:
    assert command("predict", home / "t", CAT, DOG).out == f"{KATZE}\n{HUND}\n"


def test_a_file_is_translated_line_by_line_in_order(command: Any, home: Path) -> None:
    answer = command("predict", home / "t", "--file", home / "test.en")
    assert answer.out == (home / "test.de").read_text()


@pytest.mark.parametrize("words", [(), ("--file", "-")])
def test_standard_input_is_translated_line_by_line_in_order(
    words: tuple[str, ...], command: Any, home: Path, typed: Any
) -> None:
    typed(f"{DOG}\n{CAT}\nA cat sleeps.\n{CAT}\n".encode())
    assert command("predict", home / "t", *words).out == f"{HUND}\n{KATZE}\nEin Katze schläft.\n{KATZE}\n"


def test_empty_lines_stay_empty_lines(command: Any, home: Path, typed: Any) -> None:
    typed(f"\n\n{DOG}\n \t \n{CAT}\n\n".encode())
    answer = command("predict", home / "t")
    assert (answer.code, answer.out, answer.err) == (0, f"\n\n{HUND}\n\n{KATZE}\n\n", "")


def test_a_last_line_without_its_newline_counts(command: Any, home: Path, typed: Any) -> None:
    typed(f"{CAT}\n{DOG}".encode())
    assert command("predict", home / "t").out == f"{KATZE}\n{HUND}\n"


def test_lines_may_end_as_on_windows_and_begin_with_a_byte_order_mark(command: Any, home: Path, typed: Any) -> None:
    typed(f"\ufeff{CAT}\r\n{DOG}\r\n".encode())
    assert command("predict", home / "t").out == f"{KATZE}\n{HUND}\n"


def test_no_input_gives_no_output(command: Any, home: Path, typed: Any) -> None:
    typed(b"")
    answer = command("predict", home / "t")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_bytes_that_are_no_text_spoil_their_line_only(command: Any, home: Path, typed: Any) -> None:
    typed(DOG.encode() + b"\nA d\xffg \xc3runs.\n" + CAT.encode() + b"\n\xff\n")
    answer = command("predict", home / "t")
    lines = answer.out.splitlines()
    assert (answer.code, len(lines), lines[0], lines[2]) == (0, 4, HUND, KATZE)
    assert answer.err == "legato: note: line 2 is not valid UTF-8; bad bytes were replaced\n"  # once, of the first


def test_a_replacement_character_of_ones_own_is_text(command: Any, home: Path, typed: Any) -> None:
    typed("A d\ufffdg runs.\n".encode())
    assert command("predict", home / "t").err == ""


def test_an_argument_that_is_no_text_is_read_as_in_a_file(command: Any, home: Path, typed: Any) -> None:
    broken = b"A d\xffg runs."
    typed(broken + b"\n")
    expected = command("predict", home / "t").out
    answer = command("predict", home / "t", DOG, broken.decode("utf-8", "surrogateescape"))
    assert (answer.code, answer.out) == (0, f"{HUND}\n{expected}")
    assert answer.err == "legato: note: text 2 is not valid UTF-8; bad bytes were replaced\n"


@pytest.mark.parametrize(
    "text",
    [
        "A dog\x00 runs.\x1b[31m\x07",
        "🐶🏃‍♀️ runs",
        "狗在跑 — الكلب يجري — कुत्ता — собака",
        "\u202eA dog\u200b runs\u2028.",
        "<eos> <pad> >>de<< </s>",
    ],
)
def test_any_characters_give_one_line(text: str, command: Any, home: Path) -> None:
    answer = command("predict", home / "recurrent", text, DOG)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(f"\n{HUND}\n")
    assert answer.out.count("\n") == 2


def test_a_control_character_reads_as_a_space(command: Any, home: Path) -> None:
    assert command("predict", home / "t", "A\x00dog\x07runs.\x1f").out == f"{HUND}\n"


def test_a_missing_file_is_named(command: Any, home: Path, tmp_path: Path) -> None:
    is_one_line(command("predict", home / "t", "--file", tmp_path / "no.en"), f"there is no file {tmp_path}/no.en")


def test_texts_and_a_file_together_are_refused(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "t", DOG, "--file", home / "test.en"), "not both")


# ── what cannot be read ───────────────────────────────────────────────────────────────────────────


def test_a_line_too_long_for_the_model_does_not_stop_the_others(command: Any, home: Path, typed: Any) -> None:
    typed(f"{DOG}\n{'A dog runs and ' * 20}\n{CAT}\n".encode())
    answer = command("predict", home / "t")
    assert answer.code == 2
    assert answer.out == f"{HUND}\n\n{KATZE}\n"
    note, last = answer.err.splitlines()
    assert note == "legato: line 2: 81 tokens, more than the model's 48; split the text"
    assert last == "legato: 1 of 3 could not be done; the rest is done"


def test_a_line_too_long_is_told_in_json_too(command: Any, home: Path, typed: Any) -> None:
    typed(f"{'A dog runs and ' * 20}\n{DOG}\n".encode())
    first, second = (json.loads(line) for line in command("predict", home / "t", "--json").out.splitlines())
    assert (first["answers"], first["problem"]) == ([], "81 tokens, more than the model's 48; split the text")
    assert "problem" not in second


def test_a_single_text_too_long_is_one_line(command: Any, home: Path) -> None:
    answer = command("predict", home / "t", "A dog runs and " * 20)
    assert (answer.code, answer.out) == (2, "\n")
    assert answer.err == "legato: 81 tokens, more than the model's 48; split the text\n"


def test_a_validation_sentence_too_long_for_the_model_does_not_stop_training(
    train: Any, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "v.en").write_text("A dog runs and " * 20 + f"\n{DOG}\n")
    (tmp_path / "v.de").write_text(f"{HUND}\n{HUND}\n")
    answer = train("train.samples=1", data__valid=[f"{tmp_path}/v.en", f"{tmp_path}/v.de"])
    assert answer.code == 0, answer.err
    assert f"  | {DOG}\n" in answer.err
    assert "valid too long: 1" in answer.err


def test_a_recurrent_model_takes_a_line_of_any_length(command: Any, home: Path) -> None:
    assert command("predict", home / "recurrent", "A dog runs and " * 20).code == 0


# ── the shell ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_reader_that_leaves_early_ends_it_quietly(home: Path, tmp_path: Path) -> None:
    (tmp_path / "many.en").write_text(f"{DOG}\n" * 1500)
    line = f'"{sys.executable}" -m legato predict "{home}/recurrent" --file "{tmp_path}/many.en" --beams 1 | head -1'
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{HUND}\n", "")


@pytest.mark.slow
def test_standard_input_that_is_closed_is_said(home: Path) -> None:
    line = f'"{sys.executable}" -m legato predict "{home}/t" <&-'
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "legato: there is no text, and standard input is closed; give a text or --file\n"


@pytest.mark.slow
def test_somebody_who_types_gets_each_answer_at_once_and_may_leave_by_an_interrupt(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "legato", "predict", str(home / "t")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    for text, written in ((DOG, HUND), (CAT, KATZE)):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{written}\n"
    process.send_signal(signal.SIGINT)  # while it waits for a line
    assert process.wait(60) == 130
    assert process.stderr.read() == ""
    process.stdin.close()


class Breaking(io.BytesIO):
    """A stream that breaks after its lines."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(b"one\ntwo\n")
        self.problem = problem

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        if not line:
            raise self.problem
        return line


def test_lines_that_came_before_standard_input_broke_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "_open", lambda self: Breaking(OSError("the cable is out")))
    blocks = Lines(None).blocks(8)
    assert next(blocks) == ["one", "two"]
    with pytest.raises(OSError, match="the cable is out"):
        next(blocks)


def test_standard_input_that_is_closed_midway_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "_open", lambda self: Breaking(ValueError("I/O operation on closed file")))
    assert list(Lines(None).blocks(8)) == [["one", "two"]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_file_comes_in_full_blocks(size: int, home: Path) -> None:
    blocks = list(Lines(str(home / "test.en")).blocks(size))
    assert [len(block) for block in blocks] == [size] * (12 // size)
    assert [line for block in blocks for line in block] == (home / "test.en").read_text().splitlines()
