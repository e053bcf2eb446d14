"""Takes the pictures in docs/images of a real server: ``python -m tests.browser.pictures [NAME ...]``.

page: chat and engine side by side; engine: the Engine view; phone; terminal: the terminal client, drawn by Textual.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlxserve.tui.conversation import Store
from mlxserve.tui.theme import DARK
from tests.browser.actions import answers, send, settings, until
from tests.browser.conftest import CHROMIUM, DESKTOP, FLAGS, PHONE
from tests.e2e.server import running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
QUESTION = "Write a Python function that merges two sorted lists."
FONT = "'DejaVu Sans Mono', Menlo, monospace"


@contextmanager
def load(url: str, clients: int) -> Iterator[None]:
    """Clients that ask one question after the other, of every length, behind one of two system prompts."""
    stop = threading.Event()

    def client(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            system = f"You are the guide of a museum of {rng.choice(('clocks', 'ships'))} and answer in detail. " * 8
            story = "Once a clockmaker lived in a small town by the sea. " * rng.randint(1, 40)
            messages = [{"role": "system", "content": system}, {"role": "user", "content": story + str(rng.random())}]
            body = {"messages": messages, "max_tokens": rng.randint(40, 200), "temperature": 0.8}
            request = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                response.read()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def open_page(browser: Browser, url: str, view: str, **options: object) -> Page:
    page = browser.new_context(**options).new_page()
    page.add_init_script(f"localStorage.setItem('mlxserve.view', '{view}')")
    page.goto(url)
    until(page, "document.querySelector('#model').dataset.state === 'ok'")
    settings(page, temperature="0", max_tokens="260")
    return page


def page(browser: Browser, url: str) -> None:
    shown = open_page(browser, url, "both", **DESKTOP)
    send(shown, "What is the capital of France?")
    with load(url, 5):
        shown.wait_for_timeout(20_000)
        send(shown, QUESTION, wait=False)
        until(shown, "[...document.querySelectorAll('.prose')].at(-1).querySelectorAll('pre').length > 0", 240)
        until(shown, "[...document.querySelectorAll('.prose')].at(-1).textContent.length > 250", 240)
        shown.screenshot(path=IMAGES / "page.png")


def engine(browser: Browser, url: str) -> None:
    shown = open_page(browser, url, "engine", color_scheme="dark", viewport={"width": 1280, "height": 1000})
    with load(url, 10):
        shown.wait_for_timeout(45_000)
        shown.mouse.move(0, 0)  # pointing at a sequence would dim the other blocks
        until(shown, "document.querySelector('.state.waiting')", 60)
        shown.screenshot(path=IMAGES / "engine.png")


def phone(browser: Browser, url: str) -> None:
    shown = open_page(browser, url, "chat", **PHONE)
    send(shown, QUESTION)
    answers(shown).last.scroll_into_view_if_needed()
    shown.screenshot(path=IMAGES / "phone.png")


def terminal(browser: Browser, url: str) -> None:
    with ThreadPoolExecutor(1) as apart:  # playwright has an event loop in this thread
        svg = apart.submit(lambda: asyncio.run(drawn(url))).result()
    shown = browser.new_page()
    shown.set_content(svg)
    shown.locator("svg").screenshot(path=IMAGES / "terminal.png")


async def drawn(url: str) -> str:
    from tests.tui.test_app import ask, chat, until, write

    with tempfile.TemporaryDirectory() as directory:
        async with chat(url, Store(Path(directory)), theme=DARK) as (pilot, app):
            await pilot.resize_terminal(88, 30)
            await until(pilot, lambda: bool(app.query("#welcome")), 60)
            app.conversation.sampling = {"temperature": 0.0, "max_tokens": 120}
            await ask(pilot, app, "What is the capital of France?", 120)
            await ask(pilot, app, QUESTION, 240)
            await write(pilot, "/set temperature 0.7")
            await pilot.pause(0.3)
            svg = app.export_screenshot(title="mlxserve chat --spawn")
    # The drawing asks a host for its font; ours must not.
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S).replace("Fira Code", FONT.split(",")[0].strip("'"))


def main() -> None:
    from playwright.sync_api import sync_playwright

    makers = {maker.__name__: maker for maker in (page, engine, phone, terminal)}
    with running_server("--kv-blocks", "640", "--max-num-seqs", "8") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in sys.argv[1:] or makers:
            makers[name](browser, server.base_url)
        browser.close()


if __name__ == "__main__":
    main()
