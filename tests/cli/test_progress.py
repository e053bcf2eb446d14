from __future__ import annotations

import io
import sys

import pytest

from mlxserve.cli.progress import notice, tensor_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_before_there_is_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with tensor_bar("loading weights") as bar:
        assert terminal.getvalue() == ""
        notice("building")
        assert terminal.getvalue() == "building\n"
        bar(1, 4)
        assert "loading weights:  25%" in terminal.getvalue()


def test_without_a_terminal_there_are_notices_only(capsys: pytest.CaptureFixture[str]) -> None:
    with tensor_bar("loading weights") as bar:
        bar(1, 4)
        notice("building")
    assert capsys.readouterr().err == "building\n"
