"""Compiles ``kernels/cpu`` for this very CPU, once: the library is cached by what it was made from.

Knows the compiler and the cache; knows nothing of what is in the library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",  # a row's bits must not depend on which of two loops the compiler fused
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-w",
)
COMPILERS = ("c++", "g++", "clang++")
CPU_FLAG = "-mcpu" if platform.machine() in ("arm64", "aarch64") else "-march"
TIMEOUT_S = 300.0


class BuildError(Exception):
    """Why there is no library, in one line."""


def source_directory() -> Path:
    """``kernels/cpu`` of the repository, else of the installed package."""
    package = Path(__file__).resolve().parents[3]
    for root in (package.parent, package):
        if (root / "kernels" / "cpu").is_dir():
            return root / "kernels" / "cpu"
    raise BuildError("the C++ sources are not installed")


def build(
    cache: Path, sources: Path | None = None, compilers: tuple[str, ...] = COMPILERS, cpu: str = "native"
) -> Path:
    """The library's path. ``cpu`` is the compiler's name for one that this one can stand in for.

    Raises BuildError when there is no compiler, or it cannot compile for this CPU.
    """
    sources = sources or source_directory()
    compiler = next((found for name in compilers if (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler is installed (looked for {', '.join(compilers)})")
    command = [compiler, f"{CPU_FLAG}={cpu}", *FLAGS]
    library = cache / f"libmlxserve-{_key(command, sources)}.so"
    if not library.exists():
        _compile(command, sources, library)
    return library


def _key(command: list[str], sources: Path) -> str:
    """Changes with the sources, the flags, the compiler and the CPU's instruction sets."""
    digest = hashlib.sha256(repr(command).encode())
    # The predefined macros name the compiler's version and every instruction set of this CPU.
    digest.update(_run([*command[:2], "-dM", "-E", "-x", "c++", os.devnull]).encode())
    for path in sorted(sources.glob("*.[hc]*")):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(command: list[str], sources: Path, library: Path) -> None:
    """Into a file of its own first, so that a half-written library is never loaded."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=library.parent, suffix=".so")
    except OSError as error:
        raise BuildError(f"{library.parent} cannot be written: {error.strerror}") from error
    os.close(handle)
    try:
        _run([*command, *(str(p) for p in sorted(sources.glob("*.cpp"))), "-o", name])
        Path(name).replace(library)
    finally:
        Path(name).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {next((line for line in lines if 'error' in line), lines[0])}")
    return done.stdout
