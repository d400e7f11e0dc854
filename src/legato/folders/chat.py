"""Chat templates: how a folder writes a dialogue as the one text that its model was trained on.

The template is Jinja, in `chat_template.jinja` or in tokenizer_config.json. It comes from whoever published the
folder, so it runs in Jinja's sandbox, sees only plain strings, and can change nothing. A model that is taught to
talk and has none gets a plain one, which needs no tokens that its vocabulary lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from legato.data.published_tokenizers import read_roles, read_template
from legato.data.tokenizers import Tokenizer
from legato.errors import DataError, FolderError, LegatoError

Messages = Sequence[Mapping[str, str]]
Spans = list[tuple[int, int]]
"""Where pieces of a text begin and end, in characters."""

# Each turn on lines of its own, and the end mark behind an answer.
PLAIN: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant:\\n' + message['content'] + END '\\n' }}"
    "{% else %}{{ 'User:\\n' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)

LEARNED_ON: Final = datetime(2024, 7, 26)  # the date in texts to learn from, where a template writes one


@dataclass
class ChatTemplate:
    """A template, and the tokens that it may write."""

    source: str
    where: str  # for errors
    tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token and so on

    def render(self, messages: Messages, *, answer: bool = True, today: datetime | None = None) -> str:
        """The dialogue as one text; with `answer` it ends where the model's answer begins.

        A message has a role (system, user, assistant) and a content. `today` is for templates that write the date.
        """
        from jinja2 import TemplateError

        plain = [_plain(message) for message in messages]
        known: dict[str, Any] = {"messages": plain, "tools": None, "documents": None, "add_generation_prompt": answer}
        known["strftime_now"] = (today or datetime.now()).strftime
        compiled = self._compiled
        try:
            return str(compiled.render(**known, **self.tokens))
        except TemplateError as problem:
            raise LegatoError(f"{self.where} refuses this dialogue: {problem.message or problem}") from None
        except Exception as problem:  # a template's own mistake may be any
            raise FolderError(f"{self.where} fails: {type(problem).__name__}: {problem}") from None

    def answered(self, messages: Messages) -> list[tuple[str, Spans]]:
        """The dialogue as texts to learn from, and where in each the assistant's answers stand, end marks included.

        Mostly it is one text. A template that writes a turn differently once others follow makes one for each answer.
        One that writes the date gets always the same one: a run that goes on tomorrow has to read the same texts.
        """
        whole, found = self.render(messages, answer=False, today=LEARNED_ON), []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self.render(messages[:number], today=LEARNED_ON)
                after = self.render(messages[: number + 1], answer=False, today=LEARNED_ON)
                found.append((after, (shared_start([before, after]), len(after))))
        if all(whole.startswith(after) for after, _ in found):
            return [(whole, [span for _, span in found])]
        return [(after, [span]) for after, span in found]

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
        try:
            return environment.from_string(self.source)
        except TemplateError as problem:
            raise FolderError(f"{self.where} is not a template that can be read: {problem}") from None


def shared_start(rows: Sequence[Any]) -> int:
    """How much all of these texts, or lists, begin with in common.

    >>> shared_start(["abc", "abd", "abcd"])
    2
    """
    low, high = min(rows), max(rows)
    return next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


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


def plain_chat(tokenizer: Tokenizer, tokens: dict[str, str] | None = None) -> ChatTemplate:
    """The template of a model that has none. `tokens` are those that its folder names, by `bos_token` and so on.

    Where a newline is a vocabulary's end mark, it is what ends an answer.
    """
    end = "eos_token + " if tokenizer.ends_text else ""
    if tokens is None:
        mark = tokenizer.token_name(tokenizer.eos_id)
        tokens = {"bos_token": mark, "eos_token": mark}
    return ChatTemplate(PLAIN.replace("END ", end), "the plain template", tokens)


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
