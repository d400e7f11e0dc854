"""Chat templates: rendered as `transformers` renders them, in a sandbox, and refused in one line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import legato
from legato import sandbox
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import FolderError, LegatoError
from legato.folders.chat_template import ChatTemplate, load_chat_template, plain_chat
from legato.folders.model_folder import load_model, save_model
from tiny_published import CHATML, END, change, gpt2_folder

USER = [{"role": "user", "content": "Who <b>are</b> you, ünïcode?"}]
TURNS = [*USER, {"role": "assistant", "content": " I am\na cat. "}, {"role": "user", "content": "{{ 7 * 7 }}"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TURNS]
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}{% set content = message['content'] %}{% endif %}
    {% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}"""
TOOLS = (
    "{%- if tools %}{{ tools | tojson }}{% else %}no tools\n{% endif %}"
    "{%- if tools is defined and documents is none %}none {% endif %}{{ missing }}"
    "{%- set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}"
    "{%- if ns.count > 2 %}{% break %}{% endif %}{{ m | tojson(indent=1) }}{{ m.content[::-1] }}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}\n  {% generation %}\n{{ m.content }}{{ eos_token }}\n"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "tools": TOOLS, "generation": MARKED}


@pytest.mark.parametrize("messages", [USER, TURNS, SYSTEM], ids=["user", "turns", "system"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_dialogue_reads_as_in_transformers(name: str, messages: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = gpt2_folder(tmp_path / "m", template=TEMPLATES[name])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = legato.load(folder, "cpu")
    assert model.loaded.chat is not None
    how = {"add_generation_prompt": True}
    assert model.loaded.chat.render(messages) == theirs.apply_chat_template(messages, tokenize=False, **how)
    assert model.chat_ids(messages) == list(theirs.apply_chat_template(messages, return_dict=False, **how))


SEES = (  # in the form that models of pictures have: what is said comes in parts
    "{% for m in messages %}{{ m['role'] | upper + ': ' }}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ '\\n' + part['text'] }}{% endfor %}"
    "{{ ' ' }}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def test_a_template_that_takes_parts_gets_them_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = gpt2_folder(tmp_path / "m")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": SEES}))
    chat = load_chat_template(folder)
    assert chat is not None
    assert chat.by_parts
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in TURNS]
    parts[0]["content"].insert(0, {"type": "image"})
    expected = theirs.apply_chat_template(parts, chat_template=SEES, tokenize=False, add_generation_prompt=True)
    first = {**TURNS[0], "content": "<image>\n" + TURNS[0]["content"]}
    said = replace(chat, image="<image>").render([first, *TURNS[1:]])
    assert said == expected
    assert said.count("<image>") == 1
    assert not any(ChatTemplate(source, "x").by_parts for source in TEMPLATES.values())
    assert not ChatTemplate(SEES + "{% if messages[0]['content'] is string %}{% endif %}", "x").by_parts


def test_the_date_is_todays(tmp_path: Path) -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", "x")
    assert template.render(USER) == str(datetime.now().year)


