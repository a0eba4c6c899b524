"""The importer, started like pyxis does: by its path, without PATH, with empty stdin and no other descriptors."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.processes import ProcessResult, end

PROGRAM = str(Path(sys.executable).with_name("fastpull-importer"))


async def start(*arguments: str, environment: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        close_fds=True,
        cwd="/",
    )


async def call(*arguments: str, environment: dict[str, str]) -> ProcessResult:
    return await end(await start(*arguments, environment=environment))


def step(cache: str, job: int | str = 7, number: int | str = 0, **more: str) -> dict[str, str]:
    """Return the minimal environment of a step."""
    return {"FASTPULL_CACHE": cache, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number), **more}
