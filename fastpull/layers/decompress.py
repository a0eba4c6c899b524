"""Inflating layers: gzip, zstd or plain, detected by the first bytes.

The media type is ignored: registries and builders set it wrongly, and the digest verifies the bytes in any case.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Generator
from typing import IO, TYPE_CHECKING, ClassVar, Protocol, cast

import zstandard

from fastpull.config.limits import DEFAULT_LIMITS, Limits
from fastpull.errors import DecompressError, ErrorMapping, LimitExceeded, UnsupportedMediaType, translate_errors

if TYPE_CHECKING:
    from fastpull.layers.gzip_stream import StreamRecorder

try:  # ISA-L inflates in a third to a half of zlib's time (bench/micro)
    from fastpull.layers.deflate import InflateError
    from fastpull.layers.gzip_stream import GzipStream
except ImportError:  # no isal for this processor: nothing is recorded
    from zlib_ng import gzip_ng, zlib_ng

    HAS_ISAL = False
    InflateError = zlib_ng.error

    def _open_gzip(source: io.RawIOBase, recorder: StreamRecorder | None) -> Callable[[int], bytes]:  # noqa: ARG001
        read: Callable[[int], bytes] = gzip_ng.GzipNGFile(fileobj=source, mode="rb").read1
        return read
else:
    HAS_ISAL = True

    def _open_gzip(source: io.RawIOBase, recorder: StreamRecorder | None) -> Callable[[int], bytes]:
        return GzipStream(source, recorder).read


_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x04\x22\x4d\x18": "lz4", b"hsqs": "squashfs"}
_HEAD = 6


class Inflated(Protocol):
    """The uncompressed bytes of a layer.

    Attributes:
        is_plain: whether they are the bytes of the blob itself.
    """

    is_plain: ClassVar[bool]

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; nothing at the end.

        Raises:
            DecompressError: the stream is corrupt or truncated, or other bytes follow it.
            LimitExceeded: the stream needs more memory than the limit.
        """


def _ignore(_: int) -> None:
    pass


def inflate(
    raw: io.RawIOBase,
    subject: str,
    limits: Limits = DEFAULT_LIMITS,
    on_window: Callable[[int], None] = _ignore,
    recorder: StreamRecorder | None = None,
) -> Inflated:
    """Return a reader of the uncompressed bytes of a layer.

    Args:
        raw: the blob; it is read to its end when the result is.
        subject: name of the layer in messages.
        limits: limits of the layer's memory.
        on_window: called with the window of each frame, in bytes, before memory is allocated for it.
        recorder: records the checkpoints of a gzip stream.

    Returns:
        A reader over all members of a gzip stream, over all frames of a zstd stream except skippable ones, or over the
        blob itself.

    Raises:
        UnsupportedMediaType: the first bytes are those of a format that layers must not have.

    Spec: RFC 1952; RFC 8878; image-spec layer.md.
    """
    head = b""
    while len(head) < _HEAD and (piece := raw.read(_HEAD - len(head))):
        head += piece
    source = _Rewound(head, raw)
    if head.startswith(_GZIP):
        return _Gzip(source, subject, recorder)
    if head.startswith(_ZSTD) or _is_skippable(head[:4]):
        return _Zstd(source, subject, limits.max_zstd_window, on_window)
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            raise UnsupportedMediaType(subject, name, "unsupported compression")
    return _Plain(source)


class _Rewound(io.RawIOBase):
    """A stream that starts with bytes that were read before."""

    def __init__(self, head: bytes, raw: io.RawIOBase) -> None:
        self._head = head
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what every caller passes
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size], self._head = self._head[:size], self._head[size:]
            return size
        return self._raw.readinto(buffer) or 0


class _Plain:
    is_plain: ClassVar[bool] = True

    def __init__(self, source: _Rewound) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        return self._source.read(size) or b""


class _Gzip:
    is_plain: ClassVar[bool] = False

    def __init__(self, source: _Rewound, subject: str, recorder: StreamRecorder | None) -> None:
        self._read = _open_gzip(source, recorder)
        self._errors = _decompress_errors(subject)

    def read(self, size: int) -> bytes:
        with translate_errors(self._errors):
            return self._read(size)


