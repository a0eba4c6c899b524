"""The number of processors that this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of processors that affinity and control group allow this process."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota + 0.5))) if quota else cores


def _cgroup_quota() -> float | None:
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            with open(path) as file:
                words = file.read().split()
            if len(words) == 1:
                with open(path.replace("quota", "period")) as file:
                    words.append(file.read().strip())
            quota, period = words
            if quota not in ("max", "-1") and int(period) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return None
