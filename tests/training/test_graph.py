"""A step replayed as a CUDA graph equals the same step made kernel by kernel.

The real graph needs a GPU; that a replay reads the right batch and state is tested without one.
"""

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

try:
    import pytest
except ImportError:  # run by hand on a machine that has a GPU and no pytest
    pytest = None

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import BatchShape, Streams, WindowShape
from legato.data.batching.pair_batches import PairBatches
from legato.models.base import Sizes
from legato.nn.kernels.recording import failure_reason
from legato.registry import MODELS, TASKS
from legato.runs.config import check, settings_for
from legato.runs.run_folder import RunFolder
from legato.runs.train import with_head
from legato.tasks.base import Plan
from legato.tasks.encoder_decoder import pair_loss
from legato.tasks.lm.job import next_token_loss
from legato.training.checkpoints import flatten, with_each
from legato.training.display import Display
from legato.training.graph import WARM, StepGraph, copied_as_laid_out, own_stream, shape_of
from legato.training.loop import Trainer

TEXT = {"data.train": "builtin:stdlib", "tokenizer": "byte", "data.forget": 0.1}
PAIRS = {"data.train": "toy:language", "data.toy.length": [3, 30], "data.toy.count": 2000}
HEAR = ("conformer", "deepspeech")
SOUNDS = {"data.train": "toy:sounds", "data.sounds.count": 300, "model.layers": 2}


def losses(model: str, graph: bool, folder: Path, steps: int = 40) -> tuple[list[float], int]:
    """The loss of each of the first steps, and how many graphs were recorded."""
    task = MODELS.get(model).usual_task or ("translation" if MODELS.get(model).is_encoder_decoder else "lm")
    settings = {
        **{"lm": TEXT, "translation": PAIRS, "speech": SOUNDS}[task],
        "model": model,
        "model.width": 64,
        "train.graph": graph,
        "train.precision": "float32",
        "train.batch_tokens": 1024,
    }
    config = check(settings_for(task, settings))
    device = torch.device("cuda", 0)
    plan = Plan(config.data, config.tokenizer, config.model, config.train, 0, device)
    job = TASKS.get(task).prepare(plan, lambda text: None)
    torch.manual_seed(0)
    module = MODELS.get(model)(config.model, job.sizes)
    module = (module if job.head is None else with_head(module, job, None)).to(device)
    run = RunFolder(folder)
    trainer = Trainer(module, job, config.train, run, seed=0, device=device, display=Display(quiet=True))
    module.train()
    found = []
    with own_stream(device):
        for _ in range(steps):
            trainer._update()
            found.append(trainer.watch.read()[0])
    return found, len(trainer.recordings.graphs)


