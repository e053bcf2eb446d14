"""The page's files as they are served, and what they may not contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from mlxserve.api import web
from mlxserve.api.web.pages import STATIC
from tests.fake_engine import FakeEngine

FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
ELSEWHERE = re.compile(r"""(?:https?:)?//[\w.-]+\.\w+""")


@pytest.fixture
def client() -> TestClient:
    engine = FakeEngine()
    return TestClient(Starlette(routes=web.routes(web.Live(engine, engine.info))))


def test_the_page_has_a_strict_policy(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_served_with_the_headers(client: TestClient, path: Path) -> None:
    response = client.get(f"/ui/{path.relative_to(STATIC).as_posix()}")
    assert response.status_code == 200
    assert response.content == path.read_bytes()
    assert "content-security-policy" in response.headers
    again = client.get(response.url.path, headers={"if-none-match": response.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("path", ["/ui/../pages.py", "/ui/%2e%2e/pages.py", "/ui/js", "/ui/nothing.js"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_asks_another_host(path: Path) -> None:
    allowed = ("http://www.w3.org/2000/svg",)  # the name of a namespace, never fetched
    found = [address for address in ELSEWHERE.findall(path.read_text()) if not any(address in a for a in allowed)]
    assert not found


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix in (".js", ".html")], ids=lambda path: path.name)
def test_no_markup_is_made_of_text(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", text)


def test_every_import_and_asset_exists() -> None:
    index = (STATIC / "index.html").read_text()
    for name in re.findall(r'(?:src|href)="/ui/([^"]+)"', index):
        assert (STATIC / name).is_file(), name
    for module in STATIC.glob("js/*.js"):
        for name in re.findall(r'from "\./([^"]+)"', module.read_text()):
            assert (STATIC / "js" / name).is_file(), f"{module.name} imports {name}"
