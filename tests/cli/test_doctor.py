from __future__ import annotations

import socket

import pytest

from mlxserve.cli import main
from mlxserve.cli.doctor import line
from mlxserve.doctor.findings import Finding


def test_it_says_what_it_found_and_ends_with_0_where_serving_can_work(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["doctor", "--port", str(port)]) == 0
    out = capsys.readouterr().out
    assert f"127.0.0.1:{port}: Address already in use" in out
    assert out.endswith("Serving can work here.\n")


def test_it_ends_with_1_where_serving_cannot_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Finding("fail", "Python", "3.9 is too old", "install Python 3.11 or newer")
    monkeypatch.setattr("mlxserve.cli.doctor.examine", lambda facts: [broken])
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  Python  3.9 is too old\n              -> install Python 3.11 or newer\n" in out
    assert "cannot work" in out


def test_long_findings_are_wrapped() -> None:
    text = line(Finding("ok", "libraries", "word " * 60), 9)
    assert max(map(len, text.splitlines())) <= 110
    assert all(row.startswith(" " * 17) for row in text.splitlines()[1:])
