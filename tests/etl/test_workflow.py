"""Workflows: fitted anywhere, saved without code, pruned, and equal however the data is cut."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.compute.executor import ROW, Executor
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.op import OPS, ColumnOp, FrameOp, Group, StatOp
from falconet.io.artifact import MANIFEST, seal
from falconet.io.footer import read_schema
from falconet.testing.contracts import same, write_parts

MOVIES = pl.DataFrame(
    {"movieId": [1, 2, 3, 4], "genres": [["a", "b"], ["a"], [], None], "year": [1990, 1995, None, 2001]}
)


@pytest.fixture(scope="module")
def ratings() -> pl.DataFrame:
    """400 ratings of 20 people, with what real data has: nulls, ties in time, items the table does not know."""
    random = np.random.default_rng(7)
    frame = pl.DataFrame(
        {
            "userId": random.integers(1, 21, 400),
            "movieId": random.integers(1, 6, 400),
            "rating": random.integers(1, 11, 400) / 2,
            "time": random.integers(0, 90, 400),
            "price": random.normal(10.0, 3.0, 400),
        }
    )
    return frame.with_columns(
        pl.when(pl.col("price") > 8).then("price"), pl.when(pl.col("movieId") != pl.col("time")).then("movieId")
    )


def seed_graph() -> object:
    """The notebook's graph."""
    joined = ["userId", "movieId"] >> ops.JoinExternal(MOVIES, on="movieId", columns_ext=["genres"])
    features = joined >> ops.Categorify()
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    return features + label


def road_graph() -> list[object]:
    """Every operator that keeps rows, statistics of statistics, and a history of codes."""
    user = ["userId"] >> ops.Categorify(freq_threshold=5) >> ops.AddTags(["user", "id"])
    item = ["movieId"] >> ops.Categorify() >> ops.AddTags(["item", "id"])
    joined = ["movieId"] >> ops.JoinExternal(MOVIES, on="movieId")
    genres = joined[["genres"]] >> ops.Categorify() >> ops.AddTags(["item"])
    year = joined["year"] >> ops.Normalize() >> ops.FillMissing(fill_val=0.0) >> ops.AddTags(["item"])
    price = ["price"] >> ops.FillMissing(fill_val=9.0, add_binary_cols=True)
    scaled = price["price"] >> ops.Normalize() >> ops.Rename(postfix="_scaled")
    twice = scaled >> ops.LambdaOp(lambda col: (col * 0.3).round(1)) >> ops.Categorify() >> ops.Rename(name="level")
    raw = fl.ColumnSelector(["userId", "time"]) >> ops.Rename(names={"userId": "who"})
    history = (raw + item) >> ops.History(key="who", item="movieId", time="time", length=4)
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3.3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    return [user, item, genres, year, price["price_filled"], scaled, twice, history["history"], label]


def test_the_notebook_runs(ratings: pl.DataFrame, tmp_path: Path, executor: Executor) -> None:
    ratings.write_parquet(tmp_path / "train.parquet", row_group_size=60)
    data = fl.Dataset(tmp_path / "train.parquet", part_size="2KB")
    fitted = fl.Workflow(seed_graph()).fit(data, executor=executor)
    out = fitted.transform(data).to_parquet(tmp_path / "out", shuffle=fl.Shuffle.FULL, seed=0, output_files=4)
    fitted.save(tmp_path / "workflow")
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", *(f"part-{i:05d}.parquet" for i in range(4))]
    assert read_schema(out) == fitted.schema
    assert fl.get_embedding_sizes(fitted) == {"userId": (23, 16), "movieId": (8, 16), "genres": (5, 16)}
    whole = fl.Workflow(seed_graph()).fit(fl.Dataset(ratings)).transform(ratings)
    got = pl.read_parquet(out / "*.parquet")
    columns = ["userId", "movieId", "rating"]
    same(got.select(columns).sort(columns), whole.select(columns).sort(columns))


def test_executors_and_parts_change_nothing(ratings: pl.DataFrame, tmp_path: Path, executor: Executor) -> None:
    want = fl.Workflow(road_graph()).fit(fl.Dataset(ratings))
    for edges in [(200,), (0, 57, 57, 130, 222, 399)]:
        parts = write_parts(ratings, edges, tmp_path / f"{len(edges)}")
        got = fl.Workflow(road_graph()).fit(parts, executor=executor)
        for key, state in want.states.items():
            same(got.states[key], state)
        same(got.transform(parts).collect(), want.transform(ratings))
        assert got.schema == want.schema


