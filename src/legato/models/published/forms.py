"""Which published form a model has, if any."""

from __future__ import annotations

from legato.models.base import Published, SequenceModel
from legato.registry import PUBLISHED


def form_of(module: SequenceModel) -> type[Published] | None:
    """Hugging Face's form of a model without a head; None where it has none."""
    if module.published is None:
        return None
    form: type[Published] = PUBLISHED.get(module.published)
    return form if form.refusal(module) is None else None
