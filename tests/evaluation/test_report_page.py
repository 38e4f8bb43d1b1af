"""report.html: everything of a report is on it, as text; it needs nothing else and fits a phone."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from falconet.datasets.synthetic import synthesize
from falconet.evaluation.page import page_text
from falconet.evaluation.report import read_report, write_report
from falconet.recipe.config import recipe_of
from falconet.recipe.run import run

NASTY = '<script>alert("x")</script> & "quoted" <b>'


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    data = synthesize(folder / "data", users=60, items=50, rows=2_000, seed=3)
    plain = {
        "format": 1,
        "data": {"path": str(data)},
        "prepare": {"history": "others"},
        "retriever": [{"model": "EASE"}, {"model": "ItemKNN"}],
        "ranker": {"train": {"epochs": 1}},
        "evaluate": {"k": 5, "metrics": ["ndcg@5", "ndcg@10", "recall@1"]},
        "bundle": {"candidates": 20},
    }
    run(recipe_of(plain), folder / "work")
    return folder / "work"


@pytest.fixture
def report(work: Path) -> dict[str, Any]:
    return read_report(work / "report.json")


class Text(HTMLParser):
    """What a reader sees, and whether every element is closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_page_stands_beside_the_report_with_its_figures(work: Path, report: dict[str, Any]) -> None:
    page = (work / "report.html").read_text(encoding="utf-8")
    assert page == page_text(report)
    text = Text(page).text
    for name, model in report["models"].items():
        assert name in text
        for metric in ("ndcg@5", "recall@5", "mrr@5", "hit_rate@5", "map@5"):
            assert f"{model['ranking'][metric]['value']:.4f}" in text, metric
    assert f"{report['ranker']['auc']:.4f}" in text
    for person in report["examples"]:
        assert f"User {person['user']}" in text
        assert all(item["title"] in text for shown in person["lists"].values() for item in shown)
    assert report["data"]["sha256"] in text
    assert page.count('<svg class="chart"') == 5


def test_whatever_stands_in_a_report_is_text(report: dict[str, Any]) -> None:
    plain = Text(page_text(report))
    best = report["best"]
    named = json.loads(json.dumps(report).replace(json.dumps(best), json.dumps(NASTY)))
    named["left_out"] = {NASTY: NASTY}
    named["protocol"]["name"] = NASTY
    named["published"] = {"data": NASTY, "source": NASTY, "models": {NASTY: {"ndcg@10": 0.1}}}
    named["examples"][0] |= {"user": NASTY, "last": [NASTY]}
    named["examples"][0]["lists"][NASTY] = [{"title": NASTY, "taken": True}]
    page = Text(page_text(named))
    assert page.tags == plain.tags
    assert "script" not in page.tags
    assert page.text.count(NASTY) >= 8


def test_an_endless_title_is_cut_and_one_from_right_to_left_stands_alone(report: dict[str, Any]) -> None:
    endless, hebrew = "<" * 10_000, "שלום עולם"
    person = report["examples"][0]
    person["last"] = [endless, hebrew, "x" * 120]
    next(iter(person["lists"].values()))[0]["title"] = endless
    page = page_text(report)
    assert page.count("&lt;" * 119 + "…") == 2
    assert "&lt;" * 120 not in page
    assert f"<bdi>{hebrew}</bdi>, <bdi>{'x' * 120}</bdi>" in page
    assert Text(page).text.count(hebrew) == 1


def test_nothing_is_fetched(work: Path) -> None:
    page = (work / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w|@import|url\(|<script|<link|<img|<iframe| src=", page)


def without(report: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in names}


def nulls(value: Any) -> Any:
    """Figures that are not there, as where nobody is in a segment."""
    if isinstance(value, dict):
        return {name: nulls(one) for name, one in value.items()}
    return None if isinstance(value, float) else value


@pytest.mark.parametrize("case", ["no ranker", "one model", "one length", "no figures", "no examples", "no segments"])
def test_a_report_may_lack_much(report: dict[str, Any], case: str) -> None:
    report = copy.deepcopy(report)
    if case == "no ranker":
        report = without(report, "ranker")
    elif case == "one model":
        report["models"] = {report["best"]: report["models"][report["best"]]}
    elif case == "one length":
        for model in report["models"].values():
            model["ranking"] = {name: one for name, one in model["ranking"].items() if name.endswith("@5")}
    elif case == "no figures":
        report["models"] = nulls(report["models"])
    elif case == "no examples":
        report["examples"] = []
    else:
        for side in report["segments"].values():
            for segment in side.values():
                segment |= {"users": 0, "items": 0, "seen": None}
    page = page_text(report)
    assert "Who recommends" in Text(page).text
    assert "nan" not in page
    assert ("Does the ranker know" in page) == (case != "no ranker")
    assert ("Shorter and longer" in page) == (case != "one length")


def test_equal_reports_give_equal_pages(report: dict[str, Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(report, tmp_path / name / "report.json")
    assert (tmp_path / "a/report.html").read_bytes() == (tmp_path / "b/report.html").read_bytes()


@pytest.fixture
def window(driver: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    driver.get_log("browser")
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("width", [390, 1280])
def test_it_reads_well_on_a_phone_and_a_desk(work: Path, window: webdriver.Chrome, width: int, tmp_path: Path) -> None:
    mobile = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", mobile)
    window.get((work / "report.html").as_uri())
    assert window.execute_script("return document.documentElement.scrollWidth") <= width
    seen = window.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, p, .bars span, svg.chart, summary')]"
        ".filter(e => e.getClientRects().length && !e.closest('details:not([open]) > :not(summary)'))"
        ".map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.height])"
    )
    assert len(seen) > 40
    assert all(left >= 0 and right <= width + 1 and height > 0 for left, right, height in seen)
    smallest = window.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg.chart .tick')]"
        ".map(e => e.getBoundingClientRect().height))"
    )
    assert smallest > 7, "the letters of a chart"
    assert window.get_log("browser") == []
    assert window.save_screenshot(str(tmp_path / f"report-{width}.png"))


def test_printed_nothing_is_cut_off_or_closed(work: Path, window: webdriver.Chrome) -> None:
    paper = {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # A4 without its margins
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", paper)
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    window.get((work / "report.html").as_uri())
    assert window.execute_script("return document.documentElement.scrollWidth") <= 720
    lists = window.execute_script("return [...document.querySelectorAll('.lists')].map(e => e.checkVisibility())")
    assert lists == [True] * 3


def test_bars_are_as_long_as_their_figures(work: Path, report: dict[str, Any], window: webdriver.Chrome) -> None:
    window.get((work / "report.html").as_uri())
    found = window.execute_script(
        "return [...document.querySelectorAll('.bars .row')].map(r => [r.children[0].textContent,"
        " r.querySelector('.fill').getBoundingClientRect().width])"
    )
    value = {name: model["ranking"]["ndcg@5"]["value"] for name, model in report["models"].items()}
    assert [name for name, _ in found] == sorted(value, key=lambda name: -value[name])
    longest = found[0][1]
    for name, width in found:
        assert width / longest == pytest.approx(value[name] / value[found[0][0]], abs=0.01)


def test_a_small_p_is_text(report: dict[str, Any]) -> None:
    worst = next(model for model in report["models"].values() if "to_best" in model)
    for one in worst["to_best"].values():
        one["p"] = 0.0002
    page = page_text(report)
    assert "p &lt; .001" in page
    assert not re.search(r"<[^a-z/!]", page.partition("</style>")[2])