def test_the_results_are_those_of_plain_polars(ratings: pl.DataFrame) -> None:
    got = fl.Workflow(road_graph()).fit(fl.Dataset(ratings)).transform(ratings)
    price = ratings["price"].fill_null(9.0)
    want = ((price - price.mean()) / price.std()).cast(pl.Float32)
    assert (got["price_scaled"] - want).abs().max() < 1e-6
    assert got["price_filled"].to_list() == ratings["price"].is_null().to_list()
    assert got["rating"].to_list() == (ratings["rating"] > 3.3).cast(pl.Int8).to_list()
    counts = ratings["movieId"].drop_nulls().value_counts().sort(["count", "movieId"], descending=[True, False])
    codes = {value: code for code, value in enumerate(counts["movieId"], 3)}
    assert got["movieId"].to_list() == [1 if x is None else codes[x] for x in ratings["movieId"]]
    events = [
        (user, time, row, code)
        for row, (user, time, code) in enumerate(zip(ratings["userId"], ratings["time"], got["movieId"], strict=True))
    ]
    for row, (user, time, _, _) in enumerate(events[:100]):
        before = sorted(e[1:] for e in events if e[0] == user and e[1] < time)
        assert got["history"][row].to_list() == [code for _, _, code in before][-4:]


def test_a_workflow_survives_a_move_and_a_new_process(ratings: pl.DataFrame, tmp_path: Path) -> None:
    fitted = fl.Workflow(road_graph()).fit(fl.Dataset(ratings))
    fitted.save(tmp_path / "here")
    ratings.write_parquet(tmp_path / "ratings.parquet")
    fitted.transform(ratings).write_parquet(tmp_path / "want.parquet")
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "empty").mkdir()
    code = """
import sys, polars as pl, falconet as fl
from polars.testing import assert_frame_equal
fitted = fl.Workflow.load(sys.argv[1] + "/there")
got = fitted.transform(pl.read_parquet(sys.argv[1] + "/ratings.parquet"))
assert_frame_equal(got, pl.read_parquet(sys.argv[1] + "/want.parquet"), check_exact=True)
"""
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "empty").iterdir())


def test_two_workflows_with_one_column_name_leave_each_other_and_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(pl.DataFrame({"x": ["a", "b", "b"]})))
    two = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(pl.DataFrame({"x": ["c", "a", "a"]})))
    frame = pl.DataFrame({"x": ["a", "b", "c"]})
    assert one.transform(frame)["x"].to_list() == [4, 3, 2]
    assert two.transform(frame)["x"].to_list() == [3, 2, 4]
    assert not list(tmp_path.iterdir())


def test_a_saved_workflow_holds_nothing_but_json_and_parquet(ratings: pl.DataFrame, tmp_path: Path) -> None:
    fl.Workflow(road_graph()).fit(fl.Dataset(ratings)).save(tmp_path / "w")
    assert {p.suffix for p in (tmp_path / "w").rglob("*") if p.is_file()} == {".json", ".parquet"}


def test_an_existing_folder_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(pl.DataFrame({"x": [1]})))
    fitted.save(tmp_path / "w")
    with pytest.raises(ArtifactError, match="overwrite=True"):
        fitted.save(tmp_path / "w")
    fitted.save(tmp_path / "w", overwrite=True)


@pytest.fixture
def saved(ratings: pl.DataFrame, tmp_path: Path) -> Path:
    return fl.Workflow(seed_graph()).fit(fl.Dataset(ratings)).save(tmp_path / "workflow")


def reseal(folder: Path) -> None:
    """What someone who changes a folder on purpose would do."""
    (folder / MANIFEST).unlink()
    seal(folder, "workflow", parents={}, extra={})


def test_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no workflow at"):
        fl.Workflow.load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["graph.json", "state/2-userId.parquet", "state/1-table.parquet"])
def test_a_truncated_file_is_named(saved: Path, name: str) -> None:
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match=name):
        fl.Workflow.load(saved)
    reseal(saved)
    with pytest.raises(ArtifactError, match=name):
        fl.Workflow.load(saved)


