"""Each fact that matters changes one finding, and only what makes serving impossible fails."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxserve.doctor.facts import REQUIRED, Facts, collect
from mlxserve.doctor.findings import GIB, Finding, can_serve, examine

KERNEL = {"kernel": "qmv_int4", "error": 1e-4, "failure": None, "ok": True}
MAC = Facts(
    python=(3, 12, 4),
    system="Darwin",
    machine="arm64",
    release="15.1",
    translated=False,
    packages={**dict.fromkeys(REQUIRED, "1.0"), "mlx": "0.32", "torch": None},
    memory=36 * GIB,
    free_memory=18 * GIB,
    container_limit=None,
    wired_limit=0,
    disk_path=Path("/Users/x/.cache/huggingface/hub"),
    disk_free=200 * GIB,
    open_files=10_240,
    address="127.0.0.1:8000",
    address_error=None,
    embedded_model=True,
    gpu="Apple M3 Pro",
    working_set=27 * GIB,
    kernels=(KERNEL,),
    compiler="/usr/bin/c++",
)
LINUX = replace(
    MAC,
    system="Linux",
    machine="x86_64",
    release="6.1",
    wired_limit=None,
    gpu=None,
    working_set=None,
    kernels=(),
    packages={**MAC.packages, "mlx": None, "torch": "2.13.0+cpu"},
)


def found(facts: Facts) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(facts)}


@pytest.mark.parametrize("facts", [MAC, LINUX], ids=["mac", "linux"])
def test_a_sound_machine_can_serve(facts: Facts) -> None:
    findings = list(examine(facts))
    assert can_serve(findings)
    assert not [finding for finding in findings if finding.status == "warn"]


@pytest.mark.parametrize(
    ("base", "change", "subject", "status", "words"),
    [
        (MAC, {"python": (3, 10, 1)}, "Python", "fail", "3.11"),
        (MAC, {"translated": True, "machine": "x86_64"}, "system", "fail", "Rosetta"),
        (MAC, {"machine": "x86_64"}, "system", "fail", "Intel"),
        (MAC, {"release": "13.6"}, "system", "fail", "macOS 14"),
        (LINUX, {"system": "Windows"}, "system", "fail", "not supported"),
        (MAC, {"packages": {**MAC.packages, "jinja2": None}}, "libraries", "fail", "jinja2 missing"),
        (LINUX, {"packages": {**LINUX.packages, "torch": None}}, "backend", "fail", "neither"),
        (LINUX, {"packages": {**LINUX.packages, "torch": "2.9.1"}}, "torch", "warn", "torch==2.13.0"),
        (MAC, {"gpu": None, "kernels": ()}, "MLX", "fail", "without Metal"),
        (MAC, {"mlx_failure": "ended with status -6"}, "MLX", "fail", "status -6"),
        (LINUX, {"packages": {**LINUX.packages, "mlx": "0.32"}}, "MLX", "note", "CPU device"),
        (
            LINUX,
            {"packages": {**LINUX.packages, "mlx": "0.32"}, "mlx_failure": "ended with status 1"},
            "MLX",
            "warn",
            "status 1",
        ),
        (LINUX, {}, "C++ operators", "ok", "/usr/bin/c++"),
        (
            LINUX,
            {"compiler": None, "operators_failure": "no C++ compiler is installed"},
            "C++ operators",
            "warn",
            "no C++ compiler is installed; the torch backend falls back to float32: 4-bit weights then take about 6 "
            "times the memory, and answers come much more slowly install a C++ compiler: apt install g++",
        ),
        (LINUX, {"operators_failure": "this CPU has neither"}, "C++ operators", "warn", "serve on a CPU that has"),
        (MAC, {"free_memory": GIB}, "memory", "warn", "smaller model"),
        (LINUX, {"container_limit": 4 * GIB}, "memory", "ok", "container may use 4.0"),
        (MAC, {"wired_limit": 34 * GIB}, "wired limit", "warn", "too little"),
        (MAC, {"wired_limit": 28 * GIB}, "wired limit", "ok", "28.0 of 36.0"),
        (MAC, {"disk_free": GIB}, "disk", "warn", "mlxserve rm"),
        (MAC, {"open_files": 256}, "open files", "warn", "ulimit -n"),
        (MAC, {"open_files": -1}, "open files", "ok", "no limit"),
        (MAC, {"address_error": "Address already in use"}, "port", "warn", "--port"),
        (MAC, {"embedded_model": False}, "small model", "note", "pip install"),
        (
            MAC,
            {"kernels": ({**KERNEL, "ok": False, "error": 0.5},)},
            "kernel qmv_int4",
            "fail",
            "differs from its reference by 5.0e-01",
        ),
        (
            MAC,
            {"kernels": ({**KERNEL, "ok": False, "failure": "RuntimeError: no Metal"},)},
            "kernel qmv_int4",
            "fail",
            "RuntimeError: no Metal",
        ),
    ],
)
def test_each_finding(base: Facts, change: dict[str, Any], subject: str, status: str, words: str) -> None:
    facts = replace(base, **change)
    finding = found(facts)[subject]
    assert finding.status == status
    assert words in f"{finding.detail} {finding.remedy}"
    assert finding.remedy or status in ("ok", "note") or subject == "system"
    assert can_serve(list(examine(facts))) == (status != "fail")


def test_a_machine_without_a_compiler_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    facts = collect("127.0.0.1", 0)
    assert facts.compiler is None
    assert facts.operators_failure is not None
    assert "no C++ compiler is installed" in facts.operators_failure


def test_with_metal_torchs_operators_do_not_matter() -> None:
    facts = replace(MAC, packages={**MAC.packages, "torch": "2.13.0"}, compiler=None, operators_failure="none")
    assert "C++ operators" not in found(facts)


def test_this_machine_can_be_looked_at() -> None:
    facts = collect("127.0.0.1", 0)
    assert facts.address_error is None
    assert facts.memory > facts.free_memory > 0
    assert list(examine(facts))
