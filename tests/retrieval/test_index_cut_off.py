"""An index in both stores when two write, when whoever writes is killed, and when its files are damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from legato.errors import DataError, FolderError, LegatoError
from legato.retrieval.index import Index
from legato.retrieval.lance_store import LanceStore
from retrieval.stores import QUESTIONS, Place, made, rows, sources
from tiny_documents import WordEncoder, write_documents

# --- what is cut off, or damaged -----------------------------------------------------------------------


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("count", range(6))
def test_whoever_is_cut_off_leaves_the_old_index(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """After `count` writes to a table, before the manifest."""
    place = str(tmp_path / "index")
    made(place, docs, WordEncoder())
    before = [Index.open(place, WordEncoder()).search(q) for q in QUESTIONS]
    for name in ("notes.txt", "guide.md"):
        (docs / name).write_text("Foxes dig. Nothing else is left of it.")
    (docs / "more" / "page.html").unlink()
    done = 0

    def cut(work: Any) -> Any:
        def worked(*given: Any) -> None:
            nonlocal done
            if done >= count:
                raise Cut
            done += 1
            work(*given)

        return worked

    with monkeypatch.context() as patch:
        for name in ("_add", "_delete", "_save"):
            patch.setattr(LanceStore, name, cut(getattr(LanceStore, name)))
        with pytest.raises((LegatoError, Cut)):
            Index.open(place, WordEncoder()).update()
    left = Index.open(place, WordEncoder())
    assert [left.search(q) for q in QUESTIONS] == before
    left.update()
    fresh = made(str(tmp_path / "fresh"), docs, WordEncoder())
    old, new = ([(h.passage.source, h.score) for h in i.search("foxes dig", 50, mode="words")] for i in (left, fresh))
    assert dict(old) == pytest.approx(dict(new))
    assert len(left) == len(fresh)


@pytest.mark.parametrize("then", ["gone", "as before"])
def test_a_file_that_was_cut_off_in_its_middle_is_read_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """One that was new and has gone since leaves no document behind; one that is again as it was is as it was."""
    docs = tmp_path / "docs"
    docs.mkdir()
    rows(docs / "a.jsonl", [f"whale old{n}" for n in range(4)])
    index = made(place("a"), docs)
    rows(docs / ("b.jsonl" if then == "gone" else "a.jsonl"), [f"whale new{n}" for n in range(4)])
    write, count = index.store.write, 0

    def cut(*given: Any) -> None:
        nonlocal count
        write(*given)
        count += 1
        if count == 2:
            raise Cut

    monkeypatch.setattr("legato.retrieval.update.PERIOD", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(index.store, "write", cut)
        with pytest.raises(Cut):
            index.update()
    index = Index.open(place("a"))
    assert len(index.search("new0 new1 new2 new3", 50)) == 2
    if then == "gone":
        (docs / "b.jsonl").unlink()
    rows(docs / "a.jsonl", [f"whale old{n}" for n in range(4)])
    index.update()
    assert sorted(hit.passage.text for hit in index.search("whale", 50)) == [f"whale old{n}" for n in range(4)]


KILLED = """
import os, signal, sys
import legato.retrieval.update as update
from legato.retrieval.index import Index
from tiny_documents import WordEncoder
update.BATCH = 50
place, folder, after = sys.argv[1], sys.argv[2], int(sys.argv[3])
index = Index.open(place, WordEncoder())
count = 0
write = index.store.write
def killed(*given):
    global count
    count += 1
    write(*given)
    if count == after:
        os.kill(os.getpid(), signal.SIGKILL)
index.store.write = killed
if len(sys.argv) > 4:  # within the commit, behind its passages
    import legato.retrieval.postgres_store as postgres
    owner, name = (postgres, "_copy") if "://" in place else (index.store, "_add")
    copy = getattr(owner, name)
    def half(*given):
        copy(*given)
        if count == after and "passages" in str(given):
            os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, half)
