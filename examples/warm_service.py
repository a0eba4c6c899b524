"""A service that keeps a cache warm: ``python examples/warm_service.py LIST [--every SECONDS | --once]``.

LIST has one image a line. In each round the service reads it, asks the registries what the tags mean now, and fetches
what is new. An image that fails does not stop the others. It logs one JSON object a line. SIGTERM ends it; downloaded
data stays in the cache.
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
    """Print one line."""
    print(json.dumps({"time": round(time.time(), 3), "what": what, **facts}), flush=True)


def on_event(event: Event) -> None:
    """Log downloads and retries."""
    match event:
        case LayerDone() if not event.was_cached:
            log("fetched", image=event.source, layer=str(event.digest), bytes=event.size)
        case Retrying(host, reason, pause):
            log("retrying", host=host, reason=reason, pause_seconds=round(pause, 1))


def read_list(path: Path) -> list[str]:
    """Return the images of the list."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


async def serve(path: Path, every_seconds: float, once: bool) -> int:
    """Warm the cache until a signal comes; return the number of failures in the last round."""
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
    """Read the command line, and run the service."""
    parser = argparse.ArgumentParser(description="Keep a cache warm.")
    parser.add_argument("list", type=Path)
    parser.add_argument("--every", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    return 1 if asyncio.run(serve(options.list, options.every, options.once)) else 0


if __name__ == "__main__":
    sys.exit(main())
