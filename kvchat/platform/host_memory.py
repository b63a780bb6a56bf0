"""Host memory that this process may still allocate."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int:
    """Return the bytes that can be allocated without swapping, on the machine or in its control group."""
    available = _machine_bytes()
    group = _group_bytes()
    return available if group is None else min(available, group)


def _machine_bytes() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _group_bytes() -> int | None:
    """Return what the control group leaves, None without a limit."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = (CGROUP / "memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
