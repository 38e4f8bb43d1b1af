"""An index as one safetensors file, with equal bytes for equal indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from falconet.errors import ArtifactError
from falconet.io.artifact import write_file

FORMAT = 2
_SAID = "falconet"  # the one key of the metadata: safetensors writes several in any order


def save_index(path: str | Path, kind: str, tensors: Mapping[str, Tensor], **facts: Any) -> None:
    """Write tensors and plain facts, whole or not at all."""
    said = json.dumps({"kind": kind, "format": FORMAT, **facts}, sort_keys=True)
    write_file(path, save({name: x.cpu() for name, x in tensors.items()}, {_SAID: said}))


def load_index(path: str | Path, kind: str, names: Sequence[str]) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors of these names and the facts. Raises ArtifactError for what is missing, damaged or something else."""
    try:
        with safe_open(path, "pt") as file:
            said = json.loads((file.metadata() or {}).get(_SAID, "{}"))
            if (said.get("kind"), said.get("format")) != (kind, FORMAT):
                raise ArtifactError(f"`{path}` is no {kind} of format {FORMAT}: it says {said or file.metadata()}")
            return [file.get_tensor(name) for name in names], said
    except FileNotFoundError as error:
        raise ArtifactError(f"no index at `{path}`") from error
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise ArtifactError(f"`{path}` is not a whole index: {error}") from error
