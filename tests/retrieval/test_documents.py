"""Readers of each kind of document, and what is wrong with documents."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

import legato
import legato.retrieval.documents as documents_module
from legato.errors import DataError
from legato.retrieval.chunks import Chunking, chunks_of, count_words
from legato.retrieval.documents import (
    check_document_place,
    document_places,
    files_under,
    read_changes,
    read_documents,
    reading,
)
from legato.retrieval.html_text import html_blocks
from legato.retrieval.markdown import markdown_blocks, plain_blocks
from legato.retrieval.records import Block, Document, FileDocuments
from tiny_documents import GUIDE, drawn, tiny_pdf, write_documents


def locked_pdf(text: str, password: str) -> bytes:
    writer, out = pypdf.PdfWriter(clone_from=io.BytesIO(tiny_pdf(drawn(text)))), io.BytesIO()
    writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def one(path: Path) -> Document:
    (document,) = read_documents(path)
    return document


def test_markdown_has_headings_and_front_matter(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(GUIDE)
    document = one(tmp_path / "a.md")
    assert (document.title, document.metadata) == ("Guide", {"language": "en"})
    assert [block.headings for block in document.blocks] == [(), ("Install",), ("Cats",)]
    for block in document.blocks:
        assert GUIDE[block.start : block.start + len(block.text)] == block.text


def test_a_first_heading_beside_another_title_is_a_heading() -> None:
    title, _, blocks = markdown_blocks("---\ntitle: Quokkas\n---\n# Wallabies\n\ntext\n\n## Food\n\nmore\n")
    assert title == "Quokkas"
    assert [block.headings for block in blocks] == [("Wallabies",), ("Wallabies", "Food")]


def test_text_that_ends_within_a_character_is_being_written(tmp_path: Path) -> None:
    text = "Zürich liegt am Zürichsee. Und hier noch ein ü".encode()
    (tmp_path / "a.txt").write_bytes(text[:-1])
    with pytest.raises(DataError, match="ends within a character"):
        one(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes("in Latin-1 ein ü".encode("latin-1"))
    assert one(tmp_path / "b.txt").blocks[0].text == "in Latin-1 ein ü"


def test_front_matter_may_hold_lists() -> None:
    head = "\n".join(
        [
            *("---", "title: [a, b]", "tags: [setup, 'two words']  # both", "none: []"),
            'authors: ["Doe, Jane", x]',
            *("by:", "  - Ada", "", f"- {'x' * 300}", "- Bob", "year: 1999", "- lost", "said: [sic] he [so]", "---"),
        ]
    )
    title, metadata, _ = markdown_blocks(f"{head}\n# Top\n\ntext\n")
    assert title == "Top"
    assert metadata == {
        "title": ["a", "b"],
        "tags": ["setup", "two words"],
        "authors": ["Doe, Jane", "x"],
        "by": ["Ada", "Bob"],
        "year": "1999",
        "said": "[sic] he [so]",
    }


def test_what_is_in_a_fence_is_no_heading() -> None:
    title, _, blocks = markdown_blocks("Top\n===\n\n```\n# no heading\n\nstill code\n```\nafter\n")
    assert title == "Top"
    assert blocks[0].text.startswith("```\n# no heading\n\nstill code\n```")


def test_html_is_read_without_scripts() -> None:
    page = "<title>T</title><body><h2>One</h2><p>a &lt; b<br>c</p><style>p{}</style><!-- no --><ul><li>x<li>y</ul>"
    title, blocks = html_blocks(page)
    assert (title, [block.text for block in blocks]) == ("T", ["a < b\nc", "x\ny"])
    assert blocks[0].headings == ("One",)


def test_a_reference_of_any_length_is_read() -> None:
    """Python makes no number of more than 4,300 digits."""
    _, blocks = html_blocks(f"<p>a&#{'1' * 4301};b &#x{'f' * 9999}; &#65;")
    assert blocks[0].text == "a\ufffdb \ufffd A"


def test_a_pdf_is_read_by_pages(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(tiny_pdf(drawn("Hello from a page")))
    document = one(tmp_path / "a.pdf")
    assert [(block.text, block.page) for block in document.blocks] == [("Hello from a page", 1)]


def test_a_packed_pdf_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.pdf.gz").write_bytes(gzip.compress(tiny_pdf(drawn("Hello"), pages=2)))
    assert [(block.text, block.page) for block in one(tmp_path / "a.pdf.gz").blocks] == [("Hello", 1), ("Hello", 2)]


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("PDF_SECONDS", 1, "a.pdf takes more than 1 s of computing"),
        ("MAX_PAGES", 99, "a.pdf has 300 pages, more than 99"),
    ],
)
def test_a_pdf_has_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str
) -> None:
    """Pages may share a stream, so that they are many and heavy while the file is small."""
    (tmp_path / "a.pdf").write_bytes(tiny_pdf(drawn("Hello") * 3000, pages=300))
    monkeypatch.setattr(documents_module, limit, value)
    with pytest.raises(DataError, match=message):
        one(tmp_path / "a.pdf")


def test_zero_bytes_of_rows_reach_no_store(tmp_path: Path) -> None:
    row = dict.fromkeys(("id", "text", "title", "k\x00ey"), "a\x00b") | {"tags": ["a\0b", "c"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    document = one(tmp_path / "a.jsonl")
    assert (document.key, document.title, document.blocks[0].text) == ("ab", "ab", "ab")
    assert document.metadata == {"tags": ["c"]}


def test_rows_are_documents(tmp_path: Path) -> None:
    table = {"text": ["one", "two", None], "year": [1, 2, 3], "tags": [["x"], [], []]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    documents = list(read_documents(tmp_path / "a.parquet"))
    assert [document.metadata["year"] for document in documents] == [1, 2]
    rows = b'{"_id": "x", "body": "one"}\n\n{"_id": "x", "body": "two", "n": %s}\n' % (b"9" * 5000)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows))
    assert [document.key for document in read_documents(tmp_path / "b.jsonl.gz")] == ["x", "x~2"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.md", b" \n\n ", "holds no text"),
        ("binary.txt", b"\x00\x01\x02\xff", "is binary"),
        ("binary2.md", b"\xff\x02abc", "is binary"),
        ("tags.html", b"<p></p><script>x</script>", "holds no text"),
        ("locked.pdf", locked_pdf("secret", "key"), "is encrypted"),
        ("cut.pdf", tiny_pdf(drawn("Hello"))[:60], "is no PDF"),
        ("fake.pdf", b"hello", "is no PDF"),
        ("fake.parquet", b"hello", "cannot be read: ArrowInvalid"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": ', "line 2: not JSON"),
        ("deep.jsonl", b"[" * 100_000, "line 1: not JSON that can be read, since it is nested too deeply"),
        ("list.jsonl", b"[1]\n", "line 1 is no row"),
        ("other.jsonl", b'{"x": "a"}\n', "none of the columns text"),
        ("none.jsonl", b'{"text": ""}\n', "holds no row with a text"),
        ("number.jsonl", b'{"text": "a"}\n{"text": 5}\n', "row 2: 'text' is no text"),
        ("surrogate.jsonl", b'{"text": "\\ud800"}\n', "is no text"),
    ],
)
def test_what_is_wrong_with_a_document_is_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message), reading(tmp_path / name):
        list(read_documents(tmp_path / name))


def test_latin_1_is_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Zürich am See".encode("latin-1"))
    assert one(tmp_path / "a.txt").blocks[0].text == "Zürich am See"


HOSTILE = {
    "nested": ("> " * 20_000) + "deep\n" + ("- " * 20_000) + "\n",
    "brackets": "[" * 100_000 + "](" * 50_000,
    "unclosed fence": "```\n" + "# x\n" * 100_000,
    "huge line": "word " * 100_000,
    "one word": "x" * 1_000_000,
    "headings": "#" * 200_000 + "\n" + "# a\n" * 20_000 + "end",
    "underlines": "a\n" + "=" * 200_000 + "\n" + "b\n-\n" * 20_000,
    "lines": "a line\n" * 100_000,
    "tags": "<" * 100_000 + "<a " * 50_000 + "<!--" * 50_000,
    "scripts": "<script>" * 100_000,
    "entities": "&#x26;" * 100_000 + "&" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("ending", ["md", "html", "txt"])
def test_hostile_text_takes_no_longer_than_its_length(tmp_path: Path, name: str, ending: str) -> None:
    """What took the square of it would not end."""
    (tmp_path / f"a.{ending}").write_text(HOSTILE[name])
    try:
        document = one(tmp_path / f"a.{ending}")
    except DataError as problem:
        if "holds no text" not in str(problem):
            raise
        return
    chunks = list(chunks_of(document, Chunking()))
    assert all(len(chunk.text) < 20_000 for chunk in chunks)


TEXTS = st.text(st.sampled_from("ab. \n#`-日x!?"), max_size=400)


@given(TEXTS, st.integers(1, 30), st.integers(0, 10))
def test_chunks_cover_the_text_and_are_no_longer_than_asked(text: str, size: int, overlap: int) -> None:
    document = Document("", "", plain_blocks(text))
    chunks = list(chunks_of(document, Chunking(size, min(overlap, size // 2))))
    assert all(count_words(chunk.text) <= size for chunk in chunks)
    places = {place for chunk in chunks for place in range(chunk.start, chunk.end)}
    assert all(letter.isspace() or place in places for place, letter in enumerate(text))


def test_neighbours_share_sentences_and_no_section_is_mixed() -> None:
    block = Block("One two three four. Five six seven. Eight nine ten eleven.", 0, ("A",))
    chunks = list(chunks_of(Document("", "", [block, Block("Other part.", 80, ("B",))]), Chunking(10, 4)))
    assert [chunk.heading for chunk in chunks] == ["A", "A", "B"]
    assert chunks[1].text.startswith("Five six seven.")


def test_a_size_of_zero_leaves_documents_whole() -> None:
    _, _, blocks = markdown_blocks(GUIDE)
    assert len(list(chunks_of(Document("", "", blocks), Chunking(0, 0)))) == 1


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    docs = write_documents(tmp_path / "docs")
    (tmp_path / "secret.txt").write_text("secret")
    (docs / "link.txt").symlink_to(tmp_path / "secret.txt")
    (docs / "up").symlink_to(tmp_path)
    (docs / ".hidden.txt").write_text("hidden")
    skipped: list[str] = []
    names = [path.name for path in files_under(docs, skipped)]
    assert names == ["guide.md", "notes.txt", "rows.jsonl", "page.html"]
    assert len(skipped) == 1
    assert "link out of the folder" in skipped[0]


def test_a_slip_in_a_name_is_told(tmp_path: Path) -> None:
    docs = write_documents(tmp_path / "docs")
    with pytest.raises(DataError, match=r"did you mean '.*guide.md'"):
        check_document_place(docs / "giude.md")
    (docs / "a.exe").write_bytes(b"MZ")
    with pytest.raises(DataError, match="no document that can be read"):
        check_document_place(docs / "a.exe")


def test_of_lines_that_are_alike_each_is_known_once(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    line = '{"text": "one"}\n'
    file.write_text(line * 3)
    first = list(read_documents(file))
    known = FileDocuments("a.jsonl", [one.key for one in first], [one.digest for one in first], [0, 1, 2], [1, 1, 1])
    assert read_changes(file, None, known) == ([], [0, 1, 2])
    file.write_text(line * 2)
    assert read_changes(file, None, known) == ([], [0, 1])
    file.write_text(line * 4)
    (new,), same = read_changes(file, None, known)
    assert same == [0, 1, 2]
    assert new.key not in known.keys


def test_lines_that_are_known_are_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "x", "text": "one"}\n{"id": "x", "text": "two"}\n{"id": "y", "text": "three"}\n')
    first = list(read_documents(file))
    columns = [one.key for one in first], [one.digest for one in first], [0, 1, 2], [1, 1, 1]
    known = FileDocuments("a.jsonl", *columns)
    assert read_changes(file, None, known) == ([], [0, 1, 2])
    assert (list(known.without()), list(known.without([0, 2]))) == (["x", "x~2", "y"], ["x~2"])
    file.write_text('{"id": "x", "text": "new"}\n{"id": "x", "text": "one"}\n{"id": "x", "text": "two"}\n')
    (new,), same = read_changes(file, None, known)
    assert (new.key, new.blocks[0].text, same) == ("x~3", "new", [0, 1])  # whose keys stay theirs
    assert [len(each) for each in read_changes(file, "id", known)] == [3, 0]  # another column is another text
    file.write_text('{"id": "x", "text": "one"}\n{"id": \n')
    with pytest.raises(DataError, match="line 2: not JSON"):
        read_changes(file, None, known)


def test_rows_of_csv_and_tsv_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,title,text,year\n7,Cats,"They sleep, mostly.",1999\n8,,"",2000\n')
    (tmp_path / "b.tsv").write_text("Dogs bark.\tA\nCats sleep.\tB\n")
    document = one(tmp_path / "a.csv")
    assert (document.key, document.title, document.metadata) == ("7", "Cats", {"id": "7", "year": "1999"})
    assert [found.blocks[0].text for found in read_documents(tmp_path / "b.tsv", "1")] == [
        "Dogs bark.",
        "Cats sleep.",
    ]
    with pytest.raises(DataError, match=r"b\.tsv, row \d has none of the columns text.*choose with --column"):
        list(read_documents(tmp_path / "b.tsv"))


def test_texts_in_memory_and_patterns_are_indexed(tmp_path: Path) -> None:
    found = legato.index([{"text": "Cats sleep a lot."}, {"text": "Dogs bark."}], out=tmp_path / "index")
    assert found.search("bark")[0].passage.text == "Dogs bark."
    again = legato.index(["Cats sleep a lot.", "Birds sing loudly."], out=tmp_path / "index").report
    assert again is not None
    assert (again.added, again.removed, again.unchanged) == (1, 1, 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"File {name} is here.")
    assert document_places([tmp_path / "?.txt"]) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    with pytest.raises(DataError, match=r"there is no .*nowhere to index"):
        legato.index(["nowhere"], out=tmp_path / "none")
    with pytest.raises(DataError, match=r"an index in a database is of files"):
        legato.index(["Cats sleep a lot."], out="postgresql://nowhere/x#y")
