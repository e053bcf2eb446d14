"""Compiles rewritten kernels and the runtime, once each, into a cache directory outside the repository.

Compiler: $CXX, else g++ 12 or newer, else clang++, else the one that pip's ``ziglang`` carries.
Knows nothing of launches.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from kernels.sim.rewrite import RewriteError, rewrite

ROOT = Path(__file__).parent
INCLUDE = ROOT / "include"
Mode = Literal["plain", "checked", "checked_zeroed"]

# Every <metal_*> header is metal_stdlib.
_FORWARDED = (
    "array atomic common compute config geometric integer limits math matrix pack quadgroup relational simdgroup "
    "simdgroup_matrix type_traits"
).split()


class CompileError(RuntimeError):
    """The kernel does not compile; the message is the compiler's."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    kind: Literal["gcc", "clang", "zig"]
    version: str

    def flags(self, mode: Mode) -> list[str]:
        arm = platform.machine() in ("aarch64", "arm64")
        march = "armv8.2-a+fp16" if arm else "x86_64_v3" if self.kind == "zig" else "x86-64-v3"
        flags = ["-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fno-math-errno"]
        flags += ["-w", "-O2", f"-march={march}", "-ffp-contract=off"]
        if self.kind == "gcc":
            flags += ["-fno-diagnostics-show-caret", "-fsingle-precision-constant"] + (
                [] if arm else ["-fexcess-precision=16"]
            )
        else:
            flags += [
                "-fno-caret-diagnostics",
                "-Wno-reserved-user-defined-literal",
                "-Xclang",
                "-ffloat16-excess-precision=none",
            ]
        if mode == "plain":
            return [*flags, "-fno-sanitize=all"] if self.kind == "zig" else flags
        return flags + self._checked(mode)

    def _checked(self, mode: Mode) -> list[str]:
        """Instrumentation by the compiler's passes; runtime/sanitizer.cpp answers it. Vectorisers off: an access of
        more than 16 bytes is not instrumented. Locals are filled, with a pattern or zeros: results that differ between
        the two read uninitialised private memory."""
        fill = "zero" if mode == "checked_zeroed" else "pattern"
        flags = ["-g1", "-DMTL_SANITIZE", "-fsanitize=thread", f"-ftrivial-auto-var-init={fill}"]
        if self.kind == "gcc":
            return [
                *flags,
                "-fno-tree-vectorize",
                "-fno-tree-slp-vectorize",
                "-fsanitize=bounds-strict,object-size,alignment,shift,integer-divide-by-zero",
                "--param=tsan-instrument-func-entry-exit=0",
            ]
        return [
            *flags,
            "-fno-vectorize",
            "-fno-slp-vectorize",
            "-fno-sanitize=undefined",
            "-fsanitize=array-bounds,alignment,shift,integer-divide-by-zero",
            "-fno-sanitize-trap=all",
            "-mllvm",
            "-tsan-instrument-func-entry-exit=0",
            "-mllvm",
            "-tsan-instrument-read-before-write=1",
        ]

    def link(self, output: Path, objects: list[Path], libraries: list[str]) -> list[str]:
        paths = [str(o) for o in objects]
        if self.kind == "zig":  # its own driver would add its undefined-behaviour runtime
            return [self.command[0], "ld.lld", "-shared", "-o", str(output), *paths]
        return [*self.command, "-shared", "-o", str(output), *paths, *libraries]


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"the C++ compiler {' '.join(command)} does not run: {error}") from error
    return done.stdout.splitlines()[0]


@cache
def find_compiler() -> Compiler:
    """Raises CompileError when the machine has none."""
    if os.environ.get("CXX"):
        command = tuple(shlex.split(os.environ["CXX"]))
        version = _version(command)
        kind: Literal["gcc", "clang", "zig"] = (
            "zig" if "zig" in Path(command[0]).name else "clang" if "clang" in version else "gcc"
        )
        return Compiler(command, kind, version)
    if shutil.which("g++"):
        major = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
        if int(major.split(".")[0]) >= 12:
            return Compiler(("g++",), "gcc", _version(("g++",)))
    for name in ("clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16"):
        if shutil.which(name):
            return Compiler((name,), "clang", _version((name,)))
    spec = importlib.util.find_spec("ziglang")
    if spec is not None and spec.submodule_search_locations:
        zig = str(Path(spec.submodule_search_locations[0]) / "zig")
        return Compiler((zig, "c++"), "zig", "zig " + _version((zig, "c++")))
    raise CompileError("the kernel simulator needs a C++ compiler: g++ 12 or newer, clang, or `pip install ziglang`")


