"""The tar stage: the native one, or its Python reference where ``FASTPULL_NO_EXTENSIONS=1`` asks for it.

There is no silent fallback: without that variable a missing extension is an ImportError, because the reference is made
to be read and compared with, not to be fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("FASTPULL_NO_EXTENSIONS") != "1":
    from fastpull._native import (
        BlockCutter,
        EntryTable,
        FileWriter,
        Fingerprints,
        PayloadWriter,
        Scanner,
        Spans,
        exchange,
        give_back,
        remove_tree,
        start_writeback,
        sync_filesystem,
    )
else:
    from fastpull.reference.blocks import BlockCutter
    from fastpull.reference.files import FileWriter
    from fastpull.reference.payload import PayloadWriter
    from fastpull.reference.prints import Fingerprints
    from fastpull.reference.scanner import EntryTable, Scanner, Spans
    from fastpull.reference.system import exchange, give_back, remove_tree, start_writeback, sync_filesystem

__all__ = [
    "BlockCutter",
    "EntryTable",
    "FileWriter",
    "Fingerprints",
    "PayloadWriter",
    "Scanner",
    "Spans",
    "exchange",
    "give_back",
    "remove_tree",
    "start_writeback",
    "sync_filesystem",
]
