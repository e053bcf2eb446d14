from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from safetensors.numpy import save

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import EMBEDDED_MODEL
from mlxserve.formats.safetensors import INDEX
from mlxserve.hub import Hub, Repository, parse_repository
from tests.hub.fake_hub import FakeHub, running

NAME = "some-org/tiny.model"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SMALL = {
    "config.json": b'{"model_type": "llama", "eos_token_id": 2}',
    "generation_config.json": b'{"temperature": 0.5}',
    "tokenizer.json": b'{"pad": "' + b"x" * 3000 + b'"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
}
UNWANTED = {
    "README.md": b"# hi",
    "pytorch_model.bin": b"x" * 4000,
    "modeling.py": b"boom",
    "original/model.safetensors": b"x",
}


def weights(name: str = "model.norm.weight", size: int = 1000) -> bytes:
    return save({name: np.arange(size, dtype=np.float32)})


def single() -> dict[str, bytes]:
    return SMALL | UNWANTED | {"model.safetensors": weights()}


def sharded() -> dict[str, bytes]:
    places = {"model.norm.weight": SHARDS[0], "lm_head.weight": SHARDS[1]}
    files = {place: weights(name) for name, place in places.items()}
    return SMALL | UNWANTED | files | {INDEX: json.dumps({"weight_map": places}).encode()}


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with running() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.endpoint, cache_dir=tmp_path / "cache")


def pull(hub: Hub, model: str = NAME) -> Path:
    return hub.pull(model, show_progress=False)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/name", Repository("org/name", "main")),
        ("org/name.v1-2_x@v1.0", Repository("org/name.v1-2_x", "v1.0")),
        ("org/name@refs/pr/1", Repository("org/name", "refs/pr/1")),
        ("smollm2-135m", None),
        ("org/name/more", None),
        ("/org/name", None),
        ("./org", None),
        ("../name", None),
        ("org/..", None),
        ("org/name@", None),
        ("org/name@../x", None),
        ("org/na me", None),
        ("http://host/x", None),
        ("org/name\n", None),
        ("a/" + "b" * 5000, None),
    ],
)
def test_names_of_repositories(model: str, expected: Repository | None) -> None:
    assert parse_repository(model) == expected


def test_what_exists_on_disk_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_repository("org/name") is None


@pytest.mark.parametrize("files", [single(), sharded()], ids=["single", "sharded"])
def test_only_the_files_needed_are_fetched(files: dict[str, bytes], server: FakeHub, hub: Hub) -> None:
    server.add(NAME, files)
    directory = pull(hub)
    needed = files.keys() - UNWANTED.keys()
    assert set(server.fetched()) == needed
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == {name: files[name] for name in needed}
    opened = hub.open_model(NAME)
    assert (opened.name, opened.path, opened.eos_token_ids) == (NAME, directory, (2,))
    assert opened.generation_config == {"temperature": 0.5}
    assert "model.norm.weight" in opened.source.names()


def test_a_model_in_the_cache_needs_no_network(server: FakeHub, hub: Hub) -> None:
    server.add(NAME, sharded())
    directory = pull(hub)
    server.requests.clear()
    assert hub.find(Repository(NAME)) == directory
    assert hub.open_model(NAME).path == directory
    assert server.requests == []
    pull(hub)
    assert server.fetched() == []  # only asked whether anything is newer


def test_a_model_that_is_not_whole_in_the_cache_is_completed(server: FakeHub, hub: Hub) -> None:
    server.add(NAME, sharded())
    directory = pull(hub)
    (directory / SHARDS[1]).unlink()
    server.requests.clear()
    assert hub.find(Repository(NAME)) is None
    assert hub.open_model(NAME, show_progress=False).path == directory
    assert set(server.fetched()) <= {SHARDS[1]}  # its bytes may still be there


def test_a_newer_commit_is_fetched_by_pull(server: FakeHub, hub: Hub) -> None:
    repository = server.add(NAME, single())
    old = pull(hub)
    repository.files["config.json"] = b'{"model_type": "qwen2"}'
    repository.revisions["main"] = "b" * 40
    server.requests.clear()
    new = pull(hub)
    assert old != new
    assert server.fetched() == ["config.json"]
    assert hub.open_model(NAME).config["model_type"] == "qwen2"


