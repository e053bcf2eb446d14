"""The chat: streaming, stopping, editing, trying again, and what is kept."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable

from tests.browser.actions import BUSY, IDLE, answers, ended, send, settings, until
from tests.browser.conftest import PHONE, OpenPage
from tests.fake_server import running_fake_server


def bodies(base: str) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"{base}/fake/bodies") as response:
        return json.load(response)


def test_tokens_stream_in(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "long story", wait=False)
    until(page, "document.querySelector('.message.assistant .prose').textContent.includes('word5')")
    early = len(answers(page).inner_text())
    until(page, "document.querySelector('.message.assistant .prose').textContent.includes('word60')")
    assert len(answers(page).inner_text()) > early
    assert page.locator(".message.assistant[aria-busy=true]").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_selector(IDLE)
    assert page.locator("text=Stopped.").count() == 1
    assert page.locator(".message.assistant[aria-busy]").count() == 0
    assert re.search(r"\d+ tokens · [\d.]+/s · first in", answers(page).inner_text())


def test_the_stop_button_stops(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "wait for it", wait=False)
    page.click(BUSY)
    page.wait_for_selector(IDLE)
    assert page.locator("text=Stopped.").count() == 1
    send(page, "hello")
    assert "You said: hello" in answers(page).last.inner_text()


def test_figures_of_an_answer(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "hello there")
    send(page, "hello again")
    facts = answers(page).last.locator(".facts")
    assert re.fullmatch(r"4 tokens · [\d.]+/s · first in \d+ ms · \d+% cached", facts.inner_text())
    assert re.fullmatch(r"64 of \d+ prompt tokens came from the prefix cache", facts.get_attribute("title") or "")


def test_retry_asks_the_same_again(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "retry me")
    answers(page).last.get_by_role("button", name="Retry").click()
    ended(page)
    first, second = [b["messages"] for b in bodies(fake_url)][-2:]
    assert first == second == [{"role": "user", "content": "retry me"}]
    assert answers(page).count() == 1


def test_editing_drops_what_came_after(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "first")
    send(page, "second")
    page.locator(".message.user").first.hover()
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("changed")
    page.keyboard.press("Enter")
    ended(page)
    assert page.locator(".message").count() == 2
    assert "You said: changed" in answers(page).inner_text()
    page.focus("#prompt")
    page.keyboard.press("ArrowUp")
    assert page.locator(".message.user textarea").input_value() == "changed"
    page.keyboard.press("Escape")
    assert page.locator(".message.user textarea").count() == 0


def test_thinking_is_folded_and_not_sent_back(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "think about it")
    answer = answers(page).last
    assert "Let me see" not in answer.inner_text()
    assert answer.locator("strong").inner_text() == "42"
    answer.locator("summary").click()
    assert "Six times seven." in answer.inner_text()
    send(page, "and now?")
    sent = bodies(fake_url)[-1]["messages"]
    assert sent[1] == {"role": "assistant", "content": "It is **42**."}


def test_settings_reach_the_server_and_stay(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    settings(page, system="Be brief.", temperature="0.2", max_tokens="3", seed="7")
    send(page, "one two three four")
    body = bodies(fake_url)[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.2, 3, 7)
    assert "top_p" not in body
    assert body["stream_options"] == {"include_usage": True}
    page.click("#new-chat")
    page.click("#settings-open")
    assert page.input_value("#settings [name=system]") == "Be brief."
    page.fill("#settings [name=temperature]", "9")  # out of range: left to the server
    # The close event comes a task later than the closing; a message sent in between must go with the new settings.
    page.evaluate("""() => {
        document.querySelector('#settings').close();
        document.querySelector('#prompt').value = 'hi';
        document.querySelector('#composer').requestSubmit();
    }""")
    ended(page)
    assert "temperature" not in bodies(fake_url)[-1]


def test_conversations_are_kept(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "the first conversation")
    page.click("#new-chat")
    send(page, "the second one")
    page.reload()
    names = page.locator("#conversations .open")
    assert names.all_inner_texts() == ["the second one", "the first conversation"]
    names.last.click()
    assert "You said: the first conversation" in answers(page).inner_text()
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#conversations li").last.hover()
    page.get_by_role("button", name="Delete the first conversation").click()
    assert names.all_inner_texts() == ["the second one"]
    assert page.locator(".message").count() == 0


def test_a_conversation_deleted_while_it_answers_stays_deleted(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url)
    send(page, "long one", wait=False)
    page.wait_for_selector(BUSY)
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#conversations li").first.hover()
    page.get_by_role("button", name="Delete long one").click()
    page.wait_for_selector(IDLE)
    page.reload()
    assert page.locator("#conversations .open").count() == 0


def test_failures_are_said_where_they_happened(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url, expect=("500",))
    send(page, "fail please")
    assert page.get_by_role("alert").inner_text() == "The engine is on fire."
    send(page, "break long")
    assert "The pool burst." in page.get_by_role("alert").last.inner_text()
    assert "You said: break" in answers(page).last.inner_text()
    send(page, "limit")
    assert "Ended at the token limit." in answers(page).last.inner_text()


def test_an_api_key_is_asked_for(start_fake: Callable[..., str], open_page: OpenPage) -> None:
    base = start_fake(api_key="secret")
    page = open_page(base, expect=("401",))
    send(page, "hello")
    assert "API key" in page.get_by_role("alert").inner_text()
    settings(page, key="secret")
    answers(page).last.get_by_role("button", name="Retry").click()
    page.wait_for_selector(".facts >> text=tokens")
    page.evaluate("localStorage.removeItem('mlxserve.api-key')")


def test_a_server_that_has_gone(open_page: OpenPage) -> None:
    with running_fake_server() as base:
        page = open_page(base, expect=("ERR_CONNECTION_REFUSED",))
    send(page, "anyone there?")
    assert "Is it still running?" in page.get_by_role("alert").inner_text()


def test_phone(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url, **PHONE)
    send(page, "markdown")
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is wider than the screen"
    assert page.locator("#sidebar").is_hidden() or not page.locator("#sidebar").is_visible()
    page.tap("#menu")
    until(page, "getComputedStyle(document.querySelector('#sidebar')).visibility === 'visible'")
    page.tap("#new-chat")
    until(page, "getComputedStyle(document.querySelector('#sidebar')).visibility === 'hidden'")
    assert page.locator(".message").count() == 0


def test_themes(fake_url: str, open_page: OpenPage) -> None:
    page = open_page(fake_url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == light, "the choice is kept"
    page.click("#theme")
    assert page.evaluate(background) == dark
    page.click("#theme")
    assert page.get_by_role("button", name="Theme: auto").count() == 1
