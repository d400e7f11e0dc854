"""What may be written next: well-formed trees, texts that fit a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legato.decoding.frontier import Constraint
from legato.decoding.options import SearchOptions


def constraint_of(loaded: Any, options: SearchOptions, limits: Sequence[int]) -> Constraint | None:
    """What options let a loaded model write behind prompts, by no more tokens than these; None: anything."""
    if options.json_schema is None:
        return None
    from legato.decoding.constraints.json_schema import SchemaConstraint, SchemaGrammar

    grammar = SchemaGrammar(options.json_schema, loaded.tokenizer, loaded.module.vocabulary, loaded.ends)
    return SchemaConstraint(grammar, limits)


def check_constraint(options: SearchOptions) -> None:
    """Refuse what takes too long to be read; for options that a stranger sends."""
    if options.json_schema is not None:
        from legato.decoding.constraints.json_schema import check_readable

        check_readable(options.json_schema)


def check_followed(constraint: Constraint | None) -> None:
    """Raise what a constraint could not be followed for, where there is such a thing."""
    failure = getattr(constraint, "failure", None)
    if failure is not None:
        raise failure
