"""Documents to index, and an encoder that needs no model: words as the places of a vector."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from legato.retrieval.bm25 import terms_of

GUIDE = """---
language: en
---
# Guide

Legato is a toolkit.

## Install

Run pip install to install the package. It needs Python.

## Cats

The cat sleeps on the mat all day.
"""


def tiny_pdf(stream: bytes, pages: int = 1) -> bytes:
    """A PDF whose pages share one stream of drawing, written by hand, so that nothing else is needed."""
    kids = b" ".join(b"%d 0 R" % (5 + number) for number in range(pages))
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 3 0 R /Resources "
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        *[page + b"<< /Font << /F1 4 0 R >> >> >>"] * pages,
    ]
    made, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    return made + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)


def drawn(text: str) -> bytes:
    """What draws a line of text on a page of a PDF."""
    return f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()


class WordEncoder:
    """A vector that says which words a text has; `seed` makes it another encoder."""

    def __init__(self, seed: int = 0, width: int = 32, name: str = "words") -> None:
        self.seed, self.width, self.name = seed, width, name
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> Any:
        self.encoded += texts
        vectors = np.full((len(texts), self.width), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for term in terms_of(text):
                vectors[row, zlib.crc32(f"{self.seed}{term}".encode()) % self.width] += 1
        return vectors


def write_documents(folder: Path) -> Path:
    """A folder with a document of each plain kind."""
    (folder / "more").mkdir(parents=True)
    (folder / "guide.md").write_text(GUIDE, encoding="utf-8")
    (folder / "notes.txt").write_text("Dogs bark at night.\n\nThe dog runs on the beach.\n", encoding="utf-8")
    (folder / "more" / "page.html").write_text(
        "<title>Birds</title><h2>Owls</h2><p>Owls hunt &amp; fly<script>evil()</script> at night.</p>",
        encoding="utf-8",
    )
    rows = '{"id": "a", "title": "Sea", "text": "Whales swim in the sea.", "year": 1999, "tags": ["big", "wet"]}\n'
    rows += '{"id": "b", "title": "Land", "text": "Zebras run over land.", "year": 2001, "tags": ["striped"]}\n'
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    return folder
