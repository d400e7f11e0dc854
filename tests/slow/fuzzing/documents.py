"""Documents that break readers: of each kind that an index reads, damaged anywhere, or made to be hard to read."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import zlib
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq
import pypdf

from tiny_documents import GUIDE, drawn, tiny_pdf

PAGE = "<!doctype html><title>Birds</title><body><h2>Owls</h2><p>Owls hunt &amp; fly.</p></body></html>"
LARGE = 50_000  # how often something is repeated
BOMB = 300_000_000  # bytes that come of a bomb

Draw = random.Random


def document(number: int) -> tuple[str, bytes]:
    """The name and the content of the hostile document of this number, the same whenever it is made."""
    draw = Draw(f"document {number}")
    ending = draw.choice(list(WHOLE))
    content = draw.choice(HOSTILE[ending])(draw) if draw.random() < 0.5 else WHOLE[ending](draw)
    for _ in range(draw.choice((0, 1, 1, 3)) if content not in (b"", None) else 0):
        content = draw.choice(DAMAGES)(content, draw)
    if draw.random() < 0.05:
        content, ending = draw.choice((content, gzip.compress(content))), f"{ending}.gz"
    return f"hostile-{number:04}.{ending}", content


# --- damage --------------------------------------------------------------------------------------------


def cut(content: bytes, draw: Draw) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def flip(content: bytes, draw: Draw) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 5, 50))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def insert(content: bytes, draw: Draw) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice((b"\0", b"\xff\xfe", draw.randbytes(20), b"x" * LARGE)) + content[place:]


def double(content: bytes, draw: Draw) -> bytes:
    first, second = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:second] + content[first:]


def change_number(content: bytes, draw: Draw) -> bytes:
    """Another number in the place of one of the document's: lengths, counts, references."""
    found = re.compile(rb"\d").search(content, draw.randrange(len(content) + 1))
    if found is None:
        return content
    place = found.start()
    return content[:place] + draw.choice((b"0", b"-1", b"99999999999", b"9" * 5000, b"1e999")) + content[place + 1 :]


def encode(content: bytes, draw: Draw) -> bytes:
    text = content.decode("latin-1")
    return text.encode(draw.choice(("utf-16", "utf-32", "utf-7", "cp037", "utf-8-sig")))


DAMAGES: list[Callable[[bytes, Draw], bytes]] = [cut, flip, insert, double, change_number, encode]


# --- texts ---------------------------------------------------------------------------------------------

TEXTS: list[Callable[[Draw], bytes]] = [
    lambda draw: b"&#" + b"9" * draw.choice((10, 4301, LARGE)) + b";",
    lambda draw: draw.choice((b"&#x110000;", b"&#xd800;", b"&" * LARGE, b"&amp" * LARGE, b"&#x" + b"f" * LARGE)),
    lambda draw: draw.choice((b"<div>", b"> ", b"- ", b"[", b"<!--", b"<a ", b"<script>", b"# ", b"```\n")) * LARGE,
    lambda draw: draw.choice((b"x", b"\xc3\xa9", "日".encode(), "\u0301".encode(), b"'s")) * LARGE * 10,
    lambda draw: b"---\n" + b"key: [a, b]\n" * draw.choice((60, 800)) + b"---\ntext",
    lambda draw: bytes(range(1, 32)) * 100,
    lambda draw: b"\x1b[31m red " + b"\xe2\x80\xae backwards \r\n" * 10,
    lambda draw: draw.randbytes(10_000),
    lambda draw: b"",
    lambda draw: b" \n" * LARGE,
]
ROWS: list[Callable[[Draw], bytes]] = [
    lambda draw: b'{"text": ' + draw.choice((b"[", b'{"a":')) * LARGE,
    lambda draw: b'{"text": "a", "n": ' + b"9" * draw.choice((400, 5000)) + b"}",
    lambda draw: b'{"text": "\\ud800", "id": "\\u0000"}',
    lambda draw: b'{"text": "\\u0000a\\u0000", "id": 1e999, "k\\u0000": NaN}',
    lambda draw: b'{"text": "a", "text": {"b": 1}}\n' * 100,
    lambda draw: b"".join(b'{"text": "a", "%d": [[[1]]]}\n' % number for number in range(1000)),
    lambda draw: b"{" + b", ".join(b'"k%d": %d' % (n, n) for n in range(LARGE)) + b', "text": "a"}',
]


