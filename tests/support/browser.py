"""Pages seen in a headless Chromium; tests that ask for one are skipped where there is none."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = {
    "viewport": {"width": 375, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}

TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass
class View:
    """An open page, what it asked any server or disk for, and what went wrong in it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    @property
    def tip(self) -> str:
        """What the tooltip says; empty when it is hidden."""
        return self.page.locator(".tip").inner_text() if self.page.is_visible(".tip") else ""

    def hover(self, locator: Any) -> None:
        """Goes there first: the scroll that hovering itself may cause hides the tooltip."""
        locator.scroll_into_view_if_needed()
        self.page.evaluate(TWO_FRAMES)
        locator.hover()

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A browser. Playwright holds the thread's event loop until this ends."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser: Any, path: Path, fragment: str = "", **options: Any) -> Iterator[View]:
    """Opens a file; at the end it must have asked for nothing else and reported no error."""
    context = browser.new_context(**options)
    view = View(context.new_page())
    view.page.on("request", lambda request: view.requests.append(request.url))
    view.page.on("pageerror", lambda error: view.errors.append(str(error)))
    view.page.on("console", lambda message: view.errors.append(message.text))
    view.page.on("dialog", lambda dialog: view.errors.append(dialog.message))
    view.page.goto(path.as_uri() + fragment)
    yield view
    context.close()
    fetched = [url for url in view.requests if not url.startswith("data:")]
    assert fetched == [path.as_uri()]
    assert view.errors == []
