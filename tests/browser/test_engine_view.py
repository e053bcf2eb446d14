"""The Engine view: what it shows of a burst, and that it asks for nothing while hidden."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.browser.actions import send, until
from tests.browser.conftest import OpenPage
from tests.fake_server import running_fake_server

if TYPE_CHECKING:
    from playwright.sync_api import Page


def open_engine(page: Page) -> None:
    page.get_by_role("button", name="Engine", exact=True).click()
    until(page, "document.querySelector('.tiles dd').textContent !== '–'")


def counts(page: Page) -> dict[str, int]:
    label = page.locator(".blockmap canvas").get_attribute("aria-label") or ""
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (in use|shared|cached|free)", label)}


def burst(base: str, requests: int) -> list[threading.Thread]:
    def ask() -> None:
        body = b'{"messages": [{"role": "user", "content": "long"}], "max_tokens": 150, "stream": true}'
        with urllib.request.urlopen(f"{base}/v1/chat/completions", body) as response:
            response.read()

    threads = [threading.Thread(target=ask) for _ in range(requests)]
    for thread in threads:
        thread.start()
    return threads


def test_a_burst_shows_in_map_list_and_charts(start_fake: Callable[..., str], open_page: OpenPage) -> None:
    base = start_fake()
    page = open_page(base)
    open_engine(page)
    until(page, "document.querySelector('.blockmap canvas').getAttribute('aria-label').includes('free')")
    assert counts(page)["free"] == 1536
    assert page.get_by_text("Idle.").is_visible()
    before = page.locator(".blockmap canvas").screenshot()
    threads = burst(base, 6)
    until(page, "document.querySelectorAll('.sequences tbody tr').length === 6")
    page.wait_for_selector(".state.decode")
    during = counts(page)
    assert during["in use"] > 20
    assert page.locator(".blockmap canvas").screenshot() != before, "the map changes"
    until(page, "Number(document.querySelector('.key.decode b').textContent) > 10")
    for thread in threads:
        thread.join()
    page.wait_for_selector("text=Idle.")
    assert counts(page)["in use"] == 0
    assert counts(page)["cached"] > 20
    assert "at most" in (page.locator(".chart svg").first.get_attribute("aria-label") or "")


def test_pointing_at_a_sequence_marks_its_blocks(start_fake: Callable[..., str], open_page: OpenPage) -> None:
    base = start_fake(delay_s=0.03)
    page = open_page(base, expect=("getImageData",), reduced_motion="reduce")
    open_engine(page)
    threads = burst(base, 3)
    page.wait_for_selector(".state.decode")
    page.wait_for_timeout(300)
    canvas = page.locator(".blockmap canvas")
    sample = """([x, y]) => {
      const context = document.querySelector(".blockmap canvas").getContext("2d");
      return Array.from(context.getImageData(x, y, 1, 1).data);
    }"""
    plain = page.evaluate(sample, [5, 5])
    page.locator(".sequences tbody tr").last.focus()
    page.wait_for_timeout(100)
    far = page.evaluate(sample, [5, 5])
    page.locator("#theme").focus()
    page.wait_for_timeout(100)
    assert plain == page.evaluate(sample, [5, 5])
    assert far[3] in (255, 71), "the block is the sequence's own, or dimmed"
    canvas.hover(position={"x": 5, "y": 5})
    assert page.locator(".foot").inner_text().count("Block 0")
    for thread in threads:
        thread.join()


def test_hidden_it_asks_for_nothing(start_fake: Callable[..., str], open_page: OpenPage) -> None:
    base = start_fake()
    page = open_page(base)
    streams: list[str] = []
    page.on("request", lambda r: streams.append(r.url) if r.url.endswith("/stats/stream") else None)
    send(page, "hello")
    page.wait_for_timeout(600)
    assert not streams
    open_engine(page)
    assert len(streams) == 1
    with page.expect_event("requestfailed", lambda r: r.url.endswith("/stats/stream")):
        page.get_by_role("button", name="Chat", exact=True).click()


def test_it_says_when_the_server_goes(open_page: OpenPage) -> None:
    with running_fake_server() as base:
        page = open_page(base, expect=("ERR_",))
        open_engine(page)
    page.wait_for_selector(".engine .notice.error")
    until(page, "document.querySelector('#model').dataset.state === 'down'")
