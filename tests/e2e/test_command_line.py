"""The program as a user calls it: its exit status and the one line it says when something is wrong."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mlxserve
from mlxserve.formats.checkpoint import embedded_model_path
from tests.e2e.server import running_server

CHAT = ("generate", "--chat", "-p", "What is the capital of France?", "--backend", "torch")


def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlxserve", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--block-size", "17"], ["--block-size", "17", "power of two"]),
        (["--block-size", "0"], ["--block-size", "0", "at least 1"]),
        (["--kv-blocks", "3"], ["--kv-blocks", "3", "32"]),
        (["--max-num-batched-tokens", "100"], ["--max-num-batched-tokens", "100", "528"]),
        (["--max-num-seqs", "-1"], ["--max-num-seqs", "-1", "at least 1"]),
        (["--memory-utilization", "1.5"], ["--memory-utilization", "1.5", "at most 1"]),
        (["--port", "70000"], ["--port", "70000", "65535"]),
        (["--port", "x"], ["--port", "x"]),
        (["--max-model-len", "9999"], ["--max-model-len", "9999", "8192"]),
        (["--model", "nowhere"], ["nowhere"]),
        (["--api-key-file", "nowhere"], ["--api-key-file", "nowhere"]),
        (["--adapter-path", "nowhere"], ["--adapter-path"]),
        (["--dtype", "float8"], ["float8", "float16"]),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2(flags: list[str], names: list[str]) -> None:
    """LOAD-08 among them: a path that does not exist, or a flag that is not known, is never ignored."""
    ended = run("serve", *flags)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    for name in names:
        assert name in ended.stderr


def test_without_the_repository_there_is_no_simulator_and_one_line_says_so(tmp_path: Path) -> None:
    """The package as a wheel installs it, with the kernels inside."""
    package = Path(mlxserve.__file__).parent
    shutil.copytree(package, tmp_path / "mlxserve", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = package.parent / "kernels"
    shutil.copytree(kernels, tmp_path / "mlxserve/backends/mlx/metal", ignore=lambda path, _: ["sim", "cpu"])
    ended = run(
        *("generate", "-p", "hi", "--backend", "mlx"), MLXSERVE_KERNELS="sim", PYTHONPATH=str(tmp_path), cwd=tmp_path
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.strip().splitlines()
    assert "MLXSERVE_KERNELS is sim" in line
    assert "checkout of the repository" in line


@pytest.mark.parametrize(("flag", "value"), [("--max-tokens", "-3"), ("--temperature", "7"), ("--top-p", "nan")])
def test_a_bad_sampling_value_is_one_line_and_status_2(flag: str, value: str) -> None:
    ended = run(*CHAT, flag, value)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert flag[2:].replace("-", "_") in ended.stderr
    assert value in ended.stderr


def test_generate_streams_and_not() -> None:
    assert run(*CHAT).stdout == run(*CHAT, "--no-stream").stdout == "The capital of France is Paris.\n"


def test_a_seed_repeats_the_text() -> None:
    sampled = [*CHAT, "--temperature", "1", "--top-k", "40", "--max-tokens", "12"]
    first, again, other = (run(*sampled, "--seed", seed).stdout for seed in ("5", "5", "6"))
    assert first == again != other


def test_the_model_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    link = tmp_path / "small.gguf"
    link.symlink_to(embedded_model_path())
    assert run(*CHAT, "--model", str(link)).stdout == "The capital of France is Paris.\n"
    missing = run(*CHAT, MLXSERVE_MODEL=str(tmp_path / "gone.gguf"))
    assert missing.returncode == 2
    assert "gone.gguf" in missing.stderr


def test_make_serve_takes_a_path_with_a_space_and_a_tilde() -> None:
    root = Path(mlxserve.__file__).parents[1]
    command = ["make", "-n", "-o", ".venv/.serve", "-o", ".venv/.torch", "serve", "MODEL=~/user dir/m.gguf"]
    # Not as a part of the make that may run these tests.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, env=alone)
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[words.index("--model") + 1] == "~/user dir/m.gguf"


def test_a_tilde_is_the_home_directory_wherever_a_model_is_opened(tmp_path: Path) -> None:
    home = tmp_path / "user dir"
    home.mkdir()
    (home / "m.gguf").symlink_to(embedded_model_path())
    for command in (("plan", "~/m.gguf"), (*CHAT, "--model", "~/m.gguf")):
        done = run(*command, HOME=str(home))
        assert done.returncode == 0, done.stderr


def test_a_server_says_its_plan_and_ends_cleanly() -> None:
    started = time.monotonic()
    with running_server("--served-model-name", "small", "--max-model-len", "512") as server:
        ready_s = time.monotonic() - started
        plan = "\n".join(server.lines)
        for word in (
            "smollm2-135m",
            "q4_1",
            "30 layers",
            "MiB",
            "KiB a token",
            "blocks",
            "512 tokens",
            "temperature 0.2, top_p 0.9, where a request gives none",
            server.base_url,
        ):
            assert word in plan
        assert server.stop() == 0
    assert ready_s < 30  # bench.startup measures it; here only that nothing hangs


def test_a_taken_port_is_said_before_a_model_is_loaded() -> None:
    with running_server("--max-model-len", "512") as server:
        port = server.base_url.rsplit(":", 1)[1]
        ended = run("serve", "--port", port)
    assert ended.returncode == 2
    assert port in ended.stderr
