"""A service that keeps a cache warm: ``python examples/warm_service.py LIST [--every SECONDS | --once]``.

LIST has an image a line. Again and again the service reads it, asks the registries what its tags are now, and fetches
what is new; an image that cannot be had does not stop the others. It logs a JSON object a line. SIGTERM ends it, and
what was downloaded so far is not lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import fastpull
from fastpull.progress import Event, LayerDone, Retrying


def log(what: str, **facts: object) -> None:
    """Writes one line."""
    print(json.dumps({"time": round(time.time(), 3), "what": what, **facts}), flush=True)


def on_event(event: Event) -> None:
    """Logs what costs something."""
    match event:
        case LayerDone() if not event.was_cached:
            log("fetched", image=event.source, layer=str(event.digest), bytes=event.size)
        case Retrying(host, reason, pause):
            log("retrying", host=host, reason=reason, pause_seconds=round(pause, 1))


def read_list(path: Path) -> list[str]:
    """The images that are to be there."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


async def serve(path: Path, every_seconds: float, once: bool) -> int:
    """Warms until it is told to stop; returns how many images failed in the last round."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    failed = 0
    async with fastpull.Client(on_event=on_event) as client:
        while not stopping.is_set():
            warming = asyncio.create_task(client.warm(read_list(path), jobs=4))
            await asyncio.wait({warming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not warming.done():
                warming.cancel()
                await asyncio.wait({warming})
                break
            failed = 0
            for report in warming.result():
                failed += report.error is not None
                if report.error is not None:
                    log("failed", image=report.source, error=str(report.error), code=report.error.exit_code)
                elif report.image is not None:
                    log("warm", image=report.source, digest=str(report.image.digest), bytes=report.image.size)
            if once:
                break
            await asyncio.wait({stopped}, timeout=every_seconds)
    stopped.cancel()
    log("stopped", failed=failed)
    return failed


def main() -> int:
    """Reads the command line, and serves."""
    parser = argparse.ArgumentParser(description="Keeps a cache warm.")
    parser.add_argument("list", type=Path)
    parser.add_argument("--every", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    return 1 if asyncio.run(serve(options.list, options.every, options.once)) else 0


if __name__ == "__main__":
    sys.exit(main())
