"""The machine and the program versions of a result."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import distributions
from typing import Any

from tests.support.programs import missing, run
from tests.support.setup_errors import ProgramFailed


def machine() -> dict[str, Any]:
    """Return processor, memory, kernel and distribution."""
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
    }


def versions(programs: Iterable[str]) -> dict[str, str]:
    """Return the versions of the interpreter and of each installed program."""
    found = {"python": platform.python_version()}
    for program in programs:
        if not missing([program]):
            try:
                found[program] = run([program, "--version"]).splitlines()[0]
            except (ProgramFailed, IndexError):
                found[program] = "unknown"
    return found


def packages() -> dict[str, str]:
    """Return the versions of the installed Python packages."""
    return dict(sorted((found.name, found.version) for found in distributions()))


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
