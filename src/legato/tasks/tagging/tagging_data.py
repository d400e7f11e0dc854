"""What tagging learns from: where the tagged sentences are, how they are split, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field

from legato.data.formats.labels import note_of_unseen
from legato.data.formats.strays import few
from legato.data.formats.tag_schemes import (
    OUTSIDE,
    Scheme,
    convert,
    count_repairs,
    is_entity_tag,
    kind_of,
    read_spans,
)
from legato.data.formats.tagged_text import FORMATS, TaggedText, read_tagged
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.splits import Encoding, MaxLine, SplitData, ValidShare, by_order, completed
from legato.errors import DataError, brief, listed

SHOWN = 12  # tags that a message lists
LONG = 12  # letters of a tag


class TaggingData(SplitData):
    """Where the tagged words are."""

    train: Source | None = Field(None, description="a file of columns, CoNLL-U, or a table of words and tags")
    valid: Source | None = Field(None, description="left out: the last share of the training sentences")
    format: str = Field("auto", description=", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    word: str | int | None = Field(
        None, description="the words' column, by number from 1 or name; left out: the first"
    )
    tag: str | int | None = Field(None, description="the tags' column; left out: the last, and upos in CoNLL-U")
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.1
    scheme: Literal["auto", "iob2", "iobes", "plain"] = Field(
        "auto",
        description="what is learned: iob2 or iobes for names, plain for other tags; auto: as they are written",
    )
    valid_transitions: bool = Field(True, description="names: choose only tags that may follow each other")
    unseen_tags: Literal["wrong", "refuse"] = Field(
        "wrong", description="tags that data.train lacks: count the words as wrong, or refuse the file"
    )
    zero_digits: bool | None = Field(None, description="read every digit as 0; left out: where words are tokens")
    hide_rare: float = Field(
        0.5, ge=0, le=1, description="words as tokens: chance that one seen once is hidden, so that <unk> is learned"
    )
    vectors: str | None = Field(None, description="a GloVe or word2vec text file to begin the embedding with")
    metric: Literal["f1", "accuracy", "loss"] | None = Field(
        None, description="what decides which model is best; left out: f1 for names, else accuracy"
    )


def read_split(data: TaggingData, source: Source, split: str) -> TaggedText:
    """The sentences that `source` names, read as `data` says."""
    text = read_tagged(source, data.files(split), word=data.word, tag=data.tag)
    for sentence in text.sentences:
        for place, tag in enumerate(sentence.tags):
            if tag in ("nan", "NaN"):  # what programs write for what they do not have
                raise DataError(
                    f"{text.where(sentence, place)}: the tag of '{brief(sentence.words[place])}' is missing, '{tag}' "
                    f"stands there; write it, or remove the {text.unit}"
                )
    return text


def read_splits(data: TaggingData) -> dict[str, TaggedText]:
    """Training and validation sentences, and those of the test where there are any."""

    def hold_out(train: TaggedText) -> dict[str, TaggedText]:
        parts = by_order(len(train.sentences), data.valid_share, train.source, "sentence")
        return {part: train.select(rows) for part, rows in parts.items()}

    return completed(data.read(lambda source, split, train: read_split(data, source, split)), hold_out)


def refuse_strays(text: TaggedText, asked: str) -> None:
    """Refuse to take names for plain tags, or one scheme for another, because of a few tags that are slips.

    `asked` is data.scheme. Where it names a scheme for names, a tag that is no name's is refused all the same, and
    letters of another one are read as what they mean.
    """
    counts = Counter(tag for sentence in text.sentences for tag in sentence.tags)
    odd = {tag: n for tag, n in counts.items() if tag != OUTSIDE and not is_entity_tag(tag)}
    if asked != "plain" and odd:
        named = sum(n for tag, n in counts.items() if is_entity_tag(tag))
        if few(sum(odd.values()), named):
            _refuse(text, odd, f"is neither O nor like B-PER, as {named:,} others are", "data.scheme=plain")
    if asked == "auto" and not odd:
        for scheme, letters in (("IOBES", "ES"), ("BILOU", "LU")):
            ends = {tag: n for tag, n in counts.items() if tag != OUTSIDE and tag[0] in letters}
            # Where names end so, each has such a tag.
            others = sum(len(read_spans(sentence.tags)) for sentence in text.sentences) - sum(ends.values())
            if ends and few(sum(ends.values()), others):
                _refuse(
                    text,
                    ends,
                    f"is one of {scheme}, and {others:,} names have none such",
                    "data.scheme=iobes or iob2",
                )


def _refuse(text: TaggedText, tags: dict[str, int], what: str, setting: str) -> None:
    sentence, place = next((s, i) for s in text.sentences for i, tag in enumerate(s.tags) if tag in tags)
    more = sum(tags.values()) - 1
    raise DataError(
        f"{text.where(sentence, place)}: the tag '{brief(sentence.tags[place])}' of '{brief(sentence.words[place])}' "
        f"{what}{f' (and {more} more like it)' if more else ''}; mend the line, or, where it is meant, set {setting}"
    )


def refuse_unseen(text: TaggedText, kinds: set[str], scheme: Scheme, where: str) -> None:
    """Name the first tag of `text` that `where`, which has tags of these kinds, lacks."""
    for sentence in text.sentences:
        for place, tag in enumerate(sentence.tags):
            if _is_odd(tag, scheme):
                raise DataError(
                    f"{text.where(sentence, place)}: the tag '{tag}' of '{sentence.words[place]}' is neither O nor "
                    "like B-PER; mend the line, or set data.tag to the right column"
                )
            kind = kind_of(tag, scheme)
            if kind not in kinds:
                known = sorted(kinds, key=lambda name: (len(name) > LONG, name))  # the short ones tell most
                more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
                raise DataError(
                    f"{text.where(sentence, place)}: {where} lacks the tag '{kind}'; it has "
                    f"{listed(known[:SHOWN])}{more}: mend the line, or set data.unseen_tags=wrong to count "
                    "such words as wrong"
                )


def unseen_note(text: TaggedText, kinds: set[str], scheme: Scheme, where: str) -> str | None:
    """A line about tags of kinds that the model does not know; None where there are none.

    Where it knows none of them, it is the wrong file, or the wrong column.
    """
    tags = [tag for sentence in text.sentences for tag in sentence.tags]
    named = [tag if _is_odd(tag, scheme) else kind_of(tag, scheme) for tag in tags]
    unseen = [[name] if name not in kinds else [] for name in named]
    if all(unseen):
        raise DataError(
            f"{text.source}: the model knows none of its tags, such as '{brief(named[0])}'; it knows "
            f"{listed(sorted(kinds), SHOWN)}: set data.tag to the right column"
        )
    return note_of_unseen(f"{where} has tags", unseen, "words")


def _is_odd(tag: str, scheme: Scheme) -> bool:
    return scheme != "plain" and tag != OUTSIDE and not (len(tag) > 2 and tag[0] in "BIESLU" and tag[1] == "-")


def tags_in(text: TaggedText, scheme: Scheme) -> list[list[str]]:
    """Each sentence's tags in a scheme; one that is none of it is left alone, and wrong whatever is guessed."""
    return [
        sentence.tags if any(_is_odd(tag, scheme) for tag in sentence.tags) else convert(sentence.tags, scheme)
        for sentence in text.sentences
    ]


def told_repairs(text: TaggedText, written: Scheme) -> str | None:
    """A line about tags that cannot stand where they do; None where there is no such tag."""
    count, first = 0, ""
    for sentence in text.sentences:
        if any(_is_odd(tag, written) for tag in sentence.tags) or not (n := count_repairs(sentence.tags, written)):
            continue
        if not count:
            mended = convert(sentence.tags, written)
            place = next(i for i, (a, b) in enumerate(zip(sentence.tags, mended, strict=True)) if a != b)
            before = sentence.tags[place - 1] if place else "the beginning"
            first = f"{text.where(sentence, place)}: {sentence.tags[place]} after {before}"
        count += n
    tags = (
        "1 tag that cannot stand where it is was"
        if count == 1
        else f"{count:,} tags that cannot stand where they are were"
    )
    return f"{text.source}: {tags} repaired (first at {first.removeprefix(text.source + ', ')})" if count else None
