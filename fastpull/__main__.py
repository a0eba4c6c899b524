"""The programs ``fastpull`` and ``fastpull-importer``; also ``python -m fastpull``, if they are not on PATH."""

from __future__ import annotations

import signal
from typing import NoReturn


def _let_interrupts_end_the_process() -> None:
    """Let Ctrl-C end the process at once and without a traceback, while there is nothing to clean up.

    Loading modules takes a good part of a second. A running event loop handles the signal itself.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def script() -> NoReturn:
    """Run ``fastpull``."""
    _let_interrupts_end_the_process()
    from fastpull.cli import script as run  # noqa: PLC0415

    run()


def importer_script() -> NoReturn:
    """Run ``fastpull-importer``."""
    _let_interrupts_end_the_process()
    from fastpull.cli.importer_cmd import script as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    script()