def test_a_changed_file_is_named(saved: Path) -> None:
    text = (saved / "graph.json").read_text()
    (saved / "graph.json").write_text(text.replace('"left"', '"LEFT"'))
    with pytest.raises(ArtifactError, match=r"graph.json` is not what its manifest says"):
        fl.Workflow.load(saved)


def test_code_smuggled_into_an_expression_is_refused_before_polars_sees_it(saved: Path) -> None:
    graph = json.loads((saved / "graph.json").read_text())
    step = next(s for s in graph["steps"] if s["op"] == "LambdaOp")
    step["fields"]["f"] = {"$expression": {"AnonymousFunction": {"input": [], "function": [1, 2, 3]}}}
    (saved / "graph.json").write_text(json.dumps(graph))
    reseal(saved)
    with pytest.raises(ArtifactError, match=r"(?s)graph.json.*not allowed.*AnonymousFunction"):
        fl.Workflow.load(saved)


def test_an_expression_that_means_something_else_now_is_refused(saved: Path) -> None:
    graph = json.loads((saved / "graph.json").read_text())
    step = next(s for s in graph["steps"] if s["op"] == "LambdaOp")
    text = json.dumps(step["fields"]).replace('"Gt"', '"GtEq"')
    step["fields"] = json.loads(text)
    graph["polars"] = "1.0.0"
    (saved / "graph.json").write_text(json.dumps(graph))
    reseal(saved)
    with pytest.raises(ArtifactError, match=r"(?s)gives other values.*Polars 1.0.0, this is"):
        fl.Workflow.load(saved)


def test_an_operator_that_is_not_known_is_named(saved: Path) -> None:
    text = (saved / "graph.json").read_text()
    (saved / "graph.json").write_text(text.replace('"Categorify"', '"Categorise"'))
    reseal(saved)
    with pytest.raises(ArtifactError, match=r"(?s)`Categorise`.*import the module that registers it"):
        fl.Workflow.load(saved)


def test_another_format_is_refused(saved: Path) -> None:
    text = (saved / "graph.json").read_text()
    (saved / "graph.json").write_text(text.replace('"format": 2', '"format": 9', 1))
    reseal(saved)
    with pytest.raises(ArtifactError, match="has format 9, this version reads 2"):
        fl.Workflow.load(saved)


def test_a_file_outside_the_folder_is_not_read(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved / "state/1-table.parquet", tmp_path / "other.parquet")
    text = (saved / "graph.json").read_text()
    (saved / "graph.json").write_text(text.replace("state/1-table.parquet", "../other.parquet"))
    reseal(saved)
    with pytest.raises(ArtifactError, match="not in its folder"):
        fl.Workflow.load(saved)


# prune