index.update()
"""


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True])
def test_kill_9_leaves_an_index_that_is_whole(place: Place, tmp_path: Path, half: bool) -> None:
    """Between two commits, and within one; running it again ends as if nobody had been killed."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(20):
        (docs / f"{number}.txt").write_text(f"old whale{number}")
    made(place("a"), docs, WordEncoder())
    for number in range(20):
        rows(docs / f"{number}.jsonl", [f"new zebra{number} row{row}" for row in range(10)])
    command = [sys.executable, "-c", KILLED, place("a"), str(docs), "2", *(["half"] if half else [])]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert done.returncode == -9
    index = Index.open(place("a"), WordEncoder())
    for number in range(20):
        assert sources(index, f"whale{number}", mode="words") == [f"docs/{number}.txt"]
    found = {name for number in range(20) for name in sources(index, f"zebra{number}", mode="words", top=50)}
    assert len(index) == 20 + len(found)
    assert len(found) == (50 if half else 100)
    index.update()
    assert len(index) == 220
    fresh = made(place("b"), docs, WordEncoder())
    for question in ("zebra3", "row7", "old"):
        old, new = (
            [(h.passage.source, h.score) for h in i.search(question, 300, mode="words")] for i in (index, fresh)
        )
        assert dict(old) == pytest.approx(dict(new))


@pytest.mark.parametrize(
    "damage",
    [
        *("manifest cut", "manifest is a list", "manifest deep", "other format", "versions gone", "huge numbers"),
        *("no table", "table cut", "table empty"),
    ],
)
def test_a_damaged_folder_is_one_line(docs: Path, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "index"
    made(str(place), docs, WordEncoder())
    manifest = place / "index.json"
    held = json.loads(manifest.read_text())
    if damage == "manifest cut":
        manifest.write_text(manifest.read_text()[:50])
    elif damage == "manifest is a list":
        manifest.write_text("[1]")
    elif damage == "manifest deep":
        manifest.write_text("[" * 100_000)
    elif damage == "other format":
        manifest.write_text(json.dumps({**held, "format": 9}))
    elif damage == "no table":
        shutil.rmtree(place / "passages.lance")
    elif damage == "table cut":
        for file in (place / "passages.lance").rglob("*.lance"):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 3])
    elif damage == "table empty":
        for file in (place / "postings.lance").rglob("*"):
            if file.is_file():
                file.write_bytes(b"")
    elif damage == "versions gone":
        manifest.write_text(json.dumps({**held, "versions": {**held["versions"], "passages": 77}}))
    else:
        manifest.write_text(json.dumps({**held, "next_passage": 1}))
    for mode in ("words", "hybrid"):
        with pytest.raises(FolderError) as caught:
            Index.open(str(place), WordEncoder()).search("the dog runs", mode=mode)
        assert "\n" not in str(caught.value)
        assert str(place) in str(caught.value)


def test_what_is_no_index_is_said(docs: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is no index"):
        Index.open(str(docs))
    with pytest.raises(FolderError, match="is a file"):
        Index.open(str(docs / "guide.md"))
    made(str(tmp_path / "index"), docs)
    with pytest.raises(FolderError, match=r"did you mean '.*index'"):
        Index.open(str(tmp_path / "indx"))
    other = write_documents(tmp_path / "other")
    with pytest.raises(FolderError, match=r"holds other files \(guide.md\)"):
        made(str(docs), other)
    assert (docs / "guide.md").exists()
    assert not [path for path in docs.iterdir() if path.name.startswith(".")]  # nothing is left of the try
    with pytest.raises(DataError, match="is where the index itself is"):
        made(str(docs), docs)


def test_an_index_among_its_documents_does_not_hold_itself(tmp_path: Path) -> None:
    docs = write_documents(tmp_path / "docs")
    index = made(str(docs / "index"), docs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert index.update().added == 0
    assert {hit.passage.source.split("/")[1].split("#")[0] for hit in index.search("dog cat owls whales", 50)} <= {
        "guide.md",
        "notes.txt",
        "more",
        "rows.jsonl",
    }
