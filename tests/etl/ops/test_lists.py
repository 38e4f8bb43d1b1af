"""ListSlice and ValueCount, and lists all the way to tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, DataError, SchemaError
from falconet.testing.contracts import OpContract, StatOpContract, write_parts
from plain_rows import same_on_rows

LISTS = pl.DataFrame(
    {
        "codes": pl.Series([[1, 2, 3], [], None, [4, None], [5], [6, 7]], dtype=pl.List(pl.Int32)),
        "words": [["a", "b"], None, ["c"], [], [None, "d", "e"], ["f"]],
        "pairs": pl.Series(
            [[1.5, 2.5], [3.0, None], None, [0.0, 1.0], [1.0, 1.0], [2.0, 2.0]], dtype=pl.Array(pl.Float32, 2)
        ),
    }
)


class TestListSlice(OpContract):
    op = ops.ListSlice(-2)
    frame = LISTS


class TestListSlicePadded(OpContract):
    op = ops.ListSlice(1, 3, pad=True, pad_value=9)
    frame = LISTS.drop("words")


class TestValueCount(StatOpContract):
    op = ops.ValueCount()
    frame = LISTS


class TestValueCountOfOneLength(StatOpContract):
    op = ops.ValueCount()
    frame = pl.DataFrame({"x": [[1, 2], None, [None, 4], [5, 6]]})


def apply(op: ops.Op, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(frame.columns >> op).fit(fl.Dataset(frame)).transform(frame)


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ((2,), [[1, 2], [], None, [4, None]]),
        ((-2,), [[2, 3], [], None, [4, None]]),
        ((1, 3), [[2, 3], [], None, [None]]),
        ((0, 1), [[1], [], None, [4]]),
        ((1, -1), [[2], [], None, []]),
        ((-3, 2), [[1, 2], [], None, [4, None]]),
        ((-2, -1), [[2], [], None, [4]]),
    ],
    ids=str,
)
def test_a_piece_is_python_s(args: tuple[int, ...], want: list[list[int | None] | None]) -> None:
    got = apply(ops.ListSlice(*args), pl.DataFrame({"x": [[1, 2, 3], [], None, [4, None]]}))
    assert got["x"].to_list() == want
    assert got.schema == {"x": pl.List(pl.Int64)}


@given(
    st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=6), max_size=6),
    st.integers(-7, 7).filter(bool),
    st.none() | st.integers(-7, 7),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_a_piece_of_any_list(lists: list[list[int | None] | None], start: int, end: int | None, pad: bool) -> None:
    try:
        op = ops.ListSlice(start, end, pad=pad, pad_value=7)
    except ConfigError:
        return  # nothing is left, or no length to pad to
    frame = pl.DataFrame({"x": lists}, schema={"x": pl.List(pl.Int64)})
    got = apply(op, frame)["x"].to_list() if lists else []
    piece = slice(0, start) if end is None and start > 0 else slice(start, end)
    cut = [None if x is None else x[piece] for x in lists]
    assert got == ([(x or []) + [7] * (op.length - len(x or [])) for x in cut] if pad else cut)
    same_on_rows(op, frame)


def test_padding_gives_every_row_one_length_and_keeps_the_type() -> None:
    frame = LISTS.select("codes")
    fitted = fl.Workflow(["codes"] >> ops.ListSlice(2, pad=True)).fit(fl.Dataset(frame))
    got = fitted.transform(frame)
    assert got["codes"].to_list() == [[1, 2], [0, 0], [0, 0], [4, None], [5, 0], [6, 7]]
    assert got.schema == {"codes": pl.Array(pl.Int32, 2)}
    assert (fitted.schema["codes"].list, fitted.schema["codes"].nullable) == (2, False)


def test_rows_that_are_numpy_arrays_are_padded_too() -> None:
    frame = LISTS.select("codes").to_pandas()
    frame["codes"] = [
        np.array([1, 2, 3]),
        np.array([], dtype=np.int64),
        None,
        np.array([4]),
        np.array([5]),
        np.array([6, 7]),
    ]
    fitted = fl.Workflow(["codes"] >> ops.ListSlice(2, pad=True)).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["codes"].to_list() == [[1, 2], [0, 0], [0, 0], [4, 0], [5, 0], [6, 7]]
    assert fitted.online()({"codes": np.array([8])}) == {"codes": [8, 0]}


def test_padding_that_does_not_fit_is_an_error_naming_both() -> None:
    with pytest.raises(SchemaError, match=r"ListSlice pad_value=0.5 does not fit `codes`, which is Int32"):
        apply(ops.ListSlice(2, pad=True, pad_value=0.5), LISTS.select("codes"))
    with pytest.raises(SchemaError, match=r"ListSlice pad_value=0 does not fit `words`, which is String"):
        apply(ops.ListSlice(2, pad=True), LISTS.select("words"))
    assert apply(ops.ListSlice(-1, pad=True, pad_value="?"), LISTS.select("words"))["words"].to_list() == [
        ["b"], ["?"], ["c"], ["?"], ["e"], ["f"],
    ]  # fmt: skip


def test_list_slice_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"ListSlice\(0\) leaves nothing"):
        ops.ListSlice(0)
    with pytest.raises(ConfigError, match=r"ListSlice\(3, 2\) leaves nothing"):
        ops.ListSlice(3, 2)
    with pytest.raises(ConfigError, match=r"ListSlice\(1, -1\) with pad: such a piece has no largest length"):
        ops.ListSlice(1, -1, pad=True)
    with pytest.raises(SchemaError, match="ListSlice needs lists, `x` is Int64"):
        apply(ops.ListSlice(2), pl.DataFrame({"x": [1]}))


def test_lists_of_one_length_become_a_column_of_that_length() -> None:
    frame = pl.DataFrame({"x": [[1, 2], [None, 4]], "y": [[1], [2, 3]]})
    fitted = fl.Workflow(["x", "y"] >> ops.ValueCount()).fit(fl.Dataset(frame))
    assert (fitted.schema["x"].list, fitted.schema["y"].list) == (2, "ragged")
    assert fitted.transform(frame).to_dict(as_series=False) == frame.to_dict(as_series=False)
    with pytest.raises(DataError, match="specified width 2"):
        fitted.transform(pl.DataFrame({"x": [[1]], "y": [[1]]}))
    with pytest.raises(DataError, match=r"list of 1 values|specified width 2"):
        fitted.online()({"x": [1], "y": [1]})


def test_the_state_has_the_shortest_and_the_longest() -> None:
    op = ops.ValueCount()
    state = op.partial(LISTS.lazy(), ("codes",)).collect()
    assert state.to_dicts() == [{"least": 0, "most": 3}]
    fitted = op.finish(state)
    assert (fitted.least, fitted.most, fitted.length) == (0, 3, None)


def test_only_lists_are_counted() -> None:
    with pytest.raises(SchemaError, match="ValueCount needs lists, `x` is String"):
        apply(ops.ValueCount(), pl.DataFrame({"x": ["a"]}))


# From raw lists to tensors

TAGS = [["a", "b"], [], None, ["a", None]]
NODE = ["tags"] >> ops.Categorify() >> ops.ListSlice(2, pad=True) >> ops.AddTags("item")


def tensors(folder: Path) -> list[list[int]]:
    return [row for batch in fl.Loader(folder, batch_size=2).batches() for row in batch.features["tags"].tolist()]


@pytest.mark.parametrize("edges", [(), (1, 2), (2,)], ids=["one part", "a part of an empty list", "two parts"])
def test_lists_reach_the_loader_with_their_codes(edges: tuple[int, ...], tmp_path: Path) -> None:
    data = write_parts(pl.DataFrame({"tags": TAGS}), edges, tmp_path / "raw")
    fitted = fl.Workflow(NODE).fit(data)
    fitted.transform(data).to_parquet(tmp_path / "features")
    again = pl.read_parquet(tmp_path / "features/*.parquet")
    assert again["tags"].to_list() == [[3, 4], [0, 0], [1, 0], [3, 1]]
    assert again.schema == {"tags": pl.Array(pl.Int32, 2)}
    assert fl.Workflow.load(fitted.save(tmp_path / "workflow")).transform(pl.DataFrame({"tags": TAGS})).equals(again)
    assert tensors(tmp_path / "features") == [[3, 4], [0, 0], [1, 0], [3, 1]]
