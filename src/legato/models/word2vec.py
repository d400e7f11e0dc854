"""word2vec (Mikolov et al. 2013): one vector for each word, whatever stands around it.

    skip-gram   log σ(c_o · w_t)  +  Σ_k log σ(-c_k · w_t)        a word w_t and each word o near it
    CBOW        log σ(c_t · w̄)   +  Σ_k log σ(-c_k · w̄)         a word t and the mean w̄ of the words near it

w is a word's vector, c its vector as a neighbour; k are words drawn at random (negative sampling).

Notable: SHARED words of a batch have their negatives in common, so that scores are matrix products (Ji et al. 2016);
each pair's sum over them is scaled to `negatives` of them. One that happens to be the right word is not left out:
then the optimum of w · c is their pointwise mutual information less log k (Levy & Goldberg 2014).
The model has no layers: `states` are the vectors themselves, so that a word is the same in every text.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from legato.data.batching.batch import IGNORE, Batch
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.nn.state import Output

SHARED = 64  # words of a batch that share negatives


class Word2VecConfig(ModelConfig):
    """Settings of word2vec."""

    network: ClassVar[Any] = "table"

    name: Literal["word2vec"] = "word2vec"
    mode: Literal["skip-gram", "cbow"] = Field("skip-gram", description="guess the words near one, or one from them")
    width: int = Field(100, ge=1, description="size of the vectors")

    @property
    def predicts_masked(self) -> bool:
        return False


class Word2VecModel(SequenceModel):
    """A table of vectors, and another of the same words as neighbours."""

    Config = Word2VecConfig
    summary = "word2vec: one vector a word, learned from the words near it; no context"
    config: Word2VecConfig

    def __init__(self, config: Word2VecConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.embedding = nn.Embedding(sizes.vocabulary, config.width)
        self.output = nn.Linear(config.width, sizes.vocabulary, bias=False)  # a row is a word as a neighbour
        nn.init.uniform_(self.embedding.weight, -0.5 / config.width, 0.5 / config.width)
        nn.init.zeros_(self.output.weight)

    def forward(self, batch: Batch, state: Any = None) -> Output:
        return Output(self.embedding(batch.inputs.token_ids))

    def states(self, batch: Batch) -> list[Tensor]:
        """The words' vectors (B, T, D): there is no other layer."""
        return [self.embedding(batch.inputs.token_ids)]

    def contrast(self, batch: Batch, negatives: int) -> Tensor:
        """The summed loss of a batch of words (B, 1) and the words near them, `targets` (B, 2 × window).

        `batch.negatives` (B, 1) are the words to tell them from, those of SHARED rows together; each pair counts as
        if it had `negatives` of its own.
        """
        assert batch.targets is not None
        assert batch.negatives is not None
        near = batch.targets != IGNORE  # (B, C)
        pairs = near.sum(1)  # (B,)
        group = SHARED if batch.rows % SHARED == 0 else batch.rows
        others = self._neighbours(batch.negatives.view(-1, group))  # (B / group, group, D)
        if self.config.mode == "skip-gram":
            word = self.embedding(batch.inputs.token_ids[:, 0])  # (B, D)
            right = (self._neighbours(batch.targets.clamp(min=0)) @ word.unsqueeze(2)).squeeze(2)  # (B, C)
            found = (F.softplus(-right.float()) * near).sum()
        else:
            vectors = self.embedding(batch.targets.clamp(min=0)) * near.unsqueeze(-1)  # (B, C, D)
            word = vectors.sum(1) / pairs.clamp(min=1).unsqueeze(1)
            right = (word * self._neighbours(batch.inputs.token_ids[:, 0])).sum(-1)  # (B,)
            pairs = pairs.clamp(max=1)
            found = (F.softplus(-right.float()) * pairs).sum()
        scores = word.view_as(others) @ others.transpose(1, 2)  # (B / group, group, group)
        wrong = F.softplus(scores.float()).sum(-1).flatten()  # (B,)
        return found + (wrong * pairs).sum() * (negatives / group)

    def _neighbours(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.output.weight)