def test_a_file_of_its_own_goes_before_the_settings(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m", template="settings")
    (folder / "chat_template.jinja").write_text("file {{ bos_token }}")
    chat = load_chat_template(folder)
    assert chat is not None
    assert chat.render(USER) == f"file {END}"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m")
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    change(folder / "tokenizer_config.json", chat_template=several)
    chat = load_chat_template(folder)
    assert chat is not None
    assert chat.render(USER) == "plain"


def test_a_model_that_is_saved_again_is_still_talked_to(tmp_path: Path) -> None:
    first = load_model(gpt2_folder(tmp_path / "m", template=CHATML))
    (tmp_path / "again").mkdir()
    about = {"published": True}
    save_model(tmp_path / "again", first.module, Processors(first.tokenizer), task="lm", about=about, card="")
    models = [legato.load(tmp_path / name, "cpu") for name in ("m", "again")]
    assert models[0].chat_ids(SYSTEM) == models[1].chat_ids(SYSTEM)


def test_marks_in_the_template_are_marks(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m", template=CHATML)
    ids = legato.load(folder, "cpu").chat_ids("hello")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert ids[0] == vocabulary["<|im_start|>"]
    assert ids.count(vocabulary["<|im_end|>"]) == 1


def test_an_answer_is_what_is_written_after_the_dialogue(tmp_path: Path) -> None:
    model = legato.load(gpt2_folder(tmp_path / "m", template=CHATML, length=256), "cpu")
    assert model.chat(TURNS, max_tokens=5) == model.generate(model.chat_ids(TURNS), max_tokens=5)
    assert model.chat("hello", max_tokens=5) == model.chat([{"role": "user", "content": "hello"}], max_tokens=5)
    assert "".join(model.stream(model.chat_ids("hello"), max_tokens=5)) == model.chat("hello", max_tokens=5)


def complaint(source: str, messages: Any = USER) -> str:
    with pytest.raises(LegatoError) as caught:
        ChatTemplate(source, "t.jinja", {"bos_token": "<s>", "eos_token": "</s>"}).render(messages)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_template_refuses_is_said() -> None:
    assert complaint(LLAMA2, [*USER, *USER]).startswith("t.jinja refuses this dialogue: Conversation roles must")


@pytest.mark.parametrize(
    "source",
    ["{% for %}", "{{ nothing.at.all }}", "{{ 1 / 0 }}", "{{ messages['x' * 3].y.z }}", "{% include 'a' %}"],
)
def test_a_broken_template_is_one_line(source: str) -> None:
    assert complaint(source).startswith("t.jinja ")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ messages.__init__.__globals__['__builtins__'] }}",
        "{% set messages[0].content = 'x' %}{{ messages }}",
        "{{ range(10 ** 9) | list }}",
        "{{ ''.format.__self__ }}{{ '{0.__class__.__mro__}'.format('') }}",
    ],
)
def test_a_template_can_change_nothing_and_reach_nothing(source: str) -> None:
    messages = [dict(message) for message in USER]
    complaint(source, messages)
    assert messages == USER


DOUBLING = (
    "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    ("source", "budget"),
    [
        ("{{ 10 ** (10 ** 9) }}", "0.3 s of computing"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.3 s of computing"),
        ("{{ messages[0].content | replace('a', 'b') | length + 10 ** (10 ** 9) }}", "0.3 s of computing"),
        (DOUBLING, "256 MB of memory"),
        ("{{ 'x' * 2 ** 30 }}", "256 MB of memory"),
        ("{{ 'x' * 100000 }}", "0 MB of output"),
        ("{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}", "0 MB of output"),
    ],
)
def test_a_template_that_would_run_away_is_ended(source: str, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "memory" in budget and sys.platform == "darwin":
        pytest.skip("macOS does not hold a process to its memory")
    sandbox._close()  # memory is set when the process starts
    monkeypatch.setattr(sandbox, "SECONDS", 0.3 if "computing" in budget else 20)
    monkeypatch.setattr(sandbox, "MEMORY", 1 << 28)
    monkeypatch.setattr(sandbox, "OUTPUT", 50_000)
    try:
        assert complaint(source).startswith(f"t.jinja takes more than {budget} to write a dialogue")
        assert ChatTemplate("{{ messages[0].content }}", "x").render(USER) == USER[0]["content"]
    finally:
        sandbox._close()


def test_the_plain_template_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["abc"])
    monkeypatch.setattr(sandbox, "call", lambda *_, **__: pytest.fail("a process was asked"))
    plain = plain_chat(tokenizer)
    assert plain.render(USER).endswith("you, ünïcode?\nAssistant:\n")
    assert ChatTemplate(plain.source, "chat_template.jinja", plain.tokens).render(USER) == plain.render(USER)


@pytest.mark.parametrize(
    "message", ["hello", {"role": "user"}, {"content": "x"}, {"role": "user", "content": 3}, None]
)
def test_a_message_that_is_none_is_named(message: Any) -> None:
    assert "a message" in complaint(CHATML, [message])


def test_a_folder_without_a_template_is_no_model_to_talk_to(tmp_path: Path) -> None:
    model = legato.load(gpt2_folder(tmp_path / "m"), "cpu")
    with pytest.raises(LegatoError, match="has no chat template, so it is no model to talk to"):
        model.chat("hello")


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(FolderError, match=r"chat_template\.jinja is not UTF-8 text"):
        legato.load(folder, "cpu")
