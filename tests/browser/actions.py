"""What a person does on the page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

IDLE = "#send[aria-label=Send]"
BUSY = "#send[aria-label=Stop]"


def send(page: Page, text: str, *, wait: bool = True) -> None:
    before = answers(page).count()
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    answers(page).nth(before).wait_for(state="attached")
    if wait:
        ended(page)


def ended(page: Page, timeout_s: float = 60) -> None:
    """Waits until no answer is under way."""
    until(page, "!document.querySelector('[aria-busy=true]')", timeout_s)


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant")


def settings(page: Page, **fields: str) -> None:
    page.click("#settings-open")
    for name, value in fields.items():
        page.fill(f"#settings [name={name}]", value)
    page.click("#settings >> text=Done")


def until(page: Page, condition: str, timeout_s: float = 20) -> None:
    """Waits until a JavaScript expression is true. (wait_for_function would evaluate text in the page, which the page's
    policy forbids.)"""
    deadline = time.monotonic() + timeout_s
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < deadline, f"never true: {condition}"
        page.wait_for_timeout(20)
