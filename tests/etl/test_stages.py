"""What operators may ask of the graph: columns beside the selected ones, groups, all rows of a key, other rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl import stages
from falconet.etl.selector import names_of
from falconet.testing.contracts import same, write_parts

EVENTS = pl.DataFrame(
    {
        "user": ["b", "a", "b", None, "a", "b", "a", "c"],
        "time": [3, 9, 1, 4, 2, 2, 9, 5],
        "price": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, None],
        "bought": [1, 0, 1, 1, 0, 0, 1, 0],
    }
)


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    before = dict(ops.OPS)
    for op in (Previous, LatestBeside, LaterBeside, Basket, Twice, Rate, Both):
        ops.OPS.register()(op)
    yield
    for name in set(ops.OPS) - set(before):
        del ops.OPS._classes[name]


@pytest.fixture(params=[1 << 20, 3], ids=["one bucket", "many buckets"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BUCKET_ROWS", request.param)


@dataclass(frozen=True, kw_only=True)
class Previous(ops.KeyedOp):
    """The value that the key had before."""

    by: str
    sort: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.by,)

    @property
    def order(self) -> tuple[str, ...]:
        return (self.sort,)

    @property
    def also(self) -> tuple[str, ...]:
        return (self.by, self.sort)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {f"{name}_before": (name,) for name in columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        return frame.with_columns(pl.col(n).shift(1).over(self.by).alias(f"{n}_before") for n in columns)


class Beside:
    """An output that is made of what is read beside the selected columns alone, which stay as they are."""

    @property
    def also(self) -> tuple[str, ...]:
        return ("user", "time")

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {name: (name,) for name in columns} | {"made": self.also}

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns


@dataclass(frozen=True, kw_only=True)
class LatestBeside(Beside, ops.KeyedOp):
    @property
    def key(self) -> tuple[str, ...]:
        return ("user",)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        return frame.with_columns(made=pl.col("time").max().over("user"))


@dataclass(frozen=True, kw_only=True)
class LaterBeside(Beside, ops.FrameOp):
    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        return frame.with_columns(made=pl.col("time") + 1)


@dataclass(frozen=True, kw_only=True)
class Basket(ops.KeyedOp):
    """One row per key: its values as a list."""

    by: str

    @property
    def rows(self) -> Any:
        return "other"

    @property
    def key(self) -> tuple[str, ...]:
        return (self.by,)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {self.by: (self.by,)} | {f"{name}_list": (name,) for name in columns if name != self.by}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        lists = [pl.col(name).alias(f"{name}_list") for name in columns if name != self.by]
        return frame.group_by(self.by, maintain_order=True).agg(*lists, pl.col("__row__").min())


@dataclass(frozen=True, kw_only=True)
class Twice(ops.FrameOp):
    """Every row two times."""

    needs = frozenset({"row"})

    @property
    def rows(self) -> Any:
        return "other"

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        twice = frame.with_columns(__copy__=pl.lit([0, 1], dtype=pl.List(pl.UInt64))).explode("__copy__")
        return twice.with_columns(__row__=pl.col("__row__") * 2 + pl.col("__copy__")).drop("__copy__")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rate(ops.StatOp):
    """How often the target is 1, per value."""

    target: Any

    @property
    def learns(self) -> tuple[Any, ...]:
        return (self.target,) if not isinstance(self.target, tuple) else self.target

    def partial(self, frame: pl.LazyFrame, group: tuple[str, ...]) -> pl.LazyFrame:
        (target,) = names_of(self.target)
        return (
            frame.group_by(group)
            .agg(pl.len().cast(pl.Int64).alias("n"), pl.col(target).sum().alias("ones"))
            .sort(group)
        )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        key = states[0].columns[0]
        return pl.concat(states).group_by(key).agg(pl.col("n").sum(), pl.col("ones").sum()).sort(key)

    def finish(self, state: pl.DataFrame) -> ops.Op:
        return Rated(table=state)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rated(ops.FrameOp):
    table: pl.DataFrame

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {name: (name,) for name in columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        (name,) = columns
        rates = self.table.lazy().select(pl.col(self.table.columns[0]).alias(name), rate=pl.col("ones") / pl.col("n"))
        joined = frame.join(rates, on=name, how="left", nulls_equal=True, maintain_order="left")
        return joined.with_columns(pl.col("rate").alias(name)).drop("rate")


@dataclass(frozen=True, kw_only=True)
class Both(ops.FrameOp):
    """The columns of a group as one string."""

    grouped = True

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {"_".join(columns): columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        return frame.with_columns(pl.concat_str(columns, separator="/", ignore_nulls=True).alias("_".join(columns)))


@pytest.mark.usefixtures("buckets")
def test_a_keyed_operator_sees_all_rows_of_a_key_in_order(tmp_path: Path) -> None:
    node = ["user", "time"] + (["price"] >> Previous(by="user", sort="time"))
    data = write_parts(EVENTS, (2, 5), tmp_path / "parts")
    made = fl.Workflow(node).fit(data).transform(data).collect()
    assert made["price_before"].to_list() == [32.0, 16.0, None, None, None, 4.0, 2.0, None]
    same(made.drop("price_before"), EVENTS.select("user", "time"))


@pytest.mark.usefixtures("buckets")
def test_what_is_selected_beside_a_keyed_operator_is_carried_past_it(tmp_path: Path) -> None:
    codes = ["user"] >> ops.Categorify()
    before = ["price"] >> Previous(by="user", sort="time")
    node = (
        codes + (before >> ops.FillMissing(fill_val=0.0)) + (before >> ops.Rename(postfix="_again") >> ops.Normalize())
    )
    whole = fl.Workflow(node).fit(fl.Dataset(EVENTS))
    parts = write_parts(EVENTS, (1, 1, 4), tmp_path / "parts")
    cut = fl.Workflow(node).fit(parts)
    same(cut.transform(parts).collect(), whole.transform(EVENTS))
    assert cut.transform(parts).collect()["price_before"].to_list() == [32.0, 16.0, 0.0, 0.0, 0.0, 4.0, 2.0, 0.0]


@pytest.mark.usefixtures("buckets")
def test_one_row_per_key_and_statistics_of_those_rows(tmp_path: Path) -> None:
    baskets = ["user", "price"] >> Basket(by="user")
    node = (baskets["user"] >> ops.Categorify()) + baskets["price_list"]
    data = write_parts(EVENTS, (2, 3), tmp_path / "parts")
    fitted = fl.Workflow(node).fit(data)
    made = fitted.transform(data)
    assert made.collect().to_dict(as_series=False) == {
        "user": [4, 3, 1, 5],
        "price_list": [[1.0, 4.0, 32.0], [2.0, 16.0, 64.0], [8.0], [None]],
    }
    same(made.collect(), fitted.transform(EVENTS))
    written = made.to_parquet(tmp_path / "out", shuffle=fl.Shuffle.FULL, seed=1, output_files=1)
    assert sorted(pl.read_parquet(f"{written}/*.parquet")["user"]) == [1, 3, 4, 5]


def test_rows_may_become_more(tmp_path: Path) -> None:
    twice = ["user", "time"] >> Twice()
    node = twice["time"] + (twice["user"] >> ops.Categorify())
    data = write_parts(EVENTS, (3,), tmp_path / "parts")
    fitted = fl.Workflow(node).fit(data)
    made = fitted.transform(data).collect()
    assert made["time"].to_list() == [3, 3, 9, 9, 1, 1, 4, 4, 2, 2, 2, 2, 9, 9, 5, 5]
    out = fitted.transform(data).to_parquet(tmp_path / "out", shuffle=fl.Shuffle.FULL, seed=3)
    assert sorted(pl.read_parquet(f"{out}/*.parquet")["time"]) == sorted(made["time"])


def test_what_only_the_fit_reads_is_not_asked_of_a_transform(tmp_path: Path) -> None:
    label = ["bought"] >> ops.LambdaOp(lambda x: x.cast(pl.Int64)) >> ops.Rename(postfix="_label")
    node = ["user"] >> Rate(target=label)
    fitted = fl.Workflow(node).fit(fl.Dataset(EVENTS))
    assert fitted.input_columns == ("user",)
    assert fitted.transform(pl.DataFrame({"user": ["a", "b"]}))["user"].to_list() == [1 / 3, 2 / 3]
    loaded = fl.Workflow.load(fitted.save(tmp_path / "workflow"))
    grown = loaded.partial_fit(fl.Dataset(pl.DataFrame({"user": ["a", "z"], "bought": [1, 1]})))
    assert grown.transform(pl.DataFrame({"user": ["a", "b", "z"]}))["user"].to_list() == [0.5, 2 / 3, 1.0]
    assert grown.rows == 10
    with pytest.raises(ColumnNotFoundError, match="bought"):
        loaded.partial_fit(fl.Dataset(pl.DataFrame({"user": ["a"]})))
    with pytest.raises(ConfigError, match="pruned"):
        fitted.prune(["user"]).partial_fit(fl.Dataset(EVENTS))


def test_groups_are_one_input_each() -> None:
    node = [["user", "time"], "bought"] >> Both()
    made = fl.Workflow(node).fit(fl.Dataset(EVENTS)).transform(EVENTS)
    assert made.columns == ["user_time", "bought"]
    assert made["user_time"].to_list()[:4] == ["b/3", "a/9", "b/1", "4"]


def test_two_groups_that_make_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two columns `a_b_c`"):
        [["a", "b_c"], ["a_b", "c"]] >> Both()


def test_a_column_read_beside_another_of_its_name_is_refused() -> None:
    other = ["time"] >> ops.Normalize()
    with pytest.raises(ConfigError, match="two columns `time`"):
        ["time"] >> Rate(target=other)


def test_a_name_that_the_data_has_not_is_suggested() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `time`"):
        fl.Workflow(["price"] >> Previous(by="user", sort="tim")).fit(fl.Dataset(EVENTS))


@pytest.mark.parametrize(
    ("op", "want"), [(LatestBeside(), [3, 9, 3, 4, 9, 3, 9, 5]), (LaterBeside(), [4, 10, 2, 5, 3, 3, 10, 6])], ids=str
)
def test_an_output_of_columns_beside_alone_survives_pruning(op: ops.Op, want: list[int]) -> None:
    fitted = fl.Workflow(["price", "bought"] >> op).fit(fl.Dataset(EVENTS))
    for outputs in (["made"], ["made", "bought"]):
        assert fitted.prune(outputs).transform(EVENTS)["made"].to_list() == want


def test_after_other_rows_the_data_is_gone() -> None:
    with pytest.raises(ConfigError, match="after Basket the rows are others"):
        ["user", "price"] >> Basket(by="user") >> Previous(by="user", sort="time")


def test_nodes_with_other_rows_cannot_be_read_beside() -> None:
    kept = ["time"] >> ops.Filter(lambda row: row["time"] > 1)
    with pytest.raises(ConfigError, match="may have different rows"):
        ["price"] >> Rate(target=kept)
