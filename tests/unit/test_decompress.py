from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.errors import DecompressError, LimitExceeded, UnsupportedMediaType
from fastpull.layers.decompress import ZstdFraming, inflate

DATA = os.urandom(300_000) + b"compressible " * 30_000


class Dribble(io.RawIOBase):
    """A raw stream that gives at most so many bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._data[self._at : self._at + min(self._size, len(buffer))]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def read(blob: bytes, *, step: int = 1 << 20, size: int = 50_000) -> bytes:
    stream, found = inflate(Dribble(blob, step), "the layer"), []
    while piece := stream.read(size):
        assert len(piece) <= size
        found.append(piece)
    return b"".join(found)


def zstd(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(data)  # type: ignore[arg-type]


def zstd_streamed(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


def skippable(size: int, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, size) + os.urandom(size)


@pytest.mark.parametrize("step", [1 << 20, 1000, 3])
@pytest.mark.parametrize(
    ("name", "blob"),
    [
        ("gzip", gzip.compress(DATA[-5000:])),
        ("gzip members", gzip.compress(DATA[-5000:-2000]) + gzip.compress(b"") + gzip.compress(DATA[-2000:])),
        ("gzip and zeros", gzip.compress(DATA[-5000:]) + bytes(700)),
        ("zstd", zstd(DATA[-5000:])),
        ("zstd without size", zstd_streamed(DATA[-5000:])),
        ("zstd frames", zstd(DATA[-5000:-2000]) + zstd(b"") + zstd_streamed(DATA[-2000:])),
        ("zstd skippable",
         skippable(10) + zstd(DATA[-5000:-2000]) + skippable(0, 15) + zstd(DATA[-2000:]) + skippable(5000)),
        ("plain", DATA[-5000:]),
    ],
)  # fmt: skip
def test_every_compression_gives_the_same_bytes(name: str, blob: bytes, step: int) -> None:
    assert read(blob, step=step) == DATA[-5000:]


@pytest.mark.parametrize("compress", [gzip.compress, zstd, zstd_streamed, bytes])
def test_large_layers_are_read_in_bounded_pieces(compress: Callable[[bytes], bytes]) -> None:
    assert read(compress(DATA)) == DATA


def test_a_gzip_header_may_have_all_its_fields() -> None:
    packed = zlib.compressobj(wbits=-15)
    body = packed.compress(b"hello") + packed.flush()
    header = b"\x1f\x8b\x08\x1c" + bytes(6) + struct.pack("<H", 4) + b"xtra" + b"name\0" + b"comment\0"
    assert read(header + body + struct.pack("<II", zlib.crc32(b"hello"), 5)) == b"hello"


def test_empty_blob_is_an_empty_layer() -> None:
    assert read(b"") == b""
    assert read(gzip.compress(b"")) == b""
    assert read(zstd(b"")) == b""


@pytest.mark.parametrize(
    "blob",
    [
        gzip.compress(DATA)[:-1],
        gzip.compress(DATA)[:-8],
        gzip.compress(DATA)[:1000],
        gzip.compress(DATA)[:5],
        gzip.compress(DATA) + b"garbage",
        gzip.compress(DATA) + b"\x1f\x8b",
        gzip.compress(b"x" * 100)[:-8] + bytes(8),
        b"\x1f\x8b\x07" + bytes(20),
        zstd(DATA)[:-1],
        zstd(DATA)[:-4],
        zstd(DATA)[:1000],
        zstd(DATA)[:6],
        zstd_streamed(DATA)[:-1],
        zstd_streamed(DATA)[:-200_000],
        zstd(DATA) + b"garbage",
        zstd(DATA) + bytes(100),
        zstd(DATA) + zstd(DATA)[:-1],
        zstd(DATA) + skippable(100)[:-1],
        zstd(DATA) + skippable(100)[:6],
        zstd(DATA) + b"\x28\xb5",
        zstd(DATA)[:200_000] + b"\xff" * 50 + zstd(DATA)[200_050:],
    ],
)
def test_corrupt_truncated_and_extended_streams_are_refused(blob: bytes) -> None:
    with pytest.raises(DecompressError, match="layer: the layer") as caught:
        read(blob)
    assert caught.value.exit_code == 22


def test_a_zstd_window_over_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    blob = compressor.compress(DATA) + compressor.flush()
    with pytest.raises(LimitExceeded, match=f"window of {1 << 28} bytes"):
        read(blob)


@pytest.mark.parametrize(("blob", "name"), [(bz2.compress(DATA), "bzip2"), (lzma.compress(DATA), "xz")])
def test_unsupported_compressions_are_refused_by_name(blob: bytes, name: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=name):
        read(blob)


def test_bomb_is_read_in_bounded_pieces() -> None:
    stream = inflate(Dribble(gzip.compress(bytes(50 << 20)), 1 << 20), "bomb")
    assert len(stream.read(1000)) <= 1000
    frames = inflate(Dribble(zstd(bytes(50 << 20)), 1 << 20), "bomb")
    assert len(frames.read(1000)) <= 1000


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=500).map(zstd),
            st.binary(max_size=300_000 // 1000).map(zstd_streamed),
            st.integers(0, 300).map(skippable),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 400),
)
def test_frame_borders_are_found_at_any_read_size(frames: list[bytes], step: int) -> None:
    blob = b"".join(frames)
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    for length in {*ends, *range(0, len(blob), max(1, len(blob) // 40))}:
        framing, buffer = ZstdFraming(Dribble(blob[:length], step)), memoryview(bytearray(1000))
        while framing.readinto(buffer):
            pass
        assert framing.complete == (length in ends)
