"""What a model computed of pictures beside texts, of boxes and of clips: what stands where, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import made_once

import legato
from legato.data.image.picture_files import Picture
from legato.data.positions import shown_token
from legato.decoding import SearchOptions
from legato.errors import DataError, LegatoError
from legato.inspect.heads import head_measures
from legato.inspect.readings import reading_of
from legato.inspect.summary import summary
from legato.model import Model
from legato.nn.capture import record
from tiny_clips import animated, frames_of, write_clips
from tiny_pictures import SIDE, encoded, pixels, talking_model, write_picture
from tiny_tasks import VIT

PICTURE = pixels("red")
ASKED = (PICTURE, "what colour is it?")
GRID = ("1, 1", "1, 2", "2, 1", "2, 2")
EYES = {f"model__encoder__{key}": value for key, value in VIT.items()}
CLIP = np.stack([np.asarray(frame) for frame in frames_of("up")])  # (5, H, W, 3)
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "vqa": ("vqa", {}),
    "product": ("vqa", {"model__attention": "none"}),
    "blind": ("vqa", {"model__blind": True}),
    "boxes": ("detection", {"model__size": [SIDE, SIDE], "model__encoder": "vit", "model__queries": 3, **EYES}),
    "towers": ("image-text", {}),
    "talk": ("visual-chat", {}),
    "whole": ("visual-chat", {"model__whole": True}),
    "unit": ("unit", {}),
    "clips": ("image-classification", {"model": "frames", "data__frames": 3, "model__encoder": "vit", **EYES}),
}
ENCODER = ("model.encoder", "model.encoder.")


def changed(name: str, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, where an example's are not all of them."""
    if name == "blind":
        given = {key: value for key, value in given.items() if not key.startswith(ENCODER)}
    if name == "boxes":
        given = {key: value for key, value in given.items() if key.split(".")[-1] not in _RESNET}
    if name == "clips":
        clips = str(write_clips(folder / "clips"))
        given = {key: value for key, value in given.items() if key.removeprefix("model.") not in VIT}
        given |= {"data.train": clips, "data.valid": clips, "model.width": 8}
    return given


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    return made_once(tmp_path_factory, RUNS, changed)


_RESNET = ("stem", "embedding", "widths", "depths")


# --- questions about pictures -----------------------------------------------------------------------------


def test_a_question_looks_at_the_grid_of_its_picture(trained: Callable[[str], Model]) -> None:
    model = trained("vqa")
    trace = model.trace(ASKED)
    assert {name: str(places) for name, places in trace.positions.items()} == {
        "image": "5 patches",
        "input": "4 tokens",
        "source": "4 patches",
        "query": "1 query",
    }
    assert trace.positions["image"].names == ("whole", *GRID)
    assert trace.positions["source"].names == GRID
    assert trace["question.lstm.0.hidden"].stream == "input"
    assert trace["encoder.encoder.0.attention.weights"].stream == "image"
    look = trace["hop.2.attention.weights"]
    assert (look.axes, look.stream, look.values.shape) == (("position", "source"), "query", (1, 4))
    with record() as seen:
        model.predict([ASKED])
    np.testing.assert_allclose(look.values, seen["hop.2.attention.weights"][0].numpy(), atol=1e-5)
    table = next(table for table in summary(trace) if table.title.startswith("where it looks"))
    assert table.columns[0] == "query"
    assert table.rows[0][:2] == ["question", GRID[int(look.values.argmax())]]


def test_a_question_may_look_at_nothing(trained: Callable[[str], Model], tmp_path: Path) -> None:
    plain, blind = trained("product").trace(ASKED), trained("blind").trace((tmp_path / "none.png", "what colour?"))
    assert not [name for name in plain if name.startswith("hop")]
    assert plain.positions["source"].count == 4
    assert list(blind.positions) == ["input", "query"]
    assert blind["question.lstm.0.hidden"].values.shape[0] == blind.positions["input"].count


