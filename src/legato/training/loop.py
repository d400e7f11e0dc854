"""The training loop. There is one.

Notable here:

- a step is a pure function of the weights, the batch at that step and a seed made from the step, so a
  run resumes to the same bits from a number and the tensors of a checkpoint;
- the device is asked for results every `log_every` steps only; what was not finite is found then, and
  before every checkpoint, so that a checkpoint is always good;
- a checkpoint is written after `best`, never before: killed in between, the run makes both again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from legato.data.batching.ahead import Ahead
from legato.data.batching.batch import Batch
from legato.data.batching.batches import mix_seed
from legato.errors import CheckpointError, DeviceError, DivergenceError, LegatoError, NotFiniteError, brief
from legato.evaluation.metrics import metric_of, printed_scores
from legato.folders.atomic import replacing
from legato.folders.finite_scores import finite_scores
from legato.interrupts import CTRL_C, Interrupt, Stopped
from legato.memory import kept_pages
from legato.models.base import SequenceModel
from legato.nn.transformer import expect_documents
from legato.schema import fields_of, fit
from legato.training.checkpoint_files import list_checkpoints, step_of
from legato.training.checkpoints import (
    Checkpoint,
    KeptProgress,
    Progress,
    load_checkpoint,
    load_trainable,
    newest_good,
    save_checkpoint,
    trainable_state,
    with_each,
)
from legato.training.compiling import Compilation
from legato.training.config import TrainConfig
from legato.training.devices import autocast, random_states, seed_generators, set_random_states
from legato.training.display import Display, Forecast, Report, memory_used
from legato.training.divergence import NotFinite, Watch, first_bad_module
from legato.training.graph import Recordings, own_stream
from legato.training.job import Job, Run
from legato.training.layer_figures import LayerFigures
from legato.training.optimizers import Average, make_optimizer, optimizer_tensors, restore_optimizer
from legato.training.recompute import recompute_blocks
from legato.training.schedules import Schedule, resolve_steps, resolve_validate_every
from legato.training.update import clip_and_step


class Trainer:
    """Trains `model` on `job` into `run`."""

    def __init__(
        self,
        model: SequenceModel,
        job: Job,
        config: TrainConfig,
        run: Run,
        *,
        seed: int,
        device: torch.device,
        display: Display,
        shorter: Sequence[str] = (),  # settings that save time, for a long run on a CPU
    ) -> None:
        self.model, self.job, self.config, self.run = model, job, config, run
        self.seed, self.device, self.display = seed, device, display
        self.steps = resolve_steps(config, job.batches.steps_per_epoch)
        self.validate_every = resolve_validate_every(config, self.steps, job.batches.steps_per_epoch)
        self.checkpoint_every = config.checkpoint_every or self.validate_every
        self.optimizer = make_optimizer(model, config, device)
        self.schedule = Schedule(config, self.steps)
        self.average = Average(model, config.ema) if config.ema else None
        self.forecast = Forecast(config, self.steps, job.batches.steps_per_epoch, shorter)
        self.progress = Progress()
        self.step = 0  # updates made
        self.states: list[Any] = [None] * config.accumulate
        self.watch = Watch()
        self._trainable = [p for p in model.parameters() if p.requires_grad]
        # What is computed again draws its dropout again from the same generator's state, which a recording hides.
        on = config.graph and device.type == "cuda" and not config.recompute
        # Where the model runs on the CPU itself, a thread would only take turns with it.
        self._ahead = Ahead(job.batches, self.steps, pin=True) if device.type == "cuda" else None
        settle = {} if self._ahead is None else {"settle": self._ahead.settle}
        self.recordings = Recordings(self._trainable, device, on=on, warn=display.warn, **settle)
        self._layers = LayerFigures(model, config.layers_every)
        if config.recompute:
            recompute_blocks(model)
        self.compilation = Compilation(config.compile, model, device, display)
        self.recordings.at_once = not self.compilation.on

    # ── one step ──────────────────────────────────────────────────────────────────────────────

    def _gradients(self, step: int) -> tuple[Tensor, Batch]:
        """Forward and backward of one step: the summed loss, and the batch it is of."""
        batch = (self._ahead or self.job.batches).at(step)
        parts = batch.split(self.config.accumulate)
        recordable = self.job.recordable(batch)
        graphs = self.recordings.of(parts, self.states, self._forward_backward) if recordable else None
        if graphs is None:
            self.optimizer.zero_grad(set_to_none=True)  # what is there may be a graph's
            if batch.reset_all:
                self.states = [None] * self.config.accumulate
            tokens = torch.tensor(float(max(batch.tokens, 1)), device=self.device)
        losses = []
        for index, part in enumerate(parts):
            seed_generators(self.device, mix_seed(self.seed, step, index))
            if graphs is None:
                there = part.to(self.device)
                loss, self.states[index] = self._forward_backward(there, self.states[index], tokens)
            else:
                loss = graphs[index].replay(part, batch.tokens, begins=index == 0)
            losses.append(loss.clone())  # the next replay leaves its own there
        return reduce(torch.add, losses), batch

    def _gradients_or_uncompiled(self, step: int) -> tuple[Tensor, Batch]:
        """The same; where the model cannot be compiled, without."""
        states = list(self.states)
        try:
            return self._gradients(step)
        except Exception as problem:
            if not self.compilation.refuse(problem):
                raise
        self.states = states
        self.recordings.reset()
        return self._gradients(step)

    def _forward_backward(self, part: Batch, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        """Add the gradients of one part of a step of `tokens` tokens; its summed loss and its next state."""
        if part.inputs.document_ids is not None:
            expect_documents(self.model, part.inputs.most_documents)
        with autocast(self.device, self.config.precision):
            loss = self.job.loss(self.model, part, state)
        # Every token of the step counts the same, in whichever part it lies.
        (loss.total / tokens).backward()
        # Cut off from the next segment, the state's gradients are those of truncated backpropagation through time.
        return loss.reported.detach(), with_each(Tensor.detach, loss.state)

    def _update(self) -> None:
        """Make update number `self.step`."""
        self.compilation.enter()
        rate = self.schedule.lr(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        reported, batch = self._gradients_or_uncompiled(self.step)
        looking = self._layers.due(self.step + 1)
        if looking:
            self._layers.before()
        norm = clip_and_step(self.optimizer, self._trainable, self.config.clip or math.inf)
        self.recordings.warm[batch.task] += 1
        if self.average is None and self.config.average and self.step >= self.steps * (1 - self.config.average):
            self.average = Average(self.model, None)
        if self.average is not None:
            self.average.update()
        self.progress.tokens += batch.read
        self.step += 1
        self.watch.see(self.step, reported, norm, batch.tokens)
        if self.compilation.leave(self.steps - self.step, lambda: len(self.recordings.met) <= 1):
            self.recordings.reset()
            self.recordings.at_once = False
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()  # the recordings' memory, which the others to come do not share
        if looking:
            self.watch.check()  # what is not finite is no figure
            self.run.log(self.step, "layers", dict(self._layers.after()))

    # ── the run ───────────────────────────────────────────────────────────────────────────────

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do: every step made, or patience run out."""
        patience = self.config.patience
        return self.step >= self.steps or bool(patience and self.progress.bad >= patience)

    def fit(self) -> Progress:
        """Train to the end, or until somebody stops it; returns what is known then."""
        if self.step == 0:
            self._save()  # so that there is always something to go back to
            self.run.started()
        CTRL_C.advice = f"; go on from the last checkpoint with: legato train resume={self.run.path}"
        if self.config.writes_events():
            self.run.open_events(self.step)
        self.display.plan(self.config, self.steps, self.job.batches.steps_per_epoch, self.validate_every)
        self.display.start(self.steps, self.step)
        try:
            stream = own_stream(self.device) if self.recordings.on else nullcontext()
            with Interrupt() as interrupt, stream, kept_pages() if self.device.type == "cpu" else nullcontext():
                self._train(interrupt)
        except NotFinite as problem:
            raise self._explain(problem) from None
        except NotFiniteError as problem:
            raise DivergenceError(
                f"validation at step {self.step}: {problem}; checkpoints are in {self.run.checkpoints}"
            ) from None
        except torch.OutOfMemoryError as problem:
            raise DeviceError(
                f"the GPU's memory is full at step {self.step}: raise train.accumulate (now "
                f"{self.config.accumulate}), or lower train.batch_tokens or model.width"
            ) from problem
        finally:
            self.display.stop()
            self.run.close()
            if self._ahead is not None:
                self._ahead.close()
        return self.progress

    def _train(self, interrupt: Interrupt) -> None:
        self.model.train()
        started = mark = time.monotonic()
        before, on_cpu = self.progress.seconds, self.device.type == "cpu"
        while self.step < self.steps and not self.progress.finished:
            self._update()
            ending = self.step == self.steps
            validating = self.step % self.validate_every == 0 or ending
            if self.step % self.config.log_every == 0 or ending:
                mark = self._report(mark, soon=validating)
            elif on_cpu and self.display.is_due(soon=validating):  # a GPU would have to be waited for
                self.display.report(self._figures(*self.watch.peek(), time.monotonic() - mark), soon=validating)
            paused = time.monotonic()
            if on_cpu and (line := self.forecast.line(self.step, self.progress.training + paused - mark)):
                self.display.say(line)
            if validating:
                self._validate()
            self.progress.seconds = before + time.monotonic() - started
            if ending:
                self.progress.finished = self.progress.finished or "steps"
            stopping = interrupt.signal is not None and not self.progress.finished
            if self.step % self.checkpoint_every == 0 or self.progress.finished or stopping:
                if self.progress.finished or stopping:
                    self._publish()
                self._save()
            mark += time.monotonic() - paused
            if stopping:
                self.display.stop()
                self.display.say(f"stopped at step {self.step}; go on with: legato train resume={self.run.path}")
                assert interrupt.signal is not None
                raise Stopped(interrupt.signal)

    def _report(self, mark: float, *, soon: bool = False) -> float:
        """Read what the device has, show it and log it; returns the new start of the clock."""
        loss, norm = self.watch.read()
        now, progress = time.monotonic(), self.progress
        report = self._figures(loss, norm, now - mark)
        progress.training += now - mark
        progress.reported = progress.tokens
        self.display.report(report, soon=soon)
        values = {"loss": loss, "lr": report.lr, "norm": norm, "tokens_per_second": round(report.speed, 1)}
        self.run.log(self.step, "train", {**values, "tokens": progress.tokens})
        return now

    def _figures(self, loss: float, norm: float, seconds: float) -> Report:
        """What there is to show of the steps since the last report, which took so many seconds."""
        progress = self.progress
        speed = (progress.tokens - progress.reported) / max(seconds, 1e-9)
        left = (self.steps - self.step) * progress.tokens / max(self.step, 1) / max(speed, 1e-9)
        if validations := self.step // self.validate_every:
            pauses = max(progress.seconds - progress.training - seconds, 0)
            left += pauses / validations * (math.ceil(self.steps / self.validate_every) - validations)
        return Report(
            step=self.step,
            steps=self.steps,
            loss=loss,
            lr=self.schedule.lr(self.step - 1),
            norm=norm,
            speed=speed,
            memory=memory_used(self.device),
            left=left,
            likelihood=self.job.likelihood,
            unit=self.job.speed_unit,
        )

    # ── validation ────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _scored(self) -> Iterator[None]:
        """Inside, the model is what is scored and kept: its average, where there is one, and not compiled."""
        averaged = self.average is not None and self.average.updates
        with self.compilation.paused(), self.average.applied() if self.average and averaged else nullcontext():
            yield

    def _validate(self) -> None:
        self.watch.check()  # nothing that is not finite is ever scored or saved
        self.model.eval()
        with self._scored(), torch.no_grad(), autocast(self.device, self.config.precision):
            metrics = finite_scores(self.job.validate(self.model), self.model, self.display.say)
            score = metrics[self.job.metric]
            gain = self._better(score, metrics.get("loss"))
            progress = self.progress
            self._decide(score, gain)
            if gain:
                progress.best_loss = metrics.get("loss")
            progress.metrics = metrics
            self.run.log(self.step, "valid", dict(metrics))
            known = self.job.metrics
            shown = {name: value for name, value in metrics.items() if not known or metric_of(known, name).headline}
            told = "  ".join(map(" ".join, printed_scores(known, shown, ".4g", self.job.search).items()))
            self.display.tell(f"valid at step {self.step}: {told}" + ("  (best)" if gain else ""))
            texts = self.job.samples(self.model, self.config.samples)
            if texts:
                self.run.log(self.step, "samples", {"texts": texts})
            for text in texts:
                self.display.say("  | " + text.replace("\n", "\n  | "))
            if gain:
                with replacing(self.run.best) as folder:
                    self.job.write(self.model, folder, metrics)
        self.model.train()

    def _decide(self, score: float | None, gain: bool) -> None:
        """What a validation's score means for the best model, the schedule, the average and the end."""
        progress, config = self.progress, self.config
        if gain:
            progress.best, progress.best_step, progress.bad = score, self.step, 0
        else:
            progress.bad += 1
        self.schedule.validated(gain)
        past = progress.scores[: -config.average_patience]
        if config.optimizer == "asgd" and self.average is None and past and self._worse(score, past):
            self.average = Average(self.model, None)
            self.display.say(f"averaging the weights from step {self.step} on")
        progress.scores.append(score)
        if config.patience and progress.bad >= config.patience:
            progress.finished = f"no gain in {config.patience} validations"

    def _better(self, score: float | None, loss: float | None) -> bool:
        best, before = self.progress.best, self.progress.best_loss
        if score is None:
            return False
        if score == best and loss is not None and before is not None:  # as BLEU is 0 for a while
            return loss < before
        return best is None or (score < best if self.job.lower_is_better else score > best)

    def _worse(self, score: float | None, past: list[float | None]) -> bool:
        known = [earlier for earlier in past if earlier is not None]
        if score is None or not known:
            return False
        return score > min(known) if self.job.lower_is_better else score < max(known)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────

    def _publish(self) -> None:
        self.watch.check()
        self.model.eval()
        with self._scored(), replacing(self.run.last) as folder:
            self.job.write(self.model, folder, self.progress.metrics)
        self.model.train()

    def _save(self) -> None:
        self.watch.check()  # nothing that is not finite is ever scored or saved
        average = self.average
        save_checkpoint(
            Checkpoint(
                step=self.step,
                weights=trainable_state(self.model),
                optimizer=optimizer_tensors(self.optimizer, self.model),
                average=average.weights if average else {},
                stream=self.states,
                random=random_states(self.device),
                progress={
                    "progress": vars(self.progress),
                    "schedule": {"cut": self.schedule.cut, "bad": self.schedule.bad},
                    "average_updates": average.updates if average else None,
                },
            ),
            self.run.checkpoints,
            self.config.keep,
        )

    def resume(self) -> None:
        """Take up the newest checkpoint that is whole."""
        self._restore(newest_good(self.run.checkpoints, self.display.warn))
        self.run.rewind(self.step)

    def _restore(self, checkpoint: Checkpoint) -> None:
        where = f"the checkpoint at step {checkpoint.step}"
        kept = fit(checkpoint.progress, KeptProgress, where, error=CheckpointError)
        fit(kept["progress"], fields_of(Progress), f"{where}, in 'progress'", error=CheckpointError)
        load_trainable(self.model, checkpoint.weights, where)
        restore_optimizer(self.optimizer, self.model, checkpoint.optimizer, where)
        self.progress = Progress(**kept["progress"])
        self.schedule.cut, self.schedule.bad = kept["schedule"]["cut"], kept["schedule"]["bad"]
        if kept["average_updates"] is not None:
            self.average = self.average or Average(self.model, None)
            self.average.restore(checkpoint.average, kept["average_updates"], where)
        self.recordings.reset()
        self.step = checkpoint.step
        self.states = with_each(lambda tensor: tensor.to(self.device), checkpoint.stream)
        self._check_states(where)
        set_random_states(checkpoint.random, self.device, where)

    @torch.no_grad()
    def _check_states(self, where: str) -> None:
        """Refuse a stream's state that this model cannot go on from: only the model knows what it is like."""
        parts = self.config.accumulate
        if not isinstance(self.states, list) or len(self.states) != parts:
            raise CheckpointError(
                f"{where} is another run's: it carries no state for each of {parts} parts of a step"
            )
        if self.step >= self.steps or all(state is None for state in self.states):
            return
        batch = self.job.batches.at(self.step)
        if batch.reset_all:
            return
        try:
            with autocast(self.device, self.config.precision):
                for part, state in zip(batch.to(self.device).split(parts), self.states, strict=True):
                    self.job.loss(self.model, part, state)
        except (LegatoError, torch.OutOfMemoryError):
            raise
        except Exception as problem:  # whatever a model makes of a state that is none
            raise CheckpointError(
                f"{where} is another run's: the model cannot go on from its state ({brief(problem)})"
            ) from None

    def _explain(self, problem: NotFinite) -> DivergenceError:
        """Go back to the last checkpoint, make the bad step again and name the module where it began."""
        where, good = "", self.step
        try:
            self.watch, self.recordings.on = Watch(), False
            self.model.train()
            earlier = [p for p in list_checkpoints(self.run.checkpoints) if step_of(p) < problem.step]
            self._restore(load_checkpoint(earlier[-1]))
            good = self.step
            while self.step < problem.step - 1:
                self._update()
            where = first_bad_module(self.model, lambda: self._gradients(problem.step - 1) and None)
        except Exception as second:  # the explanation must never hide the finding
            where = f"replaying it failed: {second}"
        return DivergenceError(
            f"{problem.what} at step {problem.step}, {where}; the last good checkpoint is step {good} in "
            f"{self.run.checkpoints}; lower train.lr or train.clip, or check the data there"
        )
