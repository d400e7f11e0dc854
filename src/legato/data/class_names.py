"""Numbers that stand for classes: datasets on the hub, and the parquet files made of them, say what they are called.

features = {"label": {"names": ["not_equivalent", "equivalent"], "_type": "ClassLabel"}, …}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def class_names(feature: Any) -> list[str] | None:
    """The names that a column's numbers stand for, or those of the lists in it; None where they are numbers.

    >>> class_names({"feature": {"names": ["O", "B-LOC"], "_type": "ClassLabel"}, "_type": "List"})
    ['O', 'B-LOC']
    """
    while isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel" and feature.get("names"):
        return [str(name) for name in feature["names"]]
    return class_names(feature.get("feature"))


def parquet_features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """What the hub's library says of the columns in the parquet files that it writes."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, TypeError, KeyError):
        return {}
    return features if isinstance(features, dict) else {}


def hub_features(rows: Any) -> Mapping[str, Any]:
    """What the hub's library says of a dataset's columns."""
    features = getattr(rows, "features", None)
    return {} if features is None else dict(features.to_dict())
