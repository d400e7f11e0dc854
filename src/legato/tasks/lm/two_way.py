"""Language modelling both ways: a model that is two language models learns to guess the next word and the one before.

    L = ½ (mean_t -log P(w_{t+1} | w_1 … w_t)  +  mean_t -log P(w_{t-1} | w_t … w_T))

ELMo (`models/elmo.py`) is trained so by the `lm` task: on windows of a text, or row by row, where both directions
begin anew. It is scored as every recurrent language model is, in one stream whose state is carried, once from each
end of the text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legato.data.batching.batch import IGNORE, Batch
from legato.data.cache import cached_ids
from legato.data.formats.text import Text
from legato.data.sources.toys import TOY
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.errors import ConfigError, DataError
from legato.evaluation.lm import safe_exp, stream_loss, text_metrics
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.elmo import ElmoModel
from legato.tasks.base import Plan, Say
from legato.tasks.lm.job import LanguageJob
from legato.training.job import Loss


class TwoWayJob(LanguageJob):
    """Training on a text, read from both ends."""

    use = "legato train tagging data.train=FILE from=FOLDER adapt=head head.layers=mix head.lstm=1"

    def __init__(self, plan: Plan, say: Say) -> None:
        if plan.data.train.startswith(TOY):
            raise ConfigError(f"{plan.data.train} is for models that write; model={plan.model.name} learns from text")
        if plan.data.batching not in ("windows", "rows"):
            raise ConfigError(
                f"data.batching={plan.data.batching} reads a text from its left only, and model={plan.model.name} "
                "reads it both ways; use windows or rows"
            )
        if plan.data.window < 2:
            raise ConfigError("data.window=1 has no word before another to guess; set data.window=64")
        super().__init__(plan, say)

    @torch.no_grad()
    def initialise(self, model: SequenceModel) -> None:
        """Begin with guesses that are as frequent as the words: b_w = log P(w).

        Else the first thing to learn is how rare most words are, which bends all words' vectors one way.
        """
        if self.plan.loaded is None:
            counts = np.bincount(np.asarray(self.ids["train"]), minlength=self.sizes.vocabulary) + 1.0
            model.output.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return two_way_loss(model, batch, self.plan.train.label_smoothing)

    def _score(self, model: SequenceModel, split: str, rows: int) -> dict[str, float]:
        return score_both_ways(model, self.ids[split], self.texts[split], rows, self.tokenizer)

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {}


def two_way_loss(model: SequenceModel, batch: Batch, smoothing: float = 0.0) -> Loss:
    """The mean of both directions' cross-entropies, summed over the batch's targets.

    Of a window w_0 … w_T, cut into inputs and the words that follow them, the backward model reads the inputs: it
    guesses all of them but the last.
    """
    assert isinstance(model, ElmoModel)
    assert batch.targets is not None
    output = model(batch)
    before, behind = model.halves(output.hidden)
    earlier = batch.inputs.token_ids.roll(1, 1)
    earlier[:, 0] = IGNORE
    if batch.inputs.lengths is not None:
        places = torch.arange(earlier.shape[1], device=earlier.device)
        earlier = earlier.masked_fill(places >= batch.inputs.lengths.unsqueeze(1), IGNORE)
    forward, forward_told = model.one_way(reverse=False).nll(before, batch.targets, smoothing)
    backward, backward_told = model.one_way(reverse=True).nll(behind, earlier, smoothing)
    # Counted where they lie: a recorded step must not remember another batch's number.
    share = (batch.targets != IGNORE).sum() / (earlier != IGNORE).sum().clamp(min=1)
    return Loss((forward + share * backward) / 2, (forward_told + share * backward_told) / 2)


def score_both_ways(
    model: SequenceModel, encoded: Any, text: Text, rows: int, tokenizer: AnyTokenizer
) -> dict[str, float]:
    """The figures of `text`, whose ids are `encoded`: the loss of both ways, the rest of the forward model but one.

    `rows` as in `stream_loss`. The backward model begins behind the text's last EOS token and ends at its first word,
    so both guess the words, and one EOS token each that the other does not.
    """
    assert isinstance(model, ElmoModel)
    ids = torch.from_numpy(np.asarray(encoded).astype(np.int64))
    count = len(ids) - 1
    if count < 1:
        raise DataError(f"{text.source} holds no token to predict")
    forward = stream_loss(model.one_way(reverse=False), ids, rows)
    # The text begins with an EOS token; turned round it has to begin with one, too.
    end, words = ids[:1], ids[1:]
    turned = torch.cat([end, words.flip(0)]) if int(words[-1]) != int(end) else ids.flip(0)
    backward = stream_loss(model.one_way(reverse=True), turned, rows) / (len(turned) - 1)
    scores = text_metrics(forward, ids.numpy(), text, tokenizer)
    return {**scores, "loss": (forward / count + backward) / 2, "backward_perplexity": safe_exp(backward)}


def evaluate_both_ways(loaded: Loaded, text: Text) -> dict[str, float]:
    """What `legato eval` tells of a model that reads both ways."""
    return score_both_ways(loaded.module, cached_ids(text, loaded.tokenizer), text, 1, loaded.tokenizer)
