"""What the jobs that predict the next token share: the loss, and the folder they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legato import __version__
from legato.data.batch import Batch
from legato.data.tokenizers import AnyTokenizer
from legato.evaluation.language import readout_loss
from legato.folders.model_folder import save_model
from legato.models.base import SequenceModel, count_parameters
from legato.tasks.base import model_card
from legato.training.job import Loss


def write_model(
    folder: Path,
    model: SequenceModel,
    tokenizer: AnyTokenizer,
    hashes: dict[str, str],
    metrics: dict[str, float],
    use: str,
    more: dict[str, Any],
) -> None:
    """A model folder for the `lm` task; `more` is what the job adds to what the folder says of itself."""
    card = model_card("lm", model.config.name, count_parameters(model), hashes, metrics, use)
    about = {"version": __version__, "data": hashes, "metrics": metrics, **more}
    save_model(folder, model, tokenizer, task="lm", about=about, card=card)


def next_token_loss(model: SequenceModel, batch: Batch, state: Any, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the next token, and the model's penalties weighted by the batch's tokens."""
    assert batch.targets is not None
    if state is not None and batch.keep is not None:
        state = model.forget(state, batch.keep)
    output = model(batch, state)
    total, reported = readout_loss(model, output.hidden, batch.targets, smoothing)
    for penalty in output.auxiliary.values():
        total = total + penalty * batch.tokens
    return Loss(total, reported, output.state)
