"""What is made of a table's columns is the same whether it is made for each row of the table or of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from falconet import Dataset, Workflow, ops
from falconet.etl.fold import Placed, Taken, fold
from falconet.etl.plan import Given
from falconet.etl.selector import Node, as_node

MOVIES = pl.DataFrame(
    {
        "movie": [7, 3, 9, 5],
        "genres": [["drama", "war"], [], None, ["war", None]],
        "year": [1990, None, 2000, 1990],
        "score": [0.5, 1.5, None, 2.0],
    }
)
ROWS = pl.DataFrame({"movie": [3, 7, 7, 4, None, 9, 5, 7], "user": [1, 1, 2, 2, 3, 3, 4, 4]})


def joined(**options: object) -> Node:
    return ["movie", "user"] >> ops.JoinExternal(MOVIES, on="movie", **options)


GRAPHS: dict[str, Callable[[], Node]] = {
    "lists and numbers": lambda: joined() >> ops.Categorify(),
    "a column that comes out as well": lambda: joined() + (joined()["genres"] >> ops.Rename(postfix="_codes")),
    "one column for two": lambda: (
        (joined()["year"] >> ops.FillMissing(fill_val=0) >> ops.Rename(name="filled"))
        + (joined()["year"] >> ops.Categorify())
    ),
    "a statistic that is not counted": lambda: joined()["score"] >> ops.Normalize(),
    "a chain": lambda: joined()["year"] >> ops.FillMissing(fill_val=1) >> ops.Categorify(),
    "several at once": lambda: joined()["movie", "year"] >> ops.Categorify(),
    "an inner join": lambda: joined(how="inner") >> ops.Categorify(),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_the_files_hold_what_a_frame_becomes(graph: Callable[[], Node], tmp_path: Path) -> None:
    data = Dataset(ROWS)
    fitted = Workflow(graph()).fit(data)
    fitted.transform(data).to_parquet(tmp_path / "out")
    got = pl.read_parquet(tmp_path / "out" / "*.parquet")
    assert_frame_equal(got, fitted.transform(ROWS))
    assert_frame_equal(fitted.transform(data).collect(), fitted.transform(ROWS))
    assert got.columns == list(fitted.schema.names)


def test_codes_of_a_list_of_a_table_are_counted_by_the_rows_that_have_it() -> None:
    fitted = Workflow(joined(columns_ext="genres")["genres"] >> ops.Categorify()).fit(Dataset(ROWS))
    # war: three rows of film 7 and one of film 5, drama: three; a film that is unknown or has null: [1].
    assert fitted.transform(ROWS)["genres"].to_list() == [[], [4, 3], [4, 3], [1], [1], [1], [3, 1], [4, 3]]
    (state,) = fitted.states.values()
    assert state.rows() == [("drama", 3), ("war", 4)]


def test_only_what_nothing_else_needs_becomes_a_place() -> None:
    graph = (joined(columns_ext=["genres", "year"]) >> ops.Categorify()) + (
        joined(columns_ext="score")["score"] >> ops.Rename(postfix="_raw")
    )
    fitted = Workflow(graph).fit(Dataset(ROWS))
    given = Given.of(fitted.inputs)
    folded = fold(fitted._applied, fitted._bound, given)
    assert sorted(name for _, name in folded.tables) == ["genres", "year"]
    made = [op for pairs in folded.bound.values() for _, op in pairs]
    assert [sorted(op.places) for op in made if isinstance(op, Placed)] == [["genres", "year"]]
    assert sum(isinstance(op, Taken) for op in made) == 2


def test_a_row_of_the_table_that_cannot_be_converted_does_not_matter_if_no_row_asks_for_it() -> None:
    table = pl.DataFrame({"movie": [7, 3], "code": ["12", "x"]})
    graph = (["movie"] >> ops.JoinExternal(table, on="movie"))["code"]
    fitted = Workflow(graph >> ops.LambdaOp(lambda x: x.cast(pl.Int64))).fit(Dataset(pl.DataFrame({"movie": [7]})))
    assert fitted.transform(Dataset(pl.DataFrame({"movie": [7, 7]}))).collect().to_dict(as_series=False) == {
        "code": [12, 12]
    }


def test_rows_beside_a_table_keep_their_folds() -> None:
    def encode(node: Node) -> Node:
        return node["score"] + (node["user"] >> ops.TargetEncoding(target=node["score"], kfold=2))

    before = ROWS.join(MOVIES, on="movie", how="left", maintain_order="left")
    want = Workflow(encode(as_node(["user", "score"]))).fit_transform(Dataset(before)).collect()
    assert_frame_equal(Workflow(encode(joined())).fit_transform(Dataset(ROWS)).collect(), want, check_exact=True)
