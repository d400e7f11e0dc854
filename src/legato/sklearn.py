"""A model's vectors as a step of scikit-learn: `legato.sklearn.Embedder`.

    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(Embedder("runs/m", layers="second-to-last"), LogisticRegression())
    pipeline.fit(texts, labels)

The model is read when it is first needed, and shared by all embedders of one process that name it, so that a
`GridSearchCV` over layers or pools loads it once. Pickles and clones hold the settings and no weights.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from legato.data.items import texts_of
from legato.errors import ConfigError
from legato.loading import load
from legato.model import Model
from legato.tasks.embedding.text_vectors import TextVectors, VectorArray

_loaded = lru_cache(maxsize=2)(load)


class Embedder(TransformerMixin, BaseEstimator):
    """Texts to vectors (N, D), as `legato embed` makes them; nothing is learned by `fit`.

    `model` is a model folder, a run or a hub name, or a `legato.Model` that is loaded already. `layers`, `pool` and
    `normalize` are those of `legato embed`: left out they are what the encoder's folder says, else the mean of the
    last layer.

    >>> Embedder("runs/m", pool="max").fit_transform(["a dog", "a cat"]).shape     # doctest: +SKIP
    (2, 384)
    """

    def __init__(
        self,
        model: str | Path | Model | None = None,
        *,
        layers: str = "last",
        pool: str | None = None,
        normalize: bool | None = None,
        batch_size: int = 32,
        device: str = "auto",
    ) -> None:
        # scikit-learn's rule: parameters are kept as they are, and checked when they are used.
        self.model = model
        self.layers = layers
        self.pool = pool
        self.normalize = normalize
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Embedder:
        """Check the settings; nothing is learned."""
        texts_of(X)
        self._vectors()
        return self

    def transform(self, X: Any) -> VectorArray:
        """A vector for each text, (N, D)."""
        texts = texts_of(X)
        return self._vectors().embed(texts, self.batch_size)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """embedder0, embedder1, …"""
        return np.array([f"embedder{number}" for number in range(self._vectors().width)], dtype=object)

    def _vectors(self) -> TextVectors:
        if self.model is None:
            raise ConfigError("which model? name one: Embedder('runs/m')")
        held = self.model if isinstance(self.model, Model) else _loaded(str(self.model), self.device)
        if self.pool == "none":
            raise ConfigError("pool=none gives a vector for each token; scikit-learn wants one for each text")
        return TextVectors.of(held.loaded, layers=self.layers, pool=self.pool, normalize=self.normalize)

    def __getstate__(self) -> dict[str, Any]:
        """The settings: a model that was given as an object goes along as its folder's name."""
        state: dict[str, Any] = dict(super().__getstate__())
        if isinstance(state.get("model"), Model):
            state["model"] = str(state["model"].folder)
        return state

    def __sklearn_clone__(self) -> Embedder:
        return Embedder(**self.get_params(deep=False))  # a model that was given as an object is shared, not copied

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.requires_fit = False
        return tags
