"""Which backend is chosen, what is imported for it, and how much memory the host can give."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mlxserve.backends import get_backend
from mlxserve.backends.memory import free_host_memory
from mlxserve.errors import ConfigError


@pytest.mark.parametrize(("name", "other"), [("torch", "mlx"), ("mlx", "torch")])
def test_only_the_backend_in_use_is_imported(name: str, other: str) -> None:
    lines = [
        "import sys",
        "from mlxserve.backends import get_backend",
        f"get_backend({name!r}, 'auto')",
        f"print({other!r} in sys.modules)",
    ]
    script = "\n".join(lines)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(("system", "machine", "name"), [("darwin", "arm64", "mlx"), ("linux", "x86_64", "torch")])
def test_auto(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert get_backend("auto", "auto").name == name


def test_a_missing_library_names_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'mlxserve\[torch\]'"):
        get_backend("torch", "auto")


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_dtype(name: str) -> None:
    assert get_backend(name, "auto", "bfloat16").dtype == "float32"  # type: ignore[arg-type]
    assert get_backend(name, "float16").dtype == "float16"  # type: ignore[arg-type]


class TestFreeMemory:
    def test_this_host(self) -> None:
        assert 2**20 < free_host_memory() < 2**50

    def files(self, path: Path, limit: str, used: str) -> tuple[Path, Path]:
        (path / "meminfo").write_text("MemTotal:       8000 kB\nMemAvailable:   5000 kB\n")
        (path / "memory.max").write_text(limit)
        (path / "memory.current").write_text(used)
        return path / "meminfo", path

    @pytest.mark.parametrize(
        ("limit", "used", "free"),
        [
            ("max", "1000", 5_120_000),
            ("3000000", "1000000", 2_000_000),
            ("3000", "4000", 0),
            ("9999999999", "0", 5_120_000),
        ],
    )
    def test_a_container_has_less(self, tmp_path: Path, limit: str, used: str, free: int) -> None:
        assert free_host_memory(*self.files(tmp_path, limit, used)) == free

    def test_elsewhere_half_of_the_physical_memory(self, tmp_path: Path) -> None:
        assert free_host_memory(tmp_path / "none", tmp_path) > 2**20
