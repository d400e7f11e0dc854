"""Adapters that share one base: read beside it, for rows of a batch to have each its own (`lora_by_row.py`).

Here the base stays as it is, where `loading.py` makes a model of its own of each adapter. So only what is low-rank
can be shared: a head, biases or a module that were trained as they are make another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from legato.errors import FolderError, brief
from legato.folders.adapters import peft_files
from legato.folders.adapters.loading import (
    about_of,
    check_trained,
    find_matrices,
    read_ours,
    read_rest,
    read_tensors,
)
from legato.folders.adapters.saving import digest_of, scaled
from legato.folders.finding import find_model, is_adapter
from legato.folders.links import refuse_links_out
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model
from legato.folders.steady import find_and_read, read_steadily
from legato.input_files import path_of
from legato.models.model_with_head import body_of
from legato.models.published.matrices import Matrix
from legato.nn.adapters.lora import LowRank, Part
from legato.nn.adapters.lora_by_row import LowRankRows
from legato.nn.linear import Linear
from legato.nn.quantized import Narrow, is_quantized


class SharedBase:
    """A model that adapters share; `names` are what people call it."""

    def __init__(self, loaded: Loaded, *names: str) -> None:
        self.loaded, self.names = loaded, names
        self.count = 0  # adapters that were put beside it
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """What tells its weights from others', as adapters know it: of float32, however wide they are here."""
        if self._digest is None:
            base = self.loaded
            known = body_of(base.module).original or base.digest
            if known is None and (is_quantized(base.module) or _width_of(base) != torch.float32):
                known = digest_of(load_model(base.folder, deferred="int8").module)  # read a matrix at a time
            self._digest = known or digest_of(base.module)
        return self._digest

    def is_base_of(self, folder: Path) -> bool:
        """Whether an adapter's folder says that it is for this model."""
        if says_digest(folder):
            return bool(read_ours(folder)["base"]["digest"] == self.digest)
        named = named_base(folder)
        if named in self.names:
            return True
        try:
            return Path(named).exists() and find_model(named).resolve() == self.loaded.folder.resolve()
        except FolderError:
            return False

    def put(self, folder: Path) -> Loaded:
        """Read an adapter beside the base, whose weights it shares; its rows are those of its number `adapter`."""
        loaded = read_steadily(folder, partial(self._read, number=self.count + 1))
        self.count += 1
        return loaded

    def _read(self, folder: Path, number: int) -> Loaded:
        base = self.loaded
        refuse_links_out(folder)
        if not (folder / peft_files.CONFIG).is_file():
            raise FolderError(
                f"{folder} holds no low-rank adapter, but tensors of the base that were trained as they are; serve "
                "it as a model of its own"
            )
        config, ours = peft_files.read_lora_config(folder), read_ours(folder)
        if any(isinstance(part, LowRank) for part in base.module.modules()):
            raise FolderError(f"{base.folder} has an adapter beside its narrow matrices, and takes no others")
        if base.module.is_encoder_decoder or not base.module.can_generate:
            raise FolderError(f"{base.folder} does not continue texts, so that adapters cannot share it")
        if ours and ours["base"].get("digest") not in (None, self.digest):
            raise FolderError(
                f"{folder} is an adapter for another base: it was trained for {ours['base'].get('given')} as that "
                f"was then, and the weights in {base.folder} are others"
            )
        pairs, tensors, digest = read_tensors(folder, config, self.digest)
        check_trained(folder, ours, base.module, pairs, tensors)
        if tensors:
            raise FolderError(
                f"{folder} holds '{brief(min(tensors))}', trained as it is, so that it cannot share its base with "
                "others; serve it as a model of its own"
            )
        _check_settings(folder, ours, base)
        _put(folder, config, pairs, find_matrices(folder, base, base.module, pairs), number)
        loaded = read_rest(folder, base, base.module, about_of(ours, config, base), ours=bool(ours))
        return replace(loaded, adapter=number, digest=digest, bases=(base.folder, *base.bases))


def find_adapter(place: str) -> Path:
    """The adapter's folder behind a path or a name on the hub; what holds a whole model is refused."""
    folder = find_and_read(path_of(place, error=FolderError), lambda: find_model(place), lambda found: found)
    if not is_adapter(folder):
        raise FolderError(f"{folder} holds a whole model, not an adapter; serve it as a model of its own")
    return folder


def says_digest(folder: Path) -> bool:
    """Whether an adapter says which weights it is for, and not only whose."""
    ours = read_ours(folder)
    return bool(ours) and ours["base"].get("digest") is not None


def named_base(folder: Path) -> str:
    """What an adapter's own files call its base."""
    ours = read_ours(folder)
    config = peft_files.read_lora_config(folder) if (folder / peft_files.CONFIG).is_file() else {}
    named = ours["base"].get("given") if ours else None
    return str(named or config.get("base_model_name_or_path") or "no model")


def _width_of(base: Loaded) -> torch.dtype:
    return next(base.module.parameters()).dtype


def _check_settings(folder: Path, ours: Mapping[str, Any], base: Loaded) -> None:
    """Refuse what was trained in another model than the base; what it drops in training is no matter."""
    if not ours:
        return
    own, theirs = ({**told} for told in (ours["model"], body_of(base.module).config.model_dump(mode="json")))
    for name in sorted(own.keys() | theirs.keys()):
        if own.get(name) != theirs.get(name) and not name.startswith("dropout"):
            raise FolderError(
                f"{folder} is an adapter for another base: it was trained with model.{brief(name)}="
                f"{brief(str(own.get(name)))}, and {base.folder} has {brief(str(theirs.get(name)))}"
            )


def _put(
    folder: Path,
    config: Mapping[str, Any],
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    matrices: Mapping[str, Matrix],
    number: int,
) -> None:
    """Each layer's A and s B of an adapter, beside those that it has of others; nothing, where one is wrong."""
    parts: dict[Linear, list[tuple[Part, tuple[Tensor, Tensor]]]] = {}
    for path, (a, b) in pairs.items():
        matrix = matrices[path]
        scaling = peft_files.scaling_of(config, path, len(a), folder / peft_files.CONFIG)
        pair = (a, scaled(b, scaling))
        if not all(bool(torch.isfinite(thin).all()) for thin in pair):
            raise FolderError(f"{folder / peft_files.WEIGHTS}: '{path}' holds numbers that are not finite")
        parts.setdefault(matrix.layer, []).append((Part(path, matrix.start, matrix.end), pair))
    for layer, each in parts.items():
        if layer.low_rank_rows is None:
            layer.low_rank_rows = LowRankRows(layer.out_features)
        layer.low_rank_rows.put(number, each, layer.wide if isinstance(layer, Narrow) else layer.weight)
