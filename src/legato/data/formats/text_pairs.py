"""Pairs of texts, a source and its target: sentences and their translations, articles and their summaries.

Notable here:
- pairs come from two aligned files, from two columns of a table or of a dataset on the hub, or, with
  `directions`, from one file per language; a `tag` then says which language a pair's target is in;
- only a newline ends a line: an aligned file may hold U+2028 or a form feed, and stays aligned;
- where no columns are named they are guessed, and `note` says what was guessed;
- a part is held out by a hash of the source, so that all translations of one sentence stay together
  and adding pairs moves no other pair from one part to another;
- `tidy` is what every text goes through, in training and in prediction alike;
- pairs that are empty on one side, too long, or of very different lengths are mostly faults of alignment: `clean` and
  `filter_lengths` leave them out, count them, and name the first of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.rows import NumberedRows
from legato.data.sources.columns import TEXT_PAIRS
from legato.data.sources.files import FileOptions, load_text, no_file, resolve_path, unify_newlines
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import kind_of, locate, read_table
from legato.data.splits import by_hash
from legato.errors import DataError, brief, listed

TEXTS = TEXT_PAIRS.roles[0]
# ISO 639-1, and the 639-3 codes that corpora use in their place.
LANGUAGES: Final = """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
    ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
    ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st
    su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    ara bel ben bul cat ces cmn dan deu ell eng epo est eus fas fil fin fra gle glg heb hin hrv hun hye ind isl ita
    jpn kat kaz khm kor lat lav lit mar mkd mon msa mya nep nld nob nor pol por ron rus slk slv spa sqi srp swa swe
    tam tel tgl tha tur ukr urd vie yue zho