if pytest is not None:

    class Again:
        """Stands in for a CUDA graph where there is no GPU: replaying runs the same Python again."""

        replay: Any = None

    def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Again)
        monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        for place in ("training.graph", "nn.kernels.recording"):
            monkeypatch.setattr(f"legato.{place}.recordable_stream", lambda: None)

    @pytest.mark.parametrize("name", ["window", "elman", "gru", "lstm"])
    def test_a_replay_reads_the_batch_and_carries_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch)
        torch.manual_seed(0)
        model = MODELS.get(name)(MODELS.get(name).Config(name=name, width=16, dropout=0), Sizes(20))
        batches = Streams(np.arange(400) % 20, WindowShape(rows=4, window=8, seed=0), forget=0.3)

        def run(batch: Batch, state: Any, tokens: Any = None) -> tuple[torch.Tensor, Any]:
            loss = next_token_loss(model, batch, state)
            return loss.total.detach(), with_each(torch.Tensor.detach, loss.state)

        _, start = run(batches.at(0), None)
        graph = StepGraph(run, batches.at(1), start, [])
        graph.graph.replay = lambda: graph._recorded(run)
        state: Any = None
        assert batches.steps_per_epoch == 12
        for step in range(12, 30):  # begins and crosses an epoch, where every row starts anew
            batch = batches.at(step)
            expected, state = run(batch, None if batch.reset_all else state)
            torch.testing.assert_close(graph.replay(batch), expected)

    @pytest.mark.parametrize("name", ["seq2seq", "transformer"])
    def test_pairs_of_each_shape_go_through_a_recording_of_their_own(
        name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand_in(monkeypatch)
        torch.manual_seed(0)
        model = MODELS.get(name)(MODELS.get(name).Config(name=name, width=16, layers=1, dropout=0), Sizes(20))
        drawn = np.random.default_rng(0)
        rows = [[drawn.integers(1, 20, size=size) for size in drawn.integers(1, 30, size=200)] for _ in range(2)]
        batches = PairBatches(*rows, BatchShape(batch_tokens=256, seed=0, pad_to=8, fixed_shape=True), start=0, eos=0)
        parameters = list(model.parameters())

        def run(batch: Batch, state: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
            loss = pair_loss(model, batch, 0.1)
            (loss.total / tokens).backward()
            return loss.reported.detach(), None

        graphs: dict[Any, StepGraph] = {}
        for step in range(batches.steps_per_epoch):
            batch = batches.at(step)
            graph = graphs.get(shape_of(batch))
            if graph is None:
                graph = graphs[shape_of(batch)] = StepGraph(
                    run, batch, None, parameters, next(iter(graphs.values()), None)
                )
                graph.graph.replay = lambda g=graph: g._recorded(run)
            found = float(graph.replay(batch)), [p.grad.clone() for p in parameters]
            first = next(iter(graphs.values()))
            shared = zip(parameters, first.gradients, strict=True)  # one set for all shapes
            assert all(parameter.grad is gradient for parameter, gradient in shared)
            for parameter in parameters:
                parameter.grad = None
            expected = float(run(batch, None, torch.tensor(float(batch.tokens)))[0])
            assert found[0] == pytest.approx(expected, rel=1e-6)
            torch.testing.assert_close(found[1], [p.grad for p in parameters])
        assert 2 <= len(graphs) <= 8

    def pairs_trainer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, list[str]]:
        """Pairs in a few shapes, whose steps are to be recorded; and the warnings to come."""
        plan_settings = {**PAIRS, "data.toy.length": [3, 16], "data.toy.count": 600}
        plan_settings |= {"model": "seq2seq", "model.width": 16, "train.batch_tokens": 256}
        config = check(settings_for("translation", plan_settings))
        device = torch.device("cpu")
        job = TASKS.get("translation").prepare(
            Plan(config.data, config.tokenizer, config.model, config.train, 0, device), lambda text: None
        )
        job.batches.fixed_shape, job.batches.pad_to = True, 8
        module = MODELS.get("seq2seq")(config.model, job.sizes)
        display = Display(quiet=True)
        warnings: list[str] = []
        monkeypatch.setattr(display, "warn", warnings.append)
        trainer = Trainer(module, job, config.train, RunFolder(folder), seed=0, device=device, display=display)
        trainer.recordings.on = True
        return trainer, warnings

    def test_a_step_that_cannot_be_recorded_is_made_all_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **more: Any) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

        monkeypatch.setattr("legato.training.graph.StepGraph", refuse)
        trainer, warnings = pairs_trainer(tmp_path, monkeypatch)
        for _ in range(30):
            trainer._update()
        assert warnings == ["steps are not recorded as CUDA graphs: operation not permitted when stream is capturing"]
        assert trainer.step == 30

    class Recording:
        """Stands in for a recorded step, and remembers its shape and the step it was made at."""

        made: ClassVar[list[tuple[Any, int]]] = []
        trainer: ClassVar[Trainer]

        def __init__(self, run: Any, batch: Batch, *_: Any, adds: bool) -> None:
            assert not adds
            self.run = run
            self.made.append((shape_of(batch), self.trainer.step))

        def replay(self, batch: Batch, tokens: int, *, begins: bool) -> torch.Tensor:
            assert begins
            self.trainer.optimizer.zero_grad()
            return self.run(batch, None, torch.tensor(float(tokens)))[0]

    def test_steps_of_a_task_are_recorded_after_some_of_it_where_the_job_lets_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer, warnings = pairs_trainer(tmp_path, monkeypatch)
        monkeypatch.setattr("legato.training.graph.StepGraph", Recording)
        monkeypatch.setattr(Recording, "made", [])
        monkeypatch.setattr(Recording, "trainer", trainer, raising=False)
        at, tasks = trainer.job.batches.at, ["boxes", "words", "words", "boxes", "rare"]

        def task_at(step: int) -> str:
            return tasks[step % 4 + step // 30]

        monkeypatch.setattr(trainer.job.batches, "at", lambda step: replace(at(step), task=task_at(step)))
        monkeypatch.setattr(trainer.job, "recordable", lambda batch: batch.task != "boxes")
        for _ in range(34):
            trainer._update()
        recorded = {shape[0] for shape, _ in Recording.made}  # type: ignore[index]
        first = min(step for _, step in Recording.made)
        made = [step for step in range(34) if task_at(step) == "words"]
        assert recorded == {"words"}
        assert first == made[WARM]
        assert not warnings

    @pytest.mark.parametrize(
        ("at_once", "compiled"), [(12, False), (1, False), pytest.param(12, True, marks=pytest.mark.slow)]
    )
    def test_the_first_shapes_are_recorded_when_they_come_and_others_when_they_come_again(
        at_once: int, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer, warnings = pairs_trainer(tmp_path, monkeypatch)
        trainer.recordings.at_once = not compiled
        monkeypatch.setattr("legato.training.graph.AT_ONCE", at_once)
        monkeypatch.setattr("legato.training.graph.StepGraph", Recording)
        monkeypatch.setattr(Recording, "made", [])
        monkeypatch.setattr(Recording, "trainer", trainer, raising=False)
        shapes: list[Any] = []
        expected = {}
        for step in range(40):
            shape = shape_of(trainer.job.batches.at(step))
            due = shape in shapes or (len(expected) < at_once and not compiled)
            if step >= WARM and due:
                expected.setdefault(shape, step)
            shapes.append(shape)
            trainer._update()
        assert dict(Recording.made) == expected
        assert len(trainer.recordings.graphs) == len(Recording.made) >= 3
        assert not warnings

    PARTS = [("lstm", 1), ("lstm", 3), ("gpt2", 4)]
    PARTS += [pytest.param(*each, marks=pytest.mark.slow) for each in (("lstm", 2), ("gpt2", 2))]

    def small_lm(name: str, folder: Path, accumulate: int) -> Trainer:
        text = folder.with_suffix(".txt")
        text.write_text("".join(chr(97 + i * i % 23) for i in range(700)))
        settings = {
            "data.train": str(text),
            "data.valid": str(text),
            "tokenizer": "byte",
            "model": name,
            "model.width": 16,
            "model.dropout": 0.2,
            "data.window": 8,
            "train.batch_tokens": 8 * 10,  # rows that are not as many in every part
            "train.accumulate": accumulate,
            "train.clip": 0,
        }
        if MODELS.get(name).Config.has_length():
            settings["model.length"] = 8
        config = check(settings_for("lm", settings))
        plan = Plan(config.data, config.tokenizer, config.model, config.train, 0, torch.device("cpu"))
        job = TASKS.get("lm").prepare(plan, lambda text: None)
        torch.manual_seed(0)
        module = MODELS.get(name)(config.model, job.sizes).train()
        device, display = torch.device("cpu"), Display(quiet=True)
        return Trainer(module, job, config.train, RunFolder(folder), seed=0, device=device, display=display)

    @pytest.mark.parametrize(("name", "parts"), PARTS)
    def test_recorded_parts_of_a_step_add_up_to_the_step(
        name: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, recorded = (small_lm(name, tmp_path / kind, parts) for kind in ("plain", "recorded"))
        stand_in(monkeypatch)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        made = []

        def record(run: Any, *given: Any, **more: Any) -> StepGraph:
            generator = torch.get_rng_state()
            graph = StepGraph(run, *given, **more)
            torch.set_rng_state(generator)
            for place, kept in zip(graph._places, flatten(given[1])[0], strict=True):
                place.copy_(kept)  # a true recording computes nothing
            graph.graph.replay = lambda: replay(graph, run)
            made.append(graph)
            return graph

        def replay(graph: StepGraph, run: Any) -> None:
            place = graph.loss  # a true one leaves each loss in the same place
            graph._recorded(run)
            graph.loss = place.copy_(graph.loss)

        monkeypatch.setattr("legato.training.graph.StepGraph", record)
        recorded.recordings.on = True
        for _ in range(14):  # into a second epoch
            plain._update()
            recorded._update()
            assert plain.watch._values[-1].tolist() == pytest.approx(recorded.watch._values[-1].tolist(), rel=1e-5)
        assert plain.job.batches.steps_per_epoch < 14
        sizes = {len(rows) for rows in torch.arange(10).split(-(-10 // parts))}
        assert len(made) == (parts if name == "lstm" else len(sizes))
        weights = zip(plain.model.parameters(), recorded.model.parameters(), strict=True)
        assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in weights)

    def test_a_step_whose_compilation_fails_halfway_begins_anew(tmp_path: Path) -> None:
        plain, failing = (small_lm("lstm", tmp_path / kind, 2) for kind in ("plain", "failing"))
        whole, calls = failing._forward_backward, []

        def forward_backward(*given: Any) -> Any:
            calls.append(given)
            if len(calls) == 6:  # the second part of the third step
                raise RuntimeError("no compiler")
            return whole(*given)

        failing._forward_backward = forward_backward  # type: ignore[method-assign]
        for step in range(5):
            failing.compilation.on = step == 2
            plain._update()
            failing._update()
            assert plain.watch._values[-1].tolist() == pytest.approx(failing.watch._values[-1].tolist(), rel=1e-6)
        assert not failing.compilation.on
        assert len(calls) == 12
        for one, other in zip(flatten(plain.states)[0], flatten(failing.states)[0], strict=True):
            torch.testing.assert_close(one, other)

    def test_parts_whose_parameters_had_no_gradient_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch)
        weight = torch.nn.Parameter(torch.ones(3))

        def run(batch: Batch, state: Any, tokens: Any) -> tuple[torch.Tensor, Any]:
            weight.sum().backward()
            return torch.zeros(()), None

        batch = Streams(np.arange(400) % 20, WindowShape(rows=4, window=8, seed=0)).at(0)
        monkeypatch.setattr("legato.training.graph.end_recording", lambda *_: None)
        with pytest.raises(RuntimeError, match="gradients came where an ordinary step had none"):
            StepGraph(run, batch, None, [weight], adds=True)

    class Keeper:
        """Something large that a step holds."""

    def test_a_recording_that_failed_keeps_nothing_of_its_step(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held: list[Any] = []

        def refuse(*_: Any, **more: Any) -> None:
            activations = Keeper()
            held.append(weakref.ref(activations))
            try:
                raise RuntimeError("CUDA out of memory")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

        monkeypatch.setattr("legato.training.graph.StepGraph", refuse)
        trainer, warnings = pairs_trainer(tmp_path, monkeypatch)
        gc.disable()
        try:
            for _ in range(10):
                trainer._update()
            assert [there() for there in held] == [None]
        finally:
            gc.enable()
        # What failed is said, not that the end of the recording then failed, too.
        assert warnings == ["steps are not recorded as CUDA graphs: CUDA out of memory"]

    def test_what_a_compiler_says_in_two_lines_is_told_in_one() -> None:
        assert failure_reason(RuntimeError("inductor raised:\n\n  RuntimeError: no\n  more")) == (
            "inductor raised: RuntimeError: no"
        )

    def test_a_recordings_own_batch_is_laid_out_as_the_steps_are() -> None:
        # A compiled step would be compiled anew for other strides, and nothing can be compiled while recording.
        wide = torch.arange(26).view(2, 13)[:, :12]
        copy = copied_as_laid_out(wide)
        assert copy.stride() == wide.stride()
        assert torch.equal(copy, wide)
        assert copy.data_ptr() != wide.data_ptr()
        assert torch.equal(copied_as_laid_out(torch.ones(1).expand(3)), torch.ones(3))

    def test_batches_that_may_have_another_number_of_texts_have_a_recording_of_their_own() -> None:
        ids = torch.zeros(2, 8, dtype=torch.long)
        few, many = (Batch(Inputs(ids, document_ids=ids, most_documents=most)) for most in (4, 8))
        assert shape_of(few) != shape_of(many)  # the places of their borders are part of the recording
        assert shape_of(few) == shape_of(replace(few))

    def test_an_error_without_words_is_told_by_its_name() -> None:
        assert failure_reason(AssertionError()) == "AssertionError"

    @pytest.mark.parametrize("told", [True, False])  # whether PyTorch has ended the recording
    def test_a_recording_that_failed_is_ended(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch)
        calls: list[Any] = []

        def end(device: int, pool: Any) -> None:
            calls.append(("end", device, pool))
            if told:
                raise RuntimeError("not currently recording")

        def release(device: int, pool: Any) -> None:
            calls.append(("release", device, pool))

        def pool_of(graph: Again) -> None:
            if not told:
                raise RuntimeError("no recording that ended well")

        def refuse(*_: Any) -> Any:
            raise RuntimeError("not while recording")

        def begin(graph: Again, stream: Any, pool: Any = None) -> Any:
            return nullcontext(calls.append(("begin", pool)))

        monkeypatch.setattr(torch.cuda, "graph", begin)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.setattr(Again, "pool", pool_of, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
        batch = Streams(np.arange(400) % 20, WindowShape(rows=4, window=8, seed=0)).at(0)
        with pytest.raises(RuntimeError, match="not while recording"):
            StepGraph(refuse, batch, None, [])
        released = [] if told else [("release", 3, (0, 1))]
        # The last is the tiny one that sets the generator right.
        assert calls == [("begin", (0, 1)), ("end", 3, (0, 1)), *released, ("begin", None)]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
    @pytest.mark.parametrize("model", ["window", "elman", "gru", "lstm", "seq2seq", "transformer", "gpt2", *HEAR])
    def test_replaying_a_graph_equals_launching_each_kernel(model: str, tmp_path: Path) -> None:
        with_graph, recorded = losses(model, True, tmp_path)
        plain, not_recorded = losses(model, False, tmp_path)
        assert recorded
        assert not not_recorded
        torch.testing.assert_close(torch.tensor(with_graph), torch.tensor(plain), rtol=2e-3, atol=2e-3)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
    @pytest.mark.parametrize("model", ["lstm", "transformer"])
    def test_a_run_goes_on_after_a_recording_that_failed(
        model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, _ = losses(model, False, tmp_path)
        ordinary = Trainer._forward_backward

        def asking(self: Trainer, part: Batch, state: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
            loss, after = ordinary(self, part, state, tokens)
            loss.item()  # not while recording
            return loss, after

        with monkeypatch.context() as patched:
            patched.setattr(Trainer, "_forward_backward", asking)
            failed, recorded = losses(model, True, tmp_path)
        assert recorded == 0
        torch.cuda.empty_cache()
        assert not [part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) != (0, 0)]
        torch.testing.assert_close(torch.tensor(failed), torch.tensor(plain), rtol=2e-3, atol=2e-3)
        again, recorded = losses(model, True, tmp_path)
        assert recorded
        torch.testing.assert_close(torch.tensor(again), torch.tensor(plain), rtol=2e-3, atol=2e-3)
