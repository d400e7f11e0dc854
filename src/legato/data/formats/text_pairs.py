"""Pairs of texts, a source and its target: sentences and their translations, articles and their summaries.

Notable here:
- pairs come from two aligned files, from two columns of a table or of a dataset on the hub, or, with
  `directions`, from one file per language; a `tag` then says which language a pair's target is in;
- only a newline ends a line: an aligned file may hold U+2028 or a form feed, and stays aligned;
- where no columns are named they are guessed, and `note` says what was guessed;
- a part is held out by a hash of the source, so that all translations of one sentence stay together
  and adding pairs moves no other pair from one part to another;
- `tidy` is what every text goes through, in training and in prediction alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.data.sources.files import MAX_LINE, load_text, no_file, resolve_path, unify_newlines
from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import kind_of, locate, read_table
from legato.errors import DataError, brief, listed

# Names that are a header when both stand in the first row, source first.
KNOWN_NAMES: Final = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("text", "summary"),
    ("document", "summary"),
    ("article", "highlights"),
    ("input", "output"),
    ("wrong", "right"),
)
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
CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")  # all but tab and newline


@dataclass(frozen=True)
class Pairs:
    """Sources and targets, where they came from, and the hash that names their content."""

    source_name: str
    sources: list[str]
    targets: list[str]
    lines: list[int]  # where each pair stands, counted from 1
    sha256: str
    tags: list[str] | None = None  # the language of each target, where the data has several directions
    origins: list[str] | None = None  # the direction each pair was read for, where there are several
    unit: str = "line"  # what `lines` counts: "line" or "row"
    note: str = ""  # what was guessed in reading, for the user to check

    def __len__(self) -> int:
        return len(self.sources)

    def place(self, index: int) -> str:
        """Where a pair stands, for messages: `line 17`, or `line 17 of en-de`."""
        line = f"{self.unit} {self.lines[index]:,}"
        return line if self.origins is None else f"{line} of {self.origins[index]}"

    def select(self, indices: Sequence[int], name: str | None = None) -> Pairs:
        """Only these pairs, in this order."""

        def those(column: list[Any] | None) -> list[Any] | None:
            return None if column is None else [column[index] for index in indices]

        return _made(
            name or self.source_name,
            those(self.sources) or [],
            those(self.targets) or [],
            those(self.lines) or [],
            tags=those(self.tags),
            origins=those(self.origins),
            unit=self.unit,
            note=self.note,
        )


def tidy(text: str) -> str:
    """`text` with a space for each control character but tab and newline, and none at its ends.

    >>> tidy(" a\\x00b\\ufeffc\\u3000")
    'a b c'
    """
    return (CONTROLS.sub(" ", text) if CONTROLS.search(text) else text).strip()


def read_pairs(
    source: str | Sequence[str],
    *,
    root: str | None = None,
    columns: Sequence[Column] | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
    directions: Sequence[str] | None = None,
    tag_column: Column | None = None,
) -> Pairs:
    """Pairs from two aligned files, from a table, from the hub, or from one file per language.

    Two names are two aligned text files. One name is a table, whose two columns are guessed unless
    `columns` names them; `tag_column` holds the language of each target. With `directions` one name
    stands for many files: `{}` in it is the language. Texts come out tidy, and may be empty: see `clean`.

    >>> read_pairs(["train.en", "train.de"])  # doctest: +SKIP
    >>> read_pairs("deu.txt.gz", format="tsv").note  # doctest: +SKIP
    'columns 1 and 2, no header'
    >>> read_pairs("train.{}", directions=["en-de", "de-en", "en-fr"])  # doctest: +SKIP
    """

    def lines_of(name: str) -> tuple[Path, list[str]]:
        return _read_lines(name, root, encoding, max_line)

    if directions:
        if not isinstance(source, str) or "{}" not in source:
            named = source if isinstance(source, str) else list_names(source)
            raise DataError(
                f"'{brief(named)}' has no {{}} for the language, as data.directions needs: write train.{{}}"
            )
        if columns or tag_column is not None:
            raise DataError("data.directions reads aligned files, which have no columns; leave out one of the two")
        return _read_directions(source, directions, lines_of)
    if isinstance(source, str):
        if "{}" in source:
            raise DataError(
                f"'{brief(source)}' stands for several languages; say which: data.directions=[en-de,de-en]"
            )
        if columns is not None and len(columns) != 2:
            raise DataError(f"data.columns names {len(columns)} of them; name two, source and target")
        return _read_columns(source, columns, tag_column, root, format, encoding, max_line, split)
    if len(source) != 2:
        raise DataError(f"[{list_names(source)}] is not two files; aligned texts are two, [SOURCE,TARGET]")
    if columns or tag_column is not None:
        raise DataError(f"[{list_names(source)}] are aligned files, which have no columns; leave out data.columns")
    (left, sources), (right, targets) = map(lines_of, source)
    _check_aligned(left, sources, right, targets)
    return _tidied(f"{source[0]} + {source[1]}", sources, targets, range(1, len(sources) + 1))


def _tidied(
    name: str, sources: list[str], targets: list[str], lines: Iterable[int], *, note: str = "", **more: Any
) -> Pairs:
    """Pairs of these texts made tidy; `note` says of how many."""
    bad = sum(len(CONTROLS.findall(text)) for column in (sources, targets) for text in column)
    if bad:
        changed = f"{bad:,} control character{'s' * (bad > 1)} replaced by a space"
        note = f"{note}; {changed}" if note else changed
    return _made(name, [*map(tidy, sources)], [*map(tidy, targets)], list(lines), note=note, **more)


def _made(name: str, sources: list[str], targets: list[str], lines: list[int], **more: Any) -> Pairs:
    pairs = Pairs(name, sources, targets, lines, "", **more)
    return replace(pairs, sha256=_content_hash(pairs))


def _content_hash(pairs: Pairs) -> str:
    digest = hashlib.sha256()
    for column in (pairs.sources, pairs.targets, pairs.tags or []):
        # The counts and lengths in front keep columns and texts apart, wherever one ends.
        digest.update(len(column).to_bytes(8, "little"))
        for index, text in enumerate(column):
            try:
                data = text.encode("utf-8")
            except UnicodeEncodeError as problem:
                raise DataError(
                    f"{pairs.source_name}, {pairs.place(index)}: half a surrogate pair at character "
                    f"{problem.start}, which is no text; remove it"
                ) from None
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()


# --- aligned files -------------------------------------------------------------------------------


def _read_lines(name: str, root: str | None, encoding: str, max_line: int) -> tuple[Path, list[str]]:
    path = resolve_path(name, root)
    if not path.exists():
        raise no_file(path)
    if kind_of(path) != "text":
        raise DataError(f"{path} is a table; name it alone, with data.columns=[SOURCE,TARGET]")
    # Not splitlines, which also splits at U+2028 and its like.
    lines = load_text(path, encoding, max_line).split("\n")
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


def _read_directions(
    template: str, directions: Sequence[str], lines_of: Callable[[str], tuple[Path, list[str]]]
) -> Pairs:
    if len(set(directions)) < len(directions):
        twice = next(each for each in directions if directions.count(each) > 1)
        raise DataError(f"data.directions names '{brief(twice)}' twice; name it once")
    files: dict[str, tuple[Path, list[str]]] = {}
    sources: list[str] = []
    targets: list[str] = []
    lines: list[int] = []
    tags: list[str] = []
    origins: list[str] = []
    for direction in directions:
        languages = direction.split("-")
        if len(languages) != 2 or not all(re.fullmatch(r"\w+", language) for language in languages):
            raise DataError(
                f"data.directions: '{brief(direction)}' is no direction; write source-target, such as en-de"
            )
        for language in languages:
            if language not in files:
                files[language] = lines_of(template.replace("{}", language))
        (left, here), (right, there) = (files[language] for language in languages)
        _check_aligned(left, here, right, there)
        sources += here
        targets += there
        lines += range(1, len(here) + 1)
        tags += [languages[1]] * len(here)
        origins += [direction] * len(here)
    name = f"{template} ({listed(directions)})"
    return _tidied(name, sources, targets, lines, tags=tags, origins=origins)


# --- tables --------------------------------------------------------------------------------------


def _read_columns(
    source: str,
    columns: Sequence[Column] | None,
    tag: Column | None,
    root: str | None,
    format: str,
    encoding: str,
    max_line: int,
    split: str,
) -> Pairs:
    def choose(head: Head) -> list[Column]:
        return [*(_guess(head, tag) if columns is None else columns), *([] if tag is None else [tag])]

    notes = []
    path = locate(source, root)
    if path is not None and kind_of(path, format) == "text":
        first = load_text(path, encoding, max_line).lstrip("\n").partition("\n")[0]
        if "\t" not in first:
            raise DataError(
                f"{path} is one text without columns; give two aligned files, [SOURCE,TARGET], or set data.format "
                "if it is a table"
            )
        format = "tsv"
        notes.append("read as tsv")
    table = read_table(source, choose, root=root, format=format, encoding=encoding, max_line=max_line, split=split)
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no pairs; give a file that does")
    notes += [table.note] if table.note else []
    if columns is None:
        names = f"columns {table.names[0]} and {table.names[1]}"
        notes.append(names if table.header else f"{names}, no header")
    return _tidied(
        source,
        _texts_or_nothing(table, 0),
        _texts_or_nothing(table, 1),
        table.lines,
        tags=None if tag is None else _tags(table),
        unit=table.unit,
        note=", ".join(notes),
    )


def _texts_or_nothing(table: Table, column: int) -> list[str]:
    """A column of text, in which a null is an empty text: a pair without one side."""
    values = table.columns[column]
    if None in values:
        table.columns[column] = ["" if value is None else value for value in values]
    return [unify_newlines(text) for text in table.texts(column)]


def _tags(table: Table) -> list[str]:
    tags = [tag.strip() for tag in table.texts(2, "data.tag_column")]
    for row, tag in enumerate(tags):
        if not tag:
            raise DataError(f"{table.where(row)}: '{table.names[2]}' is empty; it says the target's language")
    return tags


def _guess(head: Head, tag: Column | None) -> Sequence[Column]:
    """The columns of source and target: by name where names are telling, else by their places."""
    number = tag if isinstance(tag, int) else None
    others = [name for place, name in enumerate(head.names, start=1) if name != tag and place != number]
    by_lower_case = {name.strip().lower(): name for name in others}
    for left, right in KNOWN_NAMES:
        if left in by_lower_case and right in by_lower_case:
            return [by_lower_case[left], by_lower_case[right]]
    languages = [name for name in others if _is_language(name)]
    if len(languages) > 2:  # the first column of many tables, and rarely Indonesian
        languages = [name for name in languages if name != "id"]
    if len(languages) == 2:
        return languages
    separated = head.kind in ("csv", "tsv")
    if separated and not isinstance(tag, str) and len(languages) < 2:
        return [place for place in (1, 2, 3) if place != number][:2]
    candidates = others
    if not separated:
        row = head.first()
        translation = row.get("translation")
        if isinstance(translation, dict) and len(translation) == 2:
            return [f"translation.{language}" for language in translation]
        candidates = [name for name in others if isinstance(row.get(name), str)]
    if len(candidates) == 2:
        return candidates
    raise DataError(
        f"{head.where} has the columns {list_names(head.names)}; "
        "say which two are source and target: data.columns=[SOURCE,TARGET]"
    )


def _is_language(name: str) -> bool:
    # "It" and "So" begin sentences; a code is written in one case.
    return name.lower() in LANGUAGES.split() and (name.islower() or name.isupper())


# --- holding out ---------------------------------------------------------------------------------


def hold_out_pairs(pairs: Pairs, valid_share: float, test_share: float = 0.0) -> dict[str, Pairs]:
    """The pairs in parts `train`, `valid` and, where it has a share, `test`: never one source in two parts.

    A source's part follows from a hash of its text, whatever the order and whatever else there is.
    Where pairs go in several directions, a sentence goes with its translations: the pair that is
    learned from English must not be asked for from German. Each part gets at least one source.
    """
    group = _translations(pairs) if pairs.tags is not None else dict(zip(pairs.sources, pairs.sources, strict=True))
    chances = {text: _chance(text) for text in set(group.values())}
    ordered = sorted(chances, key=lambda text: (chances[text], text))
    parts = ["valid", *(["test"] if test_share else []), "train"]
    if len(ordered) < len(parts):
        raise DataError(
            f"{pairs.source_name} has {len(ordered)} different source{'s' * (len(ordered) != 1)}, too few to hold "
            f"out {' and '.join(parts[:-1])}; give more pairs, or files of their own"
        )
    levels = np.searchsorted([chances[text] for text in ordered], [valid_share, valid_share + test_share])
    cut = max(1, min(int(levels[0]), len(ordered) - len(parts) + 1))
    end = max(cut + 1, min(int(levels[1]), len(ordered) - 1)) if test_share else cut
    bounds = {"valid": ordered[:cut], "test": ordered[cut:end], "train": ordered[end:]}
    part_of = {text: part for part in parts for text in bounds[part]}
    chosen: dict[str, list[int]] = {part: [] for part in ("train", *parts[:-1])}
    for index, source in enumerate(pairs.sources):
        chosen[part_of[group[source]]].append(index)
    return {part: pairs.select(indices, f"{pairs.source_name} ({part})") for part, indices in chosen.items()}


def _chance(text: str) -> float:
    """A number in [0, 1) that follows from the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


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
