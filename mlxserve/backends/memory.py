"""How much memory the host can still give. Knows no array library."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_host_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes that can be allocated without swapping, within a container's limit; where the system does not say (not
    Linux), half of the physical memory."""
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(int(text) - int(used.read_text()), 0))
    return available
