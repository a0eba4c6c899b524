"""``-vv``: the debug log of the package ``fastpull`` on standard error."""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
from collections.abc import Iterator

import fastpull
from fastpull.errors import printable

_FORMAT = "debug: %(asctime)s.%(msecs)03d %(name)s: %(message)s"


class _StderrHandler(logging.Handler):
    """Prints each record to ``sys.stderr`` of that moment, which the live display replaces."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(printable(self.format(record)), file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


@contextlib.contextmanager
def debug_log() -> Iterator[None]:
    """Show the debug lines of ``fastpull`` and its packages for the time of the context."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    logger = logging.getLogger("fastpull")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        logger.debug("fastpull %s, Python %s, %s", fastpull.__version__, platform.python_version(), platform.platform())
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
