"""What a classifier made of a sentence encoder reads: its pooler, or its vectors where nothing else is trained."""

from types import SimpleNamespace

import pytest

from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import Sizes
from legato.models.bert import BertConfig, BertModel
from legato.models.model_with_head import HeadSpec
from legato.runs.train import with_head


@pytest.mark.parametrize(("adapt", "pool"), [("full", "pooler"), ("lora", "pooler"), ("head", "mean")])
def test_a_frozen_encoder_is_read_as_its_vectors_are_made(adapt: str, pool: str) -> None:
    body = BertModel(BertConfig(width=16, heads=2, layers=1, length=16), Sizes(20))
    loaded = SimpleNamespace(module=body, sentences=SentenceEncoder(("mean",)), about={})
    job = SimpleNamespace(head=HeadSpec(kind="classes", outputs=2))
    assert with_head(body, job, loaded, adapt).shape.pool == pool  # type: ignore[arg-type, attr-defined]
