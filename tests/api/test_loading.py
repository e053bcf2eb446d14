"""What a server answers before its model is loaded, and that its socket is then as it was."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import msgspec
import pytest

from mlxserve.api.answers import LoadingHealth
from mlxserve.api.loading import LoadingAnswers
from mlxserve.api.server import address, bind, listen
from mlxserve.errors import ConfigError


def listener() -> socket.socket:
    bound = bind("127.0.0.1", 0)
    listen(bound)
    return bound


@contextmanager
def loading() -> Iterator[tuple[LoadingAnswers, httpx.Client, socket.socket]]:
    with (
        listener() as listening,
        httpx.Client(base_url=address(listening), trust_env=False, timeout=10) as client,
        LoadingAnswers(listening) as answers,
    ):
        yield answers, client, listening


def test_health_says_how_far_loading_is() -> None:
    with loading() as (answers, client, _):
        seen = [client.get("/health")]
        answers.progress(3, 7)
        seen.append(client.get("/health"))
    assert [answer.status_code for answer in seen] == [503, 503]
    said = [msgspec.json.decode(answer.content, type=LoadingHealth) for answer in seen]
    assert [(health.status, health.what, health.progress) for health in said] == [
        ("loading", "weights", 0.0),
        ("loading", "weights", 0.429),
    ]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models")])
def test_the_rest_must_wait(method: str, path: str) -> None:
    with loading() as (_, client, _):
        answer = client.request(method, path, content=b"x" * 100_000 if method == "POST" else None)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "engine_unavailable"


def test_a_browser_is_told_and_asks_again() -> None:
    with loading() as (answers, client, _):
        answers.progress(1, 4)
        page, head = client.get("/"), client.head("/")
    assert "25%" in page.text
    assert page.headers["refresh"] == "1"
    assert (head.status_code, head.content) == (503, b"")


def test_the_socket_is_left_listening_and_nobody_is_lost() -> None:
    """A client that is silent, one that hangs up, and one that comes between the two servers."""
    with listener() as listening:
        place = listening.getsockname()
        with LoadingAnswers(listening):
            silent = socket.create_connection(place)
            socket.create_connection(place).close()
            time.sleep(0.1)  # until both have been accepted
            started = time.monotonic()
        assert time.monotonic() - started < 2
        with silent, socket.create_connection(place) as late:
            accepted, peer = listening.accept()
            accepted.close()
            assert peer == late.getsockname()


def test_a_bound_address_is_not_yet_reachable() -> None:
    """LOAD-01, LOAD-02: files that cannot be loaded are found out before anybody can connect."""
    with bind("127.0.0.1", 0) as bound:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname())
        listen(bound)
        socket.create_connection(bound.getsockname()).close()


def test_two_that_were_bound_and_one_that_listens() -> None:
    with bind("127.0.0.1", 0) as first, bind(*first.getsockname()) as second:
        listen(first)
        with pytest.raises(ConfigError, match="cannot be listened on"):
            listen(second)
