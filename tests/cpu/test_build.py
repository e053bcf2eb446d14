"""The library is built once for what it is made of, and where it cannot be, torch's own operators run and say why."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxserve import config
from mlxserve.backends import get_backend
from mlxserve.backends.torch.backend import TorchBackend
from mlxserve.backends.torch.native import select as selection
from mlxserve.backends.torch.native.backend import NativeBackend
from mlxserve.backends.torch.native.build import TIMEOUT_S, BuildError, build, check
from mlxserve.backends.torch.native.library import Library
from mlxserve.config import CpuWeights, ModelConfig
from mlxserve.errors import ConfigError
from mlxserve.models.families import model_spec
from mlxserve.models.spec import ModelSpec
from tests.tiny import LLAMA

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, library_path: Path) -> Path:
    """A small program; ``library_path`` skips where there is no compiler."""
    path = tmp_path / "sources"
    path.mkdir()
    (path / "answer.cpp").write_text(SOURCE)
    (path / "answer.h").write_text("int answer();\n")
    return path


def test_built_once(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "deep"
    first = build(cache, sources)
    stamp = first.stat().st_mtime_ns
    assert build(cache, sources) == first
    assert first.stat().st_mtime_ns == stamp
    assert [p.name for p in cache.iterdir()] == [first.name]


@pytest.mark.parametrize("name", ["answer.cpp", "answer.h", "new.h"])
def test_built_again_when_a_source_changes(sources: Path, tmp_path: Path, name: str) -> None:
    first = build(tmp_path, sources)
    with (sources / name).open("a") as file:
        file.write("// changed\n")
    assert build(tmp_path, sources) != first


def test_an_error_is_one_line_and_leaves_nothing(sources: Path, tmp_path: Path) -> None:
    (sources / "answer.cpp").write_text("#error this is no program\n")
    with pytest.raises(BuildError, match="this is no program") as failure:
        build(tmp_path / "cache", sources)
    assert "\n" not in str(failure.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_compiler(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ compiler is installed \(looked for no-such-compiler\)"):
        build(tmp_path, sources, compilers=("no-such-compiler",))


class TestCheck:
    """What ``build`` would refuse is refused without compiling."""

    def test_what_can_be_built(self, sources: Path) -> None:
        check(sources)
        check()

    def test_no_compiler(self, sources: Path) -> None:
        with pytest.raises(BuildError, match=r"no C\+\+ compiler is installed"):
            check(sources, compilers=("no-such-compiler",))

    def test_a_cpu_that_the_compiler_does_not_know(self, sources: Path) -> None:
        with pytest.raises(BuildError, match="no-such-cpu"):
            check(sources, cpu="no-such-cpu")

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="x86's names")
    def test_a_cpu_that_the_sources_refuse(self) -> None:
        with pytest.raises(BuildError, match="this CPU has neither AVX-512"):
            check(cpu="x86-64")

    def test_nothing_is_compiled(self, sources: Path) -> None:
        (sources / "answer.cpp").write_text("this is no C++, but it can be preprocessed\n")
        check(sources)


class TestInterrupted:
    """The compiler and its file go with whoever started it. The one here never ends by itself."""

    @pytest.fixture
    def slow(self, tmp_path: Path) -> str:
        """A compiler that says its id and that of a process of its own, then waits."""
        path = tmp_path / "slow-compiler"
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *-dM*) exit;; esac\nsleep 100 &\necho $$ $! > {tmp_path}/ids.new\n'
            f"mv {tmp_path}/ids.new {tmp_path}/ids\nwait\n"
        )
        path.chmod(0o755)
        return str(path)

    def compiling(self, tmp_path: Path) -> list[int]:
        eventually((tmp_path / "ids").exists)
        ids = [int(word) for word in (tmp_path / "ids").read_text().split()]
        assert all(map(alive, ids))
        assert len(list((tmp_path / "cache").iterdir())) == 1
        return ids

    def all_gone(self, ids: list[int], tmp_path: Path) -> None:
        eventually(lambda: not any(map(alive, ids)))
        eventually(lambda: not list((tmp_path / "cache").iterdir()))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_by_a_signal(self, sources: Path, tmp_path: Path, slow: str, number: signal.Signals) -> None:
        # A shell's background job, which these tests may be, passes SIGINT on as ignored.
        script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        script += "import sys; from pathlib import Path; from mlxserve.backends.torch.native.build import build\n"
        script += "build(Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3],))"
        command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(sources), slow]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as builder:
            ids = self.compiling(tmp_path)
            builder.send_signal(number)
            builder.wait(3)
        self.all_gone(ids, tmp_path)

    def test_by_its_time_limit(self, sources: Path, tmp_path: Path, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mlxserve.backends.torch.native.build.TIMEOUT_S", 1.0)
        with pytest.raises(BuildError, match="slow-compiler did not end within 1 s"):
            build(tmp_path / "cache", sources, (slow,))
        self.all_gone([int(word) for word in (tmp_path / "ids").read_text().split()], tmp_path)

    def test_what_a_stopped_machine_left_is_removed(self, sources: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        cache.mkdir()
        for name, age_s in (("unfinished-old.so", 2 * TIMEOUT_S + 60), ("unfinished-new.so", 0)):
            (cache / name).touch()
            os.utime(cache / name, (time.time() - age_s,) * 2)
        library = build(cache, sources)
        assert {path.name for path in cache.iterdir()} == {library.name, "unfinished-new.so"}


def alive(process: int) -> bool:
    """Zombies, whom nobody may have waited for yet, are not."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True)
    return ps.stdout.strip()[:1] not in ("", "Z")


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_is_said_when_something_is_compiled_and_only_then(sources: Path, tmp_path: Path) -> None:
    said: list[str] = []
    build(tmp_path, sources, notify=said.append)
    assert said == ["building the C++ operators, once (some seconds)"]
    build(tmp_path, sources, notify=said.append)
    assert len(said) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written(sources: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BuildError, match="cannot be written"):
        build(tmp_path / "cache", sources)


