"""The fastpull command as a separate process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class ProcessResult:
    code: int
    out: str
    err: str


_AS_NOBODY = """
import encodings.idna, os, pkgutil, sys, uvloop, fastpull
for module in pkgutil.walk_packages(fastpull.__path__, "fastpull."):  # before the user may be unable to
    __import__(module.name)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from fastpull.cli import main
sys.exit(main())
"""


async def start(
    *arguments: str | Path, cache: str, as_nobody: bool = False, under: Sequence[str] = (), **environment: str
) -> asyncio.subprocess.Process:
    """Start ``fastpull`` with its own cache, optionally under another program.

    Root can start it as an unprivileged user.
    """
    return await asyncio.create_subprocess_exec(
        *under,
        sys.executable,
        *(("-c", _AS_NOBODY) if as_nobody else ("-m", "fastpull")),
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FASTPULL_CACHE": cache, **environment},
    )


async def end(process: asyncio.subprocess.Process, patience_seconds: float = 60) -> ProcessResult:
    """Wait for a process."""
    out, err = await asyncio.wait_for(process.communicate(), patience_seconds)
    assert process.returncode is not None
    return ProcessResult(process.returncode, (out or b"").decode(), err.decode())


async def run(
    *arguments: str | Path, cache: str, as_nobody: bool = False, under: Sequence[str] = (), **environment: str
) -> ProcessResult:
    """Run the command to its end."""
    return await end(await start(*arguments, cache=cache, as_nobody=as_nobody, under=under, **environment))


def kill_unless_ended(process: asyncio.subprocess.Process, ending: asyncio.Task[ProcessResult]) -> bool:
    """Kill a process with a pending `ending`, and return whether it still ran."""
    if ending.done():
        return False
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended meanwhile
        return False
    return True


async def kill(process: asyncio.subprocess.Process, number: int = signal.SIGKILL) -> ProcessResult:
    """Send a signal to a process by its id, and wait for its end."""
    os.kill(process.pid, number)
    return await end(process)
