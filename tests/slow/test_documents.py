"""An index beside what is hostile: 2,000 documents that break readers, and 200 kills, of new indexes and of updates.

A run takes a share of both (campaign_share.py).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from campaign_share import rounds, seed, select

DOCUMENTS = 2000  # hostile ones
GOOD = 20  # documents beside them
KILLS = 200
FILES = 16  # documents of an index that is killed
INDEX = """
import sys
import legato.retrieval.documents as documents
from legato.cli import main
documents.PDF_SECONDS = 2  # beside 20, so that the campaign ends
main()
"""
WORDS = (
    "aardvark badger camel dingo echidna ferret gecko heron ibis jackal koala lemur marmot newt ocelot puffin quail"
)
NAME = re.compile(r"(?:hostile|[aimz]-good)-\d+(?:\.\w+)+")  # of a document
NAMES = [*WORDS.split(), "raccoon", "sloth", "tapir"]  # what tells the good documents apart


def index(*words: object) -> subprocess.CompletedProcess[str]:
    """`legato index`, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", INDEX, "index", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


# --- hostile documents ---------------------------------------------------------------------------------


def write_good(folder: Path) -> dict[str, str]:
    """Documents of every kind, by their names among the hostile ones; the word that only each of them holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tiny_documents import drawn, tiny_pdf

    words = {}
    for number, name in enumerate(NAMES):
        ending = ("txt", "md", "html", "pdf", "jsonl", "parquet")[number % 6]
        path, text = folder / f"{'aimz'[number % 4]}-good-{number}.{ending}", f"The {name} lives here"
        if ending == "pdf":
            path.write_bytes(tiny_pdf(drawn(text)))
        elif ending == "parquet":
            pq.write_table(pa.table({"id": ["x"], "text": [text]}), path)
        else:
            path.write_text({"jsonl": json.dumps({"id": "x", "text": text}), "html": f"<p>{text}"}.get(ending, text))
        words[name] = f"{folder.name}/{path.name}{'#x' if ending in ('jsonl', 'parquet') else ''}"
    assert len(words) == GOOD
    return words


def check(done: subprocess.CompletedProcess[str], place: Path, words: dict[str, str]) -> dict[str, str]:
    """The good documents are found, and of each other one that is not there a line says why: these, by its name."""
    from legato.retrieval.index import Index

    report = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fault of ours" not in done.stderr
    assert "Traceback" not in done.stderr
    notes = done.stderr.splitlines()
    assert all(line.startswith("legato: note: ") and line.isprintable() for line in notes)
    assert len(set(report["skipped"])) == len(notes) == report["unread"]
    made = Index.open(place)
    for word, source in words.items():
        assert [hit.passage.source for hit in made.search(word)][:1] == [source], word
    made.close()
    unread = {match.group(): line for line in report["skipped"] if (match := NAME.search(line))}
    assert len(unread) == report["unread"]
    return unread


def test_good_documents_are_found_beside_hostile_ones(tmp_path: Path) -> None:
    from fuzzing.documents import document

    docs, place = tmp_path / "docs", tmp_path / "index"
    docs.mkdir()
    words = write_good(docs)
    numbers = select(range(DOCUMENTS))
    for number in numbers:
        name, content = document(number)
        (docs / name).write_bytes(content)
    began = time.monotonic()
    unread = check(index(docs, "--out", place, "--json"), place, words)
    first = time.monotonic() - began
    broken = [source.partition("/")[2].partition("#")[0] for source in list(words.values())[:10]]
    for name in broken:  # which stay in the index as they were
        (docs / name).write_bytes(b"{\x00\xff&#")
    again = check(index("--out", place, "--json"), place, words)
    print(f"{len(numbers)} hostile documents, {len(unread)} unread in {first:.0f} s; again {len(again)} unread")
    # What takes too long once may not another time.
    slow = {name for lines in (unread, again) for name, line in lines.items() if "takes more than" in line}
    assert again.keys() - slow == (unread.keys() | set(broken)) - slow


# --- kills ---------------------------------------------------------------------------------------------


def test_a_kill_loses_no_more_than_the_last_interval(tmp_path: Path) -> None:
    """In a process that has loaded the libraries, so that those which it forks need not."""
    count = rounds(KILLS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(tmp_path), str(count), str(seed())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    print(done.stdout)


def inside(words: list[str], log: Path, journal: Path | None) -> None:
    """`legato WORDS` in this process, whose commits come after each hundredth of a second, and are noted."""
    import legato.retrieval.update as update
    from legato.cli import main
    from legato.retrieval.lance_store import LanceStore

    sys.stdout = sys.stderr = log.open("a", buffering=1)
    sys.argv = ["legato", *words]
    update.PERIOD, update.FRESH = 0.01, -1  # type: ignore[misc]
    os.fsync = lambda handle: None  # type: ignore[assignment]  # a kill, unlike a power cut, loses no written page
    write = LanceStore.write

    def noted(self: Any, commit: Any, manifest: Any) -> None:
        files = [one.source for one in commit.files if one.digest] + commit.removed_files
        write(self, commit, manifest)
        note(files)

    def note(sources: list[str]) -> None:
        if journal is not None:
            with journal.open("a") as file:
                file.write("".join(f"{source}\n" for source in ["", *sources]))

    LanceStore.write = noted  # type: ignore[method-assign]
    note([])
    main()


class Campaign:
    """Folders whose index is made, changed and killed, and what it may hold then."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.draw = folder, random.Random(number)
        self.docs, self.place = folder / "docs", folder / "index"
        self.context = multiprocessing.get_context("fork")
        self.took = 1.0  # seconds of an index that nobody kills
        self.kills = self.new = self.noted = 0
        self.found: dict[str, str] = {}  # what the index holds
        self.docs.mkdir(parents=True)

    def run(self, words: list[Any], kill: bool = False) -> tuple[int, str, set[str]]:
        """A command in a process of its own; its exit code, what it said, and which files it said to be committed."""
        log, journal = self.folder / "log", self.folder / "journal"
        for path in (log, journal):
            path.unlink(missing_ok=True)
        process = self.context.Process(target=inside, args=([str(word) for word in words], log, journal))
        process.start()
        while not journal.exists() and process.is_alive():
            time.sleep(0.001)
        began = time.monotonic()
        process.join(self.draw.uniform(0, 1.1 * self.took) if kill else 120)
        if process.exitcode is None:
            process.kill()
            process.join()
        elif not kill:
            self.took = (self.took + time.monotonic() - began) / 2 if words[0] == "index" else self.took
        noted = set(journal.read_text().split("\n")[:-1]) - {""} if journal.exists() else set()
        assert process.exitcode is not None
        return process.exitcode, log.read_text() if log.exists() else "", noted

    def search(self) -> dict[str, str]:
        """Which version of each document `legato search` finds."""
        code, text, _ = self.run(["search", self.place, "whale", "--top", 1000, "--json"])
        if code == 2 and ("is no index" in text or "holds no passage" in text):
            return {}
        assert code == 0, text
        hits = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        found = {hit["source"]: hit["text"].split()[-1] for hit in hits}
        assert len(found) == len(hits), "a document is there twice"
        return found

    def change(self, version: int) -> dict[str, str]:
        """Other files: some changed, some new, some gone; the version of each that is there."""
        for number in range(FILES):
            path = self.docs / f"{number:03}.txt"
            what = self.draw.random()
            if what < 0.15 and version:
                path.unlink(missing_ok=True)
            elif what < 0.6 or not version:
                path.write_text(f"whale v{version}")
        return {f"docs/{path.name}": path.read_text().split()[-1] for path in self.docs.iterdir()}

    def round(self, version: int, *, kill: bool) -> None:
        """Change the files, index them and maybe kill that, and look at what is there."""
        before, now = self.found, self.change(version)
        code, text, noted = self.run(["index", self.docs, "--out", self.place], kill)
        assert code in ((-9, 0) if kill else (0,)), text
        found = self.found = self.search()
        if code == 0:
            assert found == now
            return
        self.kills += 1
        self.new += not before
        self.noted += len(noted) > 0
        for source in before.keys() | now.keys() | found.keys():
            allowed = {now.get(source)} if source in noted else {before.get(source), now.get(source)}
            assert found.get(source) in allowed, (source, found.get(source), allowed)


def main(folder: Path, count: int, number: int) -> None:
    os.environ["LANCE_LOG"] = os.environ["LANCEDB_LOG"] = "error"
    import lancedb  # noqa: F401

    import legato.cli.index
    import legato.cli.search
    import legato.rag
    import legato.retrieval.index  # noqa: F401

    warnings.simplefilter("ignore")
    began, done = time.monotonic(), list[Campaign]()
    while (kills := sum(one.kills for one in done)) < count:
        campaign = Campaign(folder / str(len(done)), number + len(done))
        if done:
            campaign.took = done[-1].took
        for version in range(4):
            campaign.round(version, kill=bool(done))  # the first says how long one takes
        campaign.round(4, kill=False)
        done.append(campaign)
    new, noted = sum(one.new for one in done), sum(one.noted for one in done)
    print(f"{kills} kills ({new} of new indexes, {noted} behind a commit) in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
