"""Recipes: the options that determine, together with the image, the bytes of a squashfs file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fastpull.errors import InvalidSetting
from fastpull.sinks.squashfs.blocks.compressors import DEFAULT_COMPRESSION, parse_compression
from fastpull.sinks.squashfs.format.superblock import MAX_U32, check_block_size

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.blocks.compressors import Compressor

WRITER_VERSION = 2
"""The version of the output format. Every change of the output bytes increments it; a test compares the bytes."""

DEFAULT_BLOCK_SIZE = 128 << 10
_TIMES = "a time in a squashfs image is from 0 to 4294967295 seconds since the epoch (1970 to 2106)"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The options of a squashfs file. The same image and recipe give the same bytes.

    Attributes:
        compressor: the compressor of all blocks.
        block_size: the size of data blocks, in bytes.
        fragments: whether small files and tail-ends share fragment blocks.
        mtime: the time of all inodes, in seconds since the epoch; None for their own.
        time: the time of the image, in seconds since the epoch; None for ``created`` of its config.
        runtimes: the names of the runtimes whose files are added to the image, in order.
    """

    compressor: Compressor
    block_size: int
    fragments: bool
    mtime: int | None
    time: int | None
    runtimes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        compression: str = DEFAULT_COMPRESSION,
        block_size: int = DEFAULT_BLOCK_SIZE,
        *,
        fragments: bool = True,
        mtime: int | None = None,
        time: int | None = None,
        runtimes: tuple[str, ...] = (),
    ) -> Self:
        """Make a recipe from options, see `fastpull.sinks.squashfs.sink.Squashfs`.

        Raises:
            InvalidSetting: an option is out of range.
        """
        try:
            check_block_size(block_size)
        except ValueError:
            raise InvalidSetting(str(block_size), "a block size is a power of two from 4K to 1M") from None
        if time is None:
            time = _source_date_epoch()
        for seconds in (mtime, time):
            if seconds is not None and not 0 <= seconds <= MAX_U32:
                raise InvalidSetting(str(seconds), _TIMES)
        return cls(parse_compression(compression), block_size, fragments, mtime, time, runtimes)

    def facts(self, source: str) -> dict[str, Any]:
        """Return the recipe as JSON facts, with the versions of the writer and the codecs.

        Args:
            source: the source of the image; the files for runtimes may contain it.
        """
        return {
            **self.tree_facts(),
            "dialects": list(self.runtimes),
            "source": source if self.runtimes else None,
            "codecs": self.compressor.versions(),
        }

    def tree_facts(self) -> dict[str, Any]:
        """Return the facts that do not depend on the libraries or the runtimes."""
        return {
            "compression": str(self.compressor),
            "block_size": self.block_size,
            "fragments": self.fragments,
            "mtime": self.mtime,
            "time": self.time,
            "writer": WRITER_VERSION,
        }


def _source_date_epoch() -> int | None:
    """Return the time that the build environment sets, see reproducible-builds.org."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidSetting(text, f"SOURCE_DATE_EPOCH: {_TIMES}")
    return int(text)