def spec(**over: object) -> ModelSpec:
    return model_spec({**LLAMA, **over}, None)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, library_path: Path) -> None:
    monkeypatch.setattr(selection, "build", lambda cache, notify: library_path)
    monkeypatch.setattr(selection, "OUTPUTS", 64)


@pytest.mark.usefixtures("built")
class TestSelection:
    @pytest.mark.parametrize("weights", ["int4", "int8"])
    def test_as_asked(self, weights: CpuWeights) -> None:
        backend = get_backend("torch", "auto", cpu_weights=weights, spec=spec)
        assert isinstance(backend, NativeBackend)
        assert backend.ops.form == weights
        assert backend.note == f"{weights} weights"

    @pytest.mark.parametrize("fastest", ["int4", "int8"])
    def test_auto_takes_the_fastest(self, fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(selection, "measure", lambda library, form: 0.001 if form == fastest else 0.002)
        backend = get_backend("torch", "auto", spec=spec)
        assert isinstance(backend, NativeBackend)
        assert backend.ops.form == fastest
        assert backend.note.startswith(f"{fastest} weights (measured: int4 ")

    def test_it_can_be_measured(self, library: Library) -> None:
        assert 0 < selection.measure(library, "int4") < 1
        assert 0 < selection.measure(library, "int8") < 1

    def test_float32_is_torchs_own(self) -> None:
        assert type(get_backend("torch", "auto", cpu_weights="float32", spec=spec)) is TorchBackend

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"dtype": "bfloat16"}, "need --dtype float32"),
            ({"attention": "paged"}, "and --attention-backend auto"),
            ({"spec": lambda: spec(head_dim=24)}, "do not cover llama"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, object], reason: str) -> None:
        arguments = {"dtype": "auto", "spec": spec, **options}
        backend = get_backend("torch", **arguments)  # type: ignore[arg-type]
        assert type(backend) is TorchBackend
        assert reason in backend.note
        with pytest.raises(ConfigError, match=reason):
            get_backend("torch", cpu_weights="int4", **arguments)  # type: ignore[arg-type]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cache: Path, notify: object) -> Path:
        raise BuildError("no C++ compiler is installed")

    monkeypatch.setattr(selection, "build", refuse)
    backend = get_backend("torch", "auto", spec=spec)
    assert type(backend) is TorchBackend
    assert backend.note == "float32 weights (no C++ compiler is installed)"
    with pytest.raises(ConfigError, match=r"--cpu-weights is int8, but no C\+\+ compiler is installed"):
        get_backend("torch", "auto", cpu_weights="int8", spec=spec)


def test_mlx_has_its_own() -> None:
    with pytest.raises(ConfigError, match="--cpu-weights is int4, but mlx"):
        get_backend("mlx", "auto", cpu_weights="int4")


def test_the_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="--cpu-weights is int3, but must be one of auto, int4, int8, float32"):
        ModelConfig(cpu_weights="int3")  # type: ignore[arg-type]


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.cache_directory() == tmp_path / "mlxserve"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert config.cache_directory() == Path.home() / ".cache" / "mlxserve"
