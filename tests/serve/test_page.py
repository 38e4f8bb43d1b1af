"""The page in a real browser: a new visitor, a known user, keys, and what happens when the server is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from serving_page import Page, Server
from serving_world import World


@pytest.fixture
def server(recommender: Recommender) -> Iterator[Server]:
    server = Server(Serving(recommender))
    yield server
    server.stop()


@pytest.fixture
def page(driver: webdriver.Chrome, server: Server) -> Page:
    return Page.at(driver, server.address)


def test_a_new_visitor_clicks_three_films_and_the_list_follows(page: Page, world: World, tmp_path: Path) -> None:
    assert len(page.all(".tile")) == 12
    assert page.one("#headline").text == "Popular with everyone"
    lists, clicked = [page.cards()], []
    for i in (0, 4, 9):
        tile = page.all(".tile")[i]
        clicked.append(tile.get_attribute("data-id"))
        tile.click()
        page.waits_for_history(len(clicked))
        lists.append(page.cards())
        assert tile.get_attribute("aria-pressed") == "true"
        assert len(lists[-1]) == len(set(lists[-1])) == 20
        assert not set(clicked) & set(lists[-1])
    assert len({tuple(cards) for cards in lists}) == 4
    assert page.one("#headline").text == "For you"
    assert page.one("#picked").text.startswith("3 picked")
    reasons = {element.text for element in page.all(".reason")}
    assert any(reason.startswith("Because you liked Film ") for reason in reasons)
    assert page.one("#alert").is_displayed() is False
    assert page.complaints() == []
    here, asked = page.driver.current_url, page.asked()
    assert {name.removeprefix(here) for name in asked} >= {"app.js", "style.css", "v1/recommend", "v1/events"}
    assert all(name.startswith((here, "data:")) for name in asked), "nothing comes from elsewhere"
    assert page.driver.save_screenshot(str(tmp_path / "visitor.png"))


def test_buttons_and_keys_of_a_card_are_events_and_a_hidden_item_stays_away(page: Page) -> None:
    page.all(".tile")[0].click()
    page.waits_for_history(1)
    hidden, watched = page.cards()[:2]
    page.one(f".card[data-id='{hidden}'] [data-type='hide']").click()
    page.until(f"!document.querySelector('.card[data-id=\"{hidden}\"]')")
    page.one(f".card[data-id='{watched}'] [data-type='view']").click()
    page.waits_for_history(2)
    liked = page.cards()[0]
    page.one(f".card[data-id='{liked}']").send_keys("l")
    page.waits_for_history(3)
    assert not {hidden, watched, liked} & set(page.cards())
    kinds = [element.text for element in page.all("#past-list small")]
    assert kinds == ["liked", "chose", "liked"]


def test_a_known_user_is_chosen_by_sample_or_by_search(page: Page, world: World) -> None:
    page.one("#as-user").click()
    assert page.one("#empty").is_displayed()
    page.all(".samples button")[2].click()
    page.until("document.getElementById('headline').textContent.startsWith('For user ')")
    page.settled()
    page.one("#find-user").send_keys("5000000004")
    page.until("document.querySelectorAll('#found-users button').length === 1")
    page.one("#find-user").send_keys(Keys.ENTER)
    page.until("document.getElementById('headline').textContent === 'For user 5000000004'")
    page.settled()
    assert not {str(item) for item in world.seen[5_000_000_004]} & set(page.cards())
    assert len(page.all("#past-list li")) == 6
    assert page.one("#funnel b").text == "40"
    assert "rank" in page.one("#legend").text


def test_a_title_is_found_by_typing_and_liked_by_the_keyboard_alone(page: Page) -> None:
    page.one("body").send_keys("/")
    page.driver.switch_to.active_element.send_keys("film 33")
    page.until("document.querySelectorAll('#found-items button').length === 1")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.waits_for_history(1)
    assert page.one("#past-list").text.startswith("Film 33")
    assert page.one("#found-items").text == ""


def test_a_filter_is_counted_while_it_is_written_and_a_wrong_one_leaves_the_list(
    page: Page, recommender: Recommender
) -> None:
    page.one("#filter").send_keys('"Horror" in genres')
    items = recommender.count('"Horror" in genres')
    page.until(f"document.getElementById('count').textContent === '{items} of 40 items'")
    page.until("document.querySelectorAll('.card').length > 0")
    page.settled()
    assert all("Horror" in element.text for element in page.all(".card .genres"))
    shown = page.cards()
    page.one("#filter").send_keys(" and (")
    page.until("document.getElementById('count').classList.contains('bad')")
    assert "expected" in page.one("#count").text
    assert page.cards() == shown
    page.one("#filter").clear()
    page.one("#filter").send_keys("item_id == 0", Keys.ENTER)
    page.until("!document.getElementById('empty').hidden")
    assert page.one("#empty").text == "Nothing is left that the filter holds for."
    page.complaints()  # the refused filter is one of them


def test_why_an_item_is_there_is_told_by_key_and_closed_by_escape(page: Page) -> None:
    page.one("#as-user").click()
    page.all(".samples button")[1].click()
    page.until("document.getElementById('headline').textContent.startsWith('For user ')")
    page.settled()
    card = page.all(".card")[2]
    name, place = card.find_element(By.CSS_SELECTOR, ".title").text, card.find_element(By.CSS_SELECTOR, ".places").text
    card.send_keys("y")
    page.until("document.getElementById('why').open && !document.getElementById('why-near-part').hidden")
    assert page.one("#why-title").text.startswith(name)
    rows = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#why-scores tr")]
    assert [row[2].split(",")[0] for row in (rows[0], rows[-1])] == place.split(" → ")
    assert re.fullmatch(r"\d+, top \d+ %", rows[0][2])
    assert rows[-1][1].endswith(" %")
    assert len(page.all("#why-near li")) == 6
    assert 1 <= len(page.all("#why-met li")) <= 5
    features = page.texts("#why-features th")
    assert 1 <= len(features) <= 8
    assert all(
        re.fullmatch(r"[+−](?!0\.0)\d+\.\d|0\.0", change) for change in page.texts("#why-features td:nth-of-type(2)")
    )
    command = page.one("#why-curl").text
    assert '"user_id":' in command
    assert command.startswith(f"curl {page.driver.current_url.rstrip('/')}/v1/recommend")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until("!document.getElementById('why').open")
    assert page.complaints() == []


def test_a_more_varied_list_is_another_list(page: Page) -> None:
    page.all(".tile")[0].click()
    page.waits_for_history(1)
    before = page.cards()
    page.one("#diversity").send_keys(Keys.END)
    page.until(f"[...document.querySelectorAll('.card')].map(c => c.dataset.id).join() !== {','.join(before)!r}")
    page.settled()
    assert len(set(page.cards())) == 20


def test_nothing_is_wider_than_a_phone_and_dark_is_dark(page: Page) -> None:
    assert page.width() == 390
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = page.driver.execute_script(colour)
    page.one("#theme").click()
    assert page.driver.execute_script(colour) != light
    page.wide_again()


def test_a_server_that_is_gone_is_said_so_and_asked_again(page: Page, server: Server) -> None:
    server.stop()
    page.all(".tile")[0].click()
    page.until("!document.getElementById('alert').hidden")
    assert page.one("#alert-text").text == "The server does not answer."
    page.one("#retry").click()
    page.settled()
    assert page.one("#alert").is_displayed()
    assert page.all(".tile")[0].get_attribute("aria-pressed") == "false"