def table(draw: Draw) -> bytes:
    out = io.BytesIO()
    columns = {"text": ["an owl", None, "a cat"], "year": [1, 2, 3], "tags": [["x"], [], None]}
    pq.write_table(pa.table(columns), out, compression=draw.choice(("snappy", "gzip", "zstd", "none")))
    return out.getvalue()


def wide_table(draw: Draw) -> bytes:
    """One long text that each row names."""
    out = io.BytesIO()
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * LARGE, pa.int32()), pa.array(["owl " * LARGE]))
    pq.write_table(pa.table({"text": texts}), out)
    return out.getvalue()


# --- PDF -----------------------------------------------------------------------------------------------


def packed_pdf(draw: Draw) -> bytes:
    """As most programs write them: objects in compressed streams, and a table of places that is one, too."""
    writer, out = pypdf.PdfWriter(clone_from=io.BytesIO(tiny_pdf(drawn("Owls hunt"), pages=3))), io.BytesIO()
    for page in writer.pages:
        page.compress_content_streams()
    writer.write(out)
    return out.getvalue()


def pdf_of(*objects: bytes) -> bytes:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    made, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return made + head + table + b"trailer << /Size 99 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % len(made)


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


def page_pdf(contents: bytes, resources: bytes = b"<< >>", *more: bytes) -> bytes:
    """A page whose contents are object 4; `more` are the objects from 5 on."""
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources %s >>" % resources
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return pdf_of(b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, contents, *more)


