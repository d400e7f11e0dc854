"""Numbers that stand for classes: datasets on the hub, and the parquet files made of them, say what they are called.

features = {"label": {"names": ["not_equivalent", "equivalent"], "_type": "ClassLabel"}, …}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from legato.errors import DataError
from legato.schema import OPEN, TypedDict, fit, parse_json, with_config


@with_config(OPEN)
class Info(TypedDict, total=False):
    """What the hub's library keeps of a dataset, as far as it is read here."""

    features: dict[str, Any]


@with_config(OPEN)
class Metadata(TypedDict, total=False):
    info: Info


def class_names(feature: Any, where: str = "the classes") -> list[str] | None:
    """The names that a column's numbers stand for, or those of the lists in it; None where they are numbers.

    >>> class_names({"feature": {"names": ["O", "B-LOC"], "_type": "ClassLabel"}, "_type": "List"})
    ['O', 'B-LOC']
    """
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif not isinstance(feature, dict):
            return None
        elif feature.get("_type") == "ClassLabel" and feature.get("names"):
            return fit(feature["names"], list[str], f"{where}: the names of its classes", error=DataError)
        else:
            feature = feature.get("feature")


def parquet_features(metadata: Mapping[bytes, bytes] | None, where: str) -> Mapping[str, Any]:
    """What the hub's library says of the columns in the parquet files that it writes."""
    held = (metadata or {}).get(b"huggingface")
    if held is None:
        return {}
    where = f"{where}: what it says of its columns (huggingface)"
    return parse_json(held, Metadata, where, error=DataError).get("info", {}).get("features", {})


def hub_features(rows: Any) -> Mapping[str, Any]:
    """What the hub's library says of a dataset's columns."""
    features = getattr(rows, "features", None)
    return {} if features is None else dict(features.to_dict())
