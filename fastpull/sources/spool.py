"""Spools: nameless files of the cache, for archives that are compressed or streamed."""

from __future__ import annotations

import bz2
import io
import lzma
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fastpull.cache.errors import cache_errors
from fastpull.concurrency.threads import check_stopped
from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import DecompressError, LimitExceeded
from fastpull.layers.decompress import inflate

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.config.limits import Limits

_CHUNK = 1 << 20
_RATIO_GRACE = 1 << 30  # size below which the compression ratio is not checked
_XZ = b"\xfd7zXZ\x00"
_BZIP2 = b"BZh"


class Spool:
    """A temporary file that vanishes when it is closed.

    Args:
        name: name of the content, for messages.
        store: cache that holds it.
        limits: limits of its size.
        packed: size of the compressed original; 0 for an uncompressed stream.

    Raises:
        CacheError: there is no space for it.
    """

    def __init__(self, name: str, store: Store, limits: Limits, packed: int = 0) -> None:
        self._name = name
        self._limits = limits
        self._packed = packed
        self._root = store.root
        self._fd = store.files.open_scratch()
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            LimitExceeded: the file exceeds the limits.
            CacheError: there is no space.
        """
        self._check(self.size + len(piece))
        with cache_errors(self._root):
            self.size = pwrite_all(self._fd, self.size, [piece])

    def detach(self) -> int:
        """Return the descriptor, which now belongs to the caller."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Discard the content. May be called twice, and after `detach`."""
        if self._fd >= 0:
            os.close(self.detach())

    def _check(self, size: int) -> None:
        limits = self._limits
        if size > limits.max_image_size:
            reason = f"more than {limits.max_image_size} bytes, uncompressed,"
            raise LimitExceeded(self._name, reason, setting="max_image_size")
        if self._packed and size > _RATIO_GRACE and size > self._packed * limits.max_ratio:
            reason = f"more than {limits.max_ratio} bytes for each byte of the archive"
            raise LimitExceeded(self._name, reason, setting="max_ratio")


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def decompressed(name: str, fd: int, store: Store, limits: Limits, is_stopped: Callable[[], bool]) -> Spool | None:
    """Decompress a gzip, zstd, xz or bzip2 file into a spool; return None if it is not compressed.

    Raises:
        DecompressError: the stream is corrupt or truncated.
        UnsupportedMediaType: the compression is not supported.
        LimitExceeded, CacheError: see `Spool.write`.
        Aborted: ``is_stopped`` returned true.
    """
    head = os.pread(fd, len(_XZ), 0)
    raw = io.FileIO(fd, closefd=False)
    stream: _Stream
    if head == _XZ or head.startswith(_BZIP2):
        stream = _ConcatenatedStreams(raw, head == _XZ, limits.max_zstd_window, name)
    else:
        inflated = inflate(raw, name, limits)
        if inflated.is_plain:
            return None
        stream = inflated
    spool = Spool(name, store, limits, os.fstat(fd).st_size)
    try:
        while piece := stream.read(_CHUNK):
            spool.write(piece)
            check_stopped(is_stopped)
    except BaseException:
        spool.close()
        raise
    return spool


class _ConcatenatedStreams:
    """A stream of the content of an xz or bzip2 file, which may hold several consecutive streams.

    Args:
        raw: the file.
        is_xz: whether it is xz; otherwise bzip2.
        max_memory: memory limit of an xz stream, in bytes.
        subject: name of the file, for messages.
    """

    def __init__(self, raw: io.FileIO, is_xz: bool, max_memory: int, subject: str) -> None:
        self._raw = raw
        self._is_xz = is_xz
        self._max_memory = max_memory
        self._subject = subject
        self._decompressor = self._new()
        self._rest = b""

    def _new(self) -> lzma.LZMADecompressor | bz2.BZ2Decompressor:
        if self._is_xz:
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self._max_memory)
        return bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        while True:
            if self._decompressor.eof:
                self._rest = self._decompressor.unused_data or self._raw.read(_CHUNK)
                self._rest = self._rest.lstrip(b"\0") if self._is_xz else self._rest  # padding between streams
                if not self._rest:
                    return b""
                self._decompressor = self._new()
            fed, self._rest = self._rest, b""
            if not fed and self._decompressor.needs_input:
                fed = self._raw.read(_CHUNK)
                if not fed:
                    raise DecompressError(self._subject, "the stream ends too early")
            try:
                piece = self._decompressor.decompress(fed, size)
            except (lzma.LZMAError, OSError, ValueError) as error:
                raise DecompressError(self._subject, str(error)) from error
            if piece:
                return piece
