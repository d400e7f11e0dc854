"""The pages of docs/: their links lead somewhere, and the guide's commands, settings, YAML and Python are right."""

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from legato.cli import app
from legato.data.formats.picture_dialogues import read_picture_dialogues
from legato.data.formats.picture_rows import read_labelled_pictures
from legato.registry import TASKS
from legato.runs.config import check, describe_settings, list_recipes, settings_for
from readability import mean_sentence, prose, sentences, words

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDE = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", GUIDE, flags=re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
LARGEST = 150_000  # bytes of a picture in docs/


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).is_file()] == []


def test_the_readme_is_short_and_begins_with_installing_and_python() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(words(prose(page))) <= 700
    assert mean_sentence(page) <= 15
    assert [sentence for sentence in sentences(page) if len(words(sentence)) > 25] == []
    top = "\n".join(page.splitlines()[:60])
    assert "pip install " in top
    assert "```python\n" in top


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    page = "# A title\n\nIt `trains it`. It\nreads:\n\n- a text\n- a [page](a.md)\n\n| a | b |\n\n"
    page += "```\ncode. Code\n```\nEnd - 3!"
    assert sentences(page) == ["It `trains it`.", "It reads:", "a text", "a page", "End - 3!"]
    assert words("It `trains it` - 3!") == ["It", "code", "3!"]


def test_pictures_of_the_docs_are_small_and_shown() -> None:
    shown = {name for page in PAGES for name in re.findall(r"[\w-]+\.png", page.read_text(encoding="utf-8"))}
    for picture in (ROOT / "docs").glob("*.png"):
        assert picture.stat().st_size < LARGEST, picture.name
        assert picture.name in shown


def test_the_views_are_called_as_their_tabs_are() -> None:
    tabs = re.findall(r'title: "([^"]+)"', (ROOT / "studio" / "src" / "views" / "index.ts").read_text("utf-8"))
    page = (ROOT / "docs" / "inspect.md").read_text("utf-8")
    (table,) = re.findall(r"\| view \| what it shows \|\n\|.*\n((?:\|.*\n)+)", page)
    assert [row.split("|")[1].strip() for row in table.splitlines()] == tabs


def test_paths_in_the_guide_are_there() -> None:
    named = re.findall(r"`((?:src|tests|examples)/[\w/.]+)`", GUIDE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_guide_has_words_that_there_are(line: str, tmp_path: Path) -> None:
    legato, verb, *words = shlex.split(line)
    assert legato == "legato"
    commands: Any = typer.main.get_command(app)
    commands.commands[verb].make_context(verb, list(words))  # an unknown option is an error
    if verb != "train" or words[0].startswith("resume="):
        return
    what, *settings = words
    if what == "tasks.yaml":
        what = str(tmp_path / what)
        Path(what).write_text(_yaml(), encoding="utf-8")
    else:
        assert what in {*list_recipes(), *TASKS.names()}
    begun = [word for word in settings if word.startswith("from")]
    given = settings_for(what, [word for word in settings if word not in begun])
    known = {row.key for row in describe_settings(given)} | {"model", "tokenizer", "adapt"}
    sections = {word.partition("=")[0] for word in settings if word not in begun}
    assert sections <= known, sections - known
    assert {word.partition("=")[0] for word in begun} <= {"from", "from.encoder", "from.vision", "from.text"}


@pytest.mark.parametrize("key", re.findall(r"`((?:data|model|train)\.[\w.]+)=?[\w.|]*`", GUIDE))
def test_each_setting_that_the_guide_names_is_one(key: str) -> None:
    tasks = ("image-classification", "captioning", "vqa", "detection", "image-text", "unit", "visual-chat")
    every: list[dict[str, Any]] = [{"task": task} for task in tasks]
    every.append({"task": "image-classification", "model": {"name": "frames"}})
    assert any(row.key == key for given in every for row in describe_settings(given))


def _yaml() -> str:
    (text,) = [block for kind, block in BLOCKS if kind == "yaml"]
    return text


def test_the_yaml_of_the_guide_is_a_run() -> None:
    config = check(settings_for(None, yaml.safe_load(_yaml())))
    assert list(config.data.tasks) == ["shapes", "questions", "statements"]


def test_the_python_of_the_guide_is_python() -> None:
    (block,) = [block for kind, block in BLOCKS if kind == "python"]
    compile(block, "pictures.md", "exec")
    for line in block.splitlines():
        if "import" in line:
            exec(line, {})


def test_the_files_that_the_guide_reads_are_written(tmp_path: Path) -> None:
    maker = runpy.run_path(str(ROOT / "examples" / "scene_files.py"))
    maker["write_scenes"](tmp_path / "scenes", "test", 12)
    rows = read_picture_dialogues(str(tmp_path / "scenes" / "dialogues.jsonl"))
    assert len({one.path for one in rows.pictures}) == len(list((tmp_path / "scenes").glob("*.png"))) == 12
    names = maker["write_colours"](tmp_path, 12)
    assert len(names) == 12
    maker["write_warmth"](tmp_path, names)
    named, held = (read_labelled_pictures(str(tmp_path / f"warmth.{form}")) for form in ("csv", "parquet"))
    assert named.labels == held.labels
    assert set(named.labels) == {"warm", "cold"}
    assert [one.raw() for one in named.pictures] == [one.raw() for one in held.pictures]
