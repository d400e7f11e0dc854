"""What a server serves, as a command line says it: places and limits, and nothing that is read yet.

So it is small enough to be sent: whoever is to answer, this process or a replica on another machine, reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.loading import load
from legato.rag import open_index
from legato.serving.adapters import AdapterPlace, with_adapters
from legato.serving.indexes import ServedIndexes
from legato.serving.models import MOST_TOKENS, Served, ServedModels
from legato.serving.scheduler import PATIENCE, PREFIXES, QUEUE


@dataclass(frozen=True)
class ServeSpec:
    """Which models, adapters and indexes are served, and within which limits.

    >>> models, indexes = ServeSpec(models=(("chat", "runs/chat"),)).read()         # doctest: +SKIP
    """

    models: tuple[tuple[str, str], ...]  # each by its name, with the place where it lies
    adapters: tuple[AdapterPlace, ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    device: str = "auto"
    dtype: str = "float32"
    quantize: str | None = None
    rows: int | None = None
    queue: int = QUEUE
    patience: float = PATIENCE
    most_tokens: int = MOST_TOKENS
    input_tokens: int | None = None
    prefix_bytes: int = PREFIXES

    def read(self) -> tuple[ServedModels, ServedIndexes]:
        """All of it, with what is narrow in memory and what is shared held once."""
        indexes = ServedIndexes({name: open_index(place, device=self.device) for name, place in self.indexes})
        served = [(place, self._served(name, place)) for name, place in self.models]
        return ServedModels(with_adapters(served, self.adapters)), indexes

    def _served(self, name: str, place: str) -> Served:
        return Served(
            name,
            load(place, self.device, dtype=self.dtype, quantize=self.quantize),
            rows=self.rows,
            queue=self.queue,
            patience=self.patience,
            most_tokens=self.most_tokens,
            input_tokens=self.input_tokens,
            prefix_bytes=self.prefix_bytes,
        )
