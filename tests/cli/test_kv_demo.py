from __future__ import annotations

import io

import pytest

from mlxserve.cli import main


def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], steps: str, *flags: str) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(steps))
    assert main(["kv-demo", *flags]) == 0
    return capsys.readouterr().out


def test_the_tour_ends_with_nothing_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv-demo", "--tour"]) == 0
    out = capsys.readouterr().out
    assert "8 of 9 tokens were cached" in out
    assert "block 1 is copied to 3" in out
    assert out.endswith("used 2 (cached 2) + free 6 = 8\n")


def test_without_the_cache_nothing_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = play(monkeypatch, capsys, "add a 1 2 3 4 5\nfree a\n", "--no-cache")
    assert out.endswith("used 0 (cached 0) + free 8 = 8\n")


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("add", "add needs"),
        ("add a", "add needs"),
        ("add a x", "whole numbers"),
        ("grow b 1", "grow needs"),
        ("fork b c", "fork needs"),
        ("free b", "free needs"),
        ("add a " + "1 " * 99, "99 tokens do not fit"),
        ("dance", "there is no step 'dance'"),
    ],
)
def test_what_cannot_be_done_is_said(
    step: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer in play(monkeypatch, capsys, step + "\n")
