"""Splits: every row once, the same however the data is cut, in file order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.compute.executor import Executor
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError
from falconet.etl.split import write_split
from falconet.hashing import stable_hash
from falconet.testing.contracts import same, write_parts


@pytest.fixture
def frame() -> pl.DataFrame:
    random = np.random.default_rng(5)
    users = [user for user in range(20) for _ in range(user + 1)]
    random.shuffle(users)
    return pl.DataFrame({"user": users, "time": random.integers(0, 40, len(users)), "item": range(len(users))})


def read(folder: Path) -> pl.DataFrame:
    return fl.Dataset(folder).scan().collect()


def test_random_keeps_the_share_of_each_user(frame: pl.DataFrame, tmp_path: Path, executor: Executor) -> None:
    data = write_parts(frame, (30, 30, 77, 140), tmp_path / "in")
    out = write_split(data, tmp_path / "out", kind="random", user="user", ratio=0.8, seed=1, executor=executor)
    train, test = read(out / "train"), read(out / "test")
    assert not (out / "valid").exists()
    assert sorted([*train["row"], *test["row"]]) == list(range(len(frame)))
    kept = dict(train["user"].value_counts().rows())
    assert [kept[user] for user in range(20)] == [1, 1, *(int((user + 1) * 0.8 + 0.5) for user in range(2, 20))]
    for part in (train, test):
        assert part["row"].is_sorted()
        same(part.drop("row"), frame[part["row"]])
    # Exactly the rows with the smallest hashes of (seed, row number).
    rows = frame.with_row_index("row").filter(pl.col("user") == 19)["row"].to_list()
    first = sorted(rows, key=lambda row: stable_hash(row, 1) or 0)[:16]
    assert sorted(first) == train.filter(pl.col("user") == 19)["row"].to_list()


def test_another_seed_is_another_split(frame: pl.DataFrame, tmp_path: Path) -> None:
    data = fl.Dataset(frame)
    one, two = (
        read(write_split(data, tmp_path / f"{seed}", kind="random", user="user", seed=seed) / "test") for seed in (1, 2)
    )
    assert len(one) == len(two)
    assert not one.equals(two)


@pytest.mark.parametrize("last", [1, 3, 1_000])
def test_leave_last_holds_out_the_last_and_those_before(frame: pl.DataFrame, tmp_path: Path, last: int) -> None:
    data = fl.Dataset(frame)
    out = write_split(data, tmp_path / "out", kind="leave_last", user="user", time="time", valid_ratio=0.1, last=last)
    train, test, valid = (read(out / name) for name in ("train", "test", "valid"))
    for user in range(20):
        rows = frame.with_row_index("row").filter(pl.col("user") == user).sort("time", "row")["row"].to_list()
        assert test.filter(pl.col("user") == user)["row"].to_list() == sorted(rows[1:][-last:])
        assert valid.filter(pl.col("user") == user)["row"].to_list() == sorted(rows[1:][:-last][-last:])
        assert rows[0] in train.filter(pl.col("user") == user)["row"].to_list()


def test_time_cuts_at_the_exact_quantile_and_keeps_one_instant_together(frame: pl.DataFrame, tmp_path: Path) -> None:
    data = write_parts(frame, (10, 100), tmp_path / "in")
    out = write_split(data, tmp_path / "out", kind="time", user="user", time="time", ratio=0.7, valid_ratio=0.2)
    times = np.sort(frame["time"].to_numpy())
    first, second = times[int(len(times) * 0.7)], times[int(len(times) * 0.9)]
    same(read(out / "train").drop("row"), frame.filter(pl.col("time") < first))
    same(read(out / "valid").drop("row"), frame.filter((pl.col("time") >= first) & (pl.col("time") < second)))
    same(read(out / "test").drop("row"), frame.filter(pl.col("time") >= second))


def test_time_cuts_at_a_given_time(frame: pl.DataFrame, tmp_path: Path) -> None:
    out = write_split(fl.Dataset(frame), tmp_path / "out", kind="time", user=None, time="time", cutoff=25)
    same(read(out / "test").drop("row"), frame.filter(pl.col("time") >= 25))


def test_parts_change_nothing(frame: pl.DataFrame, tmp_path: Path) -> None:
    whole = fl.Dataset(frame)
    many = write_parts(frame, (0, 3, 50, 50, 51, 180), tmp_path / "in")
    for kind in ("random", "leave_last", "time"):
        a, b = (
            write_split(data, tmp_path / f"{kind}-{i}", kind=kind, user="user", time="time", valid_ratio=0.1, seed=4)  # type: ignore[arg-type]
            for i, data in enumerate((whole, many))
        )
        for name in ("train", "valid", "test"):
            same(read(a / name), read(b / name))


def test_a_side_without_rows_has_its_types(tmp_path: Path) -> None:
    data = fl.Dataset(pl.DataFrame({"user": [1, 2], "item": ["a", "b"]}))
    out = write_split(data, tmp_path / "out", kind="random", user="user")
    assert fl.Dataset(out / "test").rows == 0
    assert fl.Dataset(out / "test").schema == fl.Dataset(out / "train").schema


def test_wrong_settings_say_so_before_data_is_read(frame: pl.DataFrame, tmp_path: Path) -> None:
    data = fl.Dataset(frame)
    with pytest.raises(ColumnNotFoundError, match="did you mean `user`"):
        write_split(data, tmp_path / "a", kind="random", user="users")
    with pytest.raises(ConfigError, match="needs `time`"):
        write_split(data, tmp_path / "b", kind="time", user="user")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ops.Split(ratio=1.0)
    with pytest.raises(ConfigError, match='"random", "stratified", "leave_last" or "time"'):
        ops.Split(kind="fold")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Split last=0"):
        ops.Split(kind="leave_last", user="user", time="time", last=0)
    with pytest.raises(ConfigError, match='Split last=2 is for kind="leave_last", not "random"'):
        ops.Split(last=2)
    write_split(data, tmp_path / "c", kind="random", user="user")
    with pytest.raises(ArtifactError, match="overwrite=True"):
        write_split(data, tmp_path / "c", kind="random", user="user")
    with pytest.raises(ConfigError, match="has a column `row` already"):
        write_split(fl.Dataset(tmp_path / "c" / "train"), tmp_path / "d", kind="random", user="user")


def test_a_split_inside_a_workflow_runs_over_parts(frame: pl.DataFrame, tmp_path: Path, executor: Executor) -> None:
    parts = write_parts(frame, (0, 60, 61), tmp_path / "in")
    codes = ["user"] >> ops.Categorify() >> ops.Rename(name="code")
    node = codes + (["user", "time"] >> ops.Split(kind="leave_last", user="user", time="time"))
    fitted = fl.Workflow(node).fit(parts, executor=executor)
    want = fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)
    same(fitted.transform(parts).collect(), want)
    out = fitted.transform(parts).to_parquet(tmp_path / "out")
    same(read(out), want)
    counts = ["split"] >> ops.Categorify()
    last = fl.Workflow(
        (["user", "time"] >> ops.Split(kind="leave_last", user="user", time="time"))["split"] >> counts.op
    )  # type: ignore[attr-defined]
    assert last.fit(parts, executor=executor).transform(frame)["split"].value_counts().sort("split").rows() == [
        (3, 191),
        (4, 19),
    ]


@pytest.mark.parametrize(("ratio", "valid_ratio"), [(0.8, 0.0), (0.99, 0.0), (0.5, 0.4), (0.01, 0.0)])
def test_random_gives_every_user_of_two_rows_training_and_test(
    ratio: float, valid_ratio: float, tmp_path: Path
) -> None:
    users = [user for user in range(1, 9) for _ in range(user)]
    data = fl.Dataset(pl.DataFrame({"user": users}))
    op = ops.Split(user="user", ratio=ratio, valid_ratio=valid_ratio)
    made = fl.Workflow(["user"] >> op).fit(data).transform(data).collect()
    for user in range(2, 9):
        assert {"train", "test"} <= set(made.filter(pl.col("user") == user)["split"])
    assert made.filter(pl.col("user") == 1)["split"].to_list() == ["train"]