def test_a_picture_and_a_question_may_be_one_text(trained: Callable[[str], Model], tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png")
    for name in ("vqa", "talk"):
        told, pair = (trained(name).trace(given) for given in (f"{path}\twhat colour?", (path, "what colour?")))
        assert told.positions == pair.positions
        for each in told:
            np.testing.assert_array_equal(told[each].values, pair[each].values)


@pytest.mark.parametrize("name", ["vqa", "talk"])
@pytest.mark.parametrize(
    ("given", "line"),
    [
        (PICTURE, 'the picture has no question; write one behind it: photo.jpg "What is on the table'),
        ((PICTURE,), "the picture has no question"),
        ((PICTURE, " "), "there is no question about a picture; write one"),
        ("what colour is it?", "the question 'what colour is it\\?' has no picture; name one before it"),
        ((None, "what colour is it?"), "the question 'what colour is it\\?' has no picture"),
        ((PICTURE, PICTURE), "give a picture and a question, not"),
        (("what colour", "is it?"), "'what colour' is no file, and this model reads pictures, not text"),
        ((3, "what colour?"), "3 is no picture; give a file's name, its bytes, pixels or Pillow's Image"),
        (([PICTURE], "what colour?"), "is no picture; give a file's name"),
        ((CLIP, "what colour?"), r"pixels are \(height, width, 3\) bytes"),
    ],
)
def test_what_is_no_picture_with_a_question_is_refused(
    trained: Callable[[str], Model], name: str, given: Any, line: str
) -> None:
    with pytest.raises(LegatoError, match=line) as refused:
        trained(name).trace(given)
    assert "\n" not in str(refused.value)


# --- boxes ------------------------------------------------------------------------------------------------


def test_queries_look_at_the_grid(trained: Callable[[str], Model]) -> None:
    trace = trained("boxes").trace(PICTURE)
    assert trace.positions["query"].names == ("query 1", "query 2", "query 3")
    assert trace.positions["input"].names == ("whole", *GRID)
    assert trace.positions["source"].names == GRID
    assert trace["encoder.encoder.0.attention.weights"].stream == "input"
    assert trace["grid.0.attention.weights"].stream == "source"
    assert trace["decoder.0.cross.weights"].values.shape == (2, 3, 4)
    assert trace.positions_of("decoder.0.cross.weights", "position") == trace.positions["query"]
    for given in ("a red dog", "a\tb", 3, (PICTURE, "what?"), CLIP):
        with pytest.raises(DataError, match=r"reads pictures, not text|is no picture; give|pixels are"):
            trained("boxes").trace(given)


def test_there_are_no_more_queries_than_places(trained: Callable[[str], Model]) -> None:
    loaded = trained("boxes").loaded
    held, loaded.module.config = loaded.module.config, loaded.module.config.model_copy(update={"queries": 9})
    try:
        assert trained("boxes").trace(PICTURE).positions["query"].count == 4
    finally:
        loaded.module.config = held


# --- two towers -------------------------------------------------------------------------------------------


def test_each_tower_reads_its_side(trained: Callable[[str], Model], tmp_path: Path) -> None:
    model = trained("towers")
    path = write_picture(tmp_path / "a.png", "red")
    both, seen, read = (model.trace(given) for given in ((path, "a square"), path, "a square"))
    told = model.trace(f"{path}\ta square")
    assert {name: str(places) for name, places in both.positions.items()} == {
        "image": "5 patches",
        "input": "3 tokens",
    }
    assert both.positions["input"].names[-1] == "<eos>"
    assert (list(seen.positions), list(read.positions)) == (["image"], ["input"])
    assert {name.split(".")[0] for name in seen} == {"vision"}
    assert {name.split(".")[0] for name in read} == {"text"}
    assert set(both) == set(told) == set(seen) | set(read)
    for one in (seen, read):
        for name in one:
            np.testing.assert_allclose(both[name].values, one[name].values, atol=1e-6)
            assert both[name].stream == one[name].stream
    for given in (PICTURE, encoded("red"), Picture("a", data=encoded("red"))):
        assert list(model.trace(given).positions) == ["image"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (" ", "there is no text to look at; give one, or a picture alone"),
        ((PICTURE, ""), "there is no text to look at; give one, or a picture alone"),
        ("none.png", "there is no picture"),
        (("a red dog", "a square"), "'a red dog' is no file, and this model reads pictures, not text"),
        (("a square", PICTURE), "give a picture, a text, or a picture and a text, not"),
        (3, "give a picture, a text, or a picture and a text, not 3"),
        ((3, "a square"), "3 is no picture; give a file's name, its bytes, pixels or Pillow's Image"),
        (CLIP, r"pixels are \(height, width, 3\) bytes"),
    ],
)
def test_what_no_tower_reads_is_refused(trained: Callable[[str], Model], given: Any, line: str) -> None:
    with pytest.raises(DataError, match=line):
        trained("towers").trace(given)