def tree_pdf(draw: Draw) -> bytes:
    """Trees of pages that end nowhere, or are small and have endlessly many leaves."""
    catalogue, levels = b"<< /Type /Catalog /Pages 2 0 R >>", 30
    kind = draw.randrange(4)
    if kind == 0:
        return pdf_of(catalogue, b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>")
    if kind == 1:
        kids = [b"<< /Type /Pages /Kids [%d 0 R %d 0 R] /Count 2 >>" % (n, n) for n in range(3, levels + 3)]
        return pdf_of(catalogue, *kids, b"<< /Type /Page /MediaBox [0 0 9 9] >>")
    if kind == 2:
        kids = [b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % n for n in range(3, 3000)]
        return pdf_of(catalogue, *kids, b"<< /Type /Page /MediaBox [0 0 9 9] >>")
    counts = (b"-1", b"99999999999999999999", b"2 0 R", b"(x)", b"1e99")
    return pdf_of(
        catalogue, b"<< /Type /Pages /Kids [3 0 R] /Count %s >>" % draw.choice(counts), b"<< /Type /Page >>"
    )


def bomb_pdf(draw: Draw) -> bytes:
    """Streams that unpack to very much, once or again and again, or say a wrong length."""
    unit = draw.choice((b"\0", b"(a) Tj ", b"q ", b"[ ", b"<<", b"1 "))
    content = packed(unit, draw.choice((BOMB, BOMB // 100)))
    filters = b"/Filter [/FlateDecode%s]" % (b" /FlateDecode" * draw.choice((0, 40)))
    if draw.random() < 0.3:
        filters += b" /DecodeParms << /Predictor 15 /Columns 99999999 >>"
    made = page_pdf(stream(content, filters))
    length = b"/Length %d" % len(content)
    return made.replace(length, draw.choice((length, b"/Length 4 0 R", b"/Length 999999999999", b"/Length -5")))


@lru_cache
def packed(unit: bytes, size: int) -> bytes:
    packer, block = zlib.compressobj(1), unit * 100_000
    return b"".join([*(packer.compress(block) for _ in range(size // len(block))), packer.flush()])


def drawing_pdf(draw: Draw) -> bytes:
    """Contents of a page that are nested deeply, draw themselves, or are many of one."""
    kind = draw.randrange(5)
    if kind == 0:
        unit = draw.choice((b"q ", b"[", b"<<", b"(", b"<", b"BT ", b"/F1 12 Tf ", b"BI ID ", b"/"))
        return page_pdf(stream(unit * draw.choice((500, LARGE))))
    if kind == 1:
        form = stream(b"/X Do " * 10, b"/Type /XObject /Subtype /Form /Resources << /XObject << /X 5 0 R >> >>")
        return page_pdf(stream(b"/X Do"), b"<< /XObject << /X 5 0 R >> >>", form)
    if kind == 2:
        return page_pdf(b"[" + b"5 0 R " * 2000 + b"]", b"<< >>", stream(b"(a) Tj " * 2000))
    if kind == 3:
        return tiny_pdf(drawn("Hello") * 500, pages=5000)
    return page_pdf(b"[" * draw.choice((500, LARGE)))


def font_pdf(draw: Draw) -> bytes:
    """Fonts that name themselves, and tables of characters without end."""
    ranges = (
        b"<0000> <ffffffff> <0000>",
        b"<0000> <ffff> [<00> <01>]",
        b"<00> <ff> <" + b"61" * LARGE + b">",
        b"<zz> <> <",
    )
    cmap = b"begincmap\n1 beginbfrange\n%s\nendbfrange\nendcmap" % draw.choice(ranges)
    font = b"<< /Type /Font /Subtype /Type0 /BaseFont /A /Encoding %s /DescendantFonts [5 0 R] /ToUnicode %s >>" % (
        draw.choice((b"/Identity-H", b"5 0 R", b"<< /Differences [" + b"0 /a " * LARGE + b"] >>")),
        draw.choice((b"6 0 R", b"5 0 R")),
    )
    return page_pdf(stream(drawn("Hello")), b"<< /Font << /F1 5 0 R >> >>", font, stream(cmap))


def places_pdf(draw: Draw) -> bytes:
    """Tables of places that lead back to themselves, and objects in streams that hold themselves."""
    kind = draw.randrange(3)
    whole = page_pdf(stream(drawn("Hello")))
    if kind == 0:
        start = whole.rindex(b"xref\n0 ")
        return whole.replace(b"/Size 99", b"/Size 99 /Prev %d" % start)
    if kind == 1:
        return whole.replace(b"/Size 99", b"/Size 99999999999 /XRefStm 5 /Encrypt 4 0 R")
    entries = b"/Type /ObjStm /N %s /First 4 /Extends 4 0 R" % draw.choice((b"1", b"99999999999", b"-1"))
    places = stream(b"abcd", b"/Type /XRef /Size 9 /W [1 9999999 1] /Index [0 99999999] /Root 1 0 R")
    whole = page_pdf(stream(b"4 0 << >>", entries))
    return whole + b"9 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF\n" % (places, len(whole))


PDFS = [tree_pdf, bomb_pdf, drawing_pdf, font_pdf, places_pdf]

WHOLE: dict[str, Callable[[Draw], bytes]] = {
    "html": lambda draw: PAGE.encode(),
    "md": lambda draw: GUIDE.encode(),
    "txt": lambda draw: b"Dogs bark.\n\nThe dog runs on the beach.\n",
    "jsonl": lambda draw: b"".join(b"%s\n" % json.dumps({"id": n, "text": f"row {n}"}).encode() for n in range(9)),
    "parquet": table,
    "pdf": lambda draw: draw.choice((tiny_pdf(drawn("Owls hunt"), pages=3), packed_pdf(draw))),
}
HOSTILE: dict[str, list[Callable[[Draw], bytes]]] = {
    "html": TEXTS,
    "md": TEXTS,
    "txt": TEXTS,
    "jsonl": [*ROWS, *TEXTS[:4]],
    "parquet": [wide_table, TEXTS[7]],
    "pdf": PDFS,
}
