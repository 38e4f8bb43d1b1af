"""A fitted workflow whose joins look things up elsewhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from falconet import ops
from falconet.errors import SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.rejoin import joined_table, with_table, without_joins
from falconet.etl.workflow import FittedWorkflow, Workflow

FILMS = pl.DataFrame({"film": [1, 2], "genres": [["a"], ["b", "a"]], "year": [1990, 2000]})
MORE = pl.concat([FILMS, pl.DataFrame({"film": [3], "genres": [["c"]], "year": [2010]})])


@pytest.fixture(scope="module")
def fitted() -> FittedWorkflow:
    joined = ["film"] >> ops.JoinExternal(FILMS, on="film")
    years = ["film"] >> ops.JoinExternal(FILMS.select(number="film", year="year"), on="film", on_ext="number")
    outputs = (["user", "film"] >> ops.Categorify()) + (joined[["genres"]] >> ops.Categorify())
    data = Dataset(pl.DataFrame({"user": [7, 7, 8], "film": [1, 2, 2]}))
    return Workflow(outputs + (years[["year"]] >> ops.Normalize())).fit(data)


def test_the_tables_are_found_by_their_key(fitted: FittedWorkflow) -> None:
    found = joined_table(fitted, "film")
    assert found is not None
    assert_frame_equal(found, FILMS)
    assert joined_table(fitted, "user") is None


def test_what_was_learned_stays_and_new_rows_are_learned_from_the_new_table(fitted: FittedWorkflow) -> None:
    grown = with_table(fitted, "film", MORE).partial_fit(Dataset(pl.DataFrame({"user": [9], "film": [3]})))
    codes = ["user", "film", "genres"]
    known = pl.DataFrame({"user": [7, 8], "film": [1, 2]})
    assert_frame_equal(grown.transform(known).select(codes), fitted.transform(known).select(codes))
    new = grown.transform(pl.DataFrame({"user": [9], "film": [3]})).row(0)
    assert new[:3] == (5, 5, [5])
    assert new[3] == pytest.approx(10 / (200 / 3) ** 0.5)  # 2010 among 1990, 2000, 2000, 2010


def test_a_table_that_does_not_fit_is_refused(fitted: FittedWorkflow) -> None:
    with pytest.raises(SchemaError, match="joined by `film` has Float64 for `year`, the workflow knows Int64"):
        with_table(fitted, "film", MORE.cast({"year": pl.Float64}))
    with pytest.raises(SchemaError, match="has None for `genres`"):
        with_table(fitted, "film", MORE.drop("genres"))


def test_what_was_joined_can_come_with_the_rows(fitted: FittedWorkflow, tmp_path: Path) -> None:
    fitted.save(tmp_path / "workflow")
    loaded = FittedWorkflow.load(tmp_path / "workflow")
    given = without_joins(loaded, "film")
    assert set(given.input_columns) == {"user", "film", "genres", "year"}
    rows = pl.DataFrame({"user": [7, 8], "film": [1, 2]})
    assert_frame_equal(given.transform(rows.join(FILMS, on="film")), loaded.transform(rows))
    new = {"genres": ["b", "zz"], "year": 1997.0}
    assert given.prune(outputs=["genres"]).online()(new) == {"genres": [4, 2]}
    assert given.transform(pl.DataFrame({"user": [7], "film": [9], **{k: [v] for k, v in new.items()}}))["film"][0] == 2


def test_a_name_that_the_data_has_too_is_refused() -> None:
    joined = ["film"] >> ops.JoinExternal(FILMS, on="film")
    data = Dataset(pl.DataFrame({"film": [1], "year": [3]}))
    own = ["year"] >> ops.Normalize() >> ops.Rename(postfix="_own")
    fitted = Workflow((joined[["year"]] >> ops.Normalize()) + own).fit(data)
    with pytest.raises(SchemaError, match="`year` is joined by `film` and is in the data, too"):
        without_joins(fitted, "film")
