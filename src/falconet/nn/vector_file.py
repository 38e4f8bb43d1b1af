"""Files of vectors that something else has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from torch import Tensor

from falconet.errors import ArtifactError, ConfigError, suggest


def open_vectors(path: Path, key: str | None = None) -> npt.NDArray[Any] | Tensor:
    """What a .npy file holds, mapped into memory and not read yet; or the tensor `key` of a .safetensors file, which
    may be left out where there is one alone.

    Raises ConfigError for a file of another kind and a key that is not there, ArtifactError for a file that cannot be
    read or holds several tensors.
    """
    if path.suffix not in (".npy", ".safetensors"):
        raise ConfigError(f"`{path}` is neither .npy nor .safetensors")
    if not path.is_file():
        raise ArtifactError(f"no vectors at `{path}`")
    if path.suffix == ".npy":
        try:
            found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise ArtifactError(f"`{path}` is not a whole .npy file of numbers: {error}") from error
        return found
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(_key(path, list(file.keys()), key))
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"`{path}` is not a whole safetensors file: {error}") from error
    return tensor


def _key(path: Path, keys: list[str], key: str | None) -> str:
    if key is None and len(keys) != 1:
        raise ArtifactError(f"`{path}` holds {len(keys)} tensors, one is needed", hint=f"which: {', '.join(keys)}")
    if key is not None and key not in keys:
        raise ConfigError(f"`{path}` has no tensor `{key}`", hint=suggest(key, keys))
    return keys[0] if key is None else key
