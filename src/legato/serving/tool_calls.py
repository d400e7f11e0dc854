"""Functions that a model may ask for: how they are described to it, and how its text is read as a call of one.

The chat template describes them, in its own way. A call is read as most templates have it taught:
`<tool_call>{"name": …, "arguments": …}</tool_call>`, or an object with the function's name alone. Nothing is ever
called here: the client gets the name and the arguments.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from legato.errors import ConfigError, suggest

BEGIN: Final = "<tool_call>"
CALL: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|$)", re.DOTALL)
MOST_TOOLS: Final = 128


class Function(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(BaseModel):
    name: str
    arguments: str = "{}"


class CalledTool(BaseModel):
    """A call in an earlier message."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """As templates take it: arguments as they are, not as text."""
        try:
            arguments = json.loads(self.function.arguments)
        except (ValueError, RecursionError):
            arguments = self.function.arguments
        return {
            "id": self.id or "",
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


def forced_schema(tools: Sequence[Tool], choice: ToolChoice | None) -> dict[str, Any] | None:
    """The schema of a call, where one has to be made; None where the model may say something else."""
    names = [tool.function.name for tool in tools]
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ConfigError(
            f"tool_choice: there is no tool '{choice.function.name}'; {suggest(choice.function.name, names)}"
        )
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        raise ConfigError("tool_choice asks for a call, and there are no tools")
    required = [tool.function for tool in tools if choice == "required" or tool.function.name == choice.function.name]  # type: ignore[union-attr]
    schemas = [
        {
            "type": "object",
            "properties": {"name": {"const": each.name}, "arguments": each.parameters or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in required
    ]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def read_calls(text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
    """What a model said beside its calls, and the calls as OpenAI's clients read them."""
    names = {tool.function.name for tool in tools}
    calls = [call for match in CALL.finditer(text) if (call := _call(match.group(1), names)) is not None]
    if calls:
        return text[: text.index(BEGIN)].strip(), calls
    alone = _call(text.strip(), names)
    return ("", [alone]) if alone is not None else (text, [])


def may_begin(text: str) -> bool:
    """Whether what begins so may be a call and nothing else."""
    return text.lstrip().startswith("{")


def _call(text: str, names: set[str]) -> dict[str, Any] | None:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict) or read.get("name") not in names:
        return None
    arguments = read.get("arguments", read.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": read["name"], "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
