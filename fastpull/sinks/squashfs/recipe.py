"""Recipes: all that decides, beside the image, on the bytes of a squashfs file."""

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
"""Raised by every change after which the same image and recipe give other bytes; a test knows the bytes."""

DEFAULT_BLOCK_SIZE = 128 << 10
_TIMES = "squashfs holds times from 1970 to 2106, in seconds since the epoch"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a squashfs file is made; the same image by the same recipe gives the same bytes.

    Attributes:
        compressor: of all blocks.
        block_size: of data blocks, in bytes.
        fragments: whether small files and tails of files share blocks.
        mtime: of all inodes, in seconds since the epoch; None for their own.
        time: of the file system, likewise; None for the image's ``created``.
        runtimes: names of those of `fastpull.runtimes` whose files are added to the image's own, in order.
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
        """Makes a recipe of options, see `fastpull.sinks.squashfs.sink.Squashfs`.

        Raises:
            InvalidSetting: a value is out of its range.
        """
        try:
            check_block_size(block_size)
        except ValueError:
            raise InvalidSetting(str(block_size), "a block size has to be a power of two from 4K to 1M") from None
        if time is None:
            time = _source_date_epoch()
        for seconds in (mtime, time):
            if seconds is not None and not 0 <= seconds <= MAX_U32:
                raise InvalidSetting(str(seconds), _TIMES)
        return cls(parse_compression(compression), block_size, fragments, mtime, time, runtimes)

    def facts(self, source: str) -> dict[str, Any]:
        """The recipe as JSON has it, with the versions of writer and codecs, which decide on the bytes as well.

        Args:
            source: of the image; what profiles add may name it.
        """
        return {
            **self.tree_facts(),
            "dialects": list(self.runtimes),
            "source": source if self.runtimes else None,
            "codecs": self.compressor.versions(),
        }

    def tree_facts(self) -> dict[str, Any]:
        """The part of `facts` that does not change with the libraries, nor with what runtimes want."""
        return {
            "compression": str(self.compressor),
            "block_size": self.block_size,
            "fragments": self.fragments,
            "mtime": self.mtime,
            "time": self.time,
            "writer": WRITER_VERSION,
        }


def _source_date_epoch() -> int | None:
    """The time that a build asks for, see reproducible-builds.org."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidSetting(text, f"SOURCE_DATE_EPOCH: {_TIMES}")
    return int(text)
