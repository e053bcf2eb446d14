"""Builds of the C++ operators for other CPUs give the bits that this CPU's build gives.

The other tests here hold this CPU's build against float64; Arm's is compiled by a cross compiler and runs in an
emulator. Debian's packages: g++-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlxserve.backends.torch.native.build import source_directory

PROGRAM = Path(__file__).parent / "same_bits.cpp"
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-w")


@dataclass(frozen=True)
class Target:
    name: str
    flags: tuple[str, ...]
    compiler: str = "g++"
    emulator: tuple[str, ...] = ()


ARM = ("aarch64-linux-gnu-g++", ("qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"))
OTHERS = (
    Target("AVX2", ("-march=haswell",)),
    Target("Arm with dot products", ("-march=armv8.2-a+dotprod",), *ARM),
    Target("Arm with mixed-sign dot products", ("-march=armv8.6-a+i8mm",), *ARM),
)


def output(target: Target, directory: Path) -> list[str]:
    for tool in (target.compiler, *target.emulator[:1]):
        if shutil.which(tool) is None:
            assert not os.environ.get("CI"), f"{tool} is not installed"
            pytest.skip(f"needs {tool}")
    binary = directory / "same_bits"
    sources = source_directory()
    command = [target.compiler, *target.flags, *FLAGS, f"-I{sources}", str(PROGRAM), *map(str, sources.glob("*.cpp"))]
    subprocess.run([*command, "-o", str(binary)], check=True, timeout=200)
    run = subprocess.run([*target.emulator, str(binary)], check=True, timeout=200, capture_output=True, text=True)
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if platform.machine() != "x86_64":
        pytest.skip("the builds are compared on x86-64")
    lines = output(Target("this CPU", ("-march=native",)), tmp_path_factory.mktemp("here"))
    hashes = [line.split()[-2] for line in lines]
    assert len(set(hashes)) == len(hashes) > 100, "every case has a result of its own"
    assert not any(line.endswith(("nan", "inf")) for line in lines)
    return lines


@pytest.mark.parametrize("target", OTHERS, ids=lambda target: target.name)
def test_the_same_bits(here: list[str], target: Target, tmp_path: Path) -> None:
    assert output(target, tmp_path) == here
