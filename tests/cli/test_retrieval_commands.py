"""`legato index`, `search` and `ask` as people type them, and the same from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import legato
from answers import Command
from legato.errors import LegatoError
from legato.retrieval.answers import NO_ANSWER
from tiny_adapted import published_folder
from tiny_documents import write_documents
from tiny_published import CHATML, gpt2_folder
from tiny_questions import SMALL, squad


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, another one, a model that chats, and one that finds spans."""
    home = tmp_path_factory.mktemp("models")
    published_folder(home / "encoder", "bert", length=128)
    published_folder(home / "other", "bert", length=128, width=32)
    gpt2_folder(home / "chat", length=1024, template=CHATML)
    squad(home / "train.json", 10, 4, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        given = {**SMALL, "data.train": home / "train.json", "train.steps": 2}
        legato.train("qa", given, out=home / "qa", quiet=True)
    return home


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_documents(tmp_path / "docs")


def last(text: str) -> str:
    lines = text.strip().splitlines()
    assert "Traceback" not in text
    return lines[-1]


@pytest.mark.slow
def test_two_commands_from_a_folder_to_a_cited_answer(command: Command, docs: Path, models: Path) -> None:
    done = command("index", "docs/", "--model", models / "encoder", "--out", "runs/index")
    assert (done.code, done.out.strip()) == (0, "runs/index: 5 documents, 7 passages (5 added)")
    words = ("--model", models / "chat", "--max-tokens", 8)
    done = command("ask", "runs/index", "Where does the dog run?", *words)
    assert done.code == 0, done.err
    assert "\nSources:\n" in done.out
    assert "docs/notes.txt" in done.out
    told = json.loads(command("ask", "runs/index", "Where does the dog run?", *words, "--json").out)
    assert [each["number"] for each in told["sources"]] == [1, 2, 3, 4, 5]
    assert told["answer"] in " ".join(done.out.split()) or told["answer"] == NO_ANSWER
    assert {"citations", "answered", "cited_by"} <= set(told)


def test_an_index_follows_its_folder(command: Command, docs: Path) -> None:
    def said(*words: object) -> str:
        done = command("index", *words, "--out", "index")
        assert done.code == 0, done.err
        return done.out.strip().partition("(")[2]

    assert said("docs") == "5 added)"
    assert said() == "nothing has changed)"
    (docs / "notes.txt").write_text("A quagga stands there.")
    (docs / "guide.md").unlink()
    (docs / "guide.html").write_bytes(b"\0")
    assert said() == "1 changed, 1 removed); 1 not read"
    (docs / "guide.html").unlink()
    assert "docs/notes.txt" in command("search", "index", "quagga").out
    assert "1 removed" in said("--remove", "docs/notes.txt")
    assert command("search", "index", "quagga").out == ""
    report = json.loads(command("index", "--out", "index", "--json").out)
    assert report["added"] == 0  # the file is still there
    assert said("docs") == "1 added)"


def test_texts_of_documents_steer_no_terminal(command: Command, docs: Path, models: Path) -> None:
    (docs / "evil.md").write_text("# Red \x1b[31m\n\nThe wombat\x07 \x9b2J \u202edigs.\n")
    assert command("index", "docs", "--out", "index").code == 0
    plain, told = command("search", "index", "wombat"), command("search", "index", "wombat", "--json")
    asked = command("ask", "index", "wombat", "--model", models / "qa")
    for done in (plain, told, asked):
        assert done.code == 0
        assert not set(done.out + done.err) & set("\x1b\x07\x9b\u202e")
    assert "\\u001b[31m" in plain.out
    assert json.loads(told.out)["text"] == "The wombat\x07 \x9b2J \u202edigs."


def test_a_search_by_words_with_filters(command: Command, docs: Path) -> None:
    command("index", "docs", "--out", "index")
    lines = command("search", "index", "whales and zebras", "--filter", "year=2001", "--json").out.splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["docs/rows.jsonl#b"]
    done = command("search", "index", "whales", "--filter", "year=1700")
    assert (done.code, done.out) == (0, "")
    assert "nothing was found" in done.err


def test_a_reader_answers_in_a_passages_own_words(command: Command, docs: Path, models: Path) -> None:
    command("index", "docs", "--out", "index")
    done = command("ask", "index", "Who sleeps on the mat?", "--model", models / "qa", "--json")
    told = json.loads(done.out)
    assert done.code == 0
    if told["answered"]:
        (number,) = told["citations"]
        assert told["answer"] in told["sources"][number - 1]["text"]
    else:
        assert told["answer"] == NO_ANSWER


def test_the_same_from_python(docs: Path, models: Path) -> None:
    index = legato.index(docs, out="index", model=models / "encoder")
    assert index.report is not None
    assert index.report.added == 5
    (hit,) = index.search("Where does the dog run?", 1, mode="words")
    assert hit.passage.source == "docs/notes.txt"
    again = legato.open_index("index")
    assert [h.passage for h in again.search("owls")] == [h.passage for h in index.search("owls")]
    pieces: list[str] = []
    told = legato.ask("index", "Where does the dog run?", models / "chat", max_tokens=8, emit=pieces.append)
    assert "".join(pieces).strip() == told.text or not told.answered
    assert told.text == legato.ask(again, "Where does the dog run?", models / "chat", max_tokens=8).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "docs"], "name the index: --out"),
        (["index", "dosc", "--out", "i"], "did you mean"),
        (["index", "docs/empty.txt", "--out", "i"], "is empty"),
        (["index", "docs/locked.bin", "--out", "i"], "no document that can be read"),
        (["index", "--out", "i"], "name files or folders to index"),
        (["index", "docs", "--out", "i", "--chunk-size", "-1"], "a passage of -1 words"),
        (["index", "docs", "--out", "i", "--chunk-size", "10", "--overlap", "9"], "does not suit"),
        (["index", "docs", "--out", "docs"], "is where the index itself is"),
        (["index", "docs", "--out", "postgresql://localhost/x#Bad-Name"], "is no name for an index"),
        (["index", "docs", "--remove", "docs", "--out", "i"], "not both"),
        (["search", "nowhere", "dog"], "is no index"),
        (["search", "docs", "dog"], "is no index"),
        (["search", "../../etc", "dog"], "is no index"),
        (["search", "made", ""], "the question is empty"),
        (["search", "made", "dog", "--filter", "year"], "write KEY=VALUE"),
        (["search", "made", "dog", "--mode", "vector"], "did you mean 'vectors'"),
        (["search", "made", "dog", "--mode", "vectors"], "holds no vectors"),
        (["ask", "made", "dog", "--model", "nothing/here/at/all"], "nothing/here/at/all"),
    ],
)
def test_bad_input_gets_one_line(command: Command, docs: Path, words: list[str], message: str) -> None:
    assert command("index", "docs", "--out", "made").code == 0
    (docs / "empty.txt").write_text("")
    (docs / "locked.bin").write_bytes(b"\x00")
    if words[-1] == "docs" and words[0] == "index":
        for file in docs.iterdir():
            file.unlink() if file.is_file() else None
        (docs / "more" / "page.html").unlink()
    done = command(*words)
    assert done.code == 2
    assert message in last(done.err).replace("\n", " ") or message in " ".join(done.err.split())


def test_models_of_the_wrong_kind_are_refused(command: Command, docs: Path, models: Path) -> None:
    command("index", "docs", "--model", models / "encoder", "--out", "index")
    done = command("search", "index", "dog", "--model", models / "other")
    assert (done.code, "made with another encoder" in done.err) == (2, True)
    done = command("search", "index", "dog", "--rerank", models / "chat")
    assert (done.code, "a re-ranker is one for classification" in done.err) == (2, True)
    done = command("ask", "index", "dog", "--model", models / "encoder")
    assert (done.code, "Traceback" in done.err) == (2, False)


@pytest.mark.parametrize("module", ["lancedb", "psycopg", "pypdf"])
def test_what_is_not_installed_is_named(docs: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    (docs / "a.pdf").write_bytes(b"%PDF-1.4")
    place = "postgresql://localhost/x" if module == "psycopg" else "index"
    with pytest.raises(
        LegatoError, match=rf'{module} is not installed; it comes with: pip install "legato-nn\[retrieval\]"'
    ):
        legato.index(docs / "a.pdf" if module == "pypdf" else docs, out=place)
