"""The machine a measurement was made on: the description that goes into every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, memory, system and the versions of what was measured."""
    versions = {}
    for package in ("mlxserve", "torch", "mlx", "mlx-lm", "transformers", "llama-cpp-python"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
