"""Chat templates: how a folder writes a dialogue as the one text that its model was trained on.

The template is Jinja, in `chat_template.jinja` or in tokenizer_config.json. It comes from whoever published the
folder, so it runs in Jinja's sandbox, sees only plain strings, and can change nothing; and in a process that can be
ended (sandbox/), so that it takes no more time and memory than it may. A model that is taught to talk and has none
gets a plain one, which needs no tokens that its vocabulary lacks.

Templates of models that see (LLaVA's) want what is said in parts, `[{"type": "image"}, {"type": "text", "text": …}]`.
Their source says so, by asking for a part's type; a text is then given as its parts, the image token as an image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from legato import sandbox
from legato.data.text.published_tokenizers import read_roles, read_template
from legato.data.text.tokenizers import Tokenizer
from legato.errors import DataError, FolderError, LegatoError, brief
from legato.sandbox import worker

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
"""Functions that a model may ask for, as OpenAI's API has them."""
Spans = list[tuple[int, int]]
"""Where pieces of a text begin and end, in characters."""

# Each turn on lines of its own, and the EOS token behind an answer.
PLAIN: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant:\\n' + message['content'] + END '\\n' }}"
    "{% else %}{{ 'User:\\n' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)

ENDS: Final = ("eos_token + ", "")  # what PLAIN writes behind an answer, where a newline is not the token
OWN: Final = frozenset(PLAIN.replace("END ", end) for end in ENDS)  # these need no other process
BY_PARTS: Final = re.compile(r"""selectattr\(\s*["']type["']|\[["']type["']\]|\.type\b""")
LEARNED_ON: Final = datetime(2024, 7, 26)  # the date in texts to learn from, where a template writes one


@dataclass
class ChatTemplate:
    """A template, and the tokens that it may write."""

    source: str
    where: str  # for errors
    tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token and so on
    image: str | None = None  # the token that stands for a picture, first in what is said and on a line of its own

    @cached_property
    def by_parts(self) -> bool:
        """Whether what is said has to be given in parts; some take either."""
        sees = any(name in self.source for name in ("'image'", '"image"'))
        return sees and BY_PARTS.search(self.source) is not None and "is string" not in self.source

    @cached_property
    def takes_tools(self) -> bool:
        """Whether it tells a model which functions it may ask for."""
        return re.search(r"\btools\b", self.source) is not None

    def render(
        self, messages: Messages, *, answer: bool = True, today: datetime | None = None, tools: Tools | None = None
    ) -> str:
        """The dialogue as one text; with `answer` it ends where the model's answer begins.

        A message has a role (system, user, assistant, tool) and a content; one may have asked for functions
        (`tool_calls`). `today` is for templates that write the date.
        """
        if tools and not self.takes_tools:
            raise LegatoError(f"{self.where} knows no tools; ask without them")
        return self._render(messages, [(len(messages), answer)], today, tools)[0]

    def _render(
        self,
        messages: Messages,
        views: list[tuple[int, bool]],
        today: datetime | None = None,
        tools: Tools | None = None,
    ) -> list[str]:
        """The same for several views at once: how many of the messages there are, and whether an answer follows."""
        now = today or datetime.now()
        given: dict[str, Any] = {
            "source": self.source,
            "messages": [self._in_parts(_plain(message)) for message in messages],
            "views": [list(view) for view in views],
            "tokens": self.tokens,
            "now": [now.year, now.month, now.day, now.hour, now.minute, now.second, now.microsecond],
            "tools": [dict(tool) for tool in tools] if tools else None,
        }
        try:
            texts: list[str] = worker.render(**given) if self.source in OWN else sandbox.call("render", **given)
        except sandbox.OverBudget as problem:
            raise FolderError(
                f"{self.where} takes more than {problem} to write a dialogue, which no template needs; do not use it"
            ) from None
        except sandbox.Failed as problem:
            said = brief(problem.message, 500)
            if problem.stage == "compile":
                raise FolderError(f"{self.where} is not a template that can be read: {said}") from None
            if problem.stage == "refuse":
                raise LegatoError(f"{self.where} refuses this dialogue: {said}") from None
            raise FolderError(f"{self.where} fails: {problem.kind}: {said}") from None
        return texts

    def _in_parts(self, message: dict[str, Any]) -> dict[str, Any]:
        if not self.by_parts:
            return dict(message)
        text, parts = message["content"], []
        if self.image is not None and text.startswith(f"{self.image}\n"):
            text, parts = text.removeprefix(f"{self.image}\n"), [{"type": "image"}]
        return {**message, "content": [*parts, {"type": "text", "text": text}]}

    def answered(self, messages: Messages) -> list[tuple[str, Spans]]:
        """The dialogue as texts to learn from, and where in each the assistant's answers stand, EOS tokens included.

        Mostly it is one text. A template that writes a turn differently once others follow makes one for each answer.
        One that writes the date gets always the same one: a run that goes on tomorrow has to read the same texts.
        """
        turns = [number for number, message in enumerate(messages) if _plain(message)["role"] == "assistant"]
        views = [view for turn in turns for view in ((turn, True), (turn + 1, False))]
        whole, *parts = self._render(messages, [(len(messages), False), *views], LEARNED_ON)
        found = [
            (after, (shared_start([before, after]), len(after)))
            for before, after in zip(parts[::2], parts[1::2], strict=True)
        ]
        if all(whole.startswith(after) for after, _ in found):
            return [(whole, [span for _, span in found])]
        return [(after, [span]) for after, span in found]


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

    Where a newline is a vocabulary's EOS token, it is what ends an answer.
    """
    end = ENDS[0] if tokenizer.ends_text else ENDS[1]
    if tokens is None:
        eos = tokenizer.token_name(tokenizer.eos_id)
        tokens = {"bos_token": eos, "eos_token": eos}
    return ChatTemplate(PLAIN.replace("END ", end), "the plain template", tokens)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise LegatoError(f'a message should be {{"role": …, "content": …}}, not {message!r}')
    for key, value in message.items():
        if not isinstance(value, str) and not (key == "tool_calls" and isinstance(value, list)):
            raise LegatoError(f"a message's {key} should be a text, not {value!r}")
    return {str(key): value for key, value in message.items()}
