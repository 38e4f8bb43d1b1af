"""NegativeSamples against plain loops: who may be drawn, how often, and that nothing depends on the cut."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.compute.executor import Executor
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.hashing import stable_hash
from falconet.testing.contracts import StatOpContract, same, write_parts

EVENTS = pl.DataFrame(
    {
        "user": [1, 1, 2, None, 3, 2, 1, 3],
        "item": ["a", "b", "c", "d", "e", None, "a", "f"],
        "time": [1, 2, 2, 4, None, 6, 7, 9],
    }
)


class TestNegativeSamples(StatOpContract):
    op = ops.NegativeSamples(user="user", item="item", time="time", n=3)
    frame = EVENTS


class TestNegativeSamplesByPopularity(StatOpContract):
    op = ops.NegativeSamples(user="user", item="item", n=2, sampling="popularity", seed=4)
    frame = EVENTS.drop("time")


class TestNegativeSamplesOfWhatWasTaken(StatOpContract):
    op = ops.NegativeSamples(user="user", item="item", time="time", exclude_taken=False, target="clicked")
    frame = EVENTS


def loop(op: ops.NegativeSamples, fitted: pl.DataFrame, frame: pl.DataFrame) -> list[dict[str, Any]]:
    """What comes out, drawn by walking over the items that are left, one draw after the other."""

    def known(value: Any) -> bool:
        return value is not None and value == value

    first: dict[Any, Any] = {}
    counts: Counter[Any] = Counter()
    taken: set[tuple[Any, Any]] = set()
    for event in fitted.to_dicts():
        item, time = event[op.item], event[op.time] if op.time else 0
        if known(item):
            counts[item] += 1
            taken.add((event[op.user], item))
            if known(time):
                first[item] = min(first.get(item, time), time)
    line = sorted(first, key=lambda item: (first[item], item))
    made = []
    for number, row in enumerate(frame.to_dicts()):
        made.append({**row, op.target: 1.0})
        time = row[op.time] if op.time else None
        left = [
            item
            for item in line
            if known(row[op.item])
            and item != row[op.item]
            and (not known(time) or first[item] <= time)
            and not (op.exclude_taken and known(row[op.user]) and (row[op.user], item) in taken)
        ]
        for j in range(1, op.n + 1):
            if not left:
                break
            sizes = [counts[item] if op.sampling == "popularity" else 1 for item in left]
            at = (stable_hash((number, j), op.seed) or 0) % sum(sizes)
            for item, size in zip(list(left), sizes, strict=True):
                if at < size:
                    made.append({**row, op.item: item, op.target: 0.0})
                    left.remove(item)
                    break
                at -= size
    return made


def rows(users: int, items: str, times: int) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    one = st.tuples(
        st.one_of(st.none(), st.integers(1, users)),
        st.one_of(st.none(), st.sampled_from(items)),
        st.one_of(st.none(), st.just(float("nan")), st.integers(0, times).map(float)),
    )
    return st.lists(one, max_size=20)


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.String, "time": pl.Float64}, orient="row")


@given(rows(3, "abcdefgh", 6), rows(4, "abcdefghij", 6), st.booleans(), st.booleans(), st.booleans(), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_samples_are_those_of_a_loop_over_what_is_left(
    train: list[tuple[Any, ...]],
    test: list[tuple[Any, ...]],
    timed: bool,
    popular: bool,
    exclude_taken: bool,
    n: int,
) -> None:
    op = ops.NegativeSamples(
        user="user",
        item="item",
        time="time" if timed else None,
        n=n,
        sampling="popularity" if popular else "uniform",
        exclude_taken=exclude_taken,
        seed=n,
    )
    fitted, frame = frame_of(train), frame_of(test)
    state = op.merge([op.partial(fitted.lazy(), ("user", "item", "time")).collect()])
    lazy = frame.lazy().with_row_index("__row__").with_columns(pl.col("__row__").cast(pl.UInt64))
    got = op.finish(state).apply(lazy, ("user", "item", "time")).collect()
    assert str(got.drop("__row__").to_dicts()) == str(loop(op, fitted, frame))
    assert got["__row__"].is_sorted()
    assert got["__row__"].is_unique().all()
    assert (got["__row__"] // (n + 1)).unique().to_list() == list(range(len(frame)))


def test_parts_and_executors_change_nothing(tmp_path: Path, executor: Executor) -> None:
    frame = pl.concat([EVENTS.with_columns(pl.col("user") + i, pl.col("time") + i) for i in range(9)])
    node = ["user", "item"] >> ops.NegativeSamples(user="user", item="item", time="time", n=3)
    after = node >> ops.Position(partition_cols="user")
    parts = write_parts(frame, (0, 4, 4, 5, 30, 51), tmp_path)
    for workflow in (fl.Workflow(node), fl.Workflow(after)):
        want = workflow.fit(fl.Dataset(frame)).transform(frame)
        same(workflow.fit(parts, executor=executor).transform(parts).collect(), want)


def test_slices_of_the_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fl.Workflow(["user", "item", "time"] >> TestNegativeSamples.op).fit(fl.Dataset(EVENTS))
    whole = fitted.transform(EVENTS)
    monkeypatch.setattr("falconet.etl.ops.negatives.SLICE_ROWS", 3)
    same(fitted.transform(EVENTS), whole)


def sample(frame: pl.DataFrame, train: pl.DataFrame, **given: Any) -> pl.DataFrame:
    op = ops.NegativeSamples(user="user", item="item", **given)
    return fl.Workflow(frame.columns >> op).fit(fl.Dataset(train)).transform(frame)


def test_no_item_is_drawn_before_its_first_event() -> None:
    train = pl.DataFrame({"user": [1, 2, 3, 4], "item": [10, 20, 30, 20], "time": [1, 5, 9, 2]})
    frame = pl.DataFrame({"user": [9, 9, 9, 9], "item": [10, 10, 10, 10], "time": [1, 2, 9, None]})
    got = sample(frame, train, time="time", n=5).filter(pl.col("label") == 0)
    assert got.sort("time", "item")["item"].to_list() == [20, 30, 20, 20, 30]
    assert got.sort("time", "item")["time"].to_list() == [None, None, 2, 9, 9]


def test_what_a_user_takes_later_is_no_negative() -> None:
    train = pl.DataFrame({"user": [1, 1, 2], "item": ["a", "b", "c"], "time": [1, 9, 1]})
    got = sample(train.head(1), train, time="time", n=5)
    assert got.rows() == [(1, "a", 1, 1.0), (1, "c", 1, 0.0)]


def test_uniform_draws_are_uniform_and_popular_ones_in_proportion() -> None:
    train = pl.DataFrame({"user": [0] * 10, "item": [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]})
    frame = pl.DataFrame({"user": [7] * 6000, "item": [-1] * 6000})
    shares = {}
    for sampling in ("uniform", "popularity"):
        drawn = sample(frame, train, n=1, sampling=sampling).filter(pl.col("label") == 0)
        shares[sampling] = [count / 6000 for _, count in sorted(Counter(drawn["item"]).items())]
    assert shares["uniform"] == pytest.approx([0.25] * 4, abs=0.02)
    assert shares["popularity"] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)


def test_reserved_codes_are_never_drawn() -> None:
    train = pl.DataFrame({"user": [1, 2, 3, 4, 5], "item": ["a", "b", "a", "b", "rare"]})
    codes = ["item"] >> ops.Categorify(freq_threshold=2)
    node = ["user", codes] >> ops.NegativeSamples(user="user", item="item", n=9, reserved=3)
    fitted = fl.Workflow(node).fit(fl.Dataset(train))
    got = fitted.transform(train)
    assert set(got.filter(pl.col("label") == 0)["item"]) == {3, 4}
    assert got.filter(pl.col("label") == 1)["item"].to_list() == [3, 4, 3, 4, 2]
    assert got.filter(pl.col("user") == 5)["label"].to_list() == [1.0]
    assert fitted.schema["item"].cardinality == 5
    assert fitted.schema["label"].tags == {"target", "binary"}


def test_codes_need_to_say_which_are_reserved() -> None:
    node = ["user", ["item"] >> ops.Categorify()] >> ops.NegativeSamples(user="user", item="item")
    with pytest.raises(ConfigError, match=r"reserved=0, but codes of `item` below 3 are no items(.|\n)*reserved=3"):
        fl.Workflow(node).fit(fl.Dataset(EVENTS))
    hashed = ["user", ["item"] >> ops.HashBucket(9)] >> ops.NegativeSamples(user="user", item="item", reserved=1)
    with pytest.raises(ConfigError, match=r"reserved=1, but codes of `item` below 2 are no items(.|\n)*reserved=2"):
        fl.Workflow(hashed).fit(fl.Dataset(EVENTS))


def test_codes_that_stand_for_no_item_are_neither_drawn_nor_get_samples() -> None:
    codes = pl.DataFrame({"user": [1, 2, 3, 4, 5, 6], "item": [1, 2, 0, 3, 4, None]})
    got = sample(codes, codes, n=9, reserved=3)
    assert got.group_by("user").agg("item").sort("user")["item"].to_list() == [[1], [2], [0], [3, 4], [4, 3], [None]]


def test_times_are_compared_as_times_of_one_unit() -> None:
    times = [dt.datetime(2020, 1, day) for day in (1, 2, 3)]
    train = pl.DataFrame({"user": [1, 2, 3], "item": ["a", "b", "c"], "time": times})
    frame = pl.DataFrame({"user": [1], "item": ["a"], "time": times[1:2]})
    assert sample(frame, train, time="time")["item"].to_list() == ["a", "b"]
    with pytest.raises(SchemaError, match=r"`time` is Datetime.*NegativeSamples was fitted on Datetime"):
        sample(frame.cast({"time": pl.Datetime("ms")}), train, time="time")


def test_settings_that_mean_nothing_say_so() -> None:
    for wrong, message in (
        ({"n": 0}, "n=0"),
        ({"sampling": "random"}, "sampling='random'"),
        ({"reserved": -1}, "reserved=-1"),
        ({"time": "item"}, "three different columns"),
    ):
        with pytest.raises(ConfigError, match=message):
            ops.NegativeSamples(user="user", item="item", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ColumnNotFoundError, match="did you mean `item`"):
        fl.Workflow(["user", "item"] >> ops.NegativeSamples(user="user", item="items")).fit(fl.Dataset(EVENTS))
    with pytest.raises(ConfigError, match="would add a second column `user`"):
        sample(EVENTS, EVENTS, target="user")
    with pytest.raises(SchemaError, match="reserved=3, but `item` is String"):
        sample(EVENTS, EVENTS, reserved=3)
    with pytest.raises(SchemaError, match="`item` is Int32, NegativeSamples was fitted on Int64"):
        sample(
            pl.DataFrame({"user": [1], "item": [1]}, schema_overrides={"item": pl.Int32}),
            EVENTS.with_columns(item=pl.lit(1, dtype=pl.Int64)),
        )


def test_more_data_brings_more_items() -> None:
    fitted = fl.Workflow(["user", "item"] >> ops.NegativeSamples(user="user", item="item", n=9)).fit(fl.Dataset(EVENTS))
    grown = fitted.partial_fit(fl.Dataset(pl.DataFrame({"user": [3, 2], "item": ["new", "f"]})))
    row = pl.DataFrame({"user": [2], "item": ["c"]})
    assert sorted(fitted.transform(row)["item"]) == ["a", "b", "c", "d", "e", "f"]
    assert sorted(grown.transform(row)["item"]) == ["a", "b", "c", "d", "e", "new"]


def test_a_server_is_told_that_one_row_becomes_several() -> None:
    fitted = fl.Workflow(["user", "item"] >> ops.NegativeSamples(user="user", item="item")).fit(fl.Dataset(EVENTS))
    with pytest.raises(DataError, match="`NegativeSamples` makes several rows"):
        fitted.online()({"user": 1, "item": "a"})


@pytest.mark.parametrize("exclude_taken", [True, False])
def test_slices_of_the_state_merge_to_the_whole(exclude_taken: bool) -> None:
    op = ops.NegativeSamples(user="user", item="item", time="time", exclude_taken=exclude_taken)
    group = ("user", "item", "time")
    pieces = [op.partial(EVENTS[at : at + 2].lazy(), group).collect() for at in range(0, 8, 2)]
    by = op.slice_by(group)
    slices = [op.merge([p.filter(pl.struct(by).hash() % 3 == number) for p in pieces]) for number in range(3)]
    same(pl.concat(slices).sort(by), op.merge(pieces))
