"""The records of a squashfs image, byte by byte."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.sinks.squashfs.format.directories import DirectoryEntry, IndexEntry, IndexPoint, pack_listing
from fastpull.sinks.squashfs.format.inodes import (
    FileLayout,
    InodeHeader,
    device_inode,
    device_number,
    directory_inode,
    fifo_inode,
    file_inode,
    symlink_inode,
)
from fastpull.sinks.squashfs.format.superblock import NO_FRAGMENT, RAW, Superblock, Unstorable, clamped, metadata_header
from tests.support.squashfs import superblock

HEADER = InodeHeader(mode=0o644, uid=1, gid=2, mtime=3, number=4)
SUPERBLOCK: dict[str, Any] = {
    "inodes": 1,
    "time": 2,
    "block_size": 1 << 17,
    "fragments": 3,
    "compressor": 6,
    "flags": 0x400,
    "ids": 4,
    "root": 5,
    "size": 6,
    "id_start": 7,
    "xattr_start": 8,
    "inode_start": 9,
    "directory_start": 10,
    "fragment_start": 11,
}
NONE = 0xFFFFFFFF


def words(record: bytes, form: str) -> tuple[int, ...]:
    """Return an inode's type and the fields behind its header, which is checked."""
    kind, mode, uid, gid, mtime, number = struct.unpack_from("<4H2I", record)
    assert (mode, uid, gid, mtime, number) == HEADER
    assert len(record) >= 16 + struct.calcsize("<" + form)
    return kind, *struct.unpack_from("<" + form, record, 16)


# --- superblock


def test_a_superblock_has_96_bytes_and_no_export_table() -> None:
    content = Superblock(**SUPERBLOCK).to_bytes()
    assert len(content) == 96
    assert content.startswith(b"hsqs")
    fields = superblock(content)
    assert {name: fields[name] for name in SUPERBLOCK} == SUPERBLOCK
    assert (fields["major"], fields["minor"], fields["block_log"]) == (4, 0, 17)
    assert fields["export_start"] == 2**64 - 1