class _Zstd:
    is_plain: ClassVar[bool] = False

    def __init__(self, source: _Rewound, subject: str, max_window: int, on_window: Callable[[int], None]) -> None:
        def take(window: int) -> None:
            if window <= max_window:
                on_window(window)

        self._framing = ZstdFraming(source, take)
        self._max_window = max_window
        self._subject = subject
        self._errors = _decompress_errors(subject)
        decompressor = zstandard.ZstdDecompressor(max_window_size=max_window)
        self._stream = decompressor.stream_reader(
            cast("IO[bytes]", self._framing), read_size=128 << 10, read_across_frames=True
        )

    def read(self, size: int) -> bytes:
        with translate_errors(self._errors):
            try:
                data = self._stream.read(size)
            except zstandard.ZstdError as error:
                if self._framing.window > self._max_window:
                    window, allowed = self._framing.window, self._max_window
                    reason = f"a zstd window of {window} bytes, of which {allowed} are allowed,"
                    raise LimitExceeded(self._subject, reason, setting="max_zstd_window") from error
                raise
        if not data and not self._framing.complete:
            raise DecompressError(self._subject, "the zstd stream ends within a frame")
        return data


def _decompress_errors(subject: str) -> ErrorMapping:
    def damaged(error: BaseException) -> DecompressError:
        return DecompressError(subject, str(error))

    foreign = (EOFError, OSError, zlib.error, InflateError, zstandard.ZstdError)
    return dict.fromkeys(foreign, damaged)


def _is_skippable(magic: bytes) -> bool:
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50


class ZstdFraming(io.RawIOBase):
    """A zstd stream between source and decompressor, which does not detect a truncated stream itself.

    It follows the headers of frames and blocks, and skips their content.

    Args:
        source: the stream.
        on_window: called with the window of each frame, before its header is passed on.

    Attributes:
        window: largest window of the frames so far, in bytes. The decompressor reports a frame that is too large late,
            because it reads many small frames at once.

    Spec: RFC 8878, 3.1 Frames.
    """

    def __init__(self, source: io.RawIOBase, on_window: Callable[[int], None] = _ignore) -> None:
        self._source = source
        self._on_window = on_window
        self.window = 0
        self._between_frames = True
        self._skip = 0  # bytes before the next header
        self._header = bytearray()
        self._walk = self._headers()
        self._wanted = next(self._walk)

    @property
    def complete(self) -> bool:
        """Whether the bytes read so far end at the end of a frame."""
        return self._between_frames and not self._skip and not self._header

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what every caller passes
        """Read the next bytes of the stream, and follow its headers."""
        size = self._source.readinto(buffer) or 0
        data = memoryview(buffer)[:size]
        while data:
            if self._skip:
                passed = min(self._skip, len(data))
                self._skip -= passed
            else:
                passed = min(self._wanted - len(self._header), len(data))
                self._header += data[:passed]
                if len(self._header) == self._wanted:
                    header, self._header = bytes(self._header), bytearray()
                    self._wanted = self._walk.send(header)
            data = data[passed:]
        return size

    def _headers(self) -> Generator[int, bytes, None]:
        """Yield the size of each header; set how many bytes to skip before it."""
        while True:
            self._between_frames = True
            magic = yield 4
            self._between_frames = False
            if _is_skippable(magic):
                self._skip += int.from_bytes((yield 4), "little")
                continue
            descriptor = (yield 1)[0]
            single_segment, has_checksum = bool(descriptor & 0x20), bool(descriptor & 0x04)
            size_of_size = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
            if single_segment:
                self._skip += (0, 1, 2, 4)[descriptor & 3]  # dictionary id
                window = int.from_bytes((yield size_of_size), "little") + (256 if size_of_size == 2 else 0)
            else:
                exponent, mantissa = divmod((yield 1)[0], 8)
                window = (8 + mantissa) << (7 + exponent)
                self._skip += (0, 1, 2, 4)[descriptor & 3] + size_of_size
            self.window = max(self.window, window)
            self._on_window(window)
            last = False
            while not last:
                block = int.from_bytes((yield 3), "little")
                last, is_run = bool(block & 1), (block >> 1) & 3 == 1
                self._skip += 1 if is_run else block >> 3
            self._skip += 4 if has_checksum else 0
