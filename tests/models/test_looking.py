"""Looking inside, over every registered model and task: what is seen has named axes, along which everything that
stands there has a name, and looking changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.inspect.report.build import report_of
from legato.inspect.summary import summary
from legato.inspect.trace import Trace
from legato.model import Model
from legato.models.base import SequenceModel
from legato.nn.capture import Recording, frames, record
from legato.registry import MODELS
from random_models import SMALL, made
from thinned import some
from tiny_pictures import pixels, word_tokenizer
from tiny_sounds import RATE, samples_of
from tiny_tasks import all_tasks, tiny

NAMES = [name for name in MODELS.names() if name != "unit"]  # which is looked into task by task
AXES = {"row", "frame", "position", "seen", "source", "head", "unit"}
NAMED = {"frame", "position", "seen", "source"}
UNSEEN = {"window", "word2vec"}  # no attention, no state that goes on


def batch_for(model: SequenceModel) -> Batch:
    batch = model.smallest_batch()
    if model.is_encoder_decoder and batch.source is None:
        batch.source = Inputs(torch.tensor([[1, 2, 3]]))
    return batch


@torch.no_grad()
def looked(model: SequenceModel, keep: Any = None) -> tuple[Any, Recording]:
    with record(keep) as trace:
        output = model(batch_for(model))
    return output, trace


@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_has_named_axes_and_looking_changes_nothing(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        plain = model(batch_for(model))
    output, trace = looked(model)
    torch.testing.assert_close(output.hidden, plain.hidden, rtol=1e-5, atol=1e-5)
    assert bool(trace) == (name not in UNSEEN)
    for known, tensors in trace.items():
        axes = trace.axes[known]
        assert set(axes) <= AXES
        assert len(set(axes)) == len(axes)
        assert all(tensor.dim() == len(axes) for tensor in tensors)
        assert all(not tensor.requires_grad for tensor in tensors)


def test_a_filter_keeps_what_it_says() -> None:
    model = made("gpt2")
    _, every = looked(model)
    _, some = looked(model, lambda name: name.startswith("decoder.1.") and name.endswith("weights"))
    assert list(some) == ["decoder.1.attention.weights"]
    assert set(some) < set(every)
    torch.testing.assert_close(some["decoder.1.attention.weights"], every["decoder.1.attention.weights"])


def test_frames_that_were_rows_have_an_axis_of_their_own() -> None:
    from legato.nn.capture import capture

    with record() as trace, frames(3):
        capture("hidden", torch.arange(12).view(6, 2), "row unit")
    assert trace.axes["hidden"] == ("row", "frame", "unit")
    assert trace["hidden"][0].tolist() == torch.arange(12).view(2, 3, 2).tolist()


# --- what stands at each position -----------------------------------------------------------------------

PICTURE, SOUND = pixels("red"), (samples_of("high low", 5), RATE)
ASKED = (PICTURE, "what colour is it?")
GIVEN: dict[str, Any] = {  # what a model of each task is looked at with; others read text
    "image-classification": PICTURE,
    "captioning": PICTURE,
    "detection": PICTURE,
    "image-text": (PICTURE, "a square"),
    "qa": "who runs?\tthe dog runs",
    "vqa": ASKED,
    "visual-chat": ASKED,
    "unit": {"colours": ASKED, "boxes": PICTURE, "films": "a gem of a film"},
    "speech": SOUND,
    "audio-classification": SOUND,
}
TRAINED = {"lstm", "seq2seq", "word2vec", "vit", "vqa", "detr", "clip", "llava", "unit", "conformer"}  # as examples
TASKS_OF = {  # of the others, which are random
    **dict.fromkeys(("window", "elman", "gru", "elmo", "gpt2", "llama"), "lm"),
    **dict.fromkeys(("bert", "roberta", "distilbert"), "mlm"),
    "transformer": "translation",
    **dict.fromkeys(("resnet", "efficientnet-lite", "clip-vision", "frames"), "image-classification"),
    "deepspeech": "audio-classification",
    "whisper": "speech",
}


def fits(trace: Trace) -> None:
    """As many names as there are positions, along every axis that has any."""
    for name, captured in trace.items():
        assert captured.values.ndim == len(captured.axes)
        for axis, size in zip(captured.axes, captured.values.shape, strict=True):
            there = trace.positions_of(name, axis)
            assert (there is not None) == (axis in NAMED), (name, axis)
            assert there is None or there.count == size, (name, axis, there, size)
    for places in trace.positions.values():
        assert set(places.patches) <= set(range(places.count))
        shown = [places.names[place] for place in places.patches]
        rows, columns = places.grid or (0, 0)
        assert shown == [f"{row + 1}, {column + 1}" for row in range(rows) for column in range(columns)]


@torch.no_grad()
def looked_into(model: Any, given: Any) -> Trace:
    """A trace with names everywhere, of a model of which looking changes nothing."""
    written = "a b" if model.module.is_encoder_decoder else None
    trace = model.trace(given, written=written)
    fits(trace)
    assert summary(trace) or not trace
    batch = reading_of(model.loaded, given, written).batch
    with record():
        looking = model.module(batch)
    torch.testing.assert_close(looking.hidden, model.module(batch).hidden, rtol=1e-4, atol=1e-5)
    return trace


def drawn(model: Any, given: Any) -> None:
    """A report whose arrays fit the streams that they lie on."""
    report = report_of(model, given, written="a b" if model.module.is_encoder_decoder else None)
    report.html()
    for layer in report.views.get("attention", {"layers": []})["layers"]:
        queries, keys = (len(report.streams[layer[key]]["names"]) for key in ("stream", "keys"))
        assert report.arrays[layer["weights"]].shape == (layer["heads"], queries, keys)
    for tensor in report.views.get("cells", {"tensors": []})["tensors"]:
        count = len(report.streams[tensor["stream"]]["names"])
        assert report.arrays[tensor["values"]].shape == (count, tensor["units"])


@pytest.mark.slow
@pytest.mark.parametrize("task", all_tasks())
def test_everything_in_a_trace_has_a_name(task: str, tmp_path: Path) -> None:
    legato.train(task, tiny(task, tmp_path / "data", train__steps=1), out=tmp_path / "run", quiet=True)
    model, given = legato.load(tmp_path / "run", "cpu"), GIVEN.get(task, "the dog runs")
    for name, each in given.items() if task == "unit" else [(None, given)]:
        trace = looked_into(model.for_task(name), each)
        drawn(model.for_task(name), each)
        trace.save(tmp_path / "trace")
        held = Trace.load(tmp_path / "trace")
        assert held.positions == trace.positions
        assert {name: each.stream for name, each in held.items()} == {
            name: each.stream for name, each in trace.items()
        }


@pytest.mark.parametrize("name", some(MODELS.names(), {*MODELS.names()} - {"deepspeech", "whisper"}))
def test_everything_in_a_trace_of_a_random_model_has_a_name(name: str) -> None:
    if name in TRAINED:
        pytest.skip("a task's example has it")
    task, tokenizer = TASKS_OF[name], word_tokenizer()
    module = made(name, tokenizer.size)
    side = SMALL["image"]
    kinds = {"image": ImageProcessor((side, side)), "audio": FeatureExtractor(bins=SMALL["features"])}
    others = {kind: kinds[kind] for kind in module.processors_of(module.config) if kind in kinds}
    about = {"frames": 3} if name == "frames" else {}
    loaded = Loaded(Path(name), module, Processors(tokenizer, others=others), task, about)
    model, given = Model(loaded, torch.device("cpu")), GIVEN.get(task, "a red dog saw a cat")
    trace = looked_into(model, given)
    drawn(model, given)
    assert bool(trace) == (name not in UNSEEN)
