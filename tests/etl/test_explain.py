"""A workflow as a picture, and what its steps cost."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError

MOVIES = pl.DataFrame({"movieId": [1, 2, 3], "genres": [["a", "b"], ["c"], []]})
RATINGS = pl.DataFrame({"userId": [1, 2, 3, 1], "movieId": [1, 2, 9, 1], "rating": [1.0, 5.0, 4.0, 2.0]})


@pytest.fixture
def workflow() -> fl.Workflow:
    joined = ["userId", "movieId"] >> ops.JoinExternal(MOVIES, on="movieId")
    codes = joined >> ops.Categorify()
    before = ["rating"] >> ops.DifferenceLag(partition_cols=["userId"]) >> ops.FillMissing(fill_val=0.0)
    return fl.Workflow(codes + (before >> ops.Normalize()))


def test_a_graph_is_printed_step_by_step(workflow: fl.Workflow) -> None:
    assert str(workflow.graph()).splitlines() == [
        "data  → userId, movieId, rating",
        "1 JoinExternal  ← userId, movieId of the data  → genres",
        "2 Categorify (fitted)  ← userId, movieId of the data; genres of 1  → userId, movieId, genres",
        "3 DifferenceLag (regroups by userId)  ← rating, userId of the data  → rating_difference_lag_1",
        "4 FillMissing  ← rating_difference_lag_1 of 3  → rating_difference_lag_1",
        "5 Normalize (fitted)  ← rating_difference_lag_1 of 4  → rating_difference_lag_1",
        "output  ← userId, movieId, genres of 2; rating_difference_lag_1 of 5"
        "  → userId, movieId, genres, rating_difference_lag_1",
    ]


def test_the_picture_is_svg_with_a_box_for_every_step(workflow: fl.Workflow, tmp_path: Path) -> None:
    drawing = workflow.graph()
    root = ElementTree.fromstring(drawing.save(tmp_path / "graph.svg").read_text())  # noqa: S314  our own
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [name for name in texts if name and name[0].isupper()] == [
        "JoinExternal",
        "Categorify (fitted)",
        "DifferenceLag (regroups by userId)",
        "FillMissing",
        "Normalize (fitted)",
    ]
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == len(drawing.edges) == 8
    assert drawing._repr_svg_() == drawing.svg()
    assert drawing.save(tmp_path / "graph.txt").read_text() == f"{drawing}\n"


def test_a_png_is_written_where_vl_convert_is(
    workflow: fl.Workflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    drawing = workflow.graph()
    assert drawing.save(tmp_path / "graph.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"falconet\[plot\]"):
        drawing.save(tmp_path / "other.png")
    with pytest.raises(ConfigError, match=r"name it \.svg, \.png or \.txt"):
        drawing.save(tmp_path / "graph.jpg")


def test_a_graph_that_selects_everything_needs_the_data() -> None:
    workflow = fl.Workflow("*" >> ops.FillMissing())
    with pytest.raises(ConfigError, match="give the Dataset"):
        workflow.graph()
    assert "1 FillMissing  ← userId, movieId, rating of the data" in str(workflow.graph(fl.Dataset(RATINGS)))


def test_what_only_the_fit_reads_is_marked() -> None:
    drawing = fl.Workflow(["userId"] >> ops.TargetEncoding(target="rating")).graph()
    assert "rating of the data (fit only)" in str(drawing)
    assert "stroke-dasharray" in drawing.svg()


def test_a_fitted_workflow_is_drawn_as_the_plan_it_is(workflow: fl.Workflow) -> None:
    fitted = workflow.fit(fl.Dataset(RATINGS))
    assert str(fitted.graph()) == str(workflow.graph())
    assert str(fitted.prune(["userId"]).graph()).splitlines()[1:] == [
        "2 Categorify (fitted)  ← userId of the data  → userId",
        "output  ← userId of 2  → userId",
    ]


def test_an_explanation_has_passes_rows_and_bytes_of_every_step(workflow: fl.Workflow) -> None:
    data = fl.Dataset(pl.concat([RATINGS] * 50))
    found = workflow.explain(data, rows=100)
    assert (found.rows, found.tried, found.passes, found.regroupings) == (200, 100, 2, 1)
    assert [(cost.operator, cost.fit_pass, cost.rows) for cost in found.steps] == [
        ("JoinExternal", None, 100),
        ("Categorify", 1, 100),
        ("DifferenceLag", None, 100),
        ("FillMissing", None, 100),
        ("Normalize", 2, 100),
    ]
    assert found.steps[1].memory > 100 * 2 * 4
    assert found.steps[1].state > 0
    text = str(found)
    assert text.splitlines()[0].startswith("step  operator       columns")
    assert text.endswith("fit: 2 passes over the data, 1 regrouping by key")
    assert "100 of 200 rows tried" in text


def test_an_explanation_counts_the_rows_a_filter_leaves() -> None:
    kept = ["rating"] >> ops.Filter(lambda row: row["rating"] > 1) >> ops.Normalize()
    found = fl.Workflow(kept).explain(fl.Dataset(RATINGS))
    assert [cost.rows for cost in found.steps] == [3, 3]
