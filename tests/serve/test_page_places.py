"""The places of the page beside the list, in one browser: runs, data, live, and two bundles side by side.

The bundle's texts try to be HTML. One server and one visit are for all tests, which leave the page as they find it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from falconet.etl.dataset import Dataset
from falconet.etl.workflow import FittedWorkflow
from falconet.serve.about_data import step_costs
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from falconet.serve.stores.sqlite import SqliteStore
from serving_page import Page, Server
from serving_world import World, build_world_bundle, make_world

NASTY = "<img src=x onerror='window.hacked = 1'>"
TOKEN = "let-me-in"  # noqa: S105
FASTER = "const real = window.setTimeout; window.setTimeout = (work, ms) => real(work, ms / 20)"
HISTOGRAM = {"low": 1902.0, "high": 2018.0, "mean": 1994.7, "median": 1999.0, "log": False, "counts": [1, 5, 0, 9]}


def run(name: str, epochs: int, rate: float, **more: Any) -> dict[str, Any]:
    lines = [{"epoch": e, "loss": 8 - e / 4, "rows": 900 * e, "step": 9 * e, **more} for e in range(1, epochs + 1)]
    settings = {
        "model.dim": 64,
        "model.weights": {"genres": rate},
        "train.learning_rate": rate,
        "train.optimizer": NASTY,
    }
    return {"name": name, "model": "TwoTower", "settings": settings, "epochs": lines, "best": None}


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def about(world: World) -> dict[str, dict[str, Any]]:
    """What a recipe's bundle tells; tests/recipe says that it has these keys."""
    model = {"ranking": {"ndcg@10": figure(0.31)}, "users": {"low": {"ndcg@10": figure(0.21)}}}
    report = {
        "k": 10, "best": NASTY, "split": "random", "users": 24, "segments": {"low": {"users": 24, "seen": [1, 9]}},
        "models": {"Popular": model, NASTY: model},
        "ranker": {"auc": 0.81, "gauc": 0.7, "ece": 0.04, "curve": [{"predicted": 0.1, "happened": 0.2, "rows": 9}]},
    }  # fmt: skip
    runs = [run("first", 4, 0.01), run(NASTY, 3, 0.02, valid={"ndcg@10": 0.2}), {**run("EASE", 0, 0.0)}]
    column = {"name": NASTY, "type": "list of string", "tags": ["item"], "cardinality": 9, "missing": 0.25}
    shape = {"unknown": 0.0, "lengths": HISTOGRAM, "histogram": HISTOGRAM, "top": [[NASTY, 0.5], ["Drama", 0.25]]}
    workflow = FittedWorkflow.load(world.folder / "workflow")
    costs = step_costs(workflow, Dataset(world.folder / "raw.parquet"))
    assert costs is not None
    steps = [
        {"id": 0, "operator": "data", "columns": ["user"], "pass": None, "rows": None},
        *({"id": c.step, "operator": NASTY, "columns": [NASTY], "pass": 1, "rows": c.rows} for c in costs.steps),
    ]
    took = {
        "seconds": 75.0,
        "rows_per_s": {"1": 4000.0, "2": 5000.0},
        "device": "cpu",
        "precision": "float32",
        "world": 1,
    }
    edges = [{"from": c.step - 1, "to": c.step, "fit_only": False} for c in costs.steps]
    return {
        "runs": {"runs": runs, "report": report},
        "data": {
            "users": 24, "items": 40, "interactions": 120,
            "popularity": {"curve": [[1, 30], [10, 9], [40, 1]], "half": 7, "top_percent": 0.2, "once": 3},
            "activity": {**HISTOGRAM, "log": True},
            "weeks": {
                "from": "2024-01-01", "weeks": 2, "all": [9, 0, 30], "items": [{"title": NASTY, "counts": [1, 0, 7]}],
            },
            "tables": [{"name": "items", "rows": 40, "columns": [column | shape]}],
            "workflow": {"tried": 100, "passes": 1, "steps": steps, "edges": edges, "outputs": []},
            "same_features": {"rows": 100, "columns": {"user": 0, NASTY: 2}},
        },
        "times": {"built": 1_700_000_000, "runs": {"first": took}, "steps": {"1": 0.002}},
    }  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What is served, and where."""

    world: World
    serving: Serving
    server: Server

    @property
    def both(self) -> tuple[Recommender, Recommender]:
        assert self.serving.beside is not None
        return self.serving.recommender, self.serving.beside


def rename_best_known(world: World) -> None:
    """Call the item that is first in the catalogue by a name that tries to be HTML."""
    [file] = (world.folder / "items").iterdir()
    table = pq.read_table(file)
    titles = [f"{NASTY} (1999)", *table.column("title").to_pylist()[1:]]
    place = table.column_names.index("title")
    pq.write_table(table.set_column(place, "title", pa.array(titles)), file)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    world = make_world(folder / "world", bundle=False)
    rename_best_known(world)
    build_world_bundle(world, folder / "bundle", about=about(world))
    later = {"runs": {"runs": [run("later", 2, 0.01)], "report": None}}
    build_world_bundle(world, folder / "other", ranker=False, about=later)
    store = SqliteStore(folder / "events.db")
    first, second = (Recommender.load(folder / name, store) for name in ("bundle", "other"))
    serving = Serving(first, beside=second)
    server = Server(serving, token=TOKEN)
    yield Site(world, serving, server)
    server.stop()
    store.close()


@pytest.fixture(scope="module")
def visit(driver: webdriver.Chrome, site: Site) -> Page:
    return Page.at(driver, site.server.address)


@pytest.fixture
def page(visit: Page) -> Iterator[Page]:
    yield visit
    visit.driver.execute_script("location.hash = 'try'")
    assert visit.complaints() == []
    assert visit.driver.execute_script("return window.hacked") is None
    assert visit.all("img") == []


def go(page: Page, place: str, ready: str) -> None:
    page.driver.execute_script(f"location.hash = '{place}'")
    page.until(f'document.querySelectorAll("#place-{place} {ready}").length > 0')


def choose(page: Page, select: str, index: int) -> None:
    page.one(f"#{select} option[value='{index}']").click()


def test_a_title_is_a_text(page: Page) -> None:
    assert f"1. {NASTY}" in page.one(".card").get_attribute("aria-label")
    assert page.texts(".card .title")[0] == NASTY


def test_a_run_has_curves_settings_and_times(page: Page, tmp_path: Path) -> None:
    go(page, "runs", "svg circle")
    names = ["first", NASTY, "EASE", "later · the bundle beside"]
    assert page.texts("#run-first option") == [f"{name} (TwoTower)" for name in names]
    panels = page.texts("#runs .panel h3")
    assert panels[:5] == ["Loss", "Throughput", "Settings", "ndcg@10", "By what people did"]
    assert panels[5:7] == ["Calibration of the ranker", "Index"]
    assert len(page.all("#runs figure[class=chart] svg[aria-label='Loss by epoch'] circle")) == 4
    facts = dict(zip(page.texts("#runs .tiles dt"), page.texts("#runs .tiles dd:not(.more)"), strict=True))
    assert facts == {"Epochs": "4", "Loss": "7", "Time": "1 min 15 s", "Rows a second": "4,500"}
    assert page.texts("#runs .settings td") == ["64", "genres: 0.01", "0.01", NASTY]
    assert page.driver.save_screenshot(str(tmp_path / "runs.png"))


def test_no_name_of_a_run_is_cut_off_where_there_is_room(page: Page) -> None:
    go(page, "runs", "svg")
    cut = """
        const select = document.getElementById(arguments[0]), is = select.getBoundingClientRect().width;
        select.style.width = 'max-content';
        const wants = select.getBoundingClientRect().width;
        select.style.width = '';
        return [wants - is, wants];
    """
    for select in ("run-first", "run-second"):
        over, wants = page.driver.execute_script(cut, select)
        assert wants > 320  # the names are long
        assert over <= 0.5


def test_two_runs_beside_each_other_show_what_differs(page: Page) -> None:
    go(page, "runs", "svg circle")
    choose(page, "run-second", 1)
    page.until("document.querySelectorAll('#runs .pair-facts section').length === 2")
    page.until("document.querySelectorAll(\"svg[aria-label='Loss by epoch'] .line\").length === 2")
    assert page.texts("#runs .panel h3")[:2] == ["Loss", "ndcg@10"]
    assert page.texts("#runs .settings tbody th") == ["model.weights", "train.learning_rate"]
    assert page.texts("#runs .settings td") == ["genres: 0.01", "genres: 0.02", "0.01", "0.02"]
    page.one("#differing").send_keys(Keys.SPACE)
    assert page.texts("#runs .settings tbody th") == [
        "model.dim",
        "model.weights",
        "train.learning_rate",
        "train.optimizer",
    ]
    assert page.driver.switch_to.active_element.get_attribute("id") == "differing", "the focus stays"
    choose(page, "run-first", 2)
    assert page.texts("#runs .pair-facts section:first-child dd.more") == ["a closed form: no epochs, no curve"]
    choose(page, "run-first", 0)
    choose(page, "run-second", -1)


def test_the_report_is_told_by_model_and_by_what_people_did(page: Page) -> None:
    go(page, "runs", "svg circle")
    assert page.texts("#runs table.grid tbody th") == ["Popular", NASTY]
    assert page.texts("#runs table.grid thead th") == ["Model", "few items24 people"]
    assert "0.3100" in page.texts("svg[aria-label='ndcg@10 of each model'] .value")
    assert "The search is exact" in page.one("#runs").text
    assert "not evaluated before the bundle was built" in page.one("#runs").text, "the bundle beside it has no report"


def test_columns_have_what_is_missing_and_how_values_spread(page: Page, tmp_path: Path) -> None:
    go(page, "data", ".columns svg")
    facts = dict(zip(page.texts("#data .tiles dt"), page.texts("#data .tiles dd:not(.more)"), strict=True))
    assert facts == {"Interactions": "120", "People": "24", "Items": "40", "Half of it all": "7 items"}
    [column] = page.all(".column")
    assert column.text.startswith(NASTY)
    assert page.texts(".column .known") == ["9 codes · 25.0 % missing"]
    assert page.texts(".column .bars span") == [NASTY, "Drama"]
    assert page.texts(".column .ends span") == ["1902", "2018", "1,902", "2,018"]
    assert len(page.all("[aria-label='The steps of the workflow'] .box")) == 1 + 5
    assert "rows · 2.0 ms" in " ".join(page.texts(".graph .cost"))
    assert page.texts("#data .prose") == [f"{NASTY} differs in 2 of 100 rows."]
    assert page.driver.save_screenshot(str(tmp_path / "data.png"))


def test_popularity_goes_by_week(page: Page) -> None:
    go(page, "data", ".weeks svg")
    assert page.texts(".weeks h4") == [NASTY]
    assert page.texts(".weeks .hint") == ["at most 7, from 2024-01-29 on"]
    bars = "[aria-label='Interactions by week'] rect title"
    assert page.texts(bars) == ["9 from 2024-01-01 on", "0 from 2024-01-15 on", "30 from 2024-01-29 on"]
    heights = [float(bar.get_attribute("height") or 0) for bar in page.all("[aria-label='Interactions by week'] rect")]
    assert heights[1] == 0 < heights[0] < heights[2]


def test_live_counts_while_somebody_looks(page: Page, site: Site, tmp_path: Path) -> None:
    page.driver.execute_script(FASTER)
    go(page, "live", ".times tbody tr")
    names, first = page.texts("#live-facts dt"), page.texts("#live-facts dd.more")[0]
    assert names[:3] == ["Requests a second", "Half are answered in", "Errors"]
    stages = page.texts("#live-stages tbody th")
    assert stages[-1] == "total"
    assert page.texts("#live-bundle dd")[:2] == [site.both[0].bundle.name, "TwoTower + MLP"]
    assert f"({os.getpid()})" in page.one("#live-hint").text
    page.driver.execute_script("fetch('/v1/start')")
    page.until(f"document.querySelector('#live-facts dd.more').textContent !== {first!r}")
    assert page.driver.save_screenshot(str(tmp_path / "live.png"))
    page.driver.execute_script("location.hash = 'data'")
    page.until("!document.getElementById('place-data').hidden")
    asked = sum(name.endswith("/v1/live") for name in page.asked())
    page.driver.execute_async_script("setTimeout(arguments[0], 4 * 2000)")
    assert sum(name.endswith("/v1/live") for name in page.asked()) == asked, "nobody looks: nothing is asked"


def test_a_bundle_is_reloaded_with_the_token_and_refused_without(page: Page, site: Site) -> None:
    go(page, "live", ".times tbody tr")
    page.one("#reload-token").send_keys("wrong", Keys.ENTER)
    page.until("document.getElementById('reload-said').textContent !== ''")
    assert "the token is missing or wrong" in page.one("#reload-said").text
    page.one("#reload-token").clear()
    page.one("#reload-token").send_keys(TOKEN)
    page.one("#reload-bundle").send_keys("nothing")
    page.one("#reload").click()
    page.until("document.getElementById('reload-said').textContent.includes('no bundle at')")
    page.one("#reload-bundle").clear()
    page.one("#reload").click()
    page.until("document.querySelectorAll('#live-reloads li').length === 2")
    name = site.both[0].bundle.name
    assert page.texts("#live-reloads li span") == [f"{name} again", f"refused, {name} goes on"]
    assert page.one("#reload-said").text == ""
    assert any("401" in line for line in page.complaints()), "a refused call is one of them"


def test_two_bundles_answer_the_same_person(page: Page, site: Site, tmp_path: Path) -> None:
    user = site.world.users[7]
    page.one("#as-user").click()
    page.one("#find-user").send_keys(str(user))
    page.until("document.querySelectorAll('#found-users button').length === 1")
    page.one("#find-user").send_keys(Keys.ENTER)
    page.one("#side-by-side").click()
    page.until("document.querySelectorAll('#pair section').length === 2")
    page.settled()
    lists = [[item.item_id for item in one.preview(user, k=20).items] for one in site.both]
    shown = [
        [row.get_attribute("data-id") for row in part.find_elements("css selector", "li")]
        for part in page.all("#pair section")
    ]
    assert shown == [[str(item) for item in one] for one in lists]
    both = set(lists[0]) & set(lists[1])
    same = sum(a == b for a, b in zip(*lists, strict=False))
    assert (
        page.one("#agreement").text
        == f"{len(both)} of {len(lists[0])} are in both lists, {same} of them at the same place."
    )
    moves = page.texts("#pair section:first-child .move")
    for place, item in enumerate(lists[0]):
        moved = lists[1].index(item) - place if item in both else None
        told = "only here" if moved is None else "=" if moved == 0 else f"{'▲' if moved > 0 else '▼'} {abs(moved)}"
        assert moves[place] == told
    page.driver.execute_script("document.querySelector('#pair li.shared').focus()")
    assert len(page.all("#pair li.lit")) == 2
    assert page.driver.save_screenshot(str(tmp_path / "side-by-side.png"))
    page.one("#side-by-side").click()
    page.one("#as-visitor").click()
    page.settled()
    page.until("document.querySelectorAll('.card').length === 20")


@pytest.mark.parametrize("place", ["runs", "data", "live"])
def test_no_place_is_wider_than_a_phone(page: Page, place: str) -> None:
    go(page, place, "svg")
    assert page.width() == 390
    page.wide_again()


def test_the_places_are_reached_by_keys_alone(page: Page) -> None:
    page.driver.execute_script("document.querySelector('.skip').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.TAB)
    for place in ("try", "runs", "data", "live"):
        link = page.driver.switch_to.active_element
        assert link.get_attribute("hash") == f"#{place}"
        link.send_keys(Keys.ENTER)
        page.until(f"!document.getElementById('place-{place}').hidden")
        assert page.texts(".places [aria-current]") == [link.text]
        link.send_keys(Keys.TAB)


def test_nothing_comes_from_elsewhere(page: Page, site: Site) -> None:
    assert {name for name in page.asked() if not name.startswith((site.server.address, "data:"))} == set()


def test_an_old_bundle_alone_says_what_it_lacks(driver: webdriver.Chrome, recommender: Recommender) -> None:
    server = Server(Serving(recommender))
    try:
        page = Page.at(driver, server.address)
        go(page, "runs", ".empty")
        assert page.one("#runs .empty p").text.startswith("This bundle was built without its runs.")
        go(page, "data", ".empty")
        assert page.one("#data .empty p").text.startswith("This bundle was built without a summary of its data.")
        page.driver.execute_script("location.hash = 'try'")
        page.one("#side-by-side").click()
        page.until("document.querySelectorAll('#pair .empty').length === 1")
        assert "--beside" in page.one("#pair pre").text
        assert page.complaints() == []
    finally:
        server.stop()
