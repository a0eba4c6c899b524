"""The compressors of squashfs images."""

from __future__ import annotations

import lzma
import random
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import pytest
import zstandard

from fastpull.errors import InvalidSetting
from fastpull.sinks.squashfs.blocks.compressors import parse_compression

ALL = ["zstd", "zstd:1", "zstd:15", "zstd:22", "gzip", "gzip:1", "lz4", "xz", "none"]
TEXT = b"".join(b"%d lines of text, and no two of them alike\n" % number for number in range(4000))


@pytest.mark.parametrize(
    ("given", "name", "number", "level"),
    [
        ("zstd", "zstd", 6, 1),
        ("zstd:1", "zstd", 6, 1),
        ("zstd:22", "zstd", 6, 22),
        ("gzip", "gzip", 1, 9),
        ("gzip:3", "gzip", 1, 3),
        ("lz4", "lz4", 5, 0),
        ("xz", "xz", 4, 0),
        ("none", "none", 6, 1),
    ],
)
def test_a_setting_selects_compressor_and_level(given: str, name: str, number: int, level: int) -> None:
    compressor = parse_compression(given)
    assert (compressor.name, compressor.id, compressor.level) == (name, number, level)
    assert all(compressor.versions().items())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "zst",
        "ZSTD",
        "zstd:",
        "zstd:0",
        "zstd:23",
        "zstd:-1",
        "zstd:+1",
        "zstd:1:1",
        "zstd:1_0",
        "zstd:9999999999999999999999",
        "gzip:0",
        "gzip:10",
        "lz4:1",
        "xz:6",
        "none:1",
        "none:",
        ":1",
        "zstd: 1",
        "zstd:\u0661",
    ],
)
def test_an_unknown_compressor_or_level_is_refused(given: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_compression(given)
    assert caught.value.given == given


def test_a_missing_lz4_package_is_reported_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with pytest.raises(InvalidSetting, match=r"pip install '\.\[lz4\]'"):
        parse_compression("lz4")


def test_options_equal_to_the_defaults_of_readers_are_omitted() -> None:
    assert [parse_compression(given).options() for given in ("zstd:15", "gzip", "gzip:9", "xz")] == [b""] * 4


def test_options_are_a_raw_metadata_block() -> None:
    assert parse_compression("zstd:3").options() == struct.pack("<HI", 0x8004, 3)
    assert parse_compression("gzip:3").options() == struct.pack("<HIHH", 0x8008, 3, 15, 0)
    assert parse_compression("lz4").options() == struct.pack("<HII", 0x8008, 1, 0)
    assert parse_compression("none").options() == struct.pack("<HI", 0x8004, 1)


@pytest.mark.parametrize("level", ["1", "3", "15", "22"])
@pytest.mark.parametrize("size", [1, 4096, 8192, 1 << 17])
def test_zstd_frames_have_their_content_size_and_no_larger_window(level: str, size: int) -> None:
    data = TEXT[:size].ljust(size, b"-")
    packed = parse_compression(f"zstd:{level}").compress(data)
    parameters = zstandard.get_frame_parameters(packed)
    assert parameters.content_size == size
    assert parameters.window_size <= max(size, 1024)
    assert not parameters.has_checksum
    assert zstandard.ZstdDecompressor().decompress(packed, read_across_frames=False, allow_extra_data=False) == data


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 1 << 17])
def test_xz_has_a_crc32_and_a_dictionary_no_larger_than_readers_allocate(size: int) -> None:
    packed = parse_compression("xz").compress(TEXT[:size])
    assert packed[7] == lzma.CHECK_CRC32
    assert lzma.decompress(packed, memlimit=1 << 20) == TEXT[:size]
    bits = packed[16]  # of the filter's flags: after the stream header, the block's size and flags, filter and size
    assert (2 | bits & 1) << (bits // 2 + 11) <= max(8192, 1 << (size - 1).bit_length())


def test_gzip_is_a_zlib_stream_and_lz4_has_no_size_field() -> None:
    data = TEXT[: 1 << 17]
    assert zlib.decompress(parse_compression("gzip").compress(data)) == data
    assert lz4.block.decompress(parse_compression("lz4").compress(data), uncompressed_size=len(data)) == data


def test_compression_none_compresses_metadata_but_no_data() -> None:
    compressor = parse_compression("none")
    assert compressor.compress(TEXT) == TEXT
    assert zstandard.decompress(compressor.compress_metadata(TEXT[:8192])) == TEXT[:8192]
    assert compressor.flags == 0x2


@pytest.mark.parametrize("given", ALL)
def test_any_buffer_type_is_compressed(given: str) -> None:
    compressor = parse_compression(given)
    data = TEXT[:10_000]
    expected = compressor.compress(data)
    assert type(expected) is bytes
    assert compressor.compress(bytearray(data)) == expected
    assert compressor.compress(memoryview(b"-" + data)[1:]) == expected
    assert compressor.compress_metadata(memoryview(data)) == compressor.compress_metadata(data)


@pytest.mark.parametrize("given", ALL)
def test_threads_that_share_a_compressor_get_the_same_bytes(given: str) -> None:
    source = random.Random(1)
    pieces = [TEXT[at : at + source.randrange(1, 9000)] for at in range(0, len(TEXT), 1000)]
    expected = [parse_compression(given).compress(piece) for piece in pieces]
    compressor = parse_compression(given)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compressor.compress, pieces)) == expected