# --- patches among words ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["talk", "whole"])
def test_patches_stand_among_the_words(trained: Callable[[str], Model], name: str) -> None:
    model = trained(name)
    trace = model.trace((PICTURE, "what colour?"))
    read = trace.positions["input"]
    shown = GRID if name == "talk" else ("whole", *GRID)
    first = read.names.index(shown[0])
    assert read.names[first : first + len(shown)] == shown
    assert tuple(read.names[place] for place in read.patches) == GRID
    assert (read.kind, read.grid) == ("token", (2, 2))
    assert str(read) == f"4 patches and {read.count - 4} tokens"
    assert read.names[first + len(shown) :][:2] == (" what", " colour?")
    assert trace.positions["image"].count == 5
    assert trace["vision.encoder.0.attention.weights"].stream == "image"
    assert trace["decoder.0.attention.weights"].values.shape == (2, read.count, read.count)
    assert trace.written == [*read.names[1:], ""]
    asked = model.chat_ids("what colour?", about_picture=True)
    assert len(asked) == read.count == len(trace.guesses)


def test_the_last_guess_is_what_the_model_answers_first(tmp_path: Path) -> None:
    model = legato.load(talking_model(tmp_path / "m"), "cpu")
    trace = model.trace((PICTURE, "a red dog"))
    ids = model.chat_ids("a red dog", about_picture=True)
    said = model.hypotheses([ids], SearchOptions(max_tokens=1), images=[PICTURE])[0][0]
    best, share = trace.guesses[-1][0]
    assert shown_token(model.tokenizer, said.tokens[0]) == best
    assert share == pytest.approx(float(np.exp(said.logprob)), rel=1e-4)


def test_the_logit_lens_and_gradients_are_of_the_words(trained: Callable[[str], Model]) -> None:
    from legato.inspect.gradients import gradient_through_time
    from legato.inspect.lens import logit_lens

    model, given = trained("talk"), (PICTURE, "what colour?")
    trace = model.trace(given)
    lens = logit_lens(model, given)
    assert lens.positions == trace.positions["input"]
    assert lens.guesses[-1] == [best[0][0] for best in trace.guesses]
    found = gradient_through_time(model, given)
    assert found.name == "decoder.embedded"
    assert found.tokens == trace.positions["input"].names[:-1]


def test_an_image_token_in_a_question_is_refused(trained: Callable[[str], Model]) -> None:
    with pytest.raises(DataError, match="the text holds <image>, which stands for the picture"):
        trained("talk").trace((PICTURE, "what is <image>?"))
    with pytest.raises(LegatoError, match="is too long: this model goes up to"):
        trained("talk").trace((PICTURE, "what colour? " * 2000))


# --- several tasks ----------------------------------------------------------------------------------------


def test_each_task_of_a_model_is_looked_into(trained: Callable[[str], Model]) -> None:
    model = trained("unit")
    colours, boxes, films = (
        model.trace(given, task=name)
        for name, given in (("colours", ASKED), ("boxes", PICTURE), ("films", "a gem of a film"))
    )
    words = colours.positions["input"].names
    assert colours.positions["source"].names == GRID + words
    assert list(colours.positions["source"].patches) == [0, 1, 2, 3]
    assert colours["text.encoder.0.attention.weights"].stream == "input"
    assert colours["grid.0.attention.weights"].stream == "grid"
    assert colours["decoder.0.cross.weights"].values.shape == (2, 1, 4 + len(words))
    assert boxes.positions["query"].names == ("query 1", "query 2")
    assert list(boxes.positions) == ["image", "grid", "source", "query"]
    assert films.positions["source"] == films.positions["input"]
    assert list(films.positions) == ["input", "source", "query"]
    alone = model.for_task("films").trace("a gem of a film")
    np.testing.assert_array_equal(alone["decoder.0.hidden"].values, films["decoder.0.hidden"].values)


