"""LangChain's adapter of OpenAI's API, unchanged, on `legato serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

import legato
from legato.model import Model
from serving.serving_process import serving
from tiny_published import gpt2_folder

pytestmark = pytest.mark.slow
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for call in m['tool_calls'] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ASKED: Any = [SystemMessage("be brief"), HumanMessage("the cat")]
SAME: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}]


class Place(BaseModel):
    """Where something is."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["here", "there"]
    open: bool


@tool
def weather(where: Literal["north", "south"]) -> str:
    """The weather of a place."""
    return f"rain in the {where}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("langchain") / "chat", length=512, template=TEMPLATE)


@pytest.fixture(scope="module")
def model(home: Path) -> Model:
    return legato.load(home, "cpu")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with serving(home, "--api-key", "secret", "--no-log") as (_, at):
        yield f"{at}/v1"


@pytest.fixture
def chat(address: str) -> ChatOpenAI:
    how: Any = {"base_url": address, "api_key": "secret", "model": "chat", "max_retries": 0}
    return ChatOpenAI(**how, temperature=0, max_tokens=20)


def test_it_is_answered_whole_in_a_stream_and_side_by_side(chat: ChatOpenAI, model: Model) -> None:
    expected = model.chat(SAME, max_tokens=20)
    told = chat.invoke(ASKED)
    assert told.content == expected
    assert told.usage_metadata is not None
    assert told.usage_metadata["input_tokens"] == len(model.chat_ids(SAME))
    assert "".join(str(piece.content) for piece in chat.stream(ASKED)) == expected
    assert [each.content for each in chat.batch([ASKED] * 3)] == [expected] * 3
    assert asyncio.run(chat.ainvoke(ASKED)).content == expected


def test_an_answer_is_an_object_of_a_schema(chat: ChatOpenAI) -> None:
    drawn = chat.model_copy(update={"temperature": 1.0, "seed": 4, "max_tokens": 120})
    assert isinstance(drawn.with_structured_output(Place, method="json_schema").invoke(ASKED), Place)
    assert isinstance(drawn.with_structured_output(Place, method="function_calling").invoke(ASKED), Place)


def test_a_tool_is_called_and_its_answer_read(chat: ChatOpenAI) -> None:
    drawn = chat.model_copy(update={"temperature": 1.0, "seed": 3, "max_tokens": 60})
    told = drawn.bind_tools([weather], tool_choice="weather").invoke(ASKED)
    assert isinstance(told, AIMessage)
    (call,) = told.tool_calls
    assert call["name"] == "weather"
    came: ToolMessage = weather.invoke(call)
    assert came.content in ("rain in the north", "rain in the south")
    assert drawn.bind_tools([weather]).invoke([*ASKED, told, came]).response_metadata["finish_reason"]


def test_vectors_are_those_of_embed(address: str, model: Model) -> None:
    how: Any = {"base_url": address, "api_key": "secret", "model": "chat"}
    # Else it sends tokens of OpenAI's own tokenizer, which it would have to download.
    vectors = OpenAIEmbeddings(**how, check_embedding_ctx_length=False).embed_documents(["the cat", "a dog"])
    np.testing.assert_allclose(vectors, model.embed(["the cat", "a dog"]), rtol=1e-3, atol=1e-4)
