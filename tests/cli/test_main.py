"""The program itself, whatever its command: no words, an interrupt, and what a command says before it begins."""

from __future__ import annotations

import argparse
import importlib
import platform
import socket
from pathlib import Path

import pytest

from mlxserve.api import server
from mlxserve.cli import COMMANDS, main
from mlxserve.cli import serve as serve_command


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(name in shown.err for name in COMMANDS)


def test_an_interrupt_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["plan", "smollm2-135m"]) == 130
    assert capsys.readouterr() == ("", "")


def test_bench_kernels_names_the_gpu_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert main(["bench", "kernels"]) == 2
    said = "`mlxserve bench kernels` times kernels on the GPU of Apple Silicon, which this machine lacks"
    assert capsys.readouterr() == ("", f"mlxserve: {said}\n")


def test_no_conversation_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--list", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no conversation is kept yet\n"


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False)])
def test_a_server_open_to_the_network_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, warns: bool
) -> None:
    def bind(host: str, port: int) -> socket.socket:
        raise KeyboardInterrupt  # far enough

    monkeypatch.setattr(server, "bind", bind)
    parser = argparse.ArgumentParser()
    serve_command.add_arguments(parser)
    with pytest.raises(KeyboardInterrupt):
        serve_command.run(parser.parse_args(["--host", host]))
    assert ("--api-key-file asks for a key" in capsys.readouterr().err) is warns