def test_the_label_comes_off(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(seed_graph()).fit(fl.Dataset(ratings))
    features = fitted.prune(fitted.schema.without_tags("target").names)
    assert features.input_columns == ("userId", "movieId") or set(features.input_columns) == {"userId", "movieId"}
    same(features.transform(ratings.drop("rating")), fitted.transform(ratings).drop("rating"))


def test_user_and_item_part_stand_alone(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(road_graph()).fit(fl.Dataset(ratings))
    user, item = fitted.prune(tags=["user"], without=["history"]), fitted.prune(tags=["item"])
    assert user.input_columns == ("userId",)
    assert item.input_columns == ("movieId",)
    assert item.schema.names == ("movieId", "genres", "year")
    same(item.transform(ratings.select("movieId")), fitted.transform(ratings).select("movieId", "genres", "year"))
    assert set(fitted.prune(tags="user").input_columns) == {"userId", "movieId", "time"}


def test_a_pruned_workflow_is_saved_with_what_it_needs_alone(ratings: pl.DataFrame, tmp_path: Path) -> None:
    item = fl.Workflow(road_graph()).fit(fl.Dataset(ratings)).prune(tags=["item"])
    item.save(tmp_path / "item")
    loaded = fl.Workflow.load(tmp_path / "item")
    same(loaded.transform(ratings), item.transform(ratings))
    assert not any("userId" in p.name for p in (tmp_path / "item/state").iterdir())


def test_pruning_to_what_is_not_there_suggests_the_close_name(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(seed_graph()).fit(fl.Dataset(ratings))
    with pytest.raises(ColumnNotFoundError, match="did you mean `userId`"):
        fitted.prune(["userid"])
    with pytest.raises(ConfigError, match="pruning leaves no outputs"):
        fitted.prune(tags=["session"])


def test_codes_go_back_to_values(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(road_graph()).fit(fl.Dataset(ratings))
    back = fitted.inverse(fitted.transform(ratings).select("movieId", "history", "genres", "year"))
    assert back["movieId"].to_list() == ratings["movieId"].to_list()
    assert back["genres"].to_list()[:3] == [
        {1: ["a", "b"], 2: ["a"], 3: []}.get(movie, [None]) for movie in ratings["movieId"][:3]
    ]
    assert set(back["history"].explode().drop_nulls()) <= set(range(1, 6))


# data of every make, and errors before data is read


def test_frames_of_every_make_give_the_same(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(seed_graph()).fit(fl.Dataset(ratings))
    want = fitted.transform(ratings)
    for frame in (ratings.lazy(), ratings.to_arrow(), ratings.to_pandas(), ratings.to_pandas().set_index("time")):
        same(fitted.transform(frame), want)
    same(fitted.transform(ratings.with_columns(pl.lit("x").alias("more")).select(reversed(ratings.columns))), want)


def test_categories_of_polars_are_strings() -> None:
    frame = pl.DataFrame({"x": ["a", "b", "b"]})
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(frame))
    assert fitted.transform(frame.cast(pl.Categorical))["x"].to_list() == [4, 3, 3]
    assert fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(frame.cast(pl.Categorical))).transform(frame)[
        "x"
    ].to_list() == [4, 3, 3]


def test_a_missing_column_is_found_before_data_is_read(ratings: pl.DataFrame) -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `userId`"):
        fl.Workflow(["userID"] >> ops.Categorify()).fit(fl.Dataset(ratings))
    fitted = fl.Workflow(seed_graph()).fit(fl.Dataset(ratings))
    with pytest.raises(ColumnNotFoundError, match=r"(?s)no column `rating`.*did you mean `ratings`"):
        fitted.transform(fl.Dataset(ratings.rename({"rating": "ratings"})))


def test_a_value_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    pl.DataFrame({"x": ["1", "b"]}).write_parquet(tmp_path / "data.parquet")
    data = fl.Dataset(tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"data.parquet"):
        fl.Workflow(["x"] >> ops.LambdaOp(lambda col: col.cast(pl.Int64)) >> ops.Categorify()).fit(data)


def test_the_schema_is_known_without_reading_data(ratings: pl.DataFrame) -> None:
    plan = fl.Workflow(road_graph())
    told, known = plan.describe(fl.Dataset(ratings)), plan.fit(fl.Dataset(ratings)).schema
    assert [(c.name, c.dtype, c.list, c.tags) for c in told] == [(c.name, c.dtype, c.list, c.tags) for c in known]
    assert told["userId"].cardinality is None


def test_tags_in_the_files_select_columns(ratings: pl.DataFrame, tmp_path: Path) -> None:
    first = fl.Workflow(["price"] >> ops.FillMissing(fill_val=0.0) >> ops.AddTags("money")).fit(fl.Dataset(ratings))
    first.transform(fl.Dataset(ratings)).to_parquet(tmp_path / "features")
    node = fl.ColumnSelector(tags=["money"]) >> ops.Normalize()
    assert fl.Workflow(node).fit(fl.Dataset(tmp_path / "features")).schema.names == ("price",)


def test_fit_transform_is_fit_then_transform(ratings: pl.DataFrame) -> None:
    data = fl.Dataset(ratings)
    same(
        fl.Workflow(seed_graph()).fit_transform(data).collect(), fl.Workflow(seed_graph()).fit(data).transform(ratings)
    )


def test_fit_wants_a_dataset(ratings: pl.DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"fit needs a Dataset, not a DataFrame"):
        fl.Workflow(seed_graph()).fit(ratings)  # type: ignore[arg-type]


def test_types_that_changed_since_the_fit_are_refused_by_name(ratings: pl.DataFrame) -> None:
    fitted = fl.Workflow(["price"] >> ops.Normalize()).fit(fl.Dataset(ratings))
    with pytest.raises((SchemaError, DataError), match=r"price|String"):
        fitted.transform(pl.DataFrame({"price": ["cheap"]}))


# out of fold


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class MeanOfOthers(StatOp):
    """The mean of a column; on the data it was made from, of the other rows."""

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        return frame.select(pl.col(group[0]).cast(pl.Int64).sum().alias("sum"), pl.len().cast(pl.Int64).alias("n"))

    def merge(self, states: list[pl.DataFrame]) -> pl.DataFrame:  # type: ignore[override]
        return pl.concat(states).sum()

    def finish(self, state: pl.DataFrame) -> ColumnOp:
        return _Mean(total=state["sum"][0], n=state["n"][0], own=0)

    def finish_fitted(self, state: pl.DataFrame) -> ColumnOp:
        return _Mean(total=state["sum"][0], n=state["n"][0], own=1)


@dataclass(frozen=True, kw_only=True)
class _Mean(ColumnOp):
    total: int
    n: int
    own: int

    def expr(self, x: pl.Expr, column: object) -> pl.Expr:
        return (self.total - self.own * x) / max(self.n - self.own, 1)


def test_the_rows_of_the_fit_leave_themselves_out_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pl.DataFrame({"x": [1, 2, 6]})
    frame.write_parquet(tmp_path / "train.parquet")
    fitted = fl.Workflow(["x"] >> MeanOfOthers()).fit(fl.Dataset(tmp_path / "train.parquet"))
    again = fl.Dataset(tmp_path / "train.parquet", part_size=1)
    assert fitted.transform(again).collect()["x"].to_list() == [4.0, 3.5, 1.5]
    assert "MeanOfOthers leaves out each row's own fold" in capsys.readouterr().err
    assert fitted.transform(again, out_of_fold=False).collect()["x"].to_list() == [3.0, 3.0, 3.0]
    assert fitted.transform(frame)["x"].to_list() == [3.0, 3.0, 3.0]
    more = fl.Dataset(pl.concat([frame, frame]))
    assert fitted.transform(more).collect()["x"].to_list() == [3.0] * 6


def test_filtered_rows_keep_their_numbers(ratings: pl.DataFrame, tmp_path: Path, executor: Executor) -> None:
    node = (["rating", "price"] >> ops.Filter(lambda row: row["rating"] > 4) >> ops.Dropna())[
        "price"
    ] >> ops.Normalize()
    parts = write_parts(ratings, (0, 57, 57, 130), tmp_path / "in")
    fitted = fl.Workflow(node).fit(parts, executor=executor)
    out = fitted.transform(parts).to_parquet(tmp_path / "out", executor=executor)
    want = ratings.filter(pl.col("rating") > 4).drop_nulls("price")
    assert fl.Dataset(out).rows == len(want)
    got = pl.read_parquet(out / "part-00000.parquet")
    same(got, fitted.transform(ratings))
    assert ROW not in got.columns
    assert issubclass(ops.Filter, FrameOp)


def test_structs_may_stand_in_the_data_beside_the_graph() -> None:
    frame = pl.DataFrame({"x": [1, 2], "s": [{"a": 1}, {"a": 2}], "ll": [[[1]], [[2]]]})
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["x"].to_list() == [3, 4]


def test_lists_come_back_from_disk_as_they_were_coded(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [["a", "b"], [], None, ["a", None], [], []]})
    parts = write_parts(frame, (4,), tmp_path / "in")
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(parts)
    out = fitted.transform(parts).to_parquet(tmp_path / "out", output_files=2)
    assert fl.Dataset(out).scan().collect()["x"].to_list() == [[3, 4], [], [1], [3, 1], [], []]
    assert fl.Dataset(out).schema == {"x": pl.List(pl.Int32)}
    assert read_schema(out)["x"].list == "ragged"


@given(
    st.lists(st.none() | st.sampled_from("abcdef"), min_size=1, max_size=30),
    st.lists(st.none() | st.lists(st.none() | st.sampled_from("abxyz"), max_size=3), min_size=1, max_size=30),
    st.integers(0, 4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_codes_are_in_range_and_go_back_to_their_values(
    scalars: list[str | None], lists: list[list[str | None] | None], threshold: int, joint: bool
) -> None:
    n = min(len(scalars), len(lists))
    frame = pl.DataFrame({"a": scalars[:n], "b": lists[:n]}, schema={"a": pl.String, "b": pl.List(pl.String)})
    node = ([["a", "b"]] if joint else ["a", "b"]) >> ops.Categorify(freq_threshold=threshold)
    fitted = fl.Workflow(node).fit(fl.Dataset(frame))
    got = fitted.transform(frame)
    known = {name: op for pairs in fitted._bound.values() for group, op in pairs for name in group}
    for name, codes, values in (("a", got["a"], frame["a"]), ("b", got["b"].explode(), frame["b"].explode())):
        op = known[name]
        assert isinstance(op, ops.Categories)
        back = codes.to_frame().select(op.inverse(pl.col(name))).to_series()
        for code, value, again in zip(codes, values, back, strict=True):
            if code is None:
                assert value is None  # an empty list
                continue
            assert 0 < code < fitted.schema[name].cardinality  # type: ignore[operator]
            assert (code == 1) == (value is None)
            assert again == (None if code <= 2 else value)


@pytest.mark.parametrize("shuffle", [fl.Shuffle.NONE, fl.Shuffle.FULL])
def test_a_value_that_does_not_fit_is_named_while_writing(shuffle: fl.Shuffle, tmp_path: Path) -> None:
    pl.DataFrame({"x": ["1", "b"]}).write_parquet(tmp_path / "data.parquet")
    data = fl.Dataset(tmp_path / "data.parquet")
    number = ["x"] >> ops.LambdaOp(lambda col: col.cast(pl.Int64))
    for node in (number, number >> ops.Split(user="x")):
        with pytest.raises(DataError, match=r"data.parquet`: conversion from `str` to `i64` failed in column 'x'"):
            fl.Workflow(node).fit(data).transform(data).to_parquet(tmp_path / "out", shuffle=shuffle)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"list": null', f'"list": {2**70}'),
        ('"tree"', "[" * 5_000),
        ('"input": [{"Column": "__column__"}, ', '"input": ['),
    ],
    ids=["too large", "too deep", "too few"],
)
def test_a_graph_that_means_nothing_is_refused(old: str, new: str, tmp_path: Path) -> None:
    clip = ["x"] >> ops.LambdaOp(lambda col: col.clip(1, 2))
    saved = fl.Workflow(clip).fit(fl.Dataset(pl.DataFrame({"x": [1]}))).save(tmp_path / "w")
    text = json.dumps(json.loads((saved / "graph.json").read_text()))
    text = text.replace(old, new, 1) if old in text else new
    (saved / "graph.json").write_text(text)
    reseal(saved)
    with pytest.raises(ArtifactError, match="is damaged"):
        fl.Workflow.load(saved)


def test_a_fit_that_leaves_no_output_says_why() -> None:
    with pytest.raises(DataError, match="no output is left: what the data says leaves out word"):
        fl.Workflow(["word"] >> ops.Categorify() >> ops.DropLowCardinality()).fit(
            fl.Dataset(pl.DataFrame({"word": ["a", None]}))
        )


def test_a_column_that_no_schema_can_describe_is_refused_wherever_it_is_asked_for(
    tmp_path: Path,
) -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0], "price": [Decimal("1.5"), None], "who": [{"a": 1}, {"a": 2}]})
    frame.write_parquet(tmp_path / "a.parquet")
    data = fl.Dataset(tmp_path)
    graphs: list[Any] = [
        "*",
        ["x", "price"],
        ["x"] >> ops.LambdaOp(lambda col, row: col * row["price"]),
        ["x"] >> ops.TargetEncoding(target="price"),
    ]
    for graph in graphs:
        with pytest.raises(SchemaError, match=r"`price` has the type Decimal[\s\S]*dtypes={\"price\": \"float64\"}"):
            fl.Workflow(graph).fit(data)
    with pytest.raises(SchemaError, match=r"`who` has the type Struct[\s\S]*leave it out"):
        fl.Workflow(["who"]).fit(data)
    fitted = fl.Workflow("*").fit(fl.Dataset(tmp_path, columns=["x", "price"], dtypes={"price": "float64"}))
    assert fitted.schema.names == ("x", "price")
    with pytest.raises(SchemaError, match="`price` has the type Decimal"):
        fitted.transform(data)
    assert fl.Workflow(["x"]).fit(data).transform(data).collect()["x"].to_list() == [1.0, 2.0]