def test_one_of_several_tasks_has_to_be_named(trained: Callable[[str], Model], tmp_path: Path) -> None:
    model = trained("unit")
    for task, line in ((None, "say which task; it has colours, boxes, films"), ("none", "there is no task 'none'")):
        with pytest.raises(LegatoError, match=line):
            model.trace(PICTURE, task=task)
    path = write_picture(tmp_path / "a.png")
    for task, given, line in (
        ("films", str(path), "a.png is a picture, but this model reads text; give it a text"),
        ("films", PICTURE, "this model reads text, and ndarray is none"),
        ("boxes", "a gem of a film", "is no file, and this model reads pictures, not text"),
        ("colours", PICTURE, "has no question"),
    ):
        with pytest.raises(LegatoError, match=line):
            model.trace(given, task=task)
    with pytest.raises(LegatoError, match="ask one of them: --task NAME, or for_task"):
        reading_of(model.loaded, PICTURE)


# --- clips ------------------------------------------------------------------------------------------------


def test_the_frames_of_a_clip_have_an_axis(trained: Callable[[str], Model]) -> None:
    model = trained("clips")
    trace = model.trace(CLIP)
    assert trace.positions["input"].names == ("frame 1", "frame 2", "frame 3")
    assert trace.positions["image"].names == ("whole", *GRID)
    weights = trace["encoder.encoder.0.attention.weights"]
    assert weights.axes == ("frame", "head", "position", "seen")
    assert weights.values.shape == (3, 2, 5, 5)
    assert trace.positions_of("encoder.encoder.0.hidden", "frame") == trace.positions["input"]
    assert trace["lstm.0.hidden"].stream == "input"
    assert trace["lstm.0.hidden"].values.shape == (3, 8)
    second = model.trace([CLIP[2]] * 3)  # the frame in the middle, alone
    np.testing.assert_allclose(
        second["encoder.encoder.0.hidden"].values[0], trace["encoder.encoder.0.hidden"].values[1]
    )
    one = trace.of_frame(1)
    np.testing.assert_array_equal(one["encoder.encoder.0.attention.weights"].values, weights.values[1])
    assert one["encoder.encoder.0.attention.weights"].axes == ("head", "position", "seen")
    assert one["lstm.0.hidden"].axes == ("position", "unit")


def test_measures_of_heads_are_means_over_frames(trained: Callable[[str], Model]) -> None:
    trace = trained("clips").trace(CLIP)
    whole, each = head_measures(trace), [head_measures(trace.of_frame(number)) for number in range(3)]
    assert len(whole) == 2
    for head, measured in enumerate(whole):
        for name in ("entropy", "distance", "previous", "first", "itself"):
            mean = np.mean([getattr(frame[head], name) for frame in each])
            assert getattr(measured, name) == pytest.approx(mean, rel=1e-4)


def test_a_clip_is_given_in_many_ways(trained: Callable[[str], Model], tmp_path: Path) -> None:
    model = trained("clips")
    whole = model.trace(CLIP)["lstm.0.hidden"].values
    (tmp_path / "a.webp").write_bytes(animated("up", form="WEBP"))
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(frames_of("up")):
        frame.save(folder / f"{number}.png")
    for given in (frames_of("up"), str(tmp_path / "a.webp"), folder):
        np.testing.assert_allclose(model.trace(given)["lstm.0.hidden"].values, whole, atol=1e-5)
    still = model.trace(PICTURE)  # as for predict, a picture that does not move
    frames = still["encoder.encoder.0.hidden"].values
    np.testing.assert_array_equal(frames[0], frames[2])


def test_what_is_no_clip_is_refused(trained: Callable[[str], Model], tmp_path: Path) -> None:
    for given, line in (
        ("a red dog", "is no file, and this model reads pictures, not text"),
        (3, "3 is no picture; give a file's name"),
        ([], "the clip has no frames"),
        (["a red dog"], "is no file"),
        (CLIP.astype(float), r"a clip is \(frames, height, width, 3\) bytes"),
        (tmp_path, "holds no frames"),
    ):
        with pytest.raises(DataError, match=line):
            trained("clips").trace(given)
