"""Models on disk: config.json (what it is) and model.safetensors (what it learned), under a manifest.

Reading runs no code from the folder, and works before any forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from falconet.config import from_plain, to_plain
from falconet.errors import ArtifactError, ConfigError, suggest
from falconet.io.artifact import read_artifact, write_artifact
from falconet.models.base import MODELS, Model
from falconet.schema import Schema

FORMAT = 1
KIND = "model"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def save_model(model: Model, folder: str | Path) -> None:
    """Write a model whole or not at all; a model that is there already is replaced.

    Raises ConfigError for what is no `Model`, whose settings and schema would say what it is.
    """
    _check_model(model)
    content = {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": to_plain(model.config),
        "schema": json.loads(model.schema.to_json()),
    }
    # A clone per tensor: safetensors refuses views of shared memory.
    weights = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    with write_artifact(folder, KIND, overwrite=True) as draft:
        (draft.path / CONFIG).write_text(json.dumps(content, indent=1, sort_keys=True))
        save_file(weights, draft.path / WEIGHTS)


def _check_model(given: object) -> None:
    if isinstance(given, Model):
        return
    if isinstance(given, type):
        what, hint = f"the class {given.__name__}", "an object of it: save_model(model, folder)"
    elif isinstance(given, nn.Module):
        what = f"a {type(given).__name__}, which is no falconet.models.base.Model,"
        hint = (
            "a wrapped model has one inside; of any other module save the weights, as in "
            "safetensors.torch.save_file(model.state_dict(), path), which fl.import_weights reads"
        )
    else:
        what, hint = f"a {type(given).__name__}", "save_model(model, folder)"
    raise ConfigError(f"save_model was given {what} as a model", hint=hint)


def load_model(folder: str | Path) -> Model:
    """The model in a folder, on the CPU and in evaluation mode.

    Raises ArtifactError where the folder is missing, damaged, of another format, or its weights do not fit.
    """
    folder = Path(folder)
    read_artifact(folder, KIND)
    name, config, schema = _read_config(folder / CONFIG)
    if name not in MODELS:
        own = "one of your own is loaded by `falconet --module MODULE …`, in Python by an import"
        raise ConfigError(f"unknown model `{name}`", hint=f"{suggest(name, MODELS)}; {own}")
    kind = MODELS[name]
    model = kind.from_schema(schema, from_plain(kind.Config, config, where=f"{folder / CONFIG}: config"))
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"`{folder / WEIGHTS}` is not a whole safetensors file: {error}") from error
    _check_weights(folder / WEIGHTS, weights, model.state_dict())
    model.load_state_dict(weights)
    return model.eval()


def _read_config(path: Path) -> tuple[str, Mapping[str, Any], Schema]:
    try:
        content = json.loads(path.read_bytes())
        version, name, config, schema = (content[key] for key in ("format", "model", "config", "schema"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"`{path}` does not describe a model: {error!r}") from error
    if version != FORMAT:
        raise ArtifactError(f"`{path}` has model format {version}, this version reads {FORMAT}")
    return name, config, Schema.from_json(json.dumps(schema), where=f"`{path}`: schema")


def _check_weights(path: Path, found: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> None:
    if missing := sorted(needed.keys() - found.keys()):
        raise ArtifactError(f"`{path}` lacks the tensor `{missing[0]}`", hint=f"it has {', '.join(sorted(found))}")
    if extra := sorted(found.keys() - needed.keys()):
        raise ArtifactError(
            f"`{path}` has a tensor `{extra[0]}` the model does not know", hint="its config.json is of another model"
        )
    for name, tensor in needed.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise ArtifactError(
                f"`{path}`: tensor `{name}` is {found[name].dtype} {tuple(found[name].shape)}, "
                f"the schema asks for {tensor.dtype} {tuple(tensor.shape)}"
            )
