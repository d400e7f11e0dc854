"""Chat templates: how a folder writes a dialogue as the one text that its model was trained on.

The template is Jinja, in `chat_template.jinja` or in tokenizer_config.json. It comes from whoever published the
folder, so it runs in Jinja's sandbox, sees only plain strings, and can change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from legato.data.published_tokenizers import read_roles, read_template
from legato.errors import DataError, FolderError, LegatoError

Messages = Sequence[Mapping[str, str]]


@dataclass
class ChatTemplate:
    """A template, and the tokens that it may write."""

    source: str
    where: str  # for errors
    tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token and so on

    def render(self, messages: Messages, *, answer: bool = True) -> str:
        """The dialogue as one text; with `answer` it ends where the model's answer begins.

        A message has a role (system, user, assistant) and a content.
        """
        from jinja2 import TemplateError

        plain = [_plain(message) for message in messages]
        known = {"messages": plain, "tools": None, "documents": None, "add_generation_prompt": answer}
        try:
            return str(self._compiled.render(**known, **self.tokens))
        except TemplateError as problem:
            raise LegatoError(f"{self.where} refuses this dialogue: {problem.message or problem}") from None
        except Exception as problem:  # a template's own mistake may be any
            raise FolderError(f"{self.where} fails: {type(problem).__name__}: {problem}") from None

    @cached_property
    def _compiled(self) -> Any:
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

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self.source)
        except TemplateError as problem:
            raise FolderError(f"{self.where} is not a template that can be read: {problem}") from None


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The folder's template; None where it has none."""
    try:
        found = read_template(folder)
    except DataError as problem:
        raise FolderError(str(problem)) from None
    if found is None:
        return None
    tokens = {f"{role}_token": token for role, token in read_roles(folder).items()}
    return ChatTemplate(*found, tokens)


def _plain(message: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise LegatoError(f'a message should be {{"role": …, "content": …}}, not {message!r}')
    for key, value in message.items():
        if not isinstance(value, str):
            raise LegatoError(f"a message's {key} should be a text, not {value!r}")
    return {str(key): str(value) for key, value in message.items()}


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would write `<` as `\\u003c`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