@pytest.mark.parametrize("size", [0, 1, 2048, 4097, 6144, 2 << 20, -4096])
def test_a_block_size_is_a_power_of_two_from_4_kib_to_1_mib(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Superblock(**{**SUPERBLOCK, "block_size": size})


def test_the_header_of_a_metadata_block_has_a_bit_for_raw() -> None:
    assert metadata_header(8192, raw=True) == b"\x00\xa0"
    assert metadata_header(100, raw=False) == b"\x64\x00"


@pytest.mark.parametrize(("time", "stored"), [(-1, 0), (0, 0), (2**32 - 1, 2**32 - 1), (2**32, 2**32 - 1)])
def test_times_are_clamped_to_unsigned_32_bits(time: int, stored: int) -> None:
    assert clamped(time) == stored


# --- files


def test_a_file_without_special_values_is_basic() -> None:
    record = file_inode(HEADER, 1, 5, FileLayout(100, b"wxyz"))
    assert words(record, "4I") == (2, 100, NO_FRAGMENT, 0, 5)
    assert record[32:] == b"wxyz"


def test_a_file_may_have_a_tail_end_in_a_fragment_block() -> None:
    assert words(file_inode(HEADER, 1, 5, FileLayout(0, b"", 7, 8)), "4I") == (2, 0, 7, 8, 5)


@pytest.mark.parametrize(
    ("nlink", "size", "layout", "xattrs"),
    [
        (2, 5, FileLayout(100, b""), NONE),
        (1, 2**32, FileLayout(100, b""), NONE),
        (1, 5, FileLayout(2**32, b""), NONE),
        (1, 5, FileLayout(100, b"", sparse=1), NONE),
        (1, 5, FileLayout(100, b""), 0),
    ],
    ids=["links", "size", "start", "sparse", "xattrs"],
)
def test_a_file_with_special_values_is_extended(nlink: int, size: int, layout: FileLayout, xattrs: int) -> None:
    found = words(file_inode(HEADER, nlink, size, layout, xattrs), "3Q4I")
    assert found == (9, layout.start, size, layout.sparse, nlink, NO_FRAGMENT, 0, xattrs)


def test_a_file_of_32_bit_size_and_start_is_basic() -> None:
    assert words(file_inode(HEADER, 1, 2**32 - 1, FileLayout(2**32 - 1, b"")), "4I")[0] == 2


def test_a_file_of_holes_has_one_byte_that_is_not_sparse() -> None:
    assert words(file_inode(HEADER, 1, 8192, FileLayout(0, bytes(8), sparse=8192)), "3Q4I")[3] == 8191


def test_an_empty_hard_linked_file_has_no_sparse_bytes() -> None:
    assert words(file_inode(HEADER, 2, 0, FileLayout(0, b"")), "3Q4I") == (9, 0, 0, 0, 2, NO_FRAGMENT, 0, NONE)


# --- the other inodes


def test_the_size_of_a_listing_is_stored_plus_three() -> None:
    record = directory_inode(HEADER, 2, (10, 20), 0, 0, [], 99)
    assert words(record, "2I2HI") == (1, 10, 2, 3, 20, 99)


@pytest.mark.parametrize(
    ("size", "entries", "xattrs", "kind"),
    [(8191, 256, NONE, 1), (8192, 1, NONE, 8), (100, 257, NONE, 8), (100, 1, 5, 8)],
)
def test_a_directory_is_extended_for_xattrs_or_a_long_listing(size: int, entries: int, xattrs: int, kind: int) -> None:
    record = directory_inode(HEADER, 3, (10, 20), size, entries, [], 99, xattrs)
    if kind == 1:
        assert words(record, "2I2HI") == (1, 10, 3, size + 3, 20, 99)
    else:
        assert words(record, "4I2HI") == (8, 3, size + 3, 10, 99, 0, 20, xattrs)


def test_the_index_follows_the_directory_inode() -> None:
    index = [IndexEntry(8000, 700, b"name"), IndexEntry(16000, 900, b"x")]
    record = directory_inode(HEADER, 2, (10, 20), 20_000, 300, index, 99)
    assert words(record, "4I2HI")[5] == 2
    assert record[40:] == struct.pack("<3I", 8000, 700, 3) + b"name" + struct.pack("<3I", 16000, 900, 0) + b"x"


def test_an_index_is_limited_to_its_16_bit_count() -> None:
    index = [IndexEntry(0, 0, b"x")] * 65_540
    assert words(directory_inode(HEADER, 2, (0, 0), 1 << 29, 1 << 20, index, 9), "4I2HI")[5] == 65_535


def test_the_xattrs_of_a_symbolic_link_follow_its_target() -> None:
    assert words(symlink_inode(HEADER, 1, b"target"), "2I") == (3, 1, 6)
    assert symlink_inode(HEADER, 1, b"target")[24:] == b"target"
    assert words(symlink_inode(HEADER, 2, b"target", 5), "2I") == (10, 2, 6)
    assert symlink_inode(HEADER, 2, b"target", 5)[24:] == b"target\x05\0\0\0"


@pytest.mark.parametrize("size", [0, 65_536])
def test_a_target_of_unsupported_size_is_refused(size: int) -> None:
    with pytest.raises(Unstorable, match="target of a symbolic link"):
        symlink_inode(HEADER, 1, b"x" * size)


def test_devices_and_fifos_are_extended_only_for_xattrs() -> None:
    assert words(device_inode(HEADER, 1, True, 77), "2I") == (4, 1, 77)
    assert words(device_inode(HEADER, 1, False, 77), "2I") == (5, 1, 77)
    assert words(device_inode(HEADER, 1, True, 77, 5), "3I") == (11, 1, 77, 5)
    assert words(device_inode(HEADER, 1, False, 77, 5), "3I") == (12, 1, 77, 5)
    assert words(fifo_inode(HEADER, 1), "I") == (6, 1)
    assert words(fifo_inode(HEADER, 1, 5), "2I") == (13, 1, 5)


@pytest.mark.parametrize(
    ("major", "minor", "number"),
    [(1, 3, 0x103), (8, 255, 0x8FF), (8, 256, 0x100800), (0xFFF, 0xFFFFF, 0xFFFFFFFF), (259, 0x12345, 0x12310345)],
)
def test_device_numbers_have_the_encoding_of_linux(major: int, minor: int, number: int) -> None:
    assert device_number(major, minor) == number


@pytest.mark.parametrize(("major", "minor"), [(0x1000, 0), (0, 0x100000)])
def test_devices_beyond_32_bits_are_refused(major: int, minor: int) -> None:
    with pytest.raises(Unstorable, match="device"):
        device_number(major, minor)


# --- listings


def named(number: int, name: bytes | None = None, block: int = 0) -> DirectoryEntry:
    return DirectoryEntry(b"%06d" % number if name is None else name, block, number % 8192, number + 1, 2)


def parsed(content: bytes) -> list[list[DirectoryEntry]]:
    """Return the groups of a listing, as a reader parses it."""
    groups, at = [], 0
    while at < len(content):
        count, block, base = struct.unpack_from("<3I", content, at)
        at += 12
        group = []
        for _ in range(count + 1):
            offset, delta, kind, size = struct.unpack_from("<HhHH", content, at)
            group.append(DirectoryEntry(content[at + 8 : at + 9 + size], block, offset, base + delta, kind))
            at += 9 + size
        groups.append(group)
    assert at == len(content)
    return groups


def test_the_listing_of_an_empty_directory_is_empty() -> None:
    assert pack_listing([]) == (b"", [])


def test_a_listing_of_one_name() -> None:
    content, points = pack_listing([DirectoryEntry(b"abc", 5, 6, 7, 2)])
    assert content == struct.pack("<3I", 0, 5, 7) + struct.pack("<HhHH", 6, 0, 2, 2) + b"abc"
    assert points == []


@pytest.mark.parametrize(("count", "groups"), [(255, [255]), (256, [256]), (257, [256, 1]), (513, [256, 256, 1])])
def test_a_group_has_at_most_256_names(count: int, groups: list[int]) -> None:
    content, _ = pack_listing(named(number) for number in range(count))
    assert [len(group) for group in parsed(content)] == groups


def test_a_group_refers_to_one_inode_block() -> None:
    entries = [named(1, block=0), named(2, block=8000), named(3, block=0), named(4, block=0)]
    assert [len(group) for group in parsed(pack_listing(entries)[0])] == [1, 1, 2]


@pytest.mark.parametrize(
    ("numbers", "groups"), [([40_000, 7_232], 1), ([40_000, 7_231], 2), ([1, 32_768], 1), ([1, 32_769], 2)]
)
def test_inode_numbers_of_a_group_differ_by_at_most_16_bits(numbers: list[int], groups: int) -> None:
    entries = [DirectoryEntry(b"%d" % at, 0, 0, number, 2) for at, number in enumerate(numbers)]
    found = parsed(pack_listing(entries)[0])
    assert len(found) == groups
    assert [entry.number for group in found for entry in group] == numbers


def test_index_points_are_at_headers_and_at_most_8_kib_apart() -> None:
    entries = [named(number, b"%06d" % number + b"x" * 240) for number in range(1000)]
    content, points = pack_listing(entries)
    starts, at = {}, 0
    for group in parsed(content):
        starts[at] = group[0].name
        at += 12 + sum(8 + len(entry.name) for entry in group)
    assert points
    assert all(starts[point.offset] == point.name for point in points)
    ends = [0, *(point.offset for point in points), len(content)]
    assert all(0 < after - before <= 8192 for before, after in pairwise(ends))


def test_a_name_that_would_cross_8_kib_gets_an_index_point() -> None:
    fits = [named(number, b"%04d" % number + b"x" * 28) for number in range(204)]  # 12 + 204 * 40 = 8172 bytes
    assert pack_listing([*fits, named(900, b"y" * 12)])[1] == []
    assert pack_listing([*fits, named(900, b"y" * 13)])[1] == [IndexPoint(8172, b"y" * 13)]


@given(
    st.lists(
        st.builds(
            DirectoryEntry,
            st.binary(min_size=1, max_size=255),
            st.sampled_from([0, 0, 0, 5000]),
            st.integers(0, 8191),
            st.integers(1, 40_000),
            st.integers(1, 7),
        )
    )
)
def test_any_listing_can_be_parsed(entries: list[DirectoryEntry]) -> None:
    content, points = pack_listing(entries)
    assert [entry for group in parsed(content) for entry in group] == entries
    assert all(point.offset < len(content) for point in points)


def test_the_raw_bit_of_a_block_word_is_above_every_block_size() -> None:
    assert RAW > 1 << 20
