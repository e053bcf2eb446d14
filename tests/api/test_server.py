"""A real process under uvicorn: the unmodified ``openai`` client, sockets that go away, signals."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from mlxserve.api.server import bind, listen
from mlxserve.errors import ConfigError
from tests.api.harness import CHAT


class Process:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.api.fake_process"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        port = urlsplit(self.url).port
        assert port, self.process.stderr and self.process.stderr.read()
        self.port = port

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = json.load(connection.getresponse())
        connection.close()
        return answer

    def wait_for(self, **want: int) -> None:
        """Until the engine tells so."""
        deadline = time.monotonic() + 20
        while not self.get("/fake").items() >= want.items():
            assert time.monotonic() < deadline, self.get("/fake")
            time.sleep(0.01)

    def post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A request whose answer is not read."""
        raw = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        return connection

    def end(self, *signals: int) -> int:
        """The exit status. Nothing may be left on stderr."""
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.1)
        _, errors = self.process.communicate(timeout=20)
        assert "Traceback" not in errors, errors
        return self.process.returncode


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    process = Process()
    yield process
    assert process.end(signal.SIGTERM) == 0


@pytest.fixture
def own() -> Iterator[Process]:
    process = Process()
    yield process
    process.process.kill()
    process.process.communicate()


MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_the_openai_client_reads_chats_and_completions(shared: Process) -> None:
    client = shared.client()
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in whole.choices] == ["Hello there"] * 2
    assert whole.choices[0].logprobs is not None
    assert whole.usage is not None
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="fake", messages=MESSAGES, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there"
    assert chunks[-1].usage is not None
    text = client.completions.create(model="fake", prompt=["a", "b"], echo=True, logprobs=1)
    assert [choice.text for choice in text.choices] == ["aHello there", "bHello there"]
    parts = client.completions.create(model="fake", prompt="a", stream=True)
    assert "".join(part.choices[0].text for part in parts) == "Hello there"
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_the_openai_client_sees_typed_errors(shared: Process) -> None:
    client = shared.client()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=MESSAGES, temperature=3, stream=True)
    assert bad.value.param == "temperature"
    breaks: Any = [{"role": "user", "content": "break"}]
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="fake", messages=breaks)
    stream = client.chat.completions.create(model="fake", messages=breaks, stream=True)
    with pytest.raises(openai.APIError, match="planted"):
        list(stream)


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["slow", "wait"])
def test_sch_04_a_socket_that_goes_ends_its_work(shared: Process, prompt: str, stream: bool, how: str) -> None:
    """In the middle, before the first token, streaming or not."""
    closed = shared.get("/fake")["closed"]
    body = {"prompt": prompt, "stream": stream, "max_tokens": 300}
    connection = shared.post("/v1/completions", body)
    shared.wait_for(live=1)
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    shared.wait_for(live=0, closed=closed + 1)
    connection.close()


def test_sch_02_many_abandoned_streams_leave_nothing(shared: Process) -> None:
    closed = shared.get("/fake")["closed"]
    for _ in range(10):
        connections = [shared.post("/v1/completions", {"prompt": "slow", "stream": True}) for _ in range(4)]
        for connection in connections:
            assert b"data:" in connection.recv(4096) + connection.recv(4096)
            connection.close()
    shared.wait_for(live=0, closed=closed + 40)
    assert shared.client().completions.create(model="fake", prompt="a").choices[0].text == "Hello there"


def test_con_01_a_body_of_20_mb_stalls_nobody(shared: Process) -> None:
    took: list[float] = []
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            started = time.monotonic()
            assert shared.get("/health")["status"] == "ok"
            took.append(time.monotonic() - started)
            time.sleep(0.02)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        for path, size, status in ((CHAT, 20_000_000, 413), (CHAT, 2_000_000, 400), ("/tokenize", 2_000_000, 200)):
            connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=30)
            body = json.dumps({"messages": [{"role": "user", "content": "word " * (size // 5)}]})
            connection.request("POST", path, body)
            answer = connection.getresponse()
            assert answer.status == status
            told = json.load(answer)
            assert told["count"] > size if status == 200 else set(told["error"]) == {"message", "type", "param", "code"}
            connection.close()
    finally:
        stop.set()
        poller.join()
    assert len(took) > 3
    assert max(took) < 1


def test_sse_07_headers_come_before_the_first_token(shared: Process) -> None:
    connection = shared.post("/v1/completions", {"prompt": "wait", "stream": True})
    connection.settimeout(5)
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_exit_status_is_0(own: Process, number: int) -> None:
    connection = own.post("/v1/completions", {"prompt": "slow", "stream": True, "max_tokens": 60})
    connection.settimeout(10)
    own.wait_for(live=1)
    own.process.send_signal(number)
    raw = b""
    with connection:
        while data := connection.recv(1 << 16):
            raw += data
    assert b"data: [DONE]" in raw  # the answer under way was not cut
    assert own.end() == 0


def test_what_is_waited_for_is_said_and_ends_with_the_time_limit(own: Process) -> None:
    connection = own.post("/v1/completions", {"prompt": "wait"})
    own.wait_for(live=1)
    own.process.send_signal(signal.SIGINT)
    assert own.process.stderr is not None
    line = own.process.stderr.readline()
    assert line == "Waiting up to 2 s for 1 answer under way; another Ctrl-C ends this now\n"
    assert own.process.wait(10) == 0
    assert own.process.stderr.read() == "", "no error of the server's is told beside it"
    with connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 503")


def test_a_second_signal_ends_what_still_runs(own: Process) -> None:
    connection = own.post("/v1/completions", {"prompt": "wait"})
    own.wait_for(live=1)
    started = time.monotonic()
    assert own.end(signal.SIGTERM, signal.SIGTERM) == 0
    assert time.monotonic() - started < 4
    with connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 503")


def test_an_address_in_use_is_one_clear_error() -> None:
    with bind("127.0.0.1", 0) as taken:
        listen(taken)
        with pytest.raises(ConfigError, match="cannot be listened on"):
            bind("127.0.0.1", taken.getsockname()[1])
