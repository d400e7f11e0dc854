"""`legato doctor`: whether this machine is fit, and for what."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.printing import show


def command(as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False) -> None:
    """Look at this machine: versions, devices, memory, disk, and how fast it multiplies numbers of each width."""
    from rich.text import Text

    from legato.runs.doctor import diagnose
    from legato.schema import to_json

    findings = diagnose()
    if as_json:
        print(to_json({f.name: f.value for f in findings}))
    else:
        rows = [(f.name, f.value, Text("ok", "green") if f.good else Text("!", "red")) for f in findings]
        show(("what", "found", ""), rows)
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)
