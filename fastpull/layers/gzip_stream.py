"""gzip streams of layers: all members, one after the other.

Spec: RFC 1952, 2.2.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from isal import igzip_lib

READ_SIZE = 128 << 10
"""Compressed bytes at a time: they stay in the processor's cache (bench/micro)."""

_MAX_HEADER = 1 << 20  # with a field of 64 KiB, a name and a comment
_HAS_CRC, _HAS_EXTRA, _HAS_NAME, _HAS_COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0


class StreamRecorder(Protocol):
    """Observes a stream while it is inflated: `fastpull.pipeline.checkpoints.CheckpointRecorder`."""

    def output(self, data: bytes) -> None:
        """Take the next bytes of output."""

    def split(self, data: bytes, offset: int) -> int:
        """Return where to cut the next part of the stream, whose first byte has an offset; 0 for nowhere."""

    def begin(self, data: bytes) -> None:
        """Take the stream from the cut on, once the part before it is inflated."""


class GzipMember:
    """The rest of a gzip stream's member from behind its header on; checks its CRC and size."""

    def __init__(self) -> None:
        self._inflater: Any = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP_NO_HDR_VER)

    def inflate(self, data: bytes, max_size: int = -1) -> bytes:
        """Return what the next bytes of the stream inflate to, at most ``max_size`` bytes of it."""
        result: bytes = self._inflater.decompress(data, max_size)
        return result

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing more to return without more of the stream."""
        return bool(self._inflater.needs_input)

    @property
    def ended(self) -> bool:
        """Whether the member has ended."""
        return bool(self._inflater.eof)

    @property
    def rest(self) -> bytes:
        """The bytes behind the member."""
        rest: bytes = self._inflater.unused_data
        return rest


def skip_header(data: bytes, read: Callable[[], bytes]) -> bytes:
    """Return the bytes behind the header of a member.

    Args:
        data: the first bytes of the member.
        read: returns more of the stream; nothing at its end.

    Raises:
        BadGzipFile: this is no header.
        EOFError: the stream ends within it.
    """
    while True:
        try:
            return data[_header_size(data) :]
        except IndexError:
            if len(data) > _MAX_HEADER:
                raise gzip.BadGzipFile("a gzip header without end") from None
            more = read()
            if not more:
                raise EOFError("the gzip stream ends within a header") from None
            data += more


def _header_size(data: bytes) -> int:
    """Return the size of a header; IndexError if the data ends within it."""
    if not b"\x1f\x8b\x08".startswith(data[:3]) or (len(data) > 3 and data[3] & _RESERVED):
        raise gzip.BadGzipFile("no gzip member where one has to begin")
    flags, size = data[3], 10
    if flags & _HAS_EXTRA:
        size += 2 + data[size] + (data[size + 1] << 8)
    for flag in (_HAS_NAME, _HAS_COMMENT):
        if flags & flag:
            end = data.find(0, size)
            if end < 0:
                raise IndexError
            size = end + 1
    size += 2 if flags & _HAS_CRC else 0
    if len(data) < size:
        raise IndexError
    return size


def skip_padding(data: bytes, read: Callable[[], bytes]) -> bytes:
    """Return the stream from the next member on, without zeros before it; nothing at the end of the stream."""
    while not (data := data.lstrip(b"\0")):
        data = read()
        if not data:
            break
    return data


class GzipStream:
    """The output of a gzip stream. Zeros behind a member are padding, as gzip has it.

    Args:
        source: the stream.
        recorder: records checkpoints.

    Raises:
        IsalError, BadGzipFile: from `read`, if the stream is corrupt.
        EOFError: from `read`, if it ends within a member.
    """

    is_plain: ClassVar[bool] = False

    def __init__(self, source: io.RawIOBase, recorder: StreamRecorder | None = None) -> None:
        self._source = source
        self._recorder = recorder
        self._member: GzipMember | None = None
        self._is_first = True
        self._data = b""  # not handed to the member yet
        self._position = 0  # of the stream: behind that data
        self._cut = False  # whether a checkpoint may be where that data begins

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; nothing at the end."""
        while True:
            member = self._member or self._next_member()
            if member is None:
                return b""
            data = self._next_data() if member.needs_input else b""
            output = member.inflate(data, size)
            if output and self._recorder is not None:
                self._recorder.output(output)
            if member.ended:
                self._data = member.rest + self._data
                self._member, self._cut = None, False
            if output:
                return output

    def _read(self) -> bytes:
        data = self._source.read(READ_SIZE) or b""
        self._position += len(data)
        return data

    def _next_member(self) -> GzipMember | None:
        if not self._is_first:
            self._data = skip_padding(self._data, self._read)
            if not self._data:
                return None
        self._is_first = False
        self._data = skip_header(self._data, self._read)
        self._member = GzipMember()
        return self._member

    def _next_data(self) -> bytes:
        """Return the next part of the stream; it ends where a checkpoint may be."""
        data, self._data = self._data or self._read(), b""
        if not data:
            raise EOFError("the gzip stream ends within a member")
        if self._recorder is None:
            return data
        if self._cut:
            self._cut = False
            self._recorder.begin(data)
        elif cut := self._recorder.split(data, self._position - len(data)):
            self._cut = True
            data, self._data = data[:cut], data[cut:]
        return data
