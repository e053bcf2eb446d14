from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from mlxserve.cli import main


@pytest.mark.parametrize("missing", ["textual", "httpx", "platformdirs"])
def test_without_its_extra_it_says_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == missing else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert main(["chat"]) == 2
    assert capsys.readouterr().err == f"mlxserve: chat needs {missing}: pip install 'mlxserve[tui]'\n"
