"""The command line: one file per verb. It parses, prints and exits; the work is done elsewhere.

Nothing here imports PyTorch before a verb needs it, so `legato --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from legato.cli import compare, doctor, evaluate, generate, models, recipes, train

app = typer.Typer(
    name="legato",
    help="Train, compare and generate with sequence models, from the recurrent network on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from legato import __version__

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


app.command("train")(train.command)
app.command("eval")(evaluate.command)
app.command("generate")(generate.command)
app.command("compare")(compare.command)
app.command("models")(models.command)
app.command("recipes")(recipes.command)
app.command("doctor")(doctor.command)


def main() -> None:
    """Run a command: exit code 0 when it went well, 2 for the user's mistake, 1 for ours."""
    from legato.errors import LegatoError

    # --debug may stand anywhere on the line.
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        app()
    except LegatoError as problem:
        if debug:
            raise
        print(f"legato: {problem}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing more to say
        sys.exit(0)
    except KeyboardInterrupt:
        print("legato: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as problem:
        if debug:
            raise
        line = " ".join(f"{type(problem).__name__}: {problem}".split())
        print(f"legato: this is a fault of ours: {line} (--debug shows where)", file=sys.stderr)
        sys.exit(1)
