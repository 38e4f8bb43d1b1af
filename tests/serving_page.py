"""The page in a browser: a server in a thread of the test, and what a person can see and do."""

from __future__ import annotations

import socket
import threading

import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from falconet.serve.http.app import create_app
from falconet.serve.serving import Serving

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


class Server:
    """The application at an address, in a thread of the test."""

    def __init__(self, serving: Serving, token: str | None = None) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(create_app(serving, token=token), log_level="error", timeout_graceful_shutdown=2)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


class Page:
    """What a person can see and do."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    @classmethod
    def at(cls, driver: webdriver.Chrome, address: str) -> Page:
        """The page as somebody finds it who comes for the first time: every server has an address of its own."""
        driver.get(address)
        page = cls(driver)
        page.until("document.querySelectorAll('.card').length > 0")
        page.settled()
        page.complaints()  # forget what the pages before had to say
        return page

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        """What all the elements say, hidden ones too."""
        script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
        texts: list[str] = self.driver.execute_script(script, css)
        return texts

    def cards(self) -> list[str]:
        return [card.get_attribute("data-id") or "" for card in self.all(".card")]

    def until(self, what: str) -> None:
        """Wait until a JavaScript expression is true."""
        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(f"return {what}")
        )

    def settled(self) -> None:
        self.until("document.getElementById('results').getAttribute('aria-busy') === 'false'")

    def waits_for_history(self, items: int) -> None:
        self.until(f"document.querySelectorAll('#past-list li').length === {items}")
        self.settled()

    def complaints(self) -> list[str]:
        """What the browser's console has to say, such as refusals by the content security policy."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def asked(self) -> list[str]:
        """The addresses of everything that was loaded."""
        script = "return performance.getEntriesByType('resource').map(one => one.name)"
        names: list[str] = self.driver.execute_script(script)
        return names

    def width(self) -> int:
        """How wide the page is on a phone of 390 pixels."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        found: int = self.driver.execute_script("return document.documentElement.scrollWidth")
        return found

    def wide_again(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
