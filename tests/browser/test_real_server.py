"""The page of a real server: a real model answers, and the Engine view shows what it does."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from tests.browser.actions import BUSY, answers, ended, send, settings, until
from tests.browser.conftest import OpenPage
from tests.browser.test_engine_view import counts, open_engine
from tests.e2e.server import running_server


@pytest.fixture(scope="module")
def real_url() -> Iterator[str]:
    with running_server("--kv-blocks", "512", "--max-num-seqs", "8") as server:
        yield server.base_url


def burst(base: str, requests: int) -> list[threading.Thread]:
    """Requests that share a system prompt of several blocks."""
    system = "You are the guide of a small museum of clocks, and you answer in a few short sentences. " * 3

    def ask(number: int) -> None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Tell story {number}."}]
        body = json.dumps({"messages": messages, "max_tokens": 40, "seed": number, "ignore_eos": True}).encode()
        request = urllib.request.Request(f"{base}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            response.read()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
    for thread in threads:
        thread.start()
    return threads


def test_a_conversation(real_url: str, open_page: OpenPage) -> None:
    page = open_page(real_url)
    until(page, "document.querySelector('#model').textContent === 'smollm2-135mq4_1'")
    settings(page, temperature="0")
    send(page, "What is the capital of France?")
    assert "Paris" in answers(page).last.inner_text()
    assert re.search(r"\d+ tokens · [\d.]+/s · first in", answers(page).last.locator(".facts").inner_text())
    answers(page).last.get_by_role("button", name="Retry").click()
    ended(page)
    assert re.search(r"[1-9]\d?% cached", answers(page).last.locator(".facts").inner_text())
    send(page, "Write a long story about a ship and its crew.", wait=False)
    until(page, "[...document.querySelectorAll('.prose')].at(-1).textContent.length > 20", 60)
    page.click(BUSY)
    ended(page)
    assert page.locator("text=Stopped.").count() == 1


def test_a_burst_in_the_engine_view(real_url: str, open_page: OpenPage) -> None:
    page = open_page(real_url)
    open_engine(page)
    for thread in burst(real_url, 1):  # prompts that begin in one step share nothing but what is cached by then
        thread.join()
    threads = burst(real_url, 6)
    page.wait_for_selector(".state.decode", timeout=60_000)
    until(page, "document.querySelectorAll('.sequences tbody tr').length > 2", 60)
    until(page, "/[1-9]\\d* shared/.test(document.querySelector('.blockmap canvas').getAttribute('aria-label'))", 60)
    assert counts(page)["in use"] > 5
    for thread in threads:
        thread.join()
    page.wait_for_selector("text=Idle.", timeout=60_000)
    after = counts(page)
    assert (after["in use"], after["shared"]) == (0, 0)
    assert after["cached"] > 10
