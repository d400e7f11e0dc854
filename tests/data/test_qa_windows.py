"""Windows over contexts: every token is read, and an answer comes back as the text that it was."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.batching.qa_windows import QuestionReader
from legato.data.formats.questions import AnswerSpan
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.errors import DataError

TEXT = (
    "Die Straße ist lang.  In 1973 – so Ann's book says – İstanbul had\nrain; Ⅻ cafés, 寿司 and a  “great” party. "
    "Nobody 😀 came, but Zoë (the 2nd) sang naïvely."
)
ANSWERS = (
    "Straße",
    "1973",
    "Ann's book",
    "İstanbul had\nrain",
    "寿司",
    "a  “great” party",
    "😀",
    "Zoë (the 2nd)",
    ".",
)


def tokenizer(name: str, **more: Any) -> Tokenizer:
    size = {"size": 300} if name in ("bpe", "unigram", "wordpiece") else {}
    return Tokenizer.train(TokenizerConfig(name=name, **size, **more), [TEXT])


def reader(
    name: str = "wordpiece", adds_special_tokens: bool = True, characters: bool = False, **sizes: int
) -> QuestionReader:
    made = tokenizer(name, masked=adds_special_tokens)
    return QuestionReader(TextReader(made, None, adds_special_tokens, characters, adds_special_tokens), **sizes)


def answer_of(questions: QuestionReader, window: Any, context: str) -> str:
    """What a window's span is in the text."""
    tokens, moved = questions.context(context), window.start - window.first
    first, last = window.row.span
    return context[tokens.starts[first + moved] : tokens.ends[last + moved]]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_a_part_of_the_text_as_written(name: str, lowercase: bool, answer: str) -> None:
    made = tokenizer(name, lowercase=lowercase)
    questions = QuestionReader(TextReader(made), window=400)
    span = AnswerSpan(TEXT.index(answer), answer)
    (window,) = questions.windows([("who?", TEXT)], [span])
    found = answer_of(questions, window, TEXT)
    if name == "word":  # its tokens are what stands between spaces
        assert answer in found
    else:
        assert found == answer


def test_models_that_read_letters_get_whole_words_without_punctuation() -> None:
    questions = reader("word", adds_special_tokens=False, characters=True, window=100)
    (window,) = questions.windows([("who?", TEXT)], [AnswerSpan(TEXT.index("Zoë"), "Zoë")])
    assert answer_of(questions, window, TEXT) == "Zoë"
    assert window.row.characters is not None
    assert len(window.row.characters) == len(window.row.ids)
    assert (window.row.characters.sum(1) == 0).sum() == 2  # the marks


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 60), st.integers(0, 30), st.booleans(), st.integers(0, 200))
def test_windows_cover_the_context_and_overlap(
    window: int, stride: int, adds_special_tokens: bool, length: int
) -> None:
    questions = reader(adds_special_tokens=adds_special_tokens, window=window, stride=stride)
    context = " ".join([TEXT] * 3)[: length * 3] + " x"
    tokens = len(questions.context(context).ids)
    made = questions.windows([("who?", context)])
    assert made[0].start == 0
    assert made[-1].start + made[-1].count == tokens
    for one, next_one in itertools.pairwise(made):
        room = one.count
        assert one.start < next_one.start <= one.start + room - min(stride, room // 2)
    for part in made:
        assert len(part.row.ids) <= window
        place = slice(part.first, part.first + part.count)
        assert part.row.ids[place] == questions.context(context).ids[part.start : part.start + part.count]


def test_a_window_without_the_answer_points_at_the_mark_for_none() -> None:
    questions = reader(window=40, stride=8)
    made = questions.windows([("who?", TEXT)], [AnswerSpan(TEXT.index("naïvely"), "naïvely")])
    assert len(made) > 1
    assert made[0].row.span == (0, 0)
    assert answer_of(questions, made[-1], TEXT) == "naïvely"


def test_a_question_without_an_answer_points_at_the_mark_everywhere() -> None:
    for window in reader(window=40, stride=8).windows([("who?", TEXT)], [None]):
        assert window.row.span == (0, 0)


def test_of_a_model_that_reads_from_left_to_right_the_last_mark_is_none() -> None:
    questions = reader("bpe", adds_special_tokens=False, window=60, stride=8)
    for window in questions.windows([("who?", TEXT)], [None]):
        assert window.row.span == (len(window.row.ids) - 1,) * 2
        assert window.row.ids[-1] == questions.tokenizer.eos_id


def test_a_window_is_the_pair_that_the_model_reads_elsewhere() -> None:
    questions = reader(window=400)
    (window,) = questions.windows([("who?", TEXT)])
    pair = questions.reader.pairs([("who?", TEXT)])[0]
    assert window.row.ids == pair.ids
    assert window.row.segments == pair.segments


def test_robertas_two_marks_stand_between() -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import RobertaProcessing

    library: Any = Library(WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, "who": 3, "Zoë": 4}, unk_token="<unk>"))
    library.pre_tokenizer = Whitespace()
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = RobertaProcessing(("</s>", 1), ("<s>", 0))
    questions = QuestionReader(TextReader(Tokenizer(library), None, False, False, True))
    (window,) = questions.windows([("who", "Zoë who Zoë")], [AnswerSpan(0, "Zoë")])
    assert window.row.ids == [0, 3, 1, 1, 4, 3, 4, 1]
    assert window.row.span == (4, 4)


def test_a_question_longer_than_the_window_is_named() -> None:
    questions = reader(window=24)
    with pytest.raises(DataError, match=r"file, question 7: the question has .* tokens, which leaves no room"):
        questions.windows([("who? " * 30, TEXT)], names=["file, question 7"])


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(DataError, match="half a surrogate pair"):
        reader().windows([("who?", "a \ud800 b")])


def test_a_context_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = reader(window=400)
    seen: list[str] = []
    cut = QuestionReader.cut

    def counting(self: QuestionReader, texts: Any) -> Any:
        seen.extend(texts)
        return cut(self, texts)

    monkeypatch.setattr(QuestionReader, "cut", counting)
    questions.windows([("who?", TEXT), ("when?", TEXT)])
    questions.windows([("where?", TEXT)])
    assert seen.count(TEXT) == 1
