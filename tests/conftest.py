"""What tests share: the real data where it is, and `need` for what a machine may lack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from falconet.progress import set_quiet

if TYPE_CHECKING:
    from selenium import webdriver

settings.register_profile("falconet", deadline=None)  # a busy machine is not a wrong answer
settings.load_profile("falconet")

pytest_plugins = ["falconet.testing.executors", "beside"]

BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1300,1000",
)  # fmt: skip


def need(name: str, present: bool, why: str = "") -> None:
    """Skip a test whose requirement is absent; fail where FALCONET_REQUIRE says it must be there."""
    if present:
        return
    required = {x.strip() for x in os.environ.get("FALCONET_REQUIRE", "").split(",")}
    message = f"{name} is not here{': ' + why if why else ''}"
    if name in required:
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session", autouse=True)
def disks_that_do_not_wait() -> Iterator[None]:
    """No test cuts the power: in this process `fsync` only looks at its handle (tests/io says what is fsynced when)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def notes_are_heard() -> None:
    """Whatever a test before has silenced in this process, such as a command with --quiet."""
    set_quiet(False)


@pytest.fixture
def movielens_small() -> Path:
    """The folder of the real ml-latest-small."""
    root = os.environ.get("FALCONET_DATA")
    folder = Path(root or "") / "ml-latest-small"
    need(
        "data",
        root is not None and (folder / "ratings.csv").is_file(),
        "set FALCONET_DATA to the folder that holds ml-latest-small",
    )
    return folder


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """The paths of Debian's chromium and of its driver."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    need("chromium", browser is not None and driver is not None, "apt-get install chromium chromium-driver")
    assert browser is not None
    assert driver is not None
    return browser, driver


@pytest.fixture(scope="session")
def driver(chromium: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser without a window, for all tests that look at a page."""
    from selenium import webdriver

    browser, driver = chromium
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*BROWSER, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()
