"""The command line: one file per verb. It parses, prints and exits; the work is done elsewhere.

Nothing here imports PyTorch before a verb needs it, so `legato --help` answers at once. A verb's own file is
imported, and its options are read off its function, when the verb is asked for.
"""

from __future__ import annotations

import importlib
import io
import os
import shlex
import sys
from functools import cache
from inspect import getdoc
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from legato.cli.printing import notes
from legato.cli.words import STYLE, LazyCommands, VerbCommand, no_verb
from legato.errors import ConfigError, LegatoError, brief, reason_of
from legato.interrupts import CODE, CTRL_C, Stopped
from legato.version import __version__

VERBS: Final = {  # each with its file, in the order of the help
    "train": "legato.cli.train",
    "eval": "legato.cli.evaluate",
    "generate": "legato.cli.generate",
    "predict": "legato.cli.predict",
    "embed": "legato.cli.embed",
    "inspect": "legato.cli.inspect",
    "index": "legato.cli.index",
    "search": "legato.cli.search",
    "ask": "legato.cli.ask",
    "serve": "legato.cli.serve",
    "export": "legato.cli.export",
    "compare": "legato.cli.compare",
    "runs": "legato.cli.runs",
    "models": "legato.cli.models",
    "recipes": "legato.cli.recipes",
    "doctor": "legato.cli.doctor",
}


@cache
def _verb(name: str) -> Any:
    """A verb as typer makes it of the function `command` in its file."""
    alone = typer.Typer(**STYLE)
    # Their settings may be written as options, which typer does not know.
    settings = {"ignore_unknown_options": True} if name in ("train", "eval", "compare") else None
    command = importlib.import_module(VERBS[name]).command
    if isinstance(command, typer.Typer):  # a verb that has verbs of its own
        return typer.main.get_command(command)
    alone.command(name, cls=VerbCommand, context_settings=settings)(command)
    return typer.main.get_command(alone)


def _summary(name: str) -> Any:
    """A verb without its options, as a list of verbs shows it."""
    function: Any = importlib.import_module(VERBS[name]).command
    if isinstance(function, typer.Typer) and function.registered_callback is not None:
        function = function.registered_callback.callback
    return TyperCommand(name, help=getdoc(function), rich_markup_mode="rich")


class _Group(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = LazyCommands(VERBS, _verb)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:
            if not hasattr(problem, "format_message"):
                raise
            line = f"{brief(words[0])} belongs behind a verb; type: legato train TASK {shlex.join(words)}"
            raise ConfigError(line) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.commands = LazyCommands(VERBS, _summary)
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not ctx.resilient_parsing:
            if args[0].lower() not in VERBS:
                raise no_verb(args[0], args[1:], list(VERBS))
            args = [args[0].lower(), *args[1:]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="legato",
    cls=_Group,
    help="Train, compare and use sequence models, from the recurrent network to the Transformer.",
    **{**STYLE, "add_completion": True},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"legato {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


def main() -> None:
    """Run a command: exit code 0 when it went well, 2 for the user's mistake, 1 for ours, 128 + N for signal N."""
    CTRL_C.install()
    # --debug may stand anywhere on the line.
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    if not debug:
        os.environ["RUST_BACKTRACE"] = "0"  # a library's panic prints itself before it can be caught
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show is no reason to stop
    try:
        with notes():
            code = app(prog_name="legato", standalone_mode=False)
        if code == CODE:  # what typer makes of KeyboardInterrupt
            raise KeyboardInterrupt
        if sys.stdout is not None:
            sys.stdout.flush()  # Python's own flush at the end would be too late to fail quietly
        sys.exit(code)
    except (SystemExit, BrokenPipeError) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, BrokenPipeError):
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.exit(0)  # whoever read our output has gone, as `head` does; typer would exit with 1
    except KeyboardInterrupt:
        CTRL_C.tell()
        sys.exit(CODE)
    except Stopped as stop:
        sys.exit(128 + stop.signum)
    except BaseException as problem:  # a library's panic is no Exception
        if debug or isinstance(problem, GeneratorExit):
            raise
        line, code = _explain(problem)
        print(f"legato: {' '.join(line.split())}", file=sys.stderr)
        sys.exit(code)


def _explain(problem: BaseException) -> tuple[str, int]:
    """The one line to print, and the exit code."""
    if isinstance(problem, LegatoError):
        return str(problem), 2
    if hasattr(problem, "format_message"):  # a mistake in the words themselves; the class is typer's own
        return brief(problem.format_message(), 400), 2
    reason = reason_of(problem)
    if reason is not None:
        return f"{reason} (--debug shows where)", 2
    return f"this is a fault of ours: {type(problem).__name__}: {brief(problem, 300)} (--debug shows where)", 1
