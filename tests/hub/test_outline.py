"""A model is outlined from its headers: everything but the weights' bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.safetensors import INDEX
from mlxserve.hub import Hub
from tests.hub.fake_hub import FakeHub, running
from tests.tiny import make_llama

NAME = "some-org/tiny-llama"


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with running() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.endpoint, cache_dir=tmp_path / "cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "model", hidden_size=256, intermediate_size=512)


def files(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.iterdir()}


def weight_bytes_sent(server: FakeHub) -> int:
    """At most; a request without a range would be everything."""
    sent = 0
    for method, path, wanted in server.requests:
        if method == "GET" and path.endswith(".safetensors"):
            assert wanted is not None
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            sent += last + 1 - first
    return sent


def test_an_outline_has_every_tensor_and_no_data(server: FakeHub, hub: Hub, model: Path) -> None:
    server.add(NAME, files(model))
    real = open_checkpoint(str(model))
    with hub.outlined(NAME) as checkpoint:
        assert checkpoint.name == NAME
        assert checkpoint.config == real.config
        assert sorted(checkpoint.source.names()) == sorted(real.source.names())
        for name in real.source.names():
            assert checkpoint.source.outline(name).shape == real.source.outline(name).shape
        assert not checkpoint.source.read("model.norm.weight").data.any()  # type: ignore[union-attr]
        directory = checkpoint.path
        on_disk = sum(path.stat().st_blocks * 512 for path in directory.iterdir())
        assert on_disk < (model / "model.safetensors").stat().st_size / 4, "holes take no room"
    assert not directory.exists()
    assert weight_bytes_sent(server) <= 100_001
    assert not hub.local_models() or NAME not in [m.name for m in hub.local_models() if m.quantization]


def test_shards_are_outlined_each(server: FakeHub, hub: Hub, model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    places = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(tensors)}
    sharded = files(model)
    del sharded["model.safetensors"]
    for shard in set(places.values()):
        sharded[shard] = save({name: tensors[name] for name in tensors if places[name] == shard})
    sharded[INDEX] = json.dumps({"weight_map": places}).encode()
    server.add(NAME, sharded)
    with hub.outlined(NAME) as checkpoint:
        assert set(checkpoint.source.names()) == set(tensors)


def test_a_model_that_is_here_is_opened_as_it_is(server: FakeHub, hub: Hub, model: Path) -> None:
    server.add(NAME, files(model))
    hub.pull(NAME, show_progress=False)
    server.requests.clear()
    with hub.outlined(NAME) as checkpoint:
        assert checkpoint.source.read("model.norm.weight").data.any()  # type: ignore[union-attr]
    assert not server.requests


def test_a_corrupt_header_is_one_clear_error(server: FakeHub, hub: Hub, model: Path) -> None:
    broken = files(model)
    broken["model.safetensors"] = b"\xff" * 5000
    server.add(NAME, broken)
    with pytest.raises(CheckpointError, match="header is corrupt"), hub.outlined(NAME):
        raise AssertionError("it was opened")
