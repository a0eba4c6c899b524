"""Metadata blocks, and the tables that consist of them."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.sinks.squashfs.format.metadata import MetadataWriter, metadata_block
from fastpull.sinks.squashfs.format.superblock import Unstorable
from fastpull.sinks.squashfs.tables.lookup import MAX_IDS, Fragment, IdTable, fragment_rows, lookup_table
from fastpull.sinks.squashfs.tables.xattrs import XattrTable, is_storable


def blocks(table: bytes) -> dict[int, bytes]:
    """Return the uncompressed blocks of a table by their offset."""
    found, at = {}, 0
    while at < len(table):
        header = int.from_bytes(table[at : at + 2], "little")
        content = table[at + 2 : at + 2 + (header & 0x7FFF)]
        found[at] = content if header & 0x8000 else zlib.decompress(content)
        at += 2 + (header & 0x7FFF)
    assert at == len(table)
    return found


def read(found: dict[int, bytes], reference: tuple[int, int], size: int) -> bytes:
    """Return a record, which may cross the end of a block."""
    block, offset = reference
    return b"".join(content for start, content in sorted(found.items()) if start >= block)[offset : offset + size]


# --- blocks


def test_a_block_that_compression_enlarges_is_raw() -> None:
    assert metadata_block(b"ab", zlib.compress) == b"\x02\x80ab"
    packed = zlib.compress(bytes(8192))
    assert metadata_block(bytes(8192), zlib.compress) == struct.pack("<H", len(packed)) + packed


def test_a_block_that_compression_leaves_equal_is_raw() -> None:
    assert metadata_block(b"ab", lambda data: data[::-1]) == b"\x02\x80ab"


def test_an_empty_table_has_no_blocks() -> None:
    writer = MetadataWriter(zlib.compress)
    assert writer.write(b"") == (0, 0)
    assert (writer.finish(), writer.starts()) == (b"", [])


def test_a_record_that_ends_with_its_block_leaves_no_empty_block() -> None:
    writer = MetadataWriter(zlib.compress)
    writer.write(bytes(8192))
    reference = writer.write(b"")
    table = writer.finish()
    assert [len(block) for block in blocks(table).values()] == [8192]
    assert reference == (len(table), 0)


@given(st.lists(st.integers(0, 20_000).map(lambda size: bytes([size % 251]) * size), max_size=12))
def test_references_lead_to_their_records(records: list[bytes]) -> None:
    writer = MetadataWriter(zlib.compress)
    references = [writer.write(record) for record in records]
    table = writer.finish()
    found = blocks(table)
    assert all(len(block) == 8192 for block in list(found.values())[:-1])
    assert list(found) == writer.starts()
    for record, reference in zip(records, references, strict=True):
        assert read(found, reference, len(record)) == record


def test_block_at_finds_the_block_of_a_byte_behind_a_reference() -> None:
    writer = MetadataWriter(zlib.compress)
    writer.write(bytes(8000))
    reference = writer.write(bytes(20_000))
    writer.finish()
    starts = writer.starts()
    found = [writer.block_at(reference, distance) for distance in (0, 191, 192, 8383, 8384, 16_576)]
    assert found == [starts[0], starts[0], starts[1], starts[1], starts[2], starts[3]]


# --- lookup tables


def test_a_lookup_table_lists_the_offsets_of_its_blocks() -> None:
    content = bytes(range(256)) * 100
    table = lookup_table(content, 1000, zlib.compress)
    positions = struct.unpack(f"<{len(table.positions) // 8}Q", table.positions)
    found = blocks(table.blocks)
    assert [position - 1000 for position in positions] == list(found)
    assert b"".join(found.values()) == content


def test_an_empty_lookup_table_takes_no_space() -> None:
    table = lookup_table(b"", 1000, zlib.compress)
    assert (table.blocks, table.positions) == (b"", b"")


def test_a_fragment_row_has_start_and_word() -> None:
    assert fragment_rows([Fragment(1, 2), Fragment(1 << 40, 3)]) == struct.pack("<QIIQII", 1, 2, 0, 1 << 40, 3, 0)


def test_each_id_is_stored_once() -> None:
    ids = IdTable()
    assert [ids.position(number) for number in (0, 1000, 0, 2**32 - 1, 1000)] == [0, 1, 0, 2, 1]
    assert (len(ids), ids.rows()) == (3, struct.pack("<3I", 0, 1000, 2**32 - 1))


def test_the_id_table_holds_65535_ids() -> None:
    ids = IdTable()
    assert [ids.position(number) for number in range(MAX_IDS)] == list(range(65_535))
    assert ids.position(5) == 5
    with pytest.raises(Unstorable, match="65535 different uids and gids"):
        ids.position(MAX_IDS)


# --- xattrs


def parsed(content: bytes, start: int, at: int) -> list[list[tuple[bytes, bytes]]]:
    """Return the sets of xattrs, as a reader parses the tables."""
    pairs_start, count, _ = struct.unpack_from("<QII", content, at - start)
    assert pairs_start == start
    list_size = 8 * -(-count * 16 // 8192)
    assert len(content) == at - start + 16 + list_size  # the list is at the end of the image
    positions = struct.unpack_from(f"<{list_size // 8}Q", content, at - start + 16)
    rows_start = positions[0] - start
    rows = b"".join(blocks(content[rows_start : at - start]).values())
    pairs = blocks(content[:rows_start])
    found: list[list[tuple[bytes, bytes]]] = []
    for number in range(count):
        reference, size_of_set, size = struct.unpack_from("<QII", rows, 16 * number)
        record, at_pair, total = read(pairs, (reference >> 16, reference & 0xFFFF), 1 << 24), 0, size
        found.append([])
        for _ in range(size_of_set):
            kind, length = struct.unpack_from("<HH", record, at_pair)
            name = [b"user.", b"trusted.", b"security."][kind & 0xFF] + record[at_pair + 4 : at_pair + 4 + length]
            at_pair += 4 + length
            (length,) = struct.unpack_from("<I", record, at_pair)
            value = record[at_pair + 4 : at_pair + 4 + length]
            at_pair += 4 + length
            if kind & 0x100:
                assert length == 8
                (far,) = struct.unpack("<Q", value)
                there = read(pairs, (far >> 16, far & 0xFFFF), 1 << 24)
                value = there[4 : 4 + int.from_bytes(there[:4], "little")]
            found[-1].append((name, value))
        assert at_pair == total
    return found


def test_without_xattrs_there_is_no_table() -> None:
    assert XattrTable(zlib.compress).finish(1000) == (b"", 2**64 - 1)


def test_equal_sets_of_xattrs_are_stored_once() -> None:
    table = XattrTable(zlib.compress)
    one, other = ((b"user.a", b"1"),), ((b"user.a", b"1"), (b"user.b", b"2"))
    assert [table.add(one), table.add(other), table.add(one)] == [0, 1, 0]
    assert len(table) == 2
    content, at = table.finish(1000)
    assert parsed(content, 1000, at) == [list(one), list(other)]


@pytest.mark.parametrize(("size", "count"), [(8, 2), (9, 1), (5000, 1)])
def test_a_value_longer_than_a_reference_is_stored_once(size: int, count: int) -> None:
    value = bytes(range(1, 201)) * 25
    table = XattrTable(lambda data: data)
    table.add(((b"user.a", value[:size]),))
    table.add(((b"security.b", value[:size]),))
    content, at = table.finish(7)
    assert content.count(value[:size]) == count
    assert parsed(content, 7, at) == [[(b"user.a", value[:size])], [(b"security.b", value[:size])]]


def test_only_xattrs_of_three_namespaces_can_be_stored() -> None:
    assert all(is_storable(name) for name in (b"user.a", b"trusted.b", b"security.c"))
    assert not any(is_storable(name) for name in (b"system.posix_acl_access", b"user", b"user.", b"", b"os2.a"))


@pytest.mark.parametrize("pair", [(b"user." + b"x" * 251, b"1"), (b"user.a", bytes(65_537))], ids=["name", "value"])
def test_xattrs_beyond_the_limits_of_linux_are_refused(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(Unstorable, match="over 255 bytes or a value over 65536"):
        XattrTable(zlib.compress).add((pair,))


NAMES = st.sampled_from([b"user.a", b"user.bc", b"trusted.a", b"security.x", b"security.yy"])
VALUES = st.one_of(st.binary(max_size=12), st.sampled_from([b"v" * 9, b"w" * 3000, bytes(range(256)) * 40]))


@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1).map(lambda pairs: tuple(sorted(pairs.items())))))
def test_any_xattrs_can_be_parsed(sets: list[tuple[tuple[bytes, bytes], ...]]) -> None:
    table = XattrTable(zlib.compress)
    numbers = [table.add(pairs) for pairs in sets]
    content, at = table.finish(12_345)
    found = parsed(content, 12_345, at) if sets else []
    assert [tuple(found[number]) for number in numbers] == sets
    assert len(found) == len(set(sets))
