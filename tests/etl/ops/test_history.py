"""History against a plain loop over the fitted events, whatever the types, ties and cuts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.compute.executor import Executor
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import StatOpContract, same, write_parts

EVENTS = pl.DataFrame(
    {
        "user": ["a", "a", None, "b", "a", "b", "a"],
        "item": [1.0, 2.0, 3.0, None, 4.0, 5.0, 1.0],
        "time": [1.5, 2.0, 2.0, 2.0, float("nan"), None, 3.0],
    }
)


class TestHistory(StatOpContract):
    op = ops.History(key="user", item="item", time="time", length=2)
    frame = pl.DataFrame(
        {
            "user": ["a", "a", "b", "a", "a", None, "b"],
            "item": [1, 2, 3, 4, 5, 6, None],
            "time": [1, 2, 2, 2, 3, 4, None],
        }
    )


class TestHistoryOfOthers(StatOpContract):
    op = ops.History(key="user", item="item", length=2)
    frame = pl.DataFrame({"user": [1, 1, 2, 1, 1], "item": ["x", "y", "x", "z", "x"]})


class TestHistoryWithTies(StatOpContract):
    op = ops.History(key="user", item="item", time="time", row="row")
    frame = pl.DataFrame({"user": [1, 1, 1, 1], "item": [7, 8, 9, 7], "time": [5, 5, 5, 4], "row": [3, 1, 2, 0]})


class TestHistoryOfFloats(StatOpContract):
    op = ops.History(key="user", item="item", time="time", length=2)
    frame = EVENTS


class TestHistoryOfOthersOfStrings(StatOpContract):
    op = ops.History(key="item", item="user", length=3, name="others")
    frame = EVENTS.with_columns(pl.col("item").cast(pl.Int64))


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


def known(value: Any) -> bool:
    return value is not None and value == value


def loop(op: ops.History, fitted: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[list[Any]]:
    """The history of each row by walking over the events of its key in order."""
    roles = [op.key, op.item, *([op.time] if op.time else []), *([op.row] if op.row else [])]
    events = [
        (event[op.time] if op.time else 0, event[op.row] if op.row else number, event[op.item], event[op.key])
        for number, event in enumerate(fitted)
        if all(event[name] is not None for name in roles) and (not op.time or known(event[op.time]))
    ]
    histories = []
    for row in rows:
        met = []
        for time, place, item, key in sorted(events, key=lambda event: event[:3]):
            if key != row[op.key]:
                continue
            if op.time is None:
                seen = item != row[op.item]
            elif not known(row[op.time]):
                seen = True
            else:
                tied = op.row is not None and row[op.row] is not None and time == row[op.time]
                seen = time < row[op.time] or (tied and place < row[op.row])
            met += [item] if seen else []
        histories.append(met[-op.length :])
    return histories


events = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3]),
        st.sampled_from([None, "a", "b", "a longer name than fits in sixteen bytes"]),
        st.one_of(st.none(), st.just(float("nan")), st.integers(0, 4).map(float)),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=20,
)


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    schema = {"user": pl.Int32, "item": pl.String, "time": pl.Float64, "row": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@given(events, events, st.sampled_from(["time", "row", None]), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_histories_are_those_of_a_loop(
    train: list[tuple[Any, ...]], test: list[tuple[Any, ...]], order: str | None, length: int
) -> None:
    time, row = (None, None) if order is None else ("time", "row" if order == "row" else None)
    op = ops.History(key="user", item="item", time=time, row=row, length=length)
    fitted, frame = frame_of(train), frame_of(test)
    numbered = fitted.lazy().with_row_index("__row__").with_columns(pl.col("__row__").cast(pl.UInt64))
    state = op.merge([op.partial(numbered, op.roles).collect()])
    got = op.finish(state).apply(frame.lazy(), op.roles).collect()
    assert got["history"].to_list() == loop(op, fitted.to_dicts(), frame.to_dicts())
    same(got.drop("history"), frame)


def test_parts_slices_and_executors_change_nothing(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pl.concat([EVENTS.with_columns(pl.col("time") + i / 2) for i in range(9)])
    timed = ["user", "item", "time"] >> ops.History(key="user", item="item", time="time", length=5)
    others = ["user", "item"] >> ops.History(key="user", item="item", length=5, name="others")
    workflow = fl.Workflow([timed, others["others"]])
    want = workflow.fit(fl.Dataset(frame)).transform(frame)
    monkeypatch.setattr("falconet.etl.ops.history.SLICE_ROWS", 4)
    parts = write_parts(frame, (0, 4, 4, 5, 30, 51), tmp_path)
    same(workflow.fit(parts, executor=executor).transform(parts).collect(), want)


@pytest.mark.parametrize("op", [TestHistoryOfFloats.op, TestHistoryOfOthersOfStrings.op], ids=["timed", "others"])
def test_slices_of_the_state_merge_to_the_whole(op: ops.History) -> None:
    frame = EVENTS.lazy().with_row_index("__row__").with_columns(pl.col("__row__").cast(pl.UInt64))
    pieces = [op.partial(frame.slice(at, 2), op.roles).collect() for at in range(0, 8, 2)]
    by = op.slice_by(op.roles)
    slices = [op.merge([p.filter(pl.struct(by).hash() % 3 == number) for p in pieces]) for number in range(3)]
    same(pl.concat(slices).sort(by, maintain_order=True), op.merge(pieces))


@pytest.mark.parametrize(
    "dtype", [pl.Datetime("ms"), pl.Datetime("us", "Europe/Berlin"), pl.Date, pl.Duration("ns"), pl.UInt8], ids=str
)
def test_one_row_in_plain_python_for_times_of_any_type(dtype: pl.DataType) -> None:
    days = pl.Series([5, 1, 3, 3, None, 9])
    times = days.cast(dtype) if dtype in (pl.Date, pl.UInt8) else (days * 86_400_000).cast(dtype)
    frame = pl.DataFrame({"user": [1, 1, 1, 2, 1, 1], "item": [10, 11, 12, 13, 14, 15], "time": times})
    op = ops.History(key="user", item="item", time="time", length=2)
    fitted = fl.Workflow(["user", "item", "time"] >> op).fit(fl.Dataset(frame))
    want = fitted.transform(frame)
    assert want["history"].to_list() == [[11, 12], [], [11], [], [10, 15], [12, 10]]
    assert fitted.online()(frame.to_dicts()) == want.to_dicts()


def test_the_others_of_one_row_reach_back_as_far_as_need_be() -> None:
    frame = pl.DataFrame({"user": [1] * 12, "item": [1, 2, 3, *[9] * 9]})
    fitted = fl.Workflow(["user", "item"] >> ops.History(key="user", item="item", length=2)).fit(fl.Dataset(frame))
    assert fitted.online()({"user": 1, "item": 9})["history"] == [2, 3]
    assert fitted.online()(frame.to_dicts()) == fitted.transform(frame).to_dicts()


def test_a_history_has_no_future_and_no_tied_event() -> None:
    frame = TestHistory.frame
    got = apply(["user", "item", "time"] >> TestHistory.op, frame)
    assert got["history"].to_list() == [[], [1], [], [1], [2, 4], [], [3]]


def test_a_history_of_codes_has_the_item_s_domain() -> None:
    item = ["item"] >> ops.Categorify() >> ops.AddTags(["item", "id"])
    node = ["user", "time", item] >> ops.History(key="user", item="item", time="time")
    column = fl.Workflow(node).fit(fl.Dataset(TestHistory.frame)).schema["history"]
    assert (column.domain, column.cardinality, column.list) == ("item", 9, "ragged")
    assert column.tags == {"user", "sequence", "categorical"}


def test_later_data_does_not_change_the_history_of_the_fit() -> None:
    train = pl.DataFrame({"user": [1, 1], "item": [7, 8], "time": [1, 2]})
    fitted = fl.Workflow(
        (["user", "item", "time"] >> ops.History(key="user", item="item", time="time"))["history"]
    ).fit(fl.Dataset(train))
    new = pl.DataFrame({"user": [1, 1, 2, 1], "item": [9, 9, 9, 9], "time": [2, 3, 3, None]})
    assert fitted.transform(new)["history"].to_list() == [[7], [7, 8], [], [7, 8]]


def test_histories_by_datetime() -> None:
    times = [dt.datetime(2020, 1, day) for day in (1, 2, 3)]
    frame = pl.DataFrame({"user": [1, 1, 1], "item": [7, 8, 9], "time": times})
    fitted = fl.Workflow(
        (["user", "item", "time"] >> ops.History(key="user", item="item", time="time"))["history"]
    ).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["history"].to_list() == [[], [7], [7, 8]]
    assert fitted.online()(frame.row(2, named=True)) == {"history": [7, 8]}


@pytest.mark.parametrize("op", [ops.History(key="x", item="i"), ops.History(key="i", item="x")], ids=str)
def test_a_list_is_no_key_and_no_item(op: ops.History) -> None:
    with pytest.raises(SchemaError, match=r"needs one value per row, `x` is List"):
        fl.Workflow(["x", "i"] >> op).fit(fl.Dataset(pl.DataFrame({"x": [[1], [2]], "i": [1, 2]})))


@pytest.mark.parametrize("name", ["start", "end", "count", "key", "item", "times", "0/a", "a/b"])
def test_histories_of_columns_with_the_names_used_inside(name: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({name: [1, 1, 2, 1], "t": [1, 2, 3, 4], "i": ["a", "b", "c", "d"], "a": [0, 0, 0, 0]})
    timed = ops.History(key=name, item="i", time="t")
    fitted = fl.Workflow([name, "t", "i", "a"] >> timed).fit(fl.Dataset(frame))
    got = fl.Workflow.load(fitted.save(tmp_path / "w")).transform(frame)
    assert got["history"].to_list() == [[], ["a"], [], ["a", "b"]]
    assert got["a"].to_list() == [0, 0, 0, 0]
    others = apply([name, "i"] >> ops.History(key=name, item="i"), frame)
    assert others["history"].to_list() == [["b", "d"], ["a", "d"], [], ["a", "b"]]


def test_a_history_has_a_column_for_each_of_its_roles() -> None:
    with pytest.raises(ConfigError, match="three different columns"):
        ops.History(key="user", item="time", time="time")


def test_histories_are_put_together_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"user": [1, 2, 1, 1, 2, 1], "item": list("abcdef"), "time": [1, 1, 2, 3, 3, 4]})
    for op in (ops.History(key="user", item="item", time="time"), ops.History(key="user", item="item")):
        whole = apply(["user", "item", "time"] >> op, frame)
        with monkeypatch.context() as patch:
            patch.setattr("falconet.etl.ops.history.SLICE_ROWS", 2)
            same(apply(["user", "item", "time"] >> op, frame), whole)
