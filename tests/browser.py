"""A headless Chromium for tests that look at pages as a reader does."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Visit:
    """A page that is open, and what went wrong on it."""

    page: Any
    """Playwright's page."""
    troubles: list[str] = field(default_factory=list)
    """Errors, messages on the console, and requests for anything but the page's own place."""


def find_chromium() -> str | None:
    """The system's Chromium; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def visiting(url: str, *, scheme: str = "light", width: int = 1280) -> Iterator[Visit]:
    """Open a page in the system's Chromium; the test is skipped where there is none."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium is installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        visit = Visit(page)
        page.on("console", lambda message: visit.troubles.append(message.text))
        page.on("pageerror", lambda error: visit.troubles.append(str(error)))
        page.on("dialog", lambda dialog: (visit.troubles.append(dialog.message), dialog.dismiss()))
        place = url.rsplit("/", 1)[0]
        page.on("request", lambda sent: None if sent.url.startswith(place) else visit.troubles.append(sent.url))
        page.goto(url)
        yield visit
        browser.close()
