"""Run a coroutine from the command line, with uvloop and a clean end on signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTED = 130

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP ended the work, after cleanup."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine until it ends, or until SIGINT, SIGTERM or SIGHUP. A second signal skips the cleanup.

    A signal that is ignored stays ignored, such as SIGHUP under nohup.

    Raises:
        Interrupted: a signal ended the work.
    """
    # commands that run no coroutine do not load these
    import asyncio  # noqa: PLC0415

    import uvloop  # noqa: PLC0415

    before = signal.getsignal(signal.SIGINT)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_signal(work))
    finally:
        signal.signal(signal.SIGINT, before)  # the loop restores Python's handler, which prints a traceback


async def _until_signal(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # noqa: PLC0415

    task = asyncio.create_task(work)
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals:
            os._exit(INTERRUPTED)
        signals.append(number)
        if sys.stderr.isatty():
            print("fastpull: stopping (press again to exit at once)", file=sys.stderr)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if signals:
            raise Interrupted from None
        raise
