"""The index in both stores: what is found, and what is left of it when documents change, go, or are cut off."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import legato.retrieval.update as update_module
from legato.errors import ConfigError, DataError, FolderError
from legato.retrieval.chunks import Chunking
from legato.retrieval.index import Index
from legato.retrieval.lance_store import LanceStore
from retrieval.stores import QUESTIONS, Place, made, rows, sources
from tiny_documents import WordEncoder

# --- what is found -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["words", "vectors", "hybrid"])
def test_every_mode_finds_the_passage_that_answers(place: Place, docs: Path, encoder: WordEncoder, mode: str) -> None:
    index = made(place("a"), docs, encoder)
    assert sources(index, "Where does the dog run?", mode=mode)[0] == "docs/notes.txt"
    assert sources(index, "owls hunting", mode=mode)[0] == "docs/more/page.html"
    (hit,) = index.search("install the package", 1, mode=mode)
    assert (hit.passage.title, hit.passage.heading) == ("Guide", "Install")
    assert hit.passage.text.startswith("Run pip install")
    assert repr(index).endswith(f", {len(index)} passages, by words and vectors of {encoder.name})")
    assert repr(hit.passage).startswith(f"Passage('{hit.passage.source}', 'Run pip install")


def test_an_index_that_is_opened_again_finds_the_same(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    before = [index.search(question) for question in QUESTIONS]
    index.close()
    again = Index.open(place("a"), WordEncoder())
    assert [again.search(question) for question in QUESTIONS] == before


def test_two_indexes_of_the_same_documents_are_alike(place: Place, docs: Path) -> None:
    one, other = (made(place(name), docs, WordEncoder()) for name in "ab")
    for question in QUESTIONS:
        assert one.search(question) == other.search(question)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["words", "vectors", "hybrid"])
def test_both_stores_rank_alike(database: str, tmp_path: Path, mode: str) -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in random.zipf(1.4, 30) if n < 500) + " end" for _ in range(400)]
    file = rows(tmp_path / "rows.jsonl", texts)
    found = []
    for name in (str(tmp_path / "index"), f"{database}#alike_{mode}"):
        index = made(name, file, WordEncoder(width=64))
        rows(file, [*texts[:380], *(f"{text} changed" for text in texts[380:])])
        index.update()
        rows(file, texts)
        hits = [index.search(" ".join(text.split()[:5]), 20, mode=mode) for text in texts[::40]]
        found.append([{hit.passage.source: hit.score for hit in some} for some in hits])
    for lance, postgres in zip(*found, strict=True):
        shared = lance.keys() & postgres.keys()
        assert len(shared) >= 19  # what ranks twentieth may be one of several alike
        assert {name: lance[name] for name in shared} == pytest.approx({n: postgres[n] for n in shared}, abs=1e-5)


def test_a_reranker_orders_what_was_found(place: Place, docs: Path, encoder: WordEncoder) -> None:
    class Shortest:
        def score(self, question: str, passages: Any) -> list[float]:
            return [-float(len(passage)) for passage in passages]

    index = made(place("a"), docs, encoder)
    hits = index.search("the dog runs at night", 3, reranker=Shortest())
    lengths = [len(hit.passage.searched_text) for hit in index.search("the dog runs at night", 100)]
    assert [len(hit.passage.searched_text) for hit in hits] == sorted(lengths)[:3]
    assert [hit.ranks["reranked"] for hit in hits] == [1, 2, 3]


# --- filters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["words", "vectors", "hybrid"])
def test_filters_let_through_what_fits_all_of_them(place: Place, docs: Path, mode: str) -> None:
    index = made(place("a"), docs, WordEncoder())
    asked = "the sea and the land of whales and zebras and cats"

    def names(**where: Any) -> set[str]:
        return set(sources(index, asked, mode=mode, where=where, top=50))

    assert names(year="1999") == {"docs/rows.jsonl#a"}
    assert names(year=["1999", "2001"]) == {"docs/rows.jsonl#a", "docs/rows.jsonl#b"}
    assert names(year=["1999", "2001"], tags="striped") == {"docs/rows.jsonl#b"}
    assert names(year=1999) == names(year=1999.0) == {"docs/rows.jsonl#a"}
    assert names(year=[1999, 2001], tags=["striped"]) == {"docs/rows.jsonl#b"}
    assert names(language="en") <= {"docs/guide.md"}
    assert names(source="docs/rows.jsonl") == {"docs/rows.jsonl#a", "docs/rows.jsonl#b"}
    assert names(year="1999", tags="striped") == set()


@pytest.mark.parametrize(
    "value", ["x' OR '1'='1", "'] ) OR true --", "1999'; DROP TABLE passages; --", "%", "\\", '"']
)
def test_a_filter_stays_inside_its_quotes(place: Place, docs: Path, encoder: WordEncoder, value: str) -> None:
    index = made(place("a"), docs, encoder)
    assert index.search("whales", where={"year": value}) == []
    assert index.search("whales", where={value: "1999"}) == []
    assert sources(index, "whales", where={"year": "1999"}) == ["docs/rows.jsonl#a"]


def test_hostile_names_and_texts_are_kept_as_they_are(place: Place, tmp_path: Path, encoder: WordEncoder) -> None:
    docs = tmp_path / "it's; DROP TABLE x --"
    docs.mkdir()
    name = "a'b\"c\\d%s$1.txt"
    text = "'; DROP TABLE passages; -- \\N \\. %s $1 {} whales\ttab"
    (docs / name).write_text(text)
    index = made(place("a"), docs, encoder)
    (hit,) = index.search("whales")
    assert (hit.passage.source, hit.passage.text) == (f"{docs.name}/{name}", text)
    (docs / name).unlink()
    (docs / "b.txt").write_text("zebras")
    assert index.update().removed == 1
    assert sources(index, "zebras whales", mode="words") == [f"{docs.name}/b.txt"]


# --- updates -------------------------------------------------------------------------------------------


def test_an_update_encodes_what_changed_and_nothing_else(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    encoder.encoded.clear()
    report = index.update()
    assert (report.added, report.changed, report.removed) == (0, 0, 0)
    assert encoder.encoded == []
    lines = (docs / "rows.jsonl").read_text().splitlines()
    (docs / "rows.jsonl").write_text("\n".join([lines[0], lines[1].replace("Zebras", "Giraffes")]) + "\n")
    (docs / "new.txt").write_text("Foxes dig holes.")
    report = index.update()
    assert (report.added, report.changed, report.removed) == (1, 1, 0)
    assert sorted(encoder.encoded) == ["Foxes dig holes.", "Land\nGiraffes run over land."]
    assert sources(index, "giraffes", mode="words") == ["docs/rows.jsonl#b"]
    assert sources(index, "zebras", mode="words") == []
    assert sources(index, "whales", mode="words") == ["docs/rows.jsonl#a"]


def test_a_file_that_is_only_touched_is_not_read_anew(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    encoder.encoded.clear()
    os.utime(docs / "notes.txt", (1, 1))
    report = index.update()
    assert (report.changed, encoder.encoded) == (0, [])


def test_what_is_deleted_leaves_the_index(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    count = len(index)
    shutil.rmtree(docs / "more")
    report = index.update()
    assert report.removed == 1
    assert len(index) == count - 1
    for mode in ("words", "vectors", "hybrid"):
        assert "docs/more/page.html" not in sources(index, "owls hunt and fly at night", mode=mode, top=50)


def test_an_updated_index_ranks_as_a_new_one(place: Place, docs: Path) -> None:
    index = made(place("a"), docs, WordEncoder())
    (docs / "notes.txt").write_text("Foxes dig holes at night.\n")
    (docs / "guide.md").unlink()
    index.update()
    fresh = made(place("b"), docs, WordEncoder())
    for question in (*QUESTIONS, "foxes"):
        for mode in ("words", "vectors"):
            old, new = (
                [(h.passage.source, h.score) for h in i.search(question, 50, mode=mode)] for i in (index, fresh)
            )
            assert dict(old) == pytest.approx(dict(new))


def test_a_file_or_folder_is_taken_out_by_its_name(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    assert index.remove(["docs/more"]).removed == 1
    assert sources(index, "owls", mode="words") == []
    with pytest.raises(DataError, match="holds no 'docs/mroe'"):
        index.remove(["docs/mroe"])
    assert index.remove(["docs"]).removed > 0
    with pytest.raises(DataError, match="holds no passage"):
        index.search("dog")


@pytest.mark.slow
def test_many_updates_are_merged_and_find_the_same(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_module, "SEGMENTS", 3)
    docs = tmp_path / "docs"
    docs.mkdir()
    index = None
    for number in range(8):
        (docs / f"{number}.txt").write_text(f"whale number{number} swims")
        if number >= 4:
            (docs / f"{number - 4}.txt").unlink()
        index = index or Index.create(place("a"))
        index.update([docs])
    assert index is not None
    assert len(index.manifest.segments) <= 4
    assert sorted(sources(index, "whale", top=20)) == [f"docs/{n}.txt" for n in range(4, 8)]
    assert sources(index, "number6") == ["docs/6.txt"]
    assert sources(index, "number1") == []


def test_two_folders_of_one_name_are_told_apart(place: Place, tmp_path: Path) -> None:
    for name, text in (("a", "whales"), ("b", "zebras")):
        (tmp_path / name / "docs").mkdir(parents=True)
        (tmp_path / name / "docs" / "x.txt").write_text(text)
    index = Index.create(place("i"))
    index.update([tmp_path / "a" / "docs"])
    index.update([tmp_path / "b" / "docs"])
    assert sources(index, "whales") == ["docs/x.txt"]
    assert sources(index, "zebras") == ["docs-2/x.txt"]
    index.remove("docs")
    assert index.update([tmp_path / "b" / "docs"]).added == 0  # it keeps its name
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "c" / "docs").mkdir(parents=True)
    (tmp_path / "c" / "docs" / "x.txt").write_text("newts")
    index.update([tmp_path / "c" / "docs"])
    assert sources(index, "zebras") == ["docs-2/x.txt"]


def test_one_document_that_cannot_be_read_stops_no_folder(place: Place, docs: Path, encoder: WordEncoder) -> None:
    (docs / "binary.txt").write_bytes(b"\x00\x01\xff")
    (docs / "empty.md").write_text("")
    os.mkfifo(docs / "pipe.pdf")
    with pytest.warns(UserWarning, match=r"binary|empty|a pipe") as told:
        index = made(place("a"), docs, encoder)
    assert len([one for one in told if one.category is UserWarning]) == 3
    assert index.report is not None
    assert index.report.unread == 3
    for line, said in zip(
        sorted(index.report.skipped),
        ("binary.txt is binary", "empty.md is empty", "pipe.pdf is a pipe"),
        strict=True,
    ):
        assert said in line
    assert sources(index, "whales", mode="words") == ["docs/rows.jsonl#a"]


class PanicException(BaseException):
    """What a library raises that is written in Rust."""


RAISED = {
    "value": ValueError("Exceeds the limit (4300 digits) for integer string conversion"),
    "unprintable": KeyError(10**5000),
    "deep": RecursionError("maximum recursion depth exceeded"),
    "memory": MemoryError(),
    "panic": PanicException("index out of \x1b[31mbounds\n\nat src/lib.rs"),
    "file": OSError(5, "Input/output error"),
}


def test_whatever_a_reader_raises_is_of_that_document(
    place: Place, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New documents are left out, known ones stay as they were, the others are read."""
    for name in RAISED:
        (docs / f"old-{name}.txt").write_text(f"a quagga{name}")
    index = made(place("a"), docs, encoder)
    for name in RAISED:
        (docs / f"old-{name}.txt").write_text("changed")
        (docs / f"new-{name}.txt").write_text("new")
    (docs / "zebra.txt").write_text("Aardvarks dig.")
    read, chunks_of = update_module.read_changes, update_module.chunks_of

    def raising(path: Path, *given: Any) -> Any:
        found = [problem for name, problem in RAISED.items() if path.stem in (f"old-{name}", f"new-{name}")]
        if found:
            raise found[0]
        return read(path, *given)

    monkeypatch.setattr(update_module, "read_changes", raising)
    with pytest.warns(UserWarning, match=r"-\w+.txt cannot be read: "):
        report = index.update()
    assert (report.added, report.changed, report.removed, report.unread) == (1, 0, 0, 2 * len(RAISED))
    assert all(line.isprintable() for line in report.skipped)
    assert sources(index, "aardvarks", mode="words") == ["docs/zebra.txt"]
    for name in RAISED:
        assert sources(index, f"quagga{name}", mode="words") == [f"docs/old-{name}.txt"]
    monkeypatch.setattr(update_module, "read_changes", read)

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(update_module, "chunks_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        index.update()
    monkeypatch.setattr(update_module, "chunks_of", chunks_of)
    assert index.update().unread == 0


def test_what_an_encoder_raises_is_of_no_document(place: Place, docs: Path, encoder: WordEncoder) -> None:
    made(place("a"), docs, encoder)
    encoder.encode = lambda texts: (_ for _ in ()).throw(DataError("the encoder is gone"))  # type: ignore[method-assign]
    (docs / "notes.txt").write_text("A quagga stands there.")
    index = Index.open(place("a"))
    index.encoder = encoder
    with pytest.raises(DataError, match="the encoder is gone"):
        index.update()


def test_of_files_that_are_named_the_others_are_read(place: Place, docs: Path, encoder: WordEncoder) -> None:
    (docs / "binary.txt").write_bytes(b"\x00\x01\xff")
    index = Index.create(place("a"), encoder)
    with pytest.raises(DataError, match=r"binary.txt is binary"):
        index.update([docs / "binary.txt", docs / "notes.txt"])
    assert sources(index, "beach", mode="words") == ["notes.txt"]


def test_of_a_document_that_breaks_what_the_index_holds_stays(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    whole = (docs / "rows.jsonl").read_text()
    (docs / "notes.txt").write_bytes(b"\x00\x01\xff")
    (docs / "rows.jsonl").write_text(whole[:-9])  # somebody is writing it
    with pytest.warns(UserWarning, match=r"notes.txt is binary.* stays: --remove docs/notes.txt"):
        assert index.update().removed == 0
    assert sources(index, "beach", mode="words") == ["docs/notes.txt"]
    assert sources(index, "whales", mode="words") == ["docs/rows.jsonl#a"]
    (docs / "notes.txt").write_text("")
    (docs / "rows.jsonl").write_text(whole)
    with pytest.warns(UserWarning, match=r"notes.txt is empty; there is nothing to find"):
        assert index.update().removed == 1
    assert sources(index, "beach", mode="words") == []


def test_a_file_that_cannot_be_read_or_goes_meanwhile_stops_no_folder(
    place: Place, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(place("a"), docs, encoder)
    (docs / "new.txt").write_text("an aardvark")
    digest_of = update_module.digest_of

    def digest(path: Path) -> str:
        if path.name == "guide.md":
            raise PermissionError(13, "Permission denied", str(path))
        if path.name == "notes.txt":
            path.unlink()
        return digest_of(path)

    for name in ("guide.md", "notes.txt"):
        (docs / name).write_text((docs / name).read_text() + "\n\nmore")
    monkeypatch.setattr(update_module, "digest_of", digest)
    with pytest.warns(UserWarning, match="Permission denied|no longer there") as told:
        report = index.update()
    assert len([one for one in told if one.category is UserWarning]) == 2
    assert (report.added, report.changed, report.removed) == (1, 0, 1)
    assert sources(index, "aardvark", mode="words") == ["docs/new.txt"]
    assert sources(index, "install the package", mode="words") == ["docs/guide.md"]
    assert sources(index, "beach", mode="words") == []
    with pytest.raises(DataError, match=r"guide.md cannot be read: Permission denied"):
        index.update([docs / "guide.md"])


@pytest.mark.parametrize("closed", ["", "more"])
def test_what_is_in_a_closed_folder_stays(
    place: Place, docs: Path, encoder: WordEncoder, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(place("a"), docs, encoder)
    before = len(index)
    scandir = os.scandir

    def scan(where: Any) -> Any:  # root may look anywhere
        if Path(where) == docs / closed:
            raise PermissionError(13, "Permission denied", str(where))
        return scandir(where)

    (docs / "notes.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        with pytest.warns(UserWarning, match="cannot be read: Permission denied"):
            report = index.update()
    assert report.removed == (1 if closed else 0)
    assert "docs/more/page.html" in sources(index, "owls", mode="words")
    assert index.update().removed == (0 if closed else 1)
    assert len(index) == before - 1


def test_a_root_behind_a_closed_door_stays(
    place: Place, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(place("a"), docs, encoder)
    before, stat = len(index), os.stat

    def closed(where: Any, *more: Any, **how: Any) -> Any:
        if isinstance(where, str | Path) and Path(where).is_relative_to(docs):
            raise PermissionError(13, "Permission denied", str(where))
        return stat(where, *more, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", closed)
        with pytest.warns(UserWarning, match="docs cannot be read; what the index holds of it stays"):
            assert index.update().removed == 0
    assert len(index) == before


@pytest.mark.parametrize("moved", [False, True])
def test_the_last_document_leaves_too(place: Place, docs: Path, encoder: WordEncoder, moved: bool) -> None:
    index = made(place("a"), docs, encoder)
    shutil.rmtree(docs)
    if not moved:
        docs.mkdir()
        assert index.update().documents == 0
    else:
        with pytest.warns(UserWarning, match="no longer there; what was in it has left"):
            index.update()
    assert len(index) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert index.update().documents == 0
    with pytest.raises(DataError, match="holds no passage"):
        index.search("whales")
    docs.mkdir(exist_ok=True)
    (docs / "a.txt").write_text("whales again")
    index.update()
    assert sources(index, "whales") == ["docs/a.txt"]


def test_what_was_taken_out_stays_out_until_it_is_named(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    index.remove(["docs/more", "docs/notes.txt"])
    report = index.update()
    assert (report.added, report.removed) == (0, 0)
    again = Index.open(place("a"), WordEncoder())
    assert sources(again, "beach", mode="words") == []
    assert again.update([docs]).added == 2
    assert sources(again, "beach", mode="words") == ["docs/notes.txt"]
    (docs / "broken.txt").write_bytes(b"\x00\x01\xff")
    with pytest.warns(UserWarning, match="broken.txt is binary"):
        again.update()
    again.remove(["docs/broken.txt"])
    assert again.update().skipped == []
    with pytest.raises(DataError, match=r"the index holds no 'docs/none.txt'"):
        again.remove(["docs/none.txt"])


def test_other_kinds_of_files_are_counted(place: Place, docs: Path, encoder: WordEncoder) -> None:
    for name in ("a.xls", "b.xls", "more/c.py", "Makefile", ".hidden"):
        (docs / name).write_text("x")
    with pytest.warns(UserWarning, match=r"left out: 2 \.xls, 1 without an ending, 1 \.py") as told:
        made(place("a"), docs, encoder)
    assert len([one for one in told if one.category is UserWarning]) == 1


def test_an_index_is_not_its_own_document(tmp_path: Path, docs: Path) -> None:
    with pytest.raises(DataError, match="is where the index itself is"):
        made(str(docs), docs)
    index = made(str(docs / "index"), docs)
    assert index.report is not None
    assert index.report.skipped == []
    with pytest.raises(DataError, match=r"there is no index .*b yet: name files or folders"):
        Index.create(tmp_path / "b").update()


def test_a_folder_of_nothing_makes_no_index(place: Place, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.exe").write_bytes(b"MZ")
    with pytest.raises(DataError, match="there is no document in"):
        made(place("a"), tmp_path / "docs")
    (tmp_path / "docs" / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"there is nothing to index: .*a.txt is empty"):
        made(place("a"), tmp_path / "docs")
    with pytest.raises(FolderError):
        Index.open(place("a"))
    assert not Path(place("a")).exists()


@pytest.mark.slow
def test_a_million_lines_are_cut_into_passages(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a line\n" * 999_999 + "and a whale\n")
    index = Index.create(tmp_path / "index", None, Chunking(2000, 0))
    index.update([tmp_path / "long.txt"])
    (hit,) = index.search("whale")
    assert hit.passage.text.endswith("and a whale")


# --- what is refused -----------------------------------------------------------------------------------


def test_another_encoder_is_refused(place: Place, docs: Path, encoder: WordEncoder) -> None:
    made(place("a"), docs, encoder)
    for other in (WordEncoder(seed=1), WordEncoder(width=16)):  # the same width; another
        with pytest.raises(FolderError, match="made with another encoder"):
            Index.open(place("a"), other)
        with pytest.raises(FolderError, match="made with another encoder"):
            Index.create(place("a"), other)
    moved = Index.open(place("a"), WordEncoder(name="elsewhere"))
    assert sources(moved, "whales")[0] == "docs/rows.jsonl#a"


def test_an_index_is_made_and_searched_in_one_way(place: Place, docs: Path, encoder: WordEncoder) -> None:
    words = made(place("w"), docs)
    with pytest.raises(ConfigError, match="holds no vectors"):
        words.search("dog", mode="vectors")
    with pytest.raises(ConfigError, match="made of words alone"):
        Index.create(place("w"), encoder)
    with pytest.raises(ConfigError, match="holds passages of 160 words"):
        Index.create(place("w"), None, Chunking(50, 10))
    made(place("v"), docs, encoder)
    blind = Index.open(place("v"))
    assert sources(blind, "whales") == ["docs/rows.jsonl#a"]
    with pytest.raises(ConfigError, match="needs the encoder"):
        blind.search("whales", mode="hybrid")
    with pytest.raises(ConfigError, match="give the encoder"):
        blind.update()
    with pytest.raises(ConfigError, match="no mode 'word'; did you mean 'words'"):
        blind.search("whales", mode="word")


@pytest.mark.parametrize("where", [{"year": None}, {"year": {"gt": 1}}, {"year": [[1]]}])
def test_a_filter_that_is_none_is_refused(place: Place, docs: Path, where: Any) -> None:
    with pytest.raises(ConfigError, match=r"'year' is "):
        made(place("a"), docs).search("whales", where=where)


@pytest.mark.parametrize(
    ("question", "top", "message"),
    [
        (cast("Any", None), 5, "a question is a text"),
        ("x", cast("Any", 1.5), "a number of passages"),
        ("  ", 5, "is empty"),
        ("x" * 100_001, 5, "100,001 characters"),
        ("x", 0, "ask for 1 to"),
        ("x", 10**6, "ask for"),
    ],
)
def test_a_question_that_is_none_is_refused(place: Place, docs: Path, question: str, top: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(place("a"), docs).search(question, top)


@pytest.mark.parametrize("question", ["?", "the of and", "🦄", "' OR 1=1 --", "a" * 50_000, "日本語", "\x00", "\\"])
def test_any_question_is_answered_or_finds_nothing(place: Place, docs: Path, question: str) -> None:
    for index in (made(place("a"), docs, WordEncoder()), made(place("b"), docs)):
        assert len(index.search(question)) <= 5


def test_a_commit_comes_by_time(
    place: Place, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(made(place("fast"), docs, encoder).manifest.segments) == 1
    monkeypatch.setattr(update_module, "PERIOD", 0.0)  # nothing is read in it
    for index in (made(place("slow"), docs, encoder), made(place("words"), docs)):
        assert len(index.manifest.segments) == index.manifest.documents == 5


class Killed(BaseException):
    """The process ends here."""


def test_a_new_index_is_kept_by_time_while_a_slow_encoder_reads(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder that takes a second for a text, by a clock that only it moves, and is killed after 200 of them."""
    now = 0.0

    class SlowEncoder(WordEncoder):
        def encode(self, texts: Any) -> Any:
            nonlocal now
            now += len(texts)
            if now > 200:
                raise Killed
            return super().encode(texts)

    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(250):
        (docs / f"{number:03}.txt").write_text(f"whale number{number}")
    monkeypatch.setattr(update_module.time, "monotonic", lambda: now)
    with pytest.raises(Killed):
        made(place("a"), docs, SlowEncoder())
    index = Index.open(place("a"))
    assert len(index) >= 200 - update_module.PERIOD - 2 * update_module.FIRST
    assert len(index.search("whale", 300)) == len(index)
    assert Index.open(place("a"), WordEncoder()).update().added == 250 - len(index)


def test_an_index_that_has_only_begun_counts_nothing(
    place: Place, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(place("a"), encoder)

    def killed(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(index.store), "write", killed)
        with pytest.raises(Killed):
            index.update([docs])
    with pytest.raises(DataError, match="holds no passage"):
        Index.open(place("a")).search("whale")
    index.update()
    assert (index.manifest.documents, len(index)) == (5, len(made(place("b"), docs, WordEncoder())))


@pytest.mark.slow
def test_a_lock_in_a_database_ends_with_the_update(
    database: str, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    index = made(f"{database}#locks", docs)
    still: list[Any] = []  # connections that have not ended yet
    monkeypatch.setattr(psycopg.Connection, "__exit__", lambda one, *_: still.append(one))
    for _ in range(2):
        with index.store.locked():
            pass
    for one in still:
        one.close()


@pytest.mark.slow
def test_a_database_knows_what_its_tables_hold(
    database: str, docs: Path, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.retrieval.postgres_store.FLAT", 1)  # so that vectors have an index, which counts rows
    index = made(f"{database}#statistics", docs, encoder)
    store: Any = index.store
    query = "SELECT DISTINCT tablename FROM pg_stats WHERE schemaname = %s"
    assert {name for (name,) in store._rows(query, ["statistics"])} == {"passages", "postings", "documents", "files"}
    counted = "SELECT reltuples FROM pg_class WHERE oid = to_regclass('statistics.documents')"
    rows(docs / "rows.jsonl", [f"number{n}" for n in range(30)])
    index.update()
    assert store._rows(counted)[0][0] == index.manifest.documents > 30


def test_a_second_writer_is_refused(place: Place, docs: Path, encoder: WordEncoder) -> None:
    index = made(place("a"), docs, encoder)
    other = Index.open(place("a"), WordEncoder())
    with index.store.locked(), pytest.raises(FolderError, match="being written by another process"):
        other.update()
    assert sources(other, "whales")[0] == "docs/rows.jsonl#a"
    other.update()


def test_a_reader_sees_the_whole_of_an_update_or_nothing(place: Place, docs: Path, encoder: WordEncoder) -> None:
    reader = made(place("a"), docs, encoder)
    before = [hit.passage.text for hit in reader.search("the dog runs", 50)]
    writer = Index.open(place("a"), WordEncoder())
    (docs / "notes.txt").write_text("Nothing of it is left.")
    writer.update()
    if isinstance(reader.store, LanceStore):  # its tables stay as they were
        assert [hit.passage.text for hit in reader.search("the dog runs", 50)] == before
    reader.refresh()
    assert "docs/notes.txt" not in sources(reader, "beach dog", mode="words")
    assert sources(reader, "nothing left", mode="words") == ["docs/notes.txt"]
