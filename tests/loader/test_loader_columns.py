"""Arrow columns as tensors, and what is refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from falconet.batch import Ragged
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.loader.loader import Loader
from falconet.schema import FOOTER_KEY, Column, Schema

Make = Callable[..., Path]


def load(path: Path) -> torch.Tensor | Ragged:
    (batch,) = Loader(path, batch_size=100).batches()
    return next(iter(batch.features.values()))


@pytest.mark.parametrize(
    ("stored", "values", "dtype"),
    [
        (pa.int8(), [-128, 127], torch.int32),
        (pa.uint16(), [0, 65535], torch.int32),
        (pa.int32(), [-(2**31), 2**31 - 1], torch.int32),
        (pa.uint32(), [0, 2**32 - 1], torch.int64),
        (pa.int64(), [-(2**63), 2**63 - 1], torch.int64),
        (pa.uint64(), [0, 2**63 - 1], torch.int64),
        (pa.float32(), [0.5, 1.5], torch.float32),
        (pa.float64(), [0.5, 1.5], torch.float32),
        (pa.bool_(), [True, False], torch.bool),
    ],
)
def test_values_keep_their_worth(
    one_column: Make, stored: pa.DataType, values: list[object], dtype: torch.dtype
) -> None:
    column = load(one_column({"x": pa.array(values, stored)}))
    assert isinstance(column, torch.Tensor)
    assert (column.tolist(), column.dtype) == (values, dtype)


def test_times_are_microseconds_and_dates_days(one_column: Make) -> None:
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    for unit in ("s", "ms", "us", "ns"):
        assert load(one_column({"t": pa.array([moment], pa.timestamp(unit, "UTC"))})).tolist() == [1_000_000]  # type: ignore[union-attr]
    assert load(one_column({"d": pa.array([datetime.date(1970, 1, 3)])})).tolist() == [2]  # type: ignore[union-attr]


def test_an_unsigned_number_beyond_int64_is_an_error(one_column: Make) -> None:
    with pytest.raises(DataError, match=r"column `x` of .* has a value that does not fit into int64"):
        load(one_column({"x": pa.array([2**63], pa.uint64())}))


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_lists_of_any_length_are_values_and_offsets(
    one_column: Make, kind: Callable[[pa.DataType], pa.DataType]
) -> None:
    column = load(one_column({"x": pa.array([[1, 2], [], [3], None, []], kind(pa.int32()))}))
    assert isinstance(column, Ragged)
    assert (column.values.tolist(), column.offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3, 3, 3])


def test_a_data_set_of_empty_lists_alone_loads(one_column: Make) -> None:
    column = load(one_column({"x": pa.array([[], [], []], pa.list_(pa.int32()))}))
    assert isinstance(column, Ragged)
    assert column.to_lists() == [[], [], []]


def test_a_missing_value_in_a_list_is_an_error(one_column: Make) -> None:
    with pytest.raises(DataError, match=r"column `x` of .* has 1 missing values among 3"):
        load(one_column({"x": pa.array([[1, None], [2]])}))


@pytest.mark.parametrize("kind", ["int8", "bool", "float16", "float32", "float64"])
def test_a_missing_target_is_not_a_number(one_column: Make, kind: str) -> None:
    target = Schema((Column(name="x", dtype=kind, tags={"target"}),))
    plain = pa.array([1, None, 0], pa.int8())
    stored = plain.cast(pa.float32()) if kind == "float16" else plain
    path = one_column({"x": stored.cast(pa.bool_() if kind == "bool" else kind)}, target)
    (batch,) = Loader(path, batch_size=100).batches()
    assert batch.targets["x"].isnan().tolist() == [False, True, False]
    assert batch.targets["x"][[0, 2]].tolist() == [1.0, 0.0]


def fixed(length: int) -> Schema:
    return Schema((Column(name="x", dtype="int64", list=length, tags={"sequence"}),))


def test_lists_of_one_length_are_a_matrix_however_they_are_stored(one_column: Make) -> None:
    for kind in (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), pa.large_list(pa.int64())):
        column = load(one_column({"x": pa.array([[1, 2], [3, 4]], kind)}, fixed(2)))
        assert isinstance(column, torch.Tensor)
        assert column.tolist() == [[1, 2], [3, 4]]


def test_lists_stored_with_one_length_are_ragged_where_the_schema_says_so(one_column: Make) -> None:
    schema = Schema((Column(name="x", dtype="int64", list="ragged", tags={"sequence"}),))
    column = load(one_column({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))}, schema))
    assert isinstance(column, Ragged)
    assert column.to_lists() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("lists", [[[1, 2], [3]], [[1, 2], None], [[1, 2], [3, 4, 5]], [[1, 2, 3], [4]]])
def test_a_list_of_another_length_than_the_schema_says_is_an_error(
    one_column: Make, lists: list[list[int] | None]
) -> None:
    with pytest.raises(SchemaError, match=r"column `x` of .* lists that are not of the length 2 its schema says"):
        load(one_column({"x": pa.array(lists, pa.list_(pa.int64()))}, fixed(2)))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (pa.array([1, 2], pa.int64()), "holds int64, its schema says float32"),
        (pa.array(["a", "b"]), "holds string, its schema says float32"),
        (pa.array([[1.0], [2.0]], pa.list_(pa.float32())), "holds list<element: float>, its schema says float32"),
    ],
)
def test_a_column_of_another_type_than_its_schema_says_is_an_error(
    one_column: Make, stored: pa.Array, message: str
) -> None:
    schema = Schema((Column(name="x", dtype="float32", tags={"continuous"}),))
    with pytest.raises(SchemaError, match=message):
        load(one_column({"x": stored}, schema))


def test_a_column_of_the_schema_that_a_file_lacks_is_an_error(one_column: Make) -> None:
    schema = Schema((Column(name="x", dtype="float32", tags={"continuous"}),))
    with pytest.raises(SchemaError, match=r"`.*one.parquet` has no column `x`\n\nhint: available: y"):
        Loader(one_column({"y": pa.array([1.0])}, schema), batch_size=1)


def test_a_dot_in_a_name_is_part_of_the_name(one_column: Make) -> None:
    path = one_column({"a": pa.array([1, 2]), "a.b": pa.array([[3], [4, 5]]), "s": pa.array([{"a": 1}, {"a": 2}])})
    (batch,) = Loader(path, batch_size=5).batches()
    assert batch.features["a"].tolist() == [1, 2]  # type: ignore[union-attr]
    assert batch.features["a.b"].to_lists() == [[3], [4, 5]]  # type: ignore[union-attr]


def test_two_weights_and_ragged_targets_are_refused(one_column: Make) -> None:
    two = Schema(
        (Column(name="a", dtype="float64", tags={"weight"}), Column(name="b", dtype="float64", tags={"weight"}))
    )
    with pytest.raises(SchemaError, match="has several columns tagged `weight`: a, b"):
        Loader(one_column({"a": pa.array([1.0]), "b": pa.array([1.0])}, two), batch_size=1)
    ragged = Schema((Column(name="a", dtype="float64", list="ragged", tags={"target"}),))
    with pytest.raises(SchemaError, match=r"column `a` of .* holds lists, which no target or weight may"):
        Loader(one_column({"a": pa.array([[1.0]])}, ragged), batch_size=1)


def test_every_target_is_float32(one_column: Make) -> None:
    kinds = (("a", "int8"), ("b", "bool"), ("c", "float64"))
    schema = Schema(tuple(Column(name=name, dtype=dtype, tags={"target"}) for name, dtype in kinds))
    path = one_column(
        {"a": pa.array([1, 0], pa.int8()), "b": pa.array([True, False]), "c": pa.array([0.5, 2.0])}, schema
    )
    (batch,) = Loader(path, batch_size=5).batches()
    assert {k: (v.tolist(), v.dtype) for k, v in batch.targets.items()} == {
        "a": ([1, 0], torch.float32),
        "b": ([1, 0], torch.float32),
        "c": ([0.5, 2], torch.float32),
    }
    assert (batch.rows, batch.features) == (2, {})


def in_folders(tmp_path: Path, schema: Schema | None = None) -> Path:
    for folder, x in (("day=2020-01-02/shop=a%20b", 3.0), ("day=2020-01-01/shop=__HIVE_DEFAULT_PARTITION__", 1.0)):
        path = tmp_path / "parts" / folder / "part.parquet"
        path.parent.mkdir(parents=True)
        table = pa.table({"x": pa.array([x, x + 1])})
        pq.write_table(table if schema is None else table.replace_schema_metadata({FOOTER_KEY: schema.to_json()}), path)
    return tmp_path / "parts"


def test_folders_give_columns(tmp_path: Path) -> None:
    for i, folder in enumerate(("k=7", "k=-3")):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"x": [float(i)] * 2}), tmp_path / folder / "part.parquet")
    (tmp_path / "_old").mkdir()
    pq.write_table(pa.table({"z": [1]}), tmp_path / "_old" / "part.parquet")
    loader = Loader(tmp_path, batch_size=10, targets=["x"])
    (batch,) = loader.batches()
    assert batch.features["k"].tolist() == [-3, -3, 7, 7]  # type: ignore[union-attr]
    assert batch.targets["x"].tolist() == [1, 1, 0, 0]


def test_folders_give_the_types_that_the_schema_says(tmp_path: Path) -> None:
    day = Column(name="day", dtype="date32[day]", tags={"context"})
    schema = Schema((Column(name="x", dtype="float64", tags={"continuous"}), day, Column(name="shop", dtype="string")))
    (batch,) = Loader(in_folders(tmp_path, schema), batch_size=10).batches()
    assert batch.features["day"].tolist() == [18262, 18262, 18263, 18263]  # type: ignore[union-attr]
    assert list(batch.features) == ["x", "day"]


def test_a_folder_that_says_no_value_of_its_column_is_an_error(tmp_path: Path) -> None:
    shop = Column(name="shop", dtype="int32", tags={"context"})
    schema = Schema((Column(name="x", dtype="float64", tags={"continuous"}), shop, Column(name="day", dtype="string")))
    path = in_folders(tmp_path, schema)
    with pytest.raises(DataError, match=r"column `shop` of .* has 2 missing values among 2"):
        list(Loader(path, batch_size=10).batches())
    (path / "day=2020-01-01").rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"part.parquet` says shop=a b, which is no int32"):
        list(Loader(path, batch_size=10).batches())


def test_targets_and_weight_named_by_hand_take_the_place_of_those_of_the_schema(one_column: Make) -> None:
    kinds = {"a": {"target"}, "b": {"continuous"}, "c": {"weight"}, "d": {"continuous"}, "e": {"continuous"}}
    schema = Schema(tuple(Column(name=name, dtype="float64", tags=tags) for name, tags in kinds.items()))
    path = one_column({name: pa.array([1.0, 2.0]) for name in kinds}, schema)
    (batch,) = Loader(path, batch_size=5, targets=["b"], weight="d").batches()
    assert (list(batch.features), list(batch.targets), batch.weights is not None) == (["e"], ["b"], True)
    with pytest.raises(ColumnNotFoundError, match="has no column `f`"):
        Loader(path, batch_size=5, targets=["f"])
