"""pull, models, rm and plan as a user calls them, with a hub on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mlxserve.cli import main
from mlxserve.cli.sizes import size
from mlxserve.errors import CheckpointError
from mlxserve.hub import Hub
from tests.hub.fake_hub import FakeHub, running
from tests.tiny import make_llama

NAME = "some-org/tiny-llama"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running() as hub:
        model = make_llama(tmp_path / "model", hidden_size=256)
        hub.add(NAME, {path.name: path.read_bytes() for path in model.iterdir()})
        for command in ("pull", "models", "rm", "plan"):
            local = partial(Hub, endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
            monkeypatch.setattr(f"mlxserve.cli.{command}.Hub", local)
        yield hub


def test_a_model_comes_is_listed_and_goes(server: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME, "--quiet"]) == 0
    assert capsys.readouterr().out.startswith(f"{NAME} is complete: ")
    assert main(["models"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", "size", "quantisation", "fits", "now"]
    (row,) = [row for row in rows if row.startswith(NAME)]
    assert row.split(maxsplit=4)[3] == "none"
    assert "yes, 8192 tokens of KV" in row
    assert main(["rm", NAME]) == 0
    assert " MiB are free again" in capsys.readouterr().out
    assert main(["models"]) == 0
    assert NAME not in capsys.readouterr().out


def test_a_model_that_cannot_be_served_is_listed_with_the_reason(
    server: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = server.repositories[NAME]
    repository.files["config.json"] = b'{"model_type": "abacus"}'
    assert main(["pull", NAME, "--quiet"]) == 0
    assert main(["models"]) == 0
    assert "no: " in capsys.readouterr().out


def test_planning_fetches_no_weight(server: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", NAME]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"model        {NAME}: llama, 3 layers")
    assert "On a Mac (Metal, float32; calculated, not measured)" in out
    assert all(r[2] for r in server.requests if r[0] == "GET" and r[1].endswith(".safetensors"))


def test_planning_a_quantised_load(server: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", NAME, "--quant", "int8", "--group-size", "32", "--cpu-weights", "float32"]) == 0
    out = capsys.readouterr().out
    assert "quantisation int8, served up to" in out
    assert all(r[2] for r in server.requests if r[0] == "GET" and r[1].endswith(".safetensors")), "headers alone"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["pull", "no-such"], "is no model on the hub"),
        (["pull", "some-org/none"], "does not exist on the hub, or is private"),
        (["rm", NAME], "is not in the cache"),
        (["rm", "smollm2-135m"], "pip uninstall"),
        (["plan", "/nonexistent"], "neither"),
        (["plan", "smollm2-135m", "--max-model-len", "99999"], "--max-model-len is 99999, but"),
    ],
)
def test_errors_are_one_line(
    server: FakeHub, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    assert main(command) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("mlxserve: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_the_embedded_model_is_a_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smollm2-135m"]) == 0
    assert ".gguf" in capsys.readouterr().out

    def missing() -> Path:
        raise CheckpointError("it is not installed")

    monkeypatch.setattr("mlxserve.cli.pull.embedded_model_path", missing)
    assert main(["pull", "smollm2-135m"]) == 2


def test_plan_says_what_does_not_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    for module in ("mlxserve.backends.torch.backend", "mlxserve.backends.torch.native.backend"):
        monkeypatch.setattr(f"{module}.free_host_memory", lambda: 300 * 2**20)
    assert main(["plan", "smollm2-135m", "--backend", "torch"]) == 0
    assert "It does not fit: with the smallest pool that is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"),
    [(500, "0.5 KiB"), (2**20, "1.00 MiB"), (94 * 2**20, "94 MiB"), (5.6 * 2**30, "5.6 GiB"), (0, "0.0 KiB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
