"""A real browser for the page: Chromium, driven by playwright. Without either, every test here is skipped by name,
and fails in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.fake_server import running_fake_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DESKTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [] if CHROMIUM else ["chromium"]
    if importlib.util.find_spec("playwright") is None:
        missing.append("the playwright package")
    if missing and not os.environ.get("CI"):
        skip = pytest.mark.skip(reason=f"needs {' and '.join(missing)}")
        for item in items:
            if "tests/browser" in item.path.as_posix():
                item.add_marker(skip)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def fake_url() -> Iterator[str]:
    with running_fake_server() as url:
        yield url


@pytest.fixture
def start_fake() -> Iterator[Callable[..., str]]:
    """Starts a server of the test's own; name this fixture before ``open_page``, so that it outlives the page."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running_fake_server(**options))


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a base URL in a fresh profile. At the end no page may have logged an error or asked another host."""
    contexts = []
    faults: list[str] = []

    def open_(base: str, *, expect: tuple[str, ...] = (), **options: object) -> Page:
        """``expect``: parts of console errors that the test provokes."""
        context = browser.new_context(**{**DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()

        def complain(text: str) -> None:
            if not any(part in text for part in expect):
                faults.append(text)

        page.on("console", lambda m: complain(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.on("request", lambda r: None if r.url.startswith((base, "data:")) else faults.append(f"asked {r.url}"))
        page.goto(base)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not faults
