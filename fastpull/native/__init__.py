"""The native module, or its Python reference if ``FASTPULL_NO_EXTENSIONS=1`` is set.

There is no silent fallback: without that variable a missing extension raises ImportError. The reference is for reading
and for tests; it is slow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("FASTPULL_NO_EXTENSIONS") != "1":
    from fastpull.native._native import (
        BlockCutter,
        EntryTable,
        FileWriter,
        Fingerprints,
        PayloadWriter,
        Scanner,
        Spans,
        exchange,
        find_deflate_block,
        give_back,
        remove_tree,
        start_writeback,
        sync_filesystem,
    )
else:
    from fastpull.native.pure.blocks import BlockCutter
    from fastpull.native.pure.deflate import find_deflate_block
    from fastpull.native.pure.entry_table import EntryTable, Spans
    from fastpull.native.pure.files import FileWriter
    from fastpull.native.pure.fingerprints import Fingerprints
    from fastpull.native.pure.payload import PayloadWriter
    from fastpull.native.pure.scanner import Scanner
    from fastpull.native.pure.system import exchange, give_back, remove_tree, start_writeback, sync_filesystem

__all__ = [
    "BlockCutter",
    "EntryTable",
    "FileWriter",
    "Fingerprints",
    "PayloadWriter",
    "Scanner",
    "Spans",
    "exchange",
    "find_deflate_block",
    "give_back",
    "remove_tree",
    "start_writeback",
    "sync_filesystem",
]
