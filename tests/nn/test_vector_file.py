"""Files of vectors: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from falconet.errors import ArtifactError, ConfigError
from falconet.nn.vector_file import open_vectors


def test_one_tensor_needs_no_key_and_of_several_one_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / "one.safetensors")
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(1)}, tmp_path / "two.safetensors")
    assert open_vectors(tmp_path / "one.safetensors").shape == (2, 3)
    assert open_vectors(tmp_path / "two.safetensors", "b").tolist() == [0.0]
    with pytest.raises(ArtifactError, match="holds 2 tensors, one is needed") as caught:
        open_vectors(tmp_path / "two.safetensors")
    assert caught.value.hint == "which: a, b"
    with pytest.raises(ConfigError, match="has no tensor `aa`") as missing:
        open_vectors(tmp_path / "two.safetensors", "aa")
    assert missing.value.hint == "did you mean `a`?"


def test_an_array_is_mapped_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    found = open_vectors(tmp_path / "x.npy")
    assert isinstance(found, np.memmap) and found.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_other_files_and_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x01")
    for name, kind, named in (
        ("x.txt", ConfigError, r"x\.txt` is neither"),
        ("no.npy", ArtifactError, r"no vectors at .*no\.npy"),
        ("cut.safetensors", ArtifactError, r"cut\.safetensors` is not a whole safetensors file"),
    ):
        with pytest.raises(kind, match=named):
            open_vectors(tmp_path / name)
