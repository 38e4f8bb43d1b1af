"""Vectors into tables and out again, from every form they come in; tables that do not learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from falconet.batch import Batch
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError
from falconet.models import DLRM, TwoTower
from falconet.nn.pretrained import freeze_tables, get_vectors, put_vectors, unfreeze_tables, write_vectors
from falconet.testing.models import EXAMPLE, example_batch

VECTORS = np.vstack([np.zeros((1, 4)), np.arange(116).reshape(29, 4)])  # of 30 items


def model() -> DLRM:
    torch.manual_seed(0)
    return DLRM.from_schema(EXAMPLE, DLRM.debug())


def as_npy(path: Path) -> Path:
    np.save(path / "v.npy", VECTORS.astype(np.float64))
    return path / "v.npy"


def as_safetensors(path: Path) -> str:
    save_file({"embedding.weight": torch.from_numpy(VECTORS).half()}, path / "v.safetensors")
    return str(path / "v.safetensors")


FORMS: dict[str, Callable[[Path], Any]] = {
    "array": lambda path: VECTORS,
    "whole numbers": lambda path: VECTORS.astype(np.int32),
    "transposed": lambda path: np.asfortranarray(VECTORS),
    "tensor": lambda path: torch.from_numpy(VECTORS),
    "polars": lambda path: pl.DataFrame(VECTORS),
    "pandas": lambda path: pd.DataFrame(VECTORS),
    "npy": as_npy,
    "safetensors": as_safetensors,
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors_come_in_every_form(form: str, tmp_path: Path) -> None:
    made = model()
    put_vectors(made, "item", FORMS[form](tmp_path))
    assert get_vectors(made, "item").tolist() == VECTORS.tolist()
    item = Batch.of({"item": torch.tensor([3, 29])})
    assert made.inputs.tables(item, ["item"])["item"].tolist() == VECTORS[[3, 29]].tolist()


@pytest.mark.parametrize("name", ["v.npy", "v.safetensors"])
def test_what_is_written_can_be_read_again(name: str, tmp_path: Path) -> None:
    write_vectors(model(), "item", tmp_path / name)
    other = model()
    torch.nn.init.zeros_(other.inputs.tables.weight("item"))
    put_vectors(other, "item", tmp_path / name)
    assert np.array_equal(get_vectors(other, "item"), get_vectors(model(), "item"))


def test_some_codes_get_vectors_and_the_others_keep_theirs() -> None:
    made, before = model(), get_vectors(model(), "item")
    put_vectors(made, "item", VECTORS[[5, 7]], codes=[9, 3])
    after = get_vectors(made, "item")
    assert after[[9, 3]].tolist() == VECTORS[[5, 7]].tolist()
    others = [i for i in range(30) if i not in (3, 9)]
    assert np.array_equal(after[others], before[others])


def test_a_part_of_a_model_can_be_meant() -> None:
    made = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4))
    with pytest.raises(ConfigError, match="2 parts of TwoTower have a table `item`") as caught:
        get_vectors(made, "item")
    assert caught.value.hint
    put_vectors(made.item_tower, "item", VECTORS)
    assert not np.array_equal(get_vectors(made.user_tower, "item"), VECTORS)
    put_vectors(made, "item", VECTORS)
    assert np.array_equal(get_vectors(made.user_tower, "item"), VECTORS)


class TestFrozenTables:
    def moved(self, made: DLRM) -> set[str]:
        before = {table: get_vectors(made, table) for table in made.inputs.tables.tables}
        optimizer = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=1.0)
        optimizer.zero_grad()
        torch.autograd.backward(made.train().loss(example_batch()).mean())
        optimizer.step()
        return {table for table, old in before.items() if not np.array_equal(get_vectors(made, table), old)}

    def test_they_do_not_learn_until_they_are_unfrozen(self) -> None:
        made = model()
        freeze_tables(made, "item", "user")
        assert self.moved(made) == {"genres", "hour"}
        unfreeze_tables(made, "item")
        assert self.moved(made) == {"genres", "hour", "item"}
        freeze_tables(made)
        assert self.moved(made) == set()
        unfreeze_tables(made)
        assert self.moved(made) == {"genres", "hour", "item", "user"}

    def test_a_name_that_no_table_has(self) -> None:
        with pytest.raises(ColumnNotFoundError, match="among its tables, has no column `items`\n\nhint: did you mean"):
            freeze_tables(model(), "items")


class TestRefusals:
    @pytest.mark.parametrize(
        ("vectors", "codes", "error", "message"),
        [
            (VECTORS[:, :3], None, ConfigError, r"\(30, 3\) where the table `item` needs \(30, 4\)"),
            (VECTORS[:29], None, ConfigError, r"\(29, 4\) where the table `item` needs \(30, 4\)"),
            (VECTORS[1], None, ConfigError, r"\(4,\) where the table"),
            (VECTORS + 1, None, DataError, "row 0 is not zero, but stands for padding"),
            (np.where(VECTORS == 9, np.nan, VECTORS), None, DataError, "row 3 holds a number that is not finite"),
            (VECTORS.astype(str), None, DataError, "where numbers are needed"),
            (VECTORS[:2], [1], ConfigError, r"2 vectors, but codes of \(1,\)"),
            (VECTORS[:2], [1, 30], DataError, "has the codes 1 to 29, not 30"),
            (VECTORS[:2], [0, 1], DataError, "has the codes 1 to 29, not 0"),
            (VECTORS[:3], [4, 2, 4], DataError, "the code 4 of the table `item` is given 2 times"),
        ],
    )
    def test_what_does_not_fit_changes_nothing(
        self, vectors: Any, codes: list[int] | None, error: type[Exception], message: str
    ) -> None:
        made, before = model(), get_vectors(model(), "item")
        with pytest.raises(error, match=message):
            put_vectors(made, "item", vectors, codes=codes)
        assert np.array_equal(get_vectors(made, "item"), before)

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ArtifactError, match="no vectors at"):
            put_vectors(model(), "item", tmp_path / "v.npy")
        np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(ArtifactError, match=r"objects\.npy` is not a whole \.npy file of numbers"):
            put_vectors(model(), "item", tmp_path / "objects.npy")
        (tmp_path / "cut.npy").write_bytes(as_npy(tmp_path).read_bytes()[:-9])
        with pytest.raises(ArtifactError, match=r"cut\.npy` is not a whole"):
            put_vectors(model(), "item", tmp_path / "cut.npy")
        (tmp_path / "cut.safetensors").write_bytes(Path(as_safetensors(tmp_path)).read_bytes()[:-9])
        with pytest.raises(ArtifactError, match=r"cut\.safetensors` is not a whole safetensors file"):
            put_vectors(model(), "item", tmp_path / "cut.safetensors")
        save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "two.safetensors")
        with pytest.raises(ArtifactError, match="holds 2 tensors, one is needed"):
            put_vectors(model(), "item", tmp_path / "two.safetensors")

    @pytest.mark.parametrize("do", [put_vectors, write_vectors])
    def test_other_files(self, do: Any, tmp_path: Path) -> None:
        (tmp_path / "v.csv").touch()
        arguments = (model(), "item", tmp_path / "v.csv")
        with pytest.raises(ConfigError, match=r"v\.csv` is neither \.npy nor \.safetensors"):
            do(*arguments)
