"""The compressors of an image, chosen by name: ``zstd:3``.

All are deterministic and may be used by several threads at once.

Spec: squashfs-tools-ng doc/format.adoc, Compressors and Compressor Options.
"""

from __future__ import annotations

import lzma
import platform
import struct
import threading
import zlib
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import ClassVar, TypeVar

import zstandard

from fastpull.errors import InvalidSetting
from fastpull.sinks.squashfs.format.superblock import METADATA_SIZE, RAW_DATA, metadata_header

DEFAULT_COMPRESSION = "zstd:1"

Data = TypeVar("Data", bytes, bytearray, memoryview)


class Compressor:
    """How the blocks of an image are compressed.

    Attributes:
        name: what it is called in settings.
        id: its number in the superblock.
        level: where it has levels, else 0.
        flags: what the superblock says because of it.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    flags: ClassVar[int] = 0
    level: int = 0

    def compress(self, data: Data) -> bytes | Data:
        """Compresses a data block; if the result is not smaller, the block is to be stored raw."""
        return self.compress_metadata(data)

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """Compresses a metadata or fragment block; likewise."""
        raise NotImplementedError

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """Reverses `compress_metadata`; the result has ``max_size`` bytes at most."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name}:{self.level}" if self.level else self.name

    def options(self) -> bytes:
        """What stands behind the superblock, with its header; nothing where readers assume what is true."""
        return b""

    def versions(self) -> dict[str, str]:
        """The libraries that decide what the compressed bytes are."""
        raise NotImplementedError


def _option_block(content: bytes) -> bytes:
    return metadata_header(len(content), raw=True) + content


@dataclass(frozen=True)
class Zstd(Compressor):
    """Zstandard.

    Blocks are single frames that name their size, so that the window is never larger than the block: the kernel sets
    aside no more than that.
    """

    name = "zstd"
    id = 6
    level: int = 1
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`."""
        try:
            context: zstandard.ZstdCompressor = self._local.context
        except AttributeError:  # a context is for one thread; one for each block costs 9 µs more, of 20 for metadata
            context = self._local.context = zstandard.ZstdCompressor(level=self.level)
        return context.compress(data)

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_size)

    def options(self) -> bytes:
        """See `Compressor`; readers assume 15."""
        return b"" if self.level == 15 else _option_block(struct.pack("<I", self.level))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {
            "zstandard": zstandard.__version__,
            "libzstd": ".".join(str(part) for part in zstandard.ZSTD_VERSION),
        }


@dataclass(frozen=True)
class Stored(Zstd):
    """No compression of data: blocks of files are raw, the rest is zstd."""

    name = "none"
    flags = RAW_DATA

    def compress(self, data: Data) -> bytes | Data:
        """Returns the data as it is, so that it is stored raw."""
        return data

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Gzip(Compressor):
    """Deflate, in a zlib stream."""

    name = "gzip"
    id = 1
    level: int = 9

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`."""
        return zlib.compress(data, self.level)

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        return zlib.decompressobj().decompress(data, max_size)

    def options(self) -> bytes:
        """See `Compressor`; readers assume level 9, a window of 15 bits and the default strategy."""
        return b"" if self.level == 9 else _option_block(struct.pack("<IHH", self.level, 15, 0))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {"zlib": zlib.ZLIB_RUNTIME_VERSION}


@dataclass(frozen=True)
class Xz(Compressor):
    """LZMA2, in an xz stream with a CRC32, the only check that the kernel knows."""

    name = "xz"
    id = 4

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`.

        The dictionary is the power of two that the data fits in: never larger than the block size, or 8 KiB, which is
        what readers set aside.
        """
        dictionary = 1 << (max(len(data), METADATA_SIZE) - 1).bit_length()
        filters = [{"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_DEFAULT, "dict_size": dictionary}]
        return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        return lzma.LZMADecompressor().decompress(data, max_size)

    def versions(self) -> dict[str, str]:
        """See `Compressor`; Python does not tell which liblzma it has, but brings or is built against one."""
        return {"lzma of python": platform.python_version()}


def _lz4() -> ModuleType:
    try:
        import_module("lz4.block")
        return import_module("lz4")
    except ImportError:
        raise InvalidSetting("lz4", "needs a package that is missing (pip install '.[lz4]')") from None


@dataclass(frozen=True)
class Lz4(Compressor):
    """LZ4, bare blocks without their size.

    Raises:
        InvalidSetting: from the constructor, if the package is not installed.
    """

    name = "lz4"
    id = 5
    _package: ModuleType = field(default_factory=_lz4, init=False, repr=False, compare=False)

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`."""
        packed: bytes = self._package.block.compress(data, store_size=False)
        return packed

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        content: bytes = self._package.block.decompress(data, uncompressed_size=max_size)
        return content

    def options(self) -> bytes:
        """See `Compressor`; these are mandatory: version 1 of the block format, not the high-compression mode."""
        return _option_block(struct.pack("<II", 1, 0))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {"lz4": self._package.__version__, "liblz4": self._package.library_version_string()}


_WITH_LEVELS: dict[str, tuple[type[Zstd | Gzip], int]] = {"zstd": (Zstd, 22), "gzip": (Gzip, 9)}
_WITHOUT_LEVELS: dict[str, type[Compressor]] = {"xz": Xz, "lz4": Lz4, "none": Stored}


def parse_compression(text: str = DEFAULT_COMPRESSION) -> Compressor:
    """A compressor by its name.

    Args:
        text: ``zstd[:LEVEL]``, ``gzip[:LEVEL]``, ``lz4``, ``xz`` or ``none``.

    Raises:
        InvalidSetting: there is no such compressor or level, or lz4 is not installed.
    """
    name, colon, level = text.partition(":")
    if name in _WITH_LEVELS:
        kind, highest = _WITH_LEVELS[name]
        if not colon:
            return kind()
        if not (level.isascii() and level.isdecimal() and len(level) <= 2 and 1 <= int(level) <= highest):
            raise InvalidSetting(text, f"the levels of {name} are 1 to {highest}")
        return kind(level=int(level))
    if text not in _WITHOUT_LEVELS:
        raise InvalidSetting(text, "compression is zstd[:LEVEL], gzip[:LEVEL], lz4, xz or none")
    return _WITHOUT_LEVELS[text]()
