"""What runs in the sandbox's process. It is started by its path and imports nothing of ours.

Requests and answers are JSON behind their length, on standard input and output. The first request says how much
memory there is. A call is answered with {"result": …}, with {"failed": the exception's name, "message": …}, or with
{"over": the budget}; one that computes too long is ended by the clock of this process, wherever it is.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO


class StageError(Exception):
    """A mistake that belongs to the stage of a call that it names; what it was is its cause."""


# --- chat templates -----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def compiled(source: str) -> Any:
    """A Jinja template as `transformers` reads it; in Jinja's own sandbox it can reach and change nothing."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant says, for training; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source)
    except Exception as problem:
        raise StageError("compile") from problem


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would write `<` as `\\u003c`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(
    source: str,
    messages: list[dict[str, Any]],
    views: list[list[Any]],
    tokens: dict[str, str],
    now: list[int],
    tools: list[dict[str, Any]] | None = None,
) -> list[str]:
    """The dialogue by a template, once for each of `views`: how many messages, and whether an answer is to follow."""
    from datetime import datetime

    from jinja2 import TemplateError

    template, texts = compiled(source), []
    for count, answer in views:
        plain = [dict(message) for message in messages[:count]]
        known: dict[str, Any] = {
            "messages": plain,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": answer,
        }
        known["strftime_now"] = datetime(*now).strftime  # type: ignore[arg-type]
        try:
            texts.append(str(template.render(**known, **tokens)))
        except TemplateError as problem:
            raise StageError("refuse") from problem
    return texts


# --- regular expressions ------------------------------------------------------------------------------


def first_match(patterns: list[str], text: str) -> int | None:
    """Which of the patterns is the first that matches the whole text."""
    import re

    for number, pattern in enumerate(patterns):
        try:
            found = re.fullmatch(pattern, text)
        except re.error as problem:
            raise StageError(str(number)) from problem
        if found:
            return number
    return None


# --- tokenizers ---------------------------------------------------------------------------------------


def try_tokenizer(path: str) -> None:
    """Load a tokenizer.json: its patterns are compiled, and run over its own added tokens."""
    import tokenizers

    tokenizers.Tokenizer.from_file(path)


# --- JSON schemas -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def single_bytes() -> Any:
    """The smallest vocabulary: whether a schema can be read does not depend on that."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def read_schema(schema: str, limits: dict[str, Any]) -> None:
    """Let llguidance read a schema, as far as it does before a text is written."""
    from llguidance import LLMatcher, LLParserLimits

    grammar = LLMatcher.grammar_from_json_schema(schema)
    matcher = LLMatcher(single_bytes(), grammar, log_level=0, limits=LLParserLimits(**limits, verbose_errors=False))
    matcher.compute_bitmask()


# --- PDF ----------------------------------------------------------------------------------------------


def read_pdf(path: str, max_pages: int) -> list[str]:
    """The title of a PDF, and behind it the text of each page."""
    import logging

    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    with open(path, "rb") as file:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted:
            try:
                opened = bool(reader.decrypt(""))
            except Exception:  # ciphers that need another package
                opened = False
            if not opened:
                raise StageError("decrypt")
        if (count := len(reader.pages)) > max_pages:
            raise StageError("pages") from ValueError(f"{count:,}")
        title = reader.metadata.title if reader.metadata is not None else None
        texts = [title if isinstance(title, str) else ""]
        for page in reader.pages:
            if os.getppid() != PARENT:  # killed, while this may take minutes
                os._exit(0)
            texts.append(page.extract_text())
    return texts


# --- the process --------------------------------------------------------------------------------------

PARENT = os.getppid()  # the process that asks

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "render": render,
    "first_match": first_match,
    "try_tokenizer": try_tokenizer,
    "read_schema": read_schema,
    "read_pdf": read_pdf,
}


def answer(request: dict[str, Any], memory: int) -> bytes:
    """What a request is answered with, as it is sent; `memory` is how much there is."""
    try:
        found = outcome(request)
        result, output = found.get("result"), request["output"]
        if isinstance(result, list) and sum(len(text) for text in result) > output:
            found = {"over": f"{output >> 20} MB of output"}
        return json.dumps(found).encode()
    except MemoryError:
        return json.dumps({"over": f"{memory >> 20} MB of memory"}).encode()


def outcome(request: dict[str, Any]) -> dict[str, Any]:
    """What the function gives, or why it fails, unless it is by want of memory."""
    try:
        return {"result": FUNCTIONS[request["call"]](**request["arguments"])}
    except MemoryError:
        raise
    except StageError as problem:
        cause = problem.__cause__
        if isinstance(cause, MemoryError):
            raise cause from None
        message = getattr(cause, "message", None) or cause  # Jinja's errors have one, which says more; others not
        return {"failed": type(cause).__name__, "message": str(message)[:2000], "stage": str(problem)}
    except BaseException as problem:  # a panic of the tokenizers' library is no Exception
        return {"failed": type(problem).__name__, "message": str(problem)[:2000]}


def main() -> None:
    pipe, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    first = receive(pipe)
    if first is None:
        return
    sys.path[:] = first["paths"]
    memory = first["memory"]
    limit(memory)
    if first["yields"] and hasattr(os, "nice"):
        os.nice(10)
    send(out, b"{}")
    while (request := receive(pipe)) is not None:
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # nobody handles it: it ends the process
        send(out, answer(request, memory))
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit(memory: int) -> None:
    """No more memory than this beside what the process has, no core files, and no writing of files."""
    try:
        import resource
    except ImportError:
        return
    for what, most in (("RLIMIT_AS", memory), ("RLIMIT_DATA", memory), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        if hasattr(resource, what):  # which limits there are, the system decides
            try:
                resource.setrlimit(getattr(resource, what), (most, most))
            except (OSError, ValueError):  # macOS knows some only by name
                continue


def receive(pipe: BinaryIO) -> dict[str, Any] | None:
    """The next request; None where whoever asks is gone."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    request: dict[str, Any] = json.loads(pipe.read(size))
    return request


def send(out: BinaryIO, data: bytes) -> None:
    out.write(struct.pack("<Q", len(data)) + data)
    out.flush()


if __name__ == "__main__":
    main()
