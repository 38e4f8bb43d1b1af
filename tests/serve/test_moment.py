"""What a request may say of the moment, described by the server, and asked for on the page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from falconet import ops
from falconet.errors import DataError
from falconet.etl.dataset import Dataset
from falconet.etl.op import Op
from falconet.etl.workflow import Workflow
from falconet.serve.moment import Clock, clocks_of
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from falconet.serve.stores.sqlite import SqliteStore
from serving_client import Client
from serving_page import Page, Server
from serving_world import make_world

CONTEXT = [
    {"name": "device", "kind": "text", "values": ["tv", "phone", "tablet"]},
    {"name": "holiday", "kind": "bool", "values": None},
    {"name": "hour", "kind": "number", "values": None},
    {"name": "at", "kind": "time", "values": None},
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recommender]:
    """A recommender whose ranker reads the moment."""
    folder = tmp_path_factory.mktemp("moment")
    store = SqliteStore(folder / "events.db")
    yield Recommender.load(make_world(folder / "world", moment=True).bundle, store)
    store.close()


def scores(recommender: Recommender, **context: str | float | bool | None) -> dict[int | str, float]:
    return {
        item.item_id: item.score
        for item in recommender.recommend(recommender.sample_users()[0].user_id, context=context).items
    }


def test_the_server_says_what_may_be_said_of_the_moment(told: Recommender, recommender: Recommender) -> None:
    found = Client(told).get("/version").json()["context"]
    assert sorted(found, key=lambda one: one["name"]) == sorted(CONTEXT, key=lambda one: str(one["name"]))
    assert Client(recommender).get("/version").json()["context"] == []


def test_each_of_it_changes_the_scores(told: Recommender) -> None:
    nothing = scores(told, at=None)
    for context in ({"device": "phone"}, {"holiday": True}, {"hour": 13.0}, {"at": "2024-05-31T17:45"}):
        assert scores(told, **{"at": None, **context}) != nothing  # type: ignore[arg-type]
    assert scores(told, at="2024-05-31T17:45") == scores(told, at="2001-01-01T17:45:00")  # the hour is what is read
    assert scores(told, at="2024-05-31T17:45") != scores(told, at="2024-05-31T05:45")
    with pytest.raises(DataError, match=r"(?s)`context` .*'at': 'noon'.* cannot be used: `at` cannot be 'noon'"):
        scores(told, at="noon")


def test_a_time_that_is_not_said_is_that_of_the_request(told: Recommender) -> None:
    before = dt.datetime.now(dt.UTC)
    found = scores(told)
    after = dt.datetime.now(dt.UTC)
    assert found in [scores(told, at=now.isoformat()) for now in (before, after)]
    assert found != scores(told, at=None)


@pytest.mark.parametrize("op", [ops.TimeParts(unit="ms"), ops.CyclicTime(unit="ms"), ops.Age(0, unit="ms")])
def test_whole_numbers_that_an_operator_reads_as_times_are_times(op: Op) -> None:
    clocks = clocks_of(Workflow((["at"] >> op) + ["n"]).fit(Dataset(pl.DataFrame({"at": [5, 6], "n": [1, 2]}))))
    assert list(clocks) == ["at"]
    assert clocks["at"].read("1970-01-02T01:00+01:00") == 86_400_000


TYPES = [pl.Date(), pl.Datetime("ns"), pl.Datetime("us", "America/New_York"), pl.Int64()]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("text", ["noon", "", "2024-02-30", "0001-01-01", "2500-01-01", "9999-12-31T23:59-12:00"])
def test_a_time_is_one_that_the_column_can_hold_or_is_named(dtype: pl.DataType, text: str) -> None:
    clock = Clock("at", dtype, 1 if dtype == pl.Int64 else None)
    years = {pl.Date(): (1, 9998), pl.Datetime("ns"): (1678, 2262), pl.Int64(): (1, 9999)}.get(dtype, (2, 9998))
    if text[:4].isdigit() and text != "2024-02-30" and years[0] <= int(text[:4]) <= years[1]:
        assert clock.read(text) is not None
    else:
        with pytest.raises(DataError, match=f"`at` cannot be '{text}': a time like"):
            clock.read(text)


@pytest.fixture
def page(driver: webdriver.Chrome, told: Recommender) -> Iterator[Page]:
    server = Server(Serving(told))
    yield Page.at(driver, server.address)
    server.stop()


def choose(page: Page, name: str, value: str) -> None:
    page.one(f"[data-name='{name}'] option[value='{value}']").click()
    page.settled()


def final(page: Page) -> list[str]:
    return page.texts(".card .final")


def test_another_moment_is_another_list(page: Page, told: Recommender, tmp_path: Path) -> None:
    assert page.texts("#moment-fields .field > span") == [column["name"] for column in told.describe()["context"]]
    page.one("#as-user").click()
    page.until("document.querySelectorAll('#samples button').length > 0")
    page.one("#samples button").click()
    page.until("document.querySelectorAll('.card').length > 0")
    page.settled()
    page.driver.execute_script(
        "const at = document.querySelector(\"[data-name='at']\"); at.value = '2024-05-31T17:45';"
        "at.dispatchEvent(new Event('change'));"
    )  # else it is now, which may change in between
    page.settled()
    before = final(page)
    choose(page, "device", "1")
    phone = final(page)
    assert phone != before
    choose(page, "holiday", "0")
    assert final(page) != phone
    hour = page.one("[data-name='hour']")
    hour.send_keys("23", Keys.TAB)  # by the keyboard alone
    page.settled()
    page.one(".card").send_keys("y")
    page.until("document.getElementById('why').open")
    assert '"context":{"at":"2024-05-31T17:45","device":"phone","holiday":true,"hour":23}' in page.one("#why-curl").text
    page.one("#why-close").click()
    assert page.driver.save_screenshot(str(tmp_path / "moment.png"))
    assert page.width() == 390
    page.wide_again()
    for name in ("device", "holiday"):
        choose(page, name, "")
    hour.clear()
    hour.send_keys(Keys.TAB)
    page.settled()
    assert final(page) == before
    assert page.complaints() == []


def test_a_bundle_that_reads_nothing_of_the_moment_asks_for_nothing(
    driver: webdriver.Chrome, recommender: Recommender
) -> None:
    server = Server(Serving(recommender))
    try:
        page = Page.at(driver, server.address)
        assert not page.one("#moment").is_displayed()
    finally:
        server.stop()
