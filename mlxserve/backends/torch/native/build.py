"""Compiles ``kernels/cpu`` for this very CPU, once: the library is cached by what it was made from.

Knows the compiler and the cache; knows nothing of what is in the library.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mlxserve.backends.torch.native import leash

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
NOTICE = "building the C++ operators, once (some seconds)"
_UNFINISHED = "unfinished-"


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
    cache: Path,
    sources: Path | None = None,
    compilers: tuple[str, ...] = COMPILERS,
    cpu: str = "native",
    notify: Callable[[str], None] | None = None,
) -> Path:
    """The library's path. ``cpu`` is the compiler's name for one that this one can stand in for.

    ``notify`` is told NOTICE before anything is compiled. Raises BuildError when there is no compiler, or it cannot
    compile for this CPU. The compiler ends with this call and with this process, however either ends.
    """
    sources = sources or source_directory()
    command = _command(compilers, cpu)
    library = cache / f"libmlxserve-{_key(command, sources)}.so"
    if not library.exists():
        if notify is not None:
            notify(NOTICE)
        _compile(command, sources, library)
    return library


def check(sources: Path | None = None, compilers: tuple[str, ...] = COMPILERS, cpu: str = "native") -> None:
    """Raises BuildError where ``build`` would, in a fraction of a second: the sources are preprocessed only."""
    sources = sources or source_directory()
    command = _command(compilers, cpu)
    for source in sorted(sources.glob("*.cpp")):
        _run([*command, "-E", str(source), "-o", os.devnull])


def find_compiler(compilers: tuple[str, ...] = COMPILERS) -> str | None:
    """The path of the first that is installed."""
    return next((found for name in compilers if (found := shutil.which(name))), None)


def _command(compilers: tuple[str, ...], cpu: str) -> list[str]:
    compiler = find_compiler(compilers)
    if compiler is None:
        raise BuildError(f"no C++ compiler is installed (looked for {', '.join(compilers)})")
    return [compiler, f"{CPU_FLAG}={cpu}", *FLAGS]


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
        _remove_unfinished(library.parent)
        handle, name = tempfile.mkstemp(dir=library.parent, prefix=_UNFINISHED, suffix=".so")
    except OSError as error:
        raise BuildError(f"{library.parent} cannot be written: {error.strerror}") from error
    os.close(handle)
    try:
        compile_all = [*command, *(str(p) for p in sorted(sources.glob("*.cpp"))), "-o", name]
        _run([sys.executable, "-I", "-S", str(leash.__file__), name, *compile_all], compile_all[0])
        Path(name).replace(library)
    finally:
        Path(name).unlink(missing_ok=True)


def _remove_unfinished(cache: Path) -> None:
    """What a machine that stopped left behind: older than a compiler is let live, so no other process writes it."""
    for path in cache.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just renamed it
            if time.time() - path.stat().st_mtime > 2 * TIMEOUT_S:
                path.unlink()


def _run(command: list[str], compiler: str = "") -> str:
    """What ``command`` printed. It has a pipe as its input that closes when the call ends, or this process does."""
    compiler = compiler or command[0]
    theirs, ours = os.pipe()
    try:
        with open(theirs, "rb") as stdin, open(ours, "wb") as held, _start(command, stdin) as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            except BaseException:  # an interrupt too
                held.close()
                raise
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} did not end within {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{compiler} did not run: {error}") from error
    if process.returncode:
        lines = errors.splitlines() or ["no message"]
        raise BuildError(f"{compiler} failed: {next((line for line in lines if 'error' in line), lines[0])}")
    return output


def _start(command: list[str], stdin: IO[bytes]) -> subprocess.Popen[str]:
    """In a session of its own: a terminal's Ctrl-C is for us alone."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
