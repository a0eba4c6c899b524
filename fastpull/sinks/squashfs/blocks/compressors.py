"""The compressors of an image, selected by name: ``zstd:3``.

All are deterministic and thread-safe.

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
    """A compressor of blocks.

    Attributes:
        name: the name in settings.
        id: the number in the superblock.
        level: the level; 0 without levels.
        flags: the flags it sets in the superblock.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    flags: ClassVar[int] = 0
    level: int = 0

    def compress(self, data: Data) -> bytes | Data:
        """Compress a data block. If the result is not smaller, the caller stores the block raw."""
        return self.compress_metadata(data)

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """Compress a metadata or fragment block. If the result is not smaller, the caller stores the block raw."""
        raise NotImplementedError

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """Reverse `compress_metadata`; the result has at most ``max_size`` bytes."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name}:{self.level}" if self.level else self.name

    def options(self) -> bytes:
        """Return the compressor options with their header; empty where the options are the defaults of readers."""
        return b""

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that determine the compressed bytes."""
        raise NotImplementedError


def _option_block(content: bytes) -> bytes:
    return metadata_header(len(content), raw=True) + content


@dataclass(frozen=True)
class Zstd(Compressor):
    """Zstandard.

    Each block is a single frame with its content size, so that the window is never larger than the block: the kernel
    allocates no larger window.
    """

    name = "zstd"
    id = 6
    level: int = 1
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`."""
        try:
            context: zstandard.ZstdCompressor = self._local.context
        except AttributeError:  # one per thread; one per block adds 9 µs to the 20 µs of a metadata block
            context = self._local.context = zstandard.ZstdCompressor(level=self.level)
        return context.compress(data)

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_size)

    def options(self) -> bytes:
        """See `Compressor`; the default of readers is level 15."""
        return b"" if self.level == 15 else _option_block(struct.pack("<I", self.level))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {
            "zstandard": zstandard.__version__,
            "libzstd": ".".join(str(part) for part in zstandard.ZSTD_VERSION),
        }


@dataclass(frozen=True)
class Stored(Zstd):
    """No compression of data blocks; metadata and fragment blocks are zstd."""

    name = "none"
    flags = RAW_DATA

    def compress(self, data: Data) -> bytes | Data:
        """Return the data unchanged, so that it is stored raw."""
        return data

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Gzip(Compressor):
    """Deflate in a zlib stream."""

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
        """See `Compressor`; the defaults of readers are level 9, a window of 15 bits and the default strategy."""
        return b"" if self.level == 9 else _option_block(struct.pack("<IHH", self.level, 15, 0))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {"zlib": zlib.ZLIB_RUNTIME_VERSION}


@dataclass(frozen=True)
class Xz(Compressor):
    """LZMA2 in an xz stream with a CRC32, the only check that the kernel supports."""

    name = "xz"
    id = 4

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        """See `Compressor`.

        The dictionary size is the smallest power of two that holds the data, at least 8 KiB. So it never exceeds the
        dictionary that readers allocate: the block size, or 8 KiB for metadata.
        """
        dictionary = 1 << (max(len(data), METADATA_SIZE) - 1).bit_length()
        filters = [{"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_DEFAULT, "dict_size": dictionary}]
        return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)

    def decompress_metadata(self, data: bytes, max_size: int) -> bytes:
        """See `Compressor`."""
        return lzma.LZMADecompressor().decompress(data, max_size)

    def versions(self) -> dict[str, str]:
        """See `Compressor`; Python does not expose the version of its liblzma."""
        return {"lzma of python": platform.python_version()}


def _lz4() -> ModuleType:
    try:
        import_module("lz4.block")
        return import_module("lz4")
    except ImportError:
        raise InvalidSetting("lz4", "a package for lz4 is not installed (pip install '.[lz4]')") from None


@dataclass(frozen=True)
class Lz4(Compressor):
    """LZ4 in raw blocks without a size field.

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
        """See `Compressor`; the options are mandatory: version 1 of the block format, no high-compression mode."""
        return _option_block(struct.pack("<II", 1, 0))

    def versions(self) -> dict[str, str]:
        """See `Compressor`."""
        return {"lz4": self._package.__version__, "liblz4": self._package.library_version_string()}


_WITH_LEVELS: dict[str, tuple[type[Zstd | Gzip], int]] = {"zstd": (Zstd, 22), "gzip": (Gzip, 9)}
_WITHOUT_LEVELS: dict[str, type[Compressor]] = {"xz": Xz, "lz4": Lz4, "none": Stored}


def parse_compression(text: str = DEFAULT_COMPRESSION) -> Compressor:
    """Return a compressor by its name.

    Args:
        text: ``zstd[:LEVEL]``, ``gzip[:LEVEL]``, ``lz4``, ``xz`` or ``none``.

    Raises:
        InvalidSetting: the compressor or the level does not exist, or lz4 is not installed.
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
