"""Weights that somebody else saved, as tensors and nothing else; and those of a former model, to go on from."""

from __future__ import annotations

from collections.abc import Mapping, Set
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from falconet.errors import ArtifactError, ConfigError
from falconet.models.base import Model
from falconet.models.store import load_model
from falconet.train.parallel import load_weights
from falconet.train.refused import check_model

_INSIDE = ("model_state_dict", "state_dict", "model")  # where training scripts put the weights among other things


def import_weights(model: nn.Module, path: str | Path) -> None:
    """Put the weights of a .safetensors file, or of one that `torch.save` wrote, into a model; both may be wrapped.

    Of a checkpoint the weights are taken: `model_state_dict`, `state_dict` or `model`. `module.` and `_orig_mod.` in
    front of names are passed over. No code of the file is run. Raises ArtifactError for a file that holds objects of
    other classes than tensors, and where names or shapes do not fit the model, ConfigError for arguments that are no
    module and no path.
    """
    check_model(model)
    load_weights(model, read_weights(path), where=f"the weights of `{path}`")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of such a file, under the names they have there."""
    if not isinstance(path, str | PathLike):
        raise ConfigError(
            f"a {type(path).__name__} was given where the path of a file of weights belongs",
            hint="import_weights(model, path); weights at hand: model.load_state_dict(weights)",
        )
    path = Path(path)
    if not path.is_file():
        raise ArtifactError(f"no weights at `{path}`", hint="a .safetensors file, or a .pt file of torch.save")
    try:
        found: Mapping[str, Any] = load_file(path) if path.suffix == ".safetensors" else _load(path)
    except SafetensorError as error:
        raise ArtifactError(f"`{path}` is not a whole safetensors file: {error}") from error
    inner = next((found[name] for name in _INSIDE if isinstance(found.get(name), Mapping)), found)
    tensors = {name: x for name, x in inner.items() if isinstance(x, Tensor)}
    if not tensors or len(tensors) < len(inner):
        others = [name for name in inner if name not in tensors]
        raise ArtifactError(
            f"`{path}` is not a model's weights: {', '.join(map(str, others[:3])) or 'nothing'} in it is no tensor",
            hint="save `model.state_dict()`, alone or as `model_state_dict`",
        )
    return tensors


def _load(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes lead it to
        raise ArtifactError(
            f"`{path}` holds more than tensors, or is damaged: {str(error).splitlines()[0]}",
            hint="loading it whole could run code that is in it; if you trust it, load it in a script of your own, and "
            "save `model.state_dict()`",
        ) from error
    if not isinstance(found, Mapping):
        raise ArtifactError(f"`{path}` holds a {type(found).__name__}, not weights by name")
    return found


def grow_weights(model: Model, folder: str | Path) -> list[str]:
    """Start a model from the weights of a former one of its kind, in a folder of models/store.py; what stays fresh.

    Where columns have more codes now, the rows of those that the former one knew are taken, in every tensor that has a
    row for each code. Tensors of other shapes stay as they are; their names are returned. Raises ArtifactError where
    the folder holds another model.
    """
    former = load_model(folder)
    if type(former) is not type(model):
        raise ArtifactError(
            f"`{folder}` holds a {type(former).__name__}, {type(model).__name__} is needed", hint="train it anew"
        )
    known = {c.name: c.cardinality for c in former.schema if c.cardinality is not None}
    grown = {(known[c.name], c.cardinality) for c in model.schema if c.name in known}
    given, own, fresh = former.state_dict(), model.state_dict(), []
    with torch.no_grad():
        for name, tensor in own.items():
            old = given.get(name)
            if old is not None and old.shape == tensor.shape:
                tensor.copy_(old)
            elif old is not None and _has_grown(old, tensor, grown):
                tensor[: len(old)] = old
            else:
                fresh.append(name)
    return fresh


def _has_grown(old: Tensor, new: Tensor, grown: Set[tuple[int, int | None]]) -> bool:
    """Whether the new tensor is the old one with rows for new codes."""
    if not old.ndim or old.shape[1:] != new.shape[1:] or len(old) > len(new):
        return False
    return (len(old), len(new)) in grown