def test_revisions(server: FakeHub, hub: Hub) -> None:
    repository = server.add(NAME, single())
    repository.revisions["v2"] = "c" * 40
    tagged = pull(hub, f"{NAME}@v2")
    assert tagged.name == "c" * 40
    assert hub.find(Repository(NAME)) is None
    assert hub.open_model(f"{NAME}@v2").name == NAME
    assert pull(hub, f"{NAME}@{'c' * 40}") == tagged
    with pytest.raises(CheckpointError, match=rf"{NAME} has no revision 'v3' on the hub"):
        pull(hub, f"{NAME}@v3")


def starts(server: FakeHub) -> list[int]:
    """The first byte of each transfer of the weights."""
    ranges = [asked for method, path, asked in server.requests if method == "GET" and path.endswith("safetensors")]
    return [int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0 for asked in ranges]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library writes every 10 kB to disk instead of every 10 MB, and does not wait between its attempts."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)


@pytest.mark.usefixtures("hasty")
def test_a_broken_transfer_continues_where_it_stopped(server: FakeHub, hub: Hub) -> None:
    files = single() | {"model.safetensors": weights(size=100_000)}
    server.add(NAME, files)
    server.cut["model.safetensors"] = [150_000, 50_000]
    directory = pull(hub)
    assert (directory / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert starts(server) == [0, 150_000, 200_000]


@pytest.mark.usefixtures("hasty")
def test_a_transfer_that_never_ends_well_is_one_sentence_and_resumes_later(server: FakeHub, hub: Hub) -> None:
    files = single() | {"model.safetensors": weights(size=100_000)}
    server.add(NAME, files)
    server.cut["model.safetensors"] = [150_000] + [0] * 20
    with pytest.raises(CheckpointError, match=f"{NAME} could not be fetched: ") as caught:
        pull(hub)
    assert "\n" not in caught.value.message
    assert hub.find(Repository(NAME)) is None
    server.cut.clear()
    server.requests.clear()
    directory = pull(hub)
    assert (directory / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert server.fetched() == ["model.safetensors"]
    assert starts(server) == [150_000]


@pytest.mark.usefixtures("hasty")
def test_two_processes_do_not_write_one_file(server: FakeHub, hub: Hub, tmp_path: Path) -> None:
    files = single() | {"model.safetensors": weights(size=100_000)}
    server.add(NAME, files)
    server.cut["model.safetensors"] = [150_000] + [0] * 20
    with pytest.raises(CheckpointError):
        pull(hub)
    (part,) = (tmp_path / "cache").rglob("*-part")
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is being fetched by another process"):
            pull(hub)
    server.cut.clear()
    assert (pull(hub) / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert not part.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_bytes_that_are_not_those_announced_are_not_kept(name: str, server: FakeHub, hub: Hub) -> None:
    """A large file by its SHA-256, a small one by its git id."""
    server.add(NAME, single())
    server.garble.add(name)
    with pytest.raises(CheckpointError, match=rf"{name} was damaged on its way and has been removed"):
        pull(hub)
    assert hub.find(Repository(NAME)) is None
    server.garble.clear()
    assert (pull(hub) / name).read_bytes() == single()[name]


@pytest.mark.parametrize("kind", ["missing", "private", "gated"])
def test_why_not(kind: str, server: FakeHub, hub: Hub) -> None:
    if kind != "missing":
        server.add(NAME, single(), **{kind: True})
    expected = (
        "is gated on the hub: accept its terms" if kind == "gated" else "does not exist on the hub, or is private"
    )
    with pytest.raises(CheckpointError, match=f"{NAME} {expected}") as caught:
        pull(hub)
    assert "\n" not in caught.value.message


def test_a_token_opens_what_is_gated_and_a_bad_one_is_told(
    server: FakeHub, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(NAME, single(), gated=True)
    monkeypatch.setenv("HF_TOKEN", "good")
    pull(hub)
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(CheckpointError, match=r"refuses some-org/other \(HTTP 401\): the token in use is not valid"):
        pull(hub, "some-org/other")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("status", [403, 418, 500])
def test_other_answers_name_the_status(status: int, server: FakeHub, hub: Hub) -> None:
    server.status = status
    with pytest.raises(CheckpointError, match=str(status)):
        pull(hub)


@pytest.mark.usefixtures("hasty")
def test_an_unreachable_hub_is_one_sentence(tmp_path: Path) -> None:
    hub = Hub(endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"{NAME} could not be fetched: .*onnect.*reach http://127\.0\.0\.1:9\?"
    ) as caught:
        pull(hub)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.gguf": b"x"}, r"only model\.gguf: download one and name that file"),
        ({"pytorch_model.bin": b"x"}, r"only pytorch_model\.bin: that is pickle"),
        ({}, "has no weights: neither"),
        ({INDEX: b'{"weight_map": {"a": "m-1.safetensors"}}'}, r"lists files that it does not have: m-1\.safetensors"),
        ({INDEX: b"{}"}, "lists files that it does not have"),
        ({INDEX: b"["}, "not valid JSON"),
        ({"a.safetensors": b"x", "b.safetensors": b"x"}, "has no weights"),
    ],
)
def test_repositories_without_weights_that_can_be_served(
    files: dict[str, bytes], message: str, server: FakeHub, hub: Hub
) -> None:
    server.add(NAME, SMALL | files)
    with pytest.raises(CheckpointError, match=message):
        pull(hub)
    assert not {name for name in server.fetched() if name.endswith(("gguf", "bin", "safetensors"))}


@pytest.mark.parametrize("model", ["", "name", "/etc", EMBEDDED_MODEL, "org/x/y", "org/name@"])
def test_what_cannot_be_pulled(model: str, hub: Hub) -> None:
    with pytest.raises(CheckpointError, match="is no model on the hub"):
        pull(hub, model)


def test_models_on_this_machine_and_removing_them(server: FakeHub, hub: Hub) -> None:
    assert [model.name for model in hub.local_models()] == [EMBEDDED_MODEL]
    server.add(NAME, sharded()).revisions["v2"] = "c" * 40
    server.add("a-org/other", SMALL | {"model.safetensors": b"garbage"})
    directory = pull(hub)
    pull(hub, f"{NAME}@v2")
    other_directory = pull(hub, "a-org/other")
    models = {model.name: model for model in hub.local_models()}
    assert list(models) == ["a-org/other", EMBEDDED_MODEL, NAME, f"{NAME}@v2"]
    assert models[NAME].path == directory
    assert models[NAME].quantization == "none"
    assert models[NAME].bytes == sum(len(data) for name, data in sharded().items() if name not in UNWANTED)
    assert models[EMBEDDED_MODEL].quantization == "q4_1"
    assert (models["a-org/other"].quantization, models["a-org/other"].path) == (None, other_directory)

    assert hub.remove(f"{NAME}@v2") >= 0
    assert [model.name for model in hub.local_models()] == ["a-org/other", EMBEDDED_MODEL, NAME]
    assert hub.remove(NAME) > 8000
    assert [model.name for model in hub.local_models()] == ["a-org/other", EMBEDDED_MODEL]
    assert not directory.exists()
    for model, message in ((NAME, "not in the cache"), (EMBEDDED_MODEL, "pip uninstall"), ("x", "no model on the hub")):
        with pytest.raises(CheckpointError, match=message):
            hub.remove(model)


def test_the_environment_is_honoured(server: FakeHub, tmp_path: Path) -> None:
    """HF_ENDPOINT and HF_HOME in a process of its own; then HF_HUB_OFFLINE with and without the model in the cache."""
    server.add(NAME, single())
    program = (
        "import sys; from mlxserve.errors import CheckpointError; from mlxserve.hub import Hub\n"
        "try: print(Hub().open_model(sys.argv[1]).path)\n"
        "except CheckpointError as error: print('error:', error)\n"
    )

    def run(model: str, **extra: str) -> subprocess.CompletedProcess[str]:
        environment = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), **extra}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | environment
        command = [sys.executable, "-c", program, model]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)

    first = run(NAME)
    assert first.stdout.startswith(str(tmp_path / "home" / "hub"))
    assert "%" in first.stderr  # progress bars
    server.requests.clear()
    offline = {"HF_HUB_OFFLINE": "1"}
    assert run(NAME, **offline).stdout == first.stdout
    assert run("some-org/other", **offline).stdout.strip() == (
        "error: some-org/other is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"
    )
    assert server.requests == []


def test_a_local_model_does_not_import_the_hub() -> None:
    program = (
        "import sys; from mlxserve.hub import Hub; Hub().open_model('smollm2-135m'); "
        "print('huggingface_hub' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