@cache
def mlx_include() -> Path:
    """Where the installed mlx keeps its kernels' headers."""
    spec = importlib.util.find_spec("mlx")
    if spec is None or not spec.submodule_search_locations:
        raise CompileError("the kernel simulator needs mlx for its headers: pip install 'mlx[cpu]'")
    return Path(next(iter(spec.submodule_search_locations))) / "include"


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(os.environ.get("MLXSERVE_SIM_CACHE") or Path(home) / "mlxserve" / "sim")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _swizzles() -> str:
    """The members of a vector that name some of its components, as macros for vector.h."""
    text = ""
    for size in (2, 3, 4):
        members = []
        for letters in ("xyzw"[:size], "rgba"[:size]):
            for count in (2, 3, 4):
                for picked in itertools.product(range(size), repeat=count):
                    if letters[0] == "r" and list(picked) != sorted(set(picked)):
                        continue
                    index = ",".join(str(i) for i in (*picked, -1, -1, -1)[:4])
                    members.append(f"mtl_swizzle<T,{count},{index}> {''.join(letters[i] for i in picked)};")
        text += f"#define MTL_SWIZZLES_{size} " + " ".join(members) + "\n"
    return text


@cache
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted([*INCLUDE.rglob("*"), *(ROOT / "runtime").iterdir(), ROOT / "rewrite.py", ROOT / "build.py"]):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _generated_include() -> Path:
    path = cache_directory() / f"include-{_sources_digest()}"
    if not (path / "mtl_swizzles.inc").exists():
        path.mkdir(exist_ok=True)
        for name in _FORWARDED:
            _write(path / f"metal_{name}", "#include <metal_stdlib>\n")
        _write(path / "mtl_swizzles.inc", _swizzles())
    return path


def _write(path: Path, text: str) -> None:
    """Atomic, so that several processes may build at once."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


def include_flags() -> list[str]:
    return [f"-I{d}" for d in (INCLUDE, _generated_include(), mlx_include())]


@cache
def runtime_library() -> Path:
    compiler = find_compiler()
    key = hashlib.sha256((_sources_digest() + compiler.version).encode()).hexdigest()[:20]
    library = cache_directory() / f"runtime-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory() as work:
            objects = []
            for source in sorted((ROOT / "runtime").glob("*.cpp")):
                objects.append(Path(work) / f"{source.stem}.o")
                flags = [f for f in compiler.flags("plain") if f != "-O2"] + ["-O3", f"-I{INCLUDE}"]
                _run([*compiler.command, *flags, "-c", "-o", str(objects[-1]), str(source)])
            built = Path(work) / "runtime.so"
            _run(compiler.link(built, objects, ["-ldl", "-lrt"]))
            shutil.copy(built, f"{library}.{os.getpid()}")
            os.replace(f"{library}.{os.getpid()}", library)
    return library


def compile_kernel(source: str, mode: Mode) -> Path:
    """A shared library whose ``mtl_entry(void **buffers)`` is the kernel. Raises CompileError."""
    compiler = find_compiler()
    flags = compiler.flags(mode)
    key = hashlib.sha256("\0".join([source, *flags, compiler.version, _sources_digest()]).encode()).hexdigest()[:24]
    library = cache_directory() / f"{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory() as work:
        raw, ready, built = Path(work) / "kernel.cpp", Path(work) / "ready.cpp", Path(work) / "kernel.so"
        raw.write_text(source)
        plain = [f for f in flags if not f.startswith("-fsanitize")]
        try:
            ready.write_text(rewrite(_run([*compiler.command, *plain, *include_flags(), "-E", str(raw)])))
        except RewriteError as error:
            raise CompileError(str(error)) from error
        _run([*compiler.command, *flags, "-c", "-o", str(built.with_suffix(".o")), str(ready)])
        _run(compiler.link(built, [built.with_suffix(".o")], ["-lm"]))
        shutil.copy(built, f"{library}.{os.getpid()}")
        os.replace(f"{library}.{os.getpid()}", library)
    return library
