"""What came of A/B tests: figures known by construction and from the literature; and events as training rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from falconet.cli.events import export
from falconet.cli.report import ab
from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.io.artifact import read_artifact
from falconet.recipe.config import ColumnsConfig, read_recipe
from falconet.recipe.source import read_data
from falconet.serve.ab import difference, report, split_p, wilson
from falconet.serve.events import Event, Who
from falconet.serve.export import KIND, export_events
from falconet.serve.scenarios import Scenario, Scenarios, Variant
from falconet.serve.store import Impression
from falconet.serve.stores.sqlite import SqliteStore

DEMO = Path(__file__).parents[2] / "src/falconet/recipe/demo.toml"
HOME = Scenario(name="home", variants=(Variant(name="a"), Variant(name="b")))
TESTS = Scenarios(scenario=(HOME,))
FILE = """
[[scenario]]
name = "home"
variants = [{name = "a"}, {name = "b"}]
"""


def shown(store: SqliteStore, number: int, user: int, variant: str | None, scenario: str = "home") -> None:
    """List number so-and-so was shown to a user."""
    fields = {"time": number, "bundle": "x", "items": (1, 2), "scenario": scenario, "variant": variant}
    store.log_impressions([Impression(recommendation_id=f"r{number}", who=Who("user", user), **fields)])  # type: ignore[arg-type]


def did(store: SqliteStore, number: int, user: int, type: str = "click") -> None:
    """A user did something with what list number so-and-so showed."""
    event_id = f"e{number}-{user}-{type}"
    event = Event(event_id=event_id, user_id=user, item_id=1, type=type, time=1, recommendation_id=f"r{number}")
    assert store.add_events([event]) == ["accepted"]


@pytest.fixture
def full(store: SqliteStore) -> Iterator[SqliteStore]:
    """Ten people of `a`, two of whom respond; ten of `b`, six; and what must not count."""
    for n in range(20):
        shown(store, n, n, "a" if n < 10 else "b")
        if n in (0, 1, *range(10, 16)):
            did(store, n, n)
    shown(store, 20, 0, "a")  # a second list of the same person, who responds twice
    did(store, 20, 0, "like")
    did(store, 19, 18)  # somebody else's list
    did(store, 18, 18, "hide")
    did(store, 77, 5)  # a list that nobody was shown
    for n, (user, variant, scenario) in enumerate([(90, "a", "home"), (90, "b", "home"), (91, "c", "home")]):
        shown(store, 30 + n, user, variant, scenario)
    shown(store, 40, 92, None)
    shown(store, 41, 93, "a", "elsewhere")
    return store


def test_people_are_counted_once_and_only_by_their_own_lists(full: SqliteStore) -> None:
    found = report(full, TESTS)["home"]
    a, b = found.variants["a"], found.variants["b"]
    assert (a.people, a.responded, a.lists, a.events) == (10, 2, 11, 3)
    assert (b.people, b.responded, b.lists, b.events) == (10, 6, 10, 6)
    assert (found.in_several, found.unknown, found.split_p, found.split_fits) == (1, 1, 1.0, True)
    assert a.to_first is None
    assert b.to_first is not None
    assert (b.to_first.value, b.to_first.p) == (pytest.approx(0.4), pytest.approx(0.0679, abs=1e-4))
    assert report(full, TESTS, ["like"])["home"].variants["a"].responded == 1


def test_intervals_are_those_of_the_literature() -> None:
    few, none = wilson(8, 10), wilson(0, 10)
    assert (few.low, few.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert (none.low, none.high) == (0.0, pytest.approx(0.2775, abs=1e-4))
    newcombe = difference((56, 70), (48, 80))  # the first example of his table
    assert (newcombe.low, newcombe.high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))
    assert newcombe.p == pytest.approx(0.00804, abs=1e-4)
    assert difference((56, 70), (48, 80), comparisons=3).p == pytest.approx(3 * newcombe.p)
    assert difference((0, 5), (0, 9)).p == 1.0


def test_a_split_that_does_not_fit_the_weights_is_found(store: SqliteStore) -> None:
    assert split_p([60, 40], [1.0, 1.0]) == pytest.approx(0.0455, abs=1e-4)
    assert split_p([10, 20, 30], [1.0, 1.0, 1.0]) == pytest.approx(0.006738, abs=1e-6)
    assert split_p([300, 100], [3.0, 1.0]) == 1.0
    for n in range(30):
        shown(store, n, n, "a" if n < 27 else "b")
    assert not report(store, TESTS)["home"].split_fits


def test_the_command_prints_a_table_or_json(
    full: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ab.toml").write_text(FILE)
    ab(str(full.path), scenarios=tmp_path / "ab.toml")
    said = capsys.readouterr().out
    assert said.splitlines()[2].split()[:6] == ["b", "10", "10", "6", "60.00%", "31.27%"]
    assert "1 people had several variants" in said
    assert "do not trust" not in said
    ab(str(full.path), scenarios=tmp_path / "ab.toml", as_json=True)
    b = json.loads(capsys.readouterr().out)["scenarios"]["home"]["variants"]["b"]
    assert b["responding"] == {"value": 0.6, "low": 0.312674, "high": 0.83182}
    with pytest.raises(ConfigError, match="no file of events"):
        ab(str(tmp_path / "none.db"), scenarios=tmp_path / "ab.toml")


def test_nobody_at_all_is_a_report_too(store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ab.toml").write_text(FILE)
    ab(str(store.path), scenarios=tmp_path / "ab.toml")
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "0", "0", "0"]


def test_events_become_rows_that_training_reads(full: SqliteStore, tmp_path: Path) -> None:
    event = Event(event_id="s", session_id="v", item_id=2, type="view", time=2)
    full.add_events([event])
    out = export_events(full, tmp_path / "events")
    rows = pl.read_parquet(out / "*.parquet")
    assert len(rows) == 11
    assert set(rows["type"]) == {"click", "like"}
    assert (rows["user_id"].dtype, rows["item_id"].dtype, rows["user_id"].null_count()) == (pl.Int64, pl.Int64, 0)
    columns = ColumnsConfig(user="user_id", item="item_id", time="time", rating="")
    plain = read_recipe(DEMO, ['data.reader="files"', f"data.path={json.dumps(str(out))}"])
    raw = read_data(replace(plain, columns=columns), tmp_path / "work")
    assert len(raw.interactions.collect()) == 11
    last = read_artifact(out, KIND).extra["last"]
    did(full, 3, 3, "like")
    newer = export_events(full, tmp_path / "newer", since=last)
    assert pq.read_table(newer / "part-00000.parquet").column("user_id").to_pylist() == [3]
    every = export_events(full, out, sessions=True, types=["view", "hide"], overwrite=True)
    assert pl.read_parquet(every / "*.parquet")["type"].to_list() == ["hide", "view"]


def test_nothing_to_export_and_a_folder_that_exists_are_errors(
    store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "events"
    with pytest.raises(DataError, match=r"no events after number 0 to export\n\nhint: those of visitors"):
        export_events(store, out)
    assert not out.exists()
    did(store, 1, 1)
    export(str(store.path), out=out)
    assert capsys.readouterr().out == f"{out}\n"
    with pytest.raises(ArtifactError, match="exists already"):
        export(str(store.path), out=out)
