"""Piped input: the answer alone on stdout, everything else on stderr, and an exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(text: str | None, *flags: str, command: str = "chat") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlxserve", command, *flags],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_answer_alone(fake_url: str, tmp_path: Path) -> None:
    done = run("hello\n", "--base-url", fake_url, "--data-dir", str(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == ("You said: hello \n", "", 0)
    assert not list(tmp_path.iterdir()), "a piped message is not kept"


def test_reasoning_is_left_out(fake_url: str) -> None:
    assert run("think", "--base-url", fake_url).stdout == "It is **42**.\n"


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("fail", (), "The engine is on fire."),
        ("  \n", (), "the piped message is empty"),
        ("hi", ("--temperature", "9"), "temperature is 9.0, but must be from 0 to 2"),
        ("hi", ("--max-tokens", "many"), "max_tokens is 'many', but must be a whole number"),
        ("hi", ("--model", "x"), "--model is x, but it is for the server that --spawn starts"),
        ("hi", ("--resume", "9"), "No conversation matches '9'"),
        ("hi", ("--api-key-file", "/nonexistent"), "--api-key-file is /nonexistent, but cannot be read"),
    ],
)
def test_errors_are_one_line(fake_url: str, tmp_path: Path, text: str, flags: tuple[str, ...], message: str) -> None:
    done = run(text, "--base-url", fake_url, "--data-dir", str(tmp_path), *flags)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith(f"mlxserve: {message}")
    assert done.stderr.count("\n") == 1


def test_no_server_says_the_remedy() -> None:
    done = run("hi", "--base-url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "start a server with `mlxserve serve`, or add --spawn" in done.stderr


def test_kept_conversations_are_listed(tmp_path: Path) -> None:
    from mlxserve.tui.conversation import Message, Store, new_conversation

    conversation = new_conversation()
    conversation.messages = [Message("user", "About clocks")]
    Store(tmp_path).save(conversation)
    done = run(None, "--list", "--data-dir", str(tmp_path))
    assert done.stdout.split(maxsplit=3)[0] == "1"
    assert done.stdout.endswith("About clocks\n")