"""
RATIO_FROM: Final = 10  # tokens; below, "Yes." may well be three times as long in another language
CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")  # all but tab and newline


@dataclass(frozen=True, kw_only=True)
class Pairs(NumberedRows):
    """Sources and targets, where they came from, and the hash that names their content."""

    sources: list[str]
    targets: list[str]
    tags: list[str] | None = None  # the language of each target, where the data has several directions
    origins: list[str] | None = None  # the direction each pair was read for, where there are several

    by_row: ClassVar[tuple[str, ...]] = ("lines", "sources", "targets", "tags", "origins")

    def content_hash(self) -> str:
        return sha256_of(sized_columns((self.sources, self.targets, self.tags or []), self.where))

    def place(self, row: int) -> str:
        """Where a pair stands, for messages: `line 17`, or `line 17 of en-de`."""
        line = super().place(row)
        return line if self.origins is None else f"{line} of {self.origins[row]}"


def tidy(text: str) -> str:
    """`text` with a space for each control character but tab and newline, and none at its ends.

    >>> tidy(" a\\x00b\\ufeffc\\u3000")
    'a b c'
    """
    return (CONTROLS.sub(" ", text) if CONTROLS.search(text) else text).strip()


def read_pairs(
    source: str | Sequence[str],
    files: FileOptions = FileOptions(),
    *,
    columns: Sequence[Column] | None = None,
    directions: Sequence[str] | None = None,
    tag_column: Column | None = None,
) -> Pairs:
    """Pairs from two aligned files, from a table, from the hub, or from one file per language.

    Two names are two aligned text files, unless they are tables. A table has two columns, guessed unless
    `columns` names them; `tag_column` holds the language of each target. With `directions` one name
    stands for many files: `{}` in it is the language. Texts come out tidy, and may be empty: see `clean`.

    >>> read_pairs(["train.en", "train.de"])  # doctest: +SKIP
    >>> read_pairs("deu.txt.gz", FileOptions(format="tsv")).note  # doctest: +SKIP
    'columns 1 and 2, no header'
    >>> read_pairs("train.{}", directions=["en-de", "de-en", "en-fr"])  # doctest: +SKIP
    """
    if directions:
        if not isinstance(source, str) or "{}" not in source:
            named = source if isinstance(source, str) else listed(source)
            raise DataError(
                f"'{brief(named)}' has no {{}} for the language, as data.directions needs: write train.{{}}"
            )
        if columns or tag_column is not None:
            raise DataError("data.directions reads aligned files, which have no columns; leave out one of the two")
        return _read_directions(source, directions, files)
    if isinstance(source, str) or _are_tables(source, files):
        if "{}" in source:
            raise DataError(
                f"'{brief(source)}' stands for several languages; say which: data.directions=[en-de,de-en]"
            )
        TEXT_PAIRS.check(columns)
        return _read_columns(source if isinstance(source, str) else list(source), columns, tag_column, files)
    if len(source) != 2:
        raise DataError(f"[{listed(source)}] is not two files; aligned texts are two, [SOURCE,TARGET]")
    if columns or tag_column is not None:
        raise DataError(f"[{listed(source)}] are aligned files, which have no columns; leave out data.columns")
    (left, sources), (right, targets) = (_read_lines(name, files) for name in source)
    _check_aligned(left, sources, right, targets)
    lines = list(range(1, len(sources) + 1))
    return _tidied(sources, targets, source=f"{source[0]} + {source[1]}", lines=lines)


def _tidied(sources: list[str], targets: list[str], *, note: str = "", **more: Any) -> Pairs:
    """Pairs of these texts made tidy; `note` says of how many."""
    bad = sum(len(CONTROLS.findall(text)) for column in (sources, targets) for text in column)
    if bad:
        changed = f"{bad:,} control character{'s' * (bad > 1)} replaced by a space"
        note = f"{note}; {changed}" if note else changed
    return Pairs(sources=[*map(tidy, sources)], targets=[*map(tidy, targets)], note=note, **more)


# --- aligned files -------------------------------------------------------------------------------


def _read_lines(name: str, files: FileOptions) -> tuple[Path, list[str]]:
    path = resolve_path(name, files.root)
    if not path.exists():
        raise no_file(path)
    if kind_of(path) != "text":
        raise DataError(f"{path} is a table; name it alone, with data.columns=[SOURCE,TARGET]")
    # Not splitlines, which also splits at U+2028 and its like.
    lines = load_text(path, files.encoding, files.max_line).split("\n")
    return path, lines[:-1] if lines[-1] == "" else lines


def _check_aligned(left: Path, sources: Sized, right: Path, targets: Sized) -> None:
    if len(sources) == len(targets):
        return
    longer, first = (left, len(targets) + 1) if len(sources) > len(targets) else (right, len(sources) + 1)
    count = "1 line" if len(sources) == 1 else f"{len(sources):,} lines"
    raise DataError(
        f"{left} has {count}, {right} {len(targets):,}: line {first:,} of {longer} has no partner; "
        "aligned files have a line for each line"
    )


def _read_directions(template: str, directions: Sequence[str], files: FileOptions) -> Pairs:
    if len(set(directions)) < len(directions):
        twice = next(each for each in directions if directions.count(each) > 1)
        raise DataError(f"data.directions names '{brief(twice)}' twice; name it once")
    texts: dict[str, tuple[Path, list[str]]] = {}
    columns: dict[str, Any] = {name: [] for name in Pairs.by_row}
    for direction in directions:
        languages = direction.split("-")
        if len(languages) != 2 or not all(re.fullmatch(r"\w+", language) for language in languages):
            raise DataError(
                f"data.directions: '{brief(direction)}' is no direction; write source-target, such as en-de"
            )
        for language in languages:
            if language not in texts:
                texts[language] = _read_lines(template.replace("{}", language), files)
        (left, here), (right, there) = (texts[language] for language in languages)
        _check_aligned(left, here, right, there)
        columns["sources"] += here
        columns["targets"] += there
        columns["lines"] += range(1, len(here) + 1)
        columns["tags"] += [languages[1]] * len(here)
        columns["origins"] += [direction] * len(here)
    return _tidied(source=f"{template} ({listed(directions)})", **columns)


# --- tables --------------------------------------------------------------------------------------


def _are_tables(names: Sequence[str], files: FileOptions) -> bool:
    """Whether files have columns by their endings, all of them, so that they are no aligned texts."""
    return bool(names) and all(kind_of(resolve_path(name, files.root), files.format) != "text" for name in names)


def _read_columns(source: Source, columns: Sequence[Column] | None, tag: Column | None, files: FileOptions) -> Pairs:
    def choose(head: Head) -> list[Column]:
        return [*(_guess(head, tag) if columns is None else columns), *([] if tag is None else [tag])]

    notes = []
    path = locate(source_files(source, files.root)[0], files.root)
    if path is not None and kind_of(path, files.format) == "text":
        first = load_text(path, files.encoding, files.max_line).lstrip("\n").partition("\n")[0]
        if "\t" not in first:
            raise DataError(
                f"{path} is one text without columns; give two aligned files, [SOURCE,TARGET], or set data.format "
                "if it is a table"
            )
        files = replace(files, format="tsv")
        notes.append("read as tsv")
    table = read_table(source, choose, files)
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no pairs; give a file that does")
    tags = None if tag is None else [said.strip() for said in table.texts(2, "data.tag_column")]
    for row, said in enumerate(tags or ()):
        if not said:
            raise DataError(f"{table.where(row)}: '{table.names[2]}' is empty; it says the target's language")
    notes += [table.note] if table.note else []
    if columns is None:
        names = f"columns {table.names[0]} and {table.names[1]}"
        notes.append(names if table.header else f"{names}, no header")
    return _tidied(
        _texts_or_nothing(table, 0),
        _texts_or_nothing(table, 1),
        source=source_name(source),
        lines=table.lines,
        row_files=table.row_files,
        tags=tags,
        unit=table.unit,
        note=", ".join(notes),
    )


def _texts_or_nothing(table: Table, column: int) -> list[str]:
    """A column of text, in which a null is an empty text: a pair without one side."""
    values = table.columns[column]
    if None in values:
        table.columns[column] = ["" if value is None else value for value in values]
    return [unify_newlines(text) for text in table.texts(column)]


def _guess(head: Head, tag: Column | None) -> Sequence[Column]:
    """The columns of source and target: by name where names are telling, else by their places."""
    number = tag if isinstance(tag, int) else None
    others = [name for place, name in enumerate(head.names, start=1) if name != tag and place != number]
    if found := TEXTS.find(others):
        return found
    # "It" and "So" begin sentences; a code is written in one case.
    languages = [n for n in others if n.lower() in LANGUAGES.split() and (n.islower() or n.isupper())]
    if len(languages) > 2:  # the first column of many tables, and rarely Indonesian
        languages = [name for name in languages if name != "id"]
    if len(languages) == 2:
        return languages
    if head.separated and not isinstance(tag, str) and len(languages) < 2:
        return [place for place in (1, 2, 3) if place != number][:2]
    candidates = others
    if not head.separated:
        translation = head.first().get("translation")
        if isinstance(translation, dict) and len(translation) == 2:
            return [f"translation.{language}" for language in translation]
        candidates = [name for name in head.of_type(str) if name in others]
    if len(candidates) == 2:
        return candidates
    raise head.undecided(TEXT_PAIRS.which)


# --- holding out ---------------------------------------------------------------------------------


def hold_out_pairs(pairs: Pairs, valid_share: float, test_share: float = 0.0) -> dict[str, Pairs]:
    """The pairs in parts `train`, `valid` and, where it has a share, `test`: never one source in two parts.

    A source's part follows from a hash of its text, whatever the order and whatever else there is.
    Where pairs go in several directions, a sentence goes with its translations: the pair that is
    learned from English must not be asked for from German. Each part gets at least one source.
    """
    group = _translations(pairs) if pairs.tags is not None else dict(zip(pairs.sources, pairs.sources, strict=True))
    shares = {"valid": valid_share, **({"test": test_share} if test_share else {})}
    count = len(set(group.values()))
    if count <= len(shares):
        raise DataError(
            f"{pairs.source} has {count} different source{'s' * (count != 1)}, too few to hold out "
            f"{' and '.join(shares)}; give more pairs, or files of their own"
        )
    parts = by_hash([group[source] for source in pairs.sources], shares)
    return {part: pairs.select(rows, f"{pairs.source} ({part})") for part, rows in parts.items()}


def _translations(pairs: Pairs) -> dict[str, str]:
    """For each source one text that stands for it and all sources that are translations of it.

    It is the first by the alphabet, so that no order of pairs matters. (Not the one of smallest chance,
    or large groups would be held out more often than small ones.)
    """
    leader = {source: source for source in pairs.sources}

    def find(text: str) -> str:
        while leader[text] != text:
            leader[text] = text = leader[leader[text]]
        return text

    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        if target in leader:
            low, high = sorted((find(source), find(target)))
            leader[high] = low
    return {source: find(source) for source in leader}


# --- which pairs are fit to train on ------------------------------------------------------------------


@dataclass(frozen=True)
class FilterReport:
    """How many pairs are left out of how many, and why."""

    total: int
    left_out: int = 0
    reasons: tuple[str, ...] = ()  # each with how many it is for, and where the first of them stands

    def __str__(self) -> str:
        if not self.reasons:
            return f"kept all {self.total:,} pairs" if self.total != 1 else "kept the only pair"
        return f"left out {self.left_out:,} of {self.total:,} pairs: {', '.join(self.reasons)}"

    def __add__(self, later: FilterReport) -> FilterReport:
        """This and what was left out of the rest afterwards."""
        return FilterReport(self.total, self.left_out + later.left_out, self.reasons + later.reasons)


def clean(pairs: Pairs) -> tuple[Pairs, FilterReport]:
    """The pairs that have text on both sides, and a report on those that have not."""
    source, target = (
        np.array([bool(text.strip()) for text in side], bool) for side in (pairs.sources, pairs.targets)
    )
    reasons = {"empty on one side": source != target, "empty on both sides": ~(source | target)}
    kept, report = _judge(reasons, pairs.place, pairs.source)
    return (pairs if len(kept) == len(pairs) else pairs.select(kept.tolist())), report


def filter_lengths(
    source_ids: Sequence[Sized],
    target_ids: Sequence[Sized],
    max_length: int | None = None,
    max_ratio: float | None = None,
    pairs: Pairs | None = None,
) -> tuple[list[int], FilterReport]:
    """Which pairs are neither too long nor of very different lengths, counted in tokens.

    The ratio is the longer side to the shorter, and is judged only where the longer has ten tokens or
    more. `pairs` are those that the ids belong to: with them the report can name lines.
    """
    source = np.fromiter(map(len, source_ids), dtype=np.int64, count=len(source_ids))
    target = np.fromiter(map(len, target_ids), dtype=np.int64, count=len(target_ids))
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    reasons = {"without tokens on one side": shorter == 0}
    if max_length:
        reasons[f"longer than {max_length:,} tokens"] = longer > max_length
    if max_ratio:
        reasons[f"more than {max_ratio:g} times longer on one side"] = (longer >= RATIO_FROM) & (
            longer > max_ratio * shorter
        )
    place = pairs.place if pairs else lambda index: f"pair {index + 1:,}"
    kept, report = _judge(reasons, place, pairs.source if pairs else "the data")
    return kept.tolist(), report


def _judge(
    reasons: dict[str, np.ndarray[Any, np.dtype[np.bool_]]], place: Callable[[int], str], name: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], FilterReport]:
    """The indices against which no reason speaks; a pair is counted under the first that does."""
    total = len(next(iter(reasons.values())))
    keep = np.ones(total, dtype=bool)
    found = []
    for text, bad in reasons.items():
        new = np.flatnonzero(bad & keep)
        if len(new):
            first = place(int(new[0]))
            found.append(f"{len(new):,} {text} ({first if len(new) == 1 else f'first: {first}'})")
            keep[new] = False
    report = FilterReport(total, total - int(keep.sum()), tuple(found))
    if not keep.any():
        raise DataError(f"{name}: no pair is left: {report}" if total else f"{name} holds no pairs")
    return np.flatnonzero(keep), report
