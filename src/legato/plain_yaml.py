"""YAML as `schema.py` reads JSON: plain values, no more and no deeper than a person would write, held to a schema.

The library that reads it takes longer to import than most commands need for their own part, so whoever reads YAML
imports this file where it does.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import yaml

from legato.errors import ConfigError, brief
from legato.schema import MAX_DEPTH, MAX_DIGITS, OutOfRange, check_values, fit

T = TypeVar("T")

MAX_NODES: Final = 1 << 15  # as they are written, which takes long to read
MAX_VALUES: Final = 100_000  # aliases make many of few


def parse_yaml(text: bytes | str, schema: type[T], where: str) -> T:
    """A YAML text as a `schema`."""
    try:
        value = yaml.load(text, Loader=_PlainLoader)
    except OutOfRange as problem:
        raise ConfigError(f"{where}: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{where} is not readable YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as problem:  # the library's, and what it lets by
        raise ConfigError(f"{where} is not readable YAML: {brief(problem, 300)}") from None
    check_values(value, where, most=MAX_VALUES, error=ConfigError)
    return fit(value, schema, where, error=ConfigError)


class _PlainLoader(yaml.SafeLoader):
    """YAML's safe loader without dates, sets, pairs and bytes: those stay the texts that they are written as.

    What is long or deep is refused while it is read: the library is slow, and merge keys, which it carries out before
    anybody can look, make many entries of few.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_NODES:
            raise OutOfRange(f"it holds more than {MAX_NODES:,} values; shorten its longest list")
        if self._depth > MAX_DEPTH + 1:
            raise OutOfRange("it is nested too deeply")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (OutOfRange, yaml.YAMLError, RecursionError):
            raise
        except Exception:  # what a value is converted by, of a text that is none such
            line, kind = node.start_mark.line + 1, node.tag.rpartition(":")[2]
            raise OutOfRange(f"line {line}: {brief(repr(node.value))} is no {kind}; write another value") from None

    def flatten_mapping(self, node: Any) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                raise OutOfRange(f"line {line}: the merge key << is not read; write the entries out")
        super().flatten_mapping(node)


_TEXT_TAGS: Final = ("timestamp", "binary", "omap", "pairs", "set")
_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if not tag.endswith(_TEXT_TAGS)]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct_int(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
    if len(node.value) > MAX_DIGITS:
        raise OutOfRange(f"{brief(node.value)} is too large a number")
    return loader.construct_yaml_int(node)


def _refuse_tag(loader: _PlainLoader, node: yaml.Node) -> Any:
    raise OutOfRange(f"line {node.start_mark.line + 1}: the tag {brief(node.tag)} is not read; write a plain value")


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
for _tag in _TEXT_TAGS:
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_tag)
