"""The scanner's contract, held by the native engine and its Python reference alike."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.layers.archive import archive, header_of, padded
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.faults import Fault
from tests.support.archives import random_archive
from tests.support.engines import ENGINES, NATIVE, REFERENCE, Engine, Scanned, scan
from tests.support.headers import END, block, extended, pax

CHUNKS = [1 << 20, 512, 511, 513, 1000, 7]


@pytest.fixture(params=ENGINES, ids=repr)
def engine(request: pytest.FixtureRequest) -> Engine:
    chosen: Engine = request.param
    return chosen


def one(engine: Engine, data: bytes) -> Entry:
    found = scan(engine, data + END)
    assert found.fault is Fault.NONE, found.fault
    assert len(found.index) == 1
    return found.index[0]


def fault(engine: Engine, data: bytes) -> Fault:
    return scan(engine, data).fault


# --- what is read


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunk_borders_do_not_matter(engine: Engine, chunk: int) -> None:
    members = [
        (Entry(b"a", EntryType.DIRECTORY, 0o755, 1, 2, 3), b""),
        (
            Entry(b"a/" + b"n" * 150, EntryType.FILE, 0o4755, 10**6, 10**7, -5, 1500, xattrs=((b"user.x", b"y"),)),
            b"z" * 1500,
        ),
        (Entry(b"empty", EntryType.FILE), b""),
        (Entry(b"exact", EntryType.FILE, size=1024), b"e" * 1024),
        (Entry(b"link", EntryType.SYMLINK, 0o777, linkname=b"t" * 200), b""),
        (Entry(b"hard", EntryType.HARDLINK, linkname=b"exact"), b""),
        (Entry(b"dev", EntryType.CHAR, device=(1, 3)), b""),
        (Entry(b"blk", EntryType.BLOCK, device=(259, 65537)), b""),
        (Entry(b"pipe", EntryType.FIFO), b""),
    ]
    found = scan(engine, archive(members), chunk)
    assert found.fault is Fault.NONE
    assert list(found.index) == [entry for entry, _ in members]
    assert found.contents == {1: b"z" * 1500, 2: b"", 3: b"e" * 1024}


def test_an_empty_stream_is_an_empty_layer(engine: Engine) -> None:
    for data in (b"", bytes(512), END, bytes(10240)):
        found = scan(engine, data)
        assert (found.fault, len(found.index)) == (Fault.NONE, 0)


def test_an_archive_may_end_without_its_zeros(engine: Engine) -> None:
    assert fault(engine, block()) is Fault.NONE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"a", b"a"),
        (b"./a/b", b"a/b"),
        (b"/a/b", b"a/b"),
        (b"///a", b"a"),
        (b"a//b", b"a/b"),
        (b"a/./b", b"a/b"),
        (b"a/b/../c", b"a/c"),
        (b"a/..", b""),
        (b".", b""),
        (b"./", b""),
        (b"/", b""),
        (b"a/../../a", None),
        (b"..", None),
        (b"../a", None),
        (b"/../a", None),
        (b"a\xff\xfeb", b"a\xff\xfeb"),
        (b" a ", b" a "),
        (b"...", b"..."),
        (b"..a/b..", b"..a/b.."),
    ],
)
def test_paths_are_normalised_inside_the_root(engine: Engine, path: bytes, expected: bytes | None) -> None:
    found = scan(engine, block(path, b"5") + END)
    if expected is None:
        assert found.fault is Fault.PATH_ESCAPES
        assert found.culprit == path
    else:
        assert found.fault is Fault.NONE
        assert found.index.path(0) == expected


def test_a_hard_link_cannot_point_out_of_the_root(engine: Engine) -> None:
    assert fault(engine, block(typeflag=b"1", link=b"../../etc/passwd")) is Fault.PATH_ESCAPES
    assert one(engine, block(typeflag=b"1", link=b"/etc/./passwd")).linkname == b"etc/passwd"


def test_a_symbolic_link_keeps_its_target_as_it_stands(engine: Engine) -> None:
    assert one(engine, block(typeflag=b"2", link=b"../../../x//./")).linkname == b"../../../x//./"


def test_prefix_is_read_with_posix_magic_only(engine: Engine) -> None:
    assert one(engine, block(b"name", prefix=b"some/where")).path == b"some/where/name"
    assert one(engine, block(b"name", prefix=b"some/where", magic=b"ustar  \0")).path == b"name"
    assert one(engine, block(b"name", prefix=b"some/where", magic=bytes(8))).path == b"name"
    assert one(engine, block(b"n" * 100, prefix=b"p" * 155)).path == b"p" * 155 + b"/" + b"n" * 100


def test_v7_marks_directories_by_their_slash(engine: Engine) -> None:
    assert one(engine, block(b"d/", b"\0", magic=bytes(8))).type is EntryType.DIRECTORY
    assert one(engine, block(b"f", b"\0", magic=bytes(8))).type is EntryType.FILE


def test_gnu_long_name_decides_type_of_v7_entry(engine: Engine) -> None:
    # the 100 bytes in the header end in '/', the name does not
    long = b"d" * 99 + b"/" + b"file"
    assert one(engine, extended(long + b"\0", b"L") + block(long[:100], b"\0")).type is EntryType.FILE


def test_contiguous_files_are_files(engine: Engine) -> None:
    assert one(engine, block(typeflag=b"7")).type is EntryType.FILE


def test_gnu_long_names_and_links(engine: Engine) -> None:
    name, link = b"n/" * 120 + b"x", b"l" * 300
    data = extended(link + b"\0", b"K") + extended(name + b"\0", b"L") + block(name[:100], b"2", link=link[:100])
    entry = one(engine, data)
    assert (entry.path, entry.linkname) == (name, link)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"0000644\0", 0o644),
        (b"    644 ", 0o644),
        (b"644\0    ", 0o644),
        (b"00000644", 0o644),
        (b"\0\0\0\0\0\0\0\0", 0),
        (b"        ", 0),
        (b"644\0junk", 0o644),
        (b"\x80\0\0\0\0\0\x01\xa4", 0o644),
        (b"0100644\0", 0o644),
        (b"000064x\0", None),
        (b"64 4    ", None),
        (b"0000648\0", None),
        (b"-000644\0", None),
        (b"0x1a4\0\0\0", None),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", 0o7777),
        (b"\x81\0\0\0\0\0\x01\xa4", None),
        (b"\xc0\0\0\0\0\0\x01\xa4", None),
        (b"\x93000644\0", None),
    ],
)
def test_numbers_are_octal_or_base_256(engine: Engine, field: bytes, expected: int | None) -> None:
    data = block(mode=field)
    if expected is None:
        assert fault(engine, data + END) is Fault.NUMBER
    else:
        assert one(engine, data).mode == expected


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"\x80" + bytes(7) + b"\x00\x00\x00\x05", 5),
        (b"\xff" * 12, -1),
        (b"\xff" * 8 + b"\xff\xff\xff\x00", -256),
        (b"\x80\0\0\0\x7f" + b"\xff" * 7, (1 << 63) - 1),
        (b"\x80\0\0\0\x80" + bytes(7), None),
        (b"\x80\0\0\1" + bytes(8), None),
        (b"\xff\xff\xff\xff\x7f" + b"\xff" * 7, None),
        (b"77777777777\0", 8**11 - 1),
        (b"777777777777", 8**12 - 1),
    ],
)
def test_times_use_all_of_their_field(engine: Engine, field: bytes, expected: int | None) -> None:
    data = block(mtime=field)
    if expected is None:
        assert fault(engine, data + END) is Fault.NUMBER
    else:
        assert one(engine, data).mtime == expected


def test_a_signed_checksum_is_a_checksum(engine: Engine) -> None:
    good = block(b"caf\xe9")
    signed = sum(byte - 256 if byte > 127 else byte for byte in good[:148] + b" " * 8 + good[156:])
    assert one(engine, block(b"caf\xe9", checksum=b"%06o\0 " % signed)).path == b"caf\xe9"


# --- pax


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0", 0),
        (b"1700000000", 1700000000),
        (b"1.999999999", 1),
        (b"-1", -1),
        (b"-1.0", -1),
        (b"-1.5", -2),
        (b"-0.5", -1),
        (b"1.", 1),
        (b"9223372036854775807", (1 << 63) - 1),
        (b"9223372036854775808", None),
        (b".5", None),
        (b"1e5", None),
        (b"+1", None),
        (b" 1", None),
        (b"nan", None),
        (b"--1", None),
        (b"1.5x", None),
    ],
)
def test_pax_times_are_rounded_down(engine: Engine, text: bytes, expected: int | None) -> None:
    data = pax((b"mtime", text)) + block()
    if expected is None:
        assert fault(engine, data + END) in (Fault.PAX_RECORD, Fault.NUMBER)
    else:
        assert one(engine, data).mtime == expected


def test_pax_record_overrides_header(engine: Engine) -> None:
    records = (
        (b"path", b"caf\xc3\xa9/\xff"),
        (b"linkpath", b"target"),
        (b"uid", b"4294967294"),
        (b"gid", b"70000"),
        (b"mtime", b"5.5"),
        (b"uname", b"ignored"),
        (b"comment", b"ignored=too"),
        (b"SCHILY.xattr.security.capability", b"\x00\x01\x02\n\xff"),
        (b"SCHILY.xattr.user.a=b", b"x"),
    )
    entry = one(engine, pax(*records) + block(b"other", b"2", link=b"else"))
    assert (entry.path, entry.linkname, entry.uid, entry.gid, entry.mtime) == (
        b"caf\xc3\xa9/\xff",
        b"target",
        4294967294,
        70000,
        5,
    )
    assert entry.xattrs == ((b"security.capability", b"\x00\x01\x02\n\xff"), (b"user.a", b"b=x"))


def test_pax_size_decides_length_of_payload(engine: Engine) -> None:
    # TARmageddon: a reader that skips by the header's size would find another entry in the payload
    inner = block(b"smuggled")
    found = scan(engine, pax((b"size", b"512")) + block(b"outer", size=0) + inner + block(b"next") + END)
    assert [entry.path for entry in found.index] == [b"outer", b"next"]
    assert found.contents[0] == inner


def test_last_of_equal_records_applies(engine: Engine) -> None:
    assert one(engine, pax((b"path", b"first"), (b"path", b"last")) + block()).path == b"last"
    assert one(engine, pax((b"SCHILY.xattr.user.a", b"1"), (b"SCHILY.xattr.user.a", b"2")) + block()).xattrs == (
        (b"user.a", b"2"),
    )


def test_empty_record_restores_value_of_header(engine: Engine) -> None:
    data = pax((b"uid", b"7"), (b"gid", b"8"), typeflag=b"g") + pax((b"uid", b"")) + block(b"own", uid=b"0000003\0")
    entry = one(engine, data)
    assert (entry.path, entry.uid, entry.gid) == (b"own", 3, 8)


def test_empty_target_is_refused_for_links_only(engine: Engine) -> None:
    """GNU tar and tarfile see a link without a target, Go and libarchive one with the header's."""
    empty = pax((b"linkpath", b""))
    assert one(engine, empty + block(b"f", size=1) + padded(b"x")).path == b"f"
    assert one(engine, empty + block(b"d/", b"5")).type is EntryType.DIRECTORY
    assert fault(engine, empty + block(typeflag=b"2", link=b"t") + END) is Fault.EMPTY_LINK


def test_global_records_last_until_they_change(engine: Engine) -> None:
    data = (
        pax((b"uid", b"5"), (b"mtime", b"9"), typeflag=b"g")
        + block(b"a")
        + pax((b"uid", b"6"), typeflag=b"g")
        + pax((b"mtime", b"1"))
        + block(b"b")
        + block(b"c")
    )
    found = scan(engine, data + END)
    assert [(entry.uid, entry.mtime) for entry in found.index] == [(5, 9), (6, 1), (6, 9)]


def test_a_pax_header_is_for_one_entry(engine: Engine) -> None:
    found = scan(engine, pax((b"path", b"long"), (b"SCHILY.xattr.user.a", b"1")) + block(b"a") + block(b"b") + END)
    assert [(entry.path, entry.xattrs) for entry in found.index] == [(b"long", ((b"user.a", b"1"),)), (b"b", ())]


# --- sparse files

SPARSE = b"A" * 1024 + bytes(4976) + b"B" * 500 + bytes(3500)
STORED = b"A" * 1024 + b"B" * 500
MAP = [(0, 1024), (6000, 500), (10000, 0)]


def sparse_old() -> bytes:
    items = b"".join(b"%011o\0%011o\0" % pair for pair in MAP)
    tail = items.ljust(96, b"\0") + b"\0" + b"%011o\0" % len(SPARSE) + bytes(17)
    return block(b"s", b"S", len(STORED), magic=b"ustar  \0", tail=tail) + padded(STORED)


def sparse_old_extended() -> bytes:
    pairs = [(number * 1000, 512) for number in range(40)]
    stored = b"".join(bytes([65 + number % 26]) * 512 for number in range(40))
    items = [b"%011o\0%011o\0" % pair for pair in pairs]
    tail = b"".join(items[:4]) + b"\x01" + b"%011o\0" % 40_000 + bytes(17)
    first = b"".join(items[4:25]) + b"\x01" + bytes(7)
    second = b"".join(items[25:]).ljust(504, b"\0") + b"\0" + bytes(7)
    return block(b"s", b"S", len(stored), magic=b"ustar  \0", tail=tail) + first + second + padded(stored)


def sparse_00() -> bytes:
    records = [(b"GNU.sparse.size", b"%d" % len(SPARSE)), (b"GNU.sparse.numblocks", b"3")]
    for offset, length in MAP:
        records += [(b"GNU.sparse.offset", b"%d" % offset), (b"GNU.sparse.numbytes", b"%d" % length)]
    return pax(*records) + block(b"s", size=len(STORED)) + padded(STORED)


def sparse_01() -> bytes:
    text = b",".join(b"%d,%d" % pair for pair in MAP)
    records = (
        (b"GNU.sparse.size", b"%d" % len(SPARSE)),
        (b"GNU.sparse.numblocks", b"3"),
        (b"GNU.sparse.name", b"s"),
        (b"GNU.sparse.map", text),
    )
    return pax(*records) + block(b"GNUSparseFile.1/s", size=len(STORED)) + padded(STORED)


def sparse_10(text: bytes | None = None, size: int = len(SPARSE), stored: bytes = STORED) -> bytes:
    text = text if text is not None else b"3\n" + b"".join(b"%d\n%d\n" % pair for pair in MAP)
    body = padded(text) + stored
    records = (
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", b"s"),
        (b"GNU.sparse.realsize", b"%d" % size),
    )
    return pax(*records) + block(b"GNUSparseFile.1/s", size=len(body)) + padded(body)


@pytest.mark.parametrize("make", [sparse_old, sparse_00, sparse_01, sparse_10])
@pytest.mark.parametrize("chunk", [1 << 20, 512, 333])
def test_every_sparse_encoding_gives_the_same_file(engine: Engine, make: Any, chunk: int) -> None:
    found = scan(engine, make() + block(b"next") + END, chunk)
    assert found.fault is Fault.NONE
    assert [(entry.path, entry.size) for entry in found.index] == [(b"s", 10000), (b"next", 0)]
    assert found.contents[0] == SPARSE


def test_old_sparse_maps_continue_in_extension_blocks(engine: Engine) -> None:
    found = scan(engine, sparse_old_extended() + block(b"next") + END)
    assert found.fault is Fault.NONE
    assert found.contents[0][:1512] == b"A" * 512 + bytes(488) + b"B" * 512
    assert len(found.index) == 2


def test_a_sparse_file_may_be_all_hole(engine: Engine) -> None:
    found = scan(engine, sparse_10(b"0\n", 1 << 20, b"") + END)
    assert found.fault is Fault.NONE
    assert (found.index[0].size, found.contents[0]) == (1 << 20, bytes(1 << 20))


@pytest.mark.parametrize(
    "data",
    [
        sparse_10(b"1\n0\n2000\n"),  # more than is stored
        sparse_10(b"1\n0\n1000\n"),  # less than is stored
        sparse_10(b"2\n500\n1024\n0\n500\n"),  # out of order
        sparse_10(b"2\n0\n1024\n1023\n500\n"),  # overlapping
        sparse_10(b"1\n9000\n1524\n"),  # beyond the size
        sparse_10(b"1\n-5\n1524\n"),
        sparse_10(b"x\n"),
        sparse_10(b"\n"),
        sparse_10(b"2\n0\n1000\n", stored=b""),  # the map never ends
        sparse_10(b"1\n0\n" + b"9" * 40 + b"\n"),
        pax((b"GNU.sparse.name", b"orphan")) + block(),
        pax((b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"0")) + block(),
        pax((b"GNU.sparse.size", b"10")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.numblocks", b"2"), (b"GNU.sparse.map", b"0,0")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,0,5")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,0,")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"a,b")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.offset", b"0")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.numbytes", b"0")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.offset", b"0"), (b"GNU.sparse.offset", b"0")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,0"), (b"GNU.sparse.map", b"0,0")) + block(),
        pax((b"GNU.sparse.unheard", b"10")) + block(),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,0")) + block(typeflag=b"5"),
        pax((b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,0")) + block(typeflag=b"S", magic=b"ustar  \0"),
    ],
)
def test_a_malformed_sparse_map_is_refused(engine: Engine, data: bytes) -> None:
    assert fault(engine, data + END) is Fault.SPARSE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"2\n0\n1024\n2000\n500\n", Fault.NONE),
        (b"3\n0\n1024\n2000\n500\n3000\n0\n", Fault.NONE),
        (b"2\n0\n1000\n2000\n524\n", Fault.SPARSE_PIECE),
        (b"3\n0\n1024\n2000\n0\n3000\n500\n", Fault.NONE),
        (b"3\n0\n1023\n2000\n0\n3000\n501\n", Fault.SPARSE_PIECE),
    ],
)
def test_only_the_last_piece_of_a_sparse_file_ends_within_a_block(engine: Engine, text: bytes, expected: Fault) -> None:
    """GNU tar reads each piece from a block of its own, tarfile and Go one behind the other."""
    assert fault(engine, sparse_10(text) + END) is expected


def test_sparse_maps_have_a_bound(engine: Engine) -> None:
    assert fault(engine, sparse_10(b"2000000\n") + END) is Fault.EXTENSION_SIZE
    endless = block(b"s", b"S", magic=b"ustar  \0", tail=bytes(96) + b"\x01" + b"%011o\0" % 10 + bytes(17))
    assert fault(engine, endless + (bytes(504) + b"\x01" + bytes(7)) * 2100) is Fault.EXTENSION_SIZE


# --- what is refused


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"not a tar at all".ljust(512, b"!"), Fault.CHECKSUM),
        (block(checksum=b"0000000\0"), Fault.CHECKSUM),
        (block(checksum=b"xxxxxx\0 "), Fault.CHECKSUM),
        (block(size=b"-0000000001\0"), Fault.NUMBER),
        (block(size=b"\xff" * 12), Fault.NUMBER),
        (block(size=b"99999999999\0"), Fault.NUMBER),
        (block(uid=b"\xff" * 8), Fault.ID_RANGE),
        (block(uid=b"\x80\0\0\0\xff\xff\xff\xff"), Fault.ID_RANGE),
        (pax((b"gid", b"4294967295")) + block(), Fault.ID_RANGE),
        (block(typeflag=b"V"), Fault.TYPEFLAG),
        (block(typeflag=b"M"), Fault.TYPEFLAG),
        (block(typeflag=b"X"), Fault.TYPEFLAG),
        (block(typeflag=b"8"), Fault.TYPEFLAG),
        (block(b"d", b"5", size=512) + block(b"hidden"), Fault.SIZE_OF_TYPE),
        (block(b"l", b"2", size=512, link=b"t") + block(b"hidden"), Fault.SIZE_OF_TYPE),
        (pax((b"size", b"512")) + block(b"p", b"6"), Fault.SIZE_OF_TYPE),
        (block(b"f/"), Fault.TRAILING_SLASH),
        (block(b""), Fault.EMPTY_PATH),
        (extended(b"\0", b"L") + block(), Fault.EMPTY_PATH),
        (
            block(b"/".join([b"d"] * 49) + b"/", b"5") * 1 + pax((b"path", b"/".join([b"d"] * 256))) + block(),
            Fault.PATH_DEPTH,
        ),
        (pax((b"path", b"n" * 256)) + block(), Fault.NAME_LENGTH),
        (pax((b"path", b".wh." + b"n" * 256)) + block(), Fault.NAME_LENGTH),
        (pax((b"path", b"wh.." + b"n" * 252)) + block(), Fault.NAME_LENGTH),
        (pax((b"path", b".wh." + b"n" * 255 + b"/" + b"n" * 256)) + block(), Fault.NAME_LENGTH),
        (pax((b"path", b"a\0b")) + block(), Fault.NUL_IN_NAME),
        (extended(b"a\0b\0", b"L") + block(), Fault.NUL_IN_NAME),
        (pax((b"linkpath", b"a\0b")) + block(typeflag=b"2"), Fault.NUL_IN_NAME),
        (block(typeflag=b"2"), Fault.EMPTY_LINK),
        (block(typeflag=b"1"), Fault.EMPTY_LINK),
        (block(b"x", b"x", size=(1 << 20) + 1), Fault.EXTENSION_SIZE),
        (block(b"L", b"L", size=1 << 30), Fault.EXTENSION_SIZE),
        (pax((b"uid", b"1")) + pax((b"gid", b"1")) + block(), Fault.EXTENSION_REPEATED),
        (extended(b"a\0", b"L") * 2 + block(), Fault.EXTENSION_REPEATED),
        (extended(b"a\0", b"K") * 2 + block(), Fault.EXTENSION_REPEATED),
        (pax((b"uid", b"1")) + pax((b"gid", b"1"), typeflag=b"g") + block(), Fault.EXTENSION_REPEATED),
        (pax((b"uid", b"1")), Fault.EXTENSION_DANGLING),
        (extended(b"a\0", b"L") + END, Fault.EXTENSION_DANGLING),
        (extended(b"10 path=a\n" + b"junk") + block(), Fault.PAX_RECORD),
        (extended(b"99 path=a\n") + block(), Fault.PAX_RECORD),
        (extended(b"8 path=a\n") + block(), Fault.PAX_RECORD),
        (extended(b"10 path=ab") + block(), Fault.PAX_RECORD),
        (extended(b"8 path_\n") + block(), Fault.PAX_RECORD),
        (extended(b"5 =a\n") + block(), Fault.PAX_RECORD),
        (extended(b" 10 path=a\n") + block(), Fault.PAX_RECORD),
        (extended(b"0 path=a\n") + block(), Fault.PAX_RECORD),
        (extended(b"-5 path=a\n") + block(), Fault.PAX_RECORD),
        (pax((b"pa\0th", b"a")) + block(), Fault.PAX_RECORD),
        (pax((b"size", b"512")) + block(typeflag=b"1", link=b"a"), Fault.SIZE_OF_TYPE),
        (block(b"l", b"L", 2, mode=b"/000644\0") + padded(b"f\0") + block(), Fault.NUMBER),
        (block(b"l", b"g", 0, uid=b"9999999\0") + block(), Fault.NUMBER),
        (pax((b"size", b"")) + block(), Fault.PAX_RECORD),
        (pax((b"path", b"")) + block(), Fault.EMPTY_PATH),
        (extended(b"f\0", b"L") + pax((b"path", b"")) + block(), Fault.NAMES_DIFFER),
        (pax((b"linkpath", b"")) + block(typeflag=b"2", link=b"t"), Fault.EMPTY_LINK),
        (pax((b"linkpath", b"")) + block(typeflag=b"1", link=b"t"), Fault.EMPTY_LINK),
        (pax((b"size", b"0x10")) + block(), Fault.PAX_RECORD),
        (pax((b"size", b" 1")) + block(), Fault.PAX_RECORD),
        (pax((b"size", b"-1")) + block(), Fault.PAX_RECORD),
        (pax((b"size", b"9" * 30)) + block(), Fault.NUMBER),
        (pax((b"SCHILY.xattr.", b"x")) + block(), Fault.PAX_RECORD),
        (pax((b"path", b"a"), typeflag=b"g") + block(), Fault.PAX_GLOBAL),
        (pax((b"size", b"0"), typeflag=b"g") + block(), Fault.PAX_GLOBAL),
        (pax((b"SCHILY.xattr.user.x", b"0"), typeflag=b"g") + block(), Fault.PAX_GLOBAL),
        (pax((b"GNU.sparse.size", b"0"), typeflag=b"g") + block(), Fault.PAX_GLOBAL),
        (extended(b"one\0", b"L") + pax((b"path", b"two")) + block(), Fault.NAMES_DIFFER),
        (pax((b"linkpath", b"two")) + extended(b"one\0", b"K") + block(typeflag=b"2"), Fault.NAMES_DIFFER),
        (block() + bytes(512) + block(), Fault.LONE_ZERO_BLOCK),
        (block() + END + block(), Fault.AFTER_END),
        (block() + END + bytes(511) + b"x", Fault.AFTER_END),
        (block()[:511], Fault.TRUNCATED),
        (block(size=10), Fault.TRUNCATED),
        (block(size=10) + b"0123456789", Fault.TRUNCATED),
        (block(size=1000) + bytes(512), Fault.TRUNCATED),
        (extended(b"11 path=ab\n")[:600], Fault.TRUNCATED),
        (block() + bytes(600), Fault.TRUNCATED),
        (block(typeflag=b"3", devices=b"0010000\x000000000\0"), Fault.DEVICE_RANGE),
        (block(typeflag=b"4", devices=b"0000000\x004000000\0"), Fault.DEVICE_RANGE),
        (block(typeflag=b"3", devices=b"zzz\0\0\0\0\x000000000\0"), Fault.NUMBER),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 100])
def test_malformed_or_ambiguous_archives_are_refused(engine: Engine, data: bytes, expected: Fault, chunk: int) -> None:
    assert scan(engine, data, chunk).fault is expected


def test_offset_of_faulty_header_is_reported(engine: Engine) -> None:
    found = scan(engine, block(b"a", size=600) + bytes(1024) + block(b"b") + b"?" * 512)
    assert (found.fault, found.offset) == (Fault.CHECKSUM, 512 + 1024 + 512)


def test_after_a_fault_nothing_more_is_read(engine: Engine) -> None:
    running = engine.scanner()
    assert running.feed(b"?" * 512) == Fault.CHECKSUM
    assert running.feed(block()) == Fault.CHECKSUM
    assert running.finish() == Fault.CHECKSUM
    assert len(running.entries) == 0


def test_equal_pax_and_gnu_names_are_accepted(engine: Engine) -> None:
    name = b"n" * 120
    assert one(engine, extended(name + b"\0", b"L") + pax((b"path", name)) + block(name[:100])).path == name


def test_the_size_of_a_hard_link_is_not_payload(engine: Engine) -> None:
    found = scan(engine, block(b"l", b"1", size=5000, link=b"t") + block(b"next") + END)
    assert [entry.path for entry in found.index] == [b"l", b"next"]
    assert found.index[0].size == 0


# --- other writers and readers


def from_tarfile(data: bytes) -> list[tuple[Any, ...]]:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), errorlevel=2) as tar:
        for member in tar:
            name = member.name.encode("utf-8", "surrogateescape").strip(b"/").removeprefix(b"./")
            content = tar.extractfile(member).read() if member.isreg() else None  # type: ignore[union-attr]
            found.append((name, member.mode & 0o7777, member.uid, member.gid, int(member.mtime // 1), content))
    return found


def comparable(found: Scanned) -> list[tuple[Any, ...]]:
    return [
        (entry.path, entry.mode, entry.uid, entry.gid, entry.mtime, found.contents.get(number))
        for number, entry in enumerate(found.index)
    ]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_tarfile_are_read_as_by_tarfile(engine: Engine, form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, size, uid in (
            ("a", 0, 0),
            ("d/b", 511, 1000),
            ("c" * 90, 512, 2097151),
            ("deep/" * 18 + "x", 5000, 5),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.uid, member.mtime = size, uid, 1234567890
            tar.addfile(member, io.BytesIO(os.urandom(size)))
        if form != tarfile.USTAR_FORMAT:
            member = tarfile.TarInfo("é" * 120)
            member.uid = 1 << 31
            tar.addfile(member)
    data = buffer.getvalue()
    assert comparable(scan(engine, data, 1000)) == from_tarfile(data)


@pytest.mark.peer("tar")
@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], ["--format=posix", "--sparse-version=0.0"], ["--format=posix", "--sparse-version=0.1"],
     ["--format=posix", "--sparse-version=1.0"]],
    ids="-".join,
)  # fmt: skip
def test_sparse_archives_of_gnu_tar_are_read_as_by_gnu_tar(engine: Engine, options: list[str], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ("n" * 60) / ("m" * 60)).mkdir(parents=True)
    with (tree / "sparse").open("wb") as file:
        for at in range(0, 60 << 20, 2 << 20):
            file.seek(at)
            file.write(b"data at %d" % at)
        file.truncate(64 << 20)
    with (tree / "hole").open("wb") as file:
        file.truncate(1 << 20)
    (tree / ("n" * 60) / ("m" * 60) / "plain").write_bytes(b"x" * 3000)
    os.link(tree / "hole", tree / "second-name")
    os.symlink("hole", tree / "link")
    data = subprocess.run(
        ["tar", "-S", *options, "-cf", "-", "-C", tree, "."], check=True, stdout=subprocess.PIPE
    ).stdout
    found = scan(engine, data, 70_000)
    assert found.fault is Fault.NONE
    by_path = {entry.path: (entry, found.contents.get(number)) for number, entry in enumerate(found.index)}
    assert by_path[b"sparse"][0].size == 64 << 20
    assert by_path[b"sparse"][1] == (tree / "sparse").read_bytes()
    holes = [by_path[name] for name in (b"hole", b"second-name") if by_path[name][0].type is EntryType.FILE]
    assert [content for _, content in holes] == [bytes(1 << 20)]
    assert by_path[b"n" * 60 + b"/" + b"m" * 60 + b"/plain"][1] == b"x" * 3000


# --- properties

names = st.lists(
    st.binary(min_size=1, max_size=40)
    .map(lambda name: name.replace(b"/", b"-").replace(b"\0", b"-"))
    .filter(lambda name: name not in (b".", b"..")),
    min_size=1,
    max_size=8,
).map(b"/".join)
entries = st.builds(
    lambda path, kind, mode, uid, gid, mtime, content, link, xattrs: (
        Entry(
            path,
            kind,
            mode,
            uid,
            gid,
            mtime,
            len(content) if kind is EntryType.FILE else 0,
            link if kind in (EntryType.SYMLINK, EntryType.HARDLINK) else b"",
            (7, 9) if kind in (EntryType.CHAR, EntryType.BLOCK) else (0, 0),
            tuple(sorted(xattrs.items())),
        ),
        content if kind is EntryType.FILE else b"",
    ),
    names,
    st.sampled_from(EntryType),
    st.integers(0, 0o7777),
    st.integers(0, (1 << 32) - 2),
    st.integers(0, (1 << 32) - 2),
    st.integers(-(1 << 40), 1 << 40),
    st.binary(max_size=1500),
    names,
    st.dictionaries(
        st.sampled_from([b"user.a", b"user.b", b"security.x"]), st.binary(min_size=1, max_size=300), max_size=2
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(entries, max_size=6), st.integers(1, 3000))
def test_written_headers_are_scanned_back(members: list[tuple[Entry, bytes]], chunk: int) -> None:
    for engine in ENGINES:
        found = scan(engine, archive(members), chunk)
        assert found.fault is Fault.NONE
        assert list(found.index) == [entry for entry, _ in members]
        assert list(found.contents.values()) == [content for entry, content in members if entry.type is EntryType.FILE]


corpus = st.sampled_from(
    [
        archive(
            [(Entry(b"a", EntryType.FILE, size=700), b"x" * 700), (Entry(b"n" * 150, EntryType.DIRECTORY, 0o755), b"")]
        ),
        sparse_old() + END,
        sparse_old_extended() + END,
        sparse_00() + END,
        sparse_01() + END,
        sparse_10() + END,
        extended(b"x" * 200 + b"\0", b"L") + block() + END,
        pax((b"uid", b"5"), typeflag=b"g") + block() + END,
    ]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    corpus,
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 2000),
)
def test_the_engines_agree_on_every_damaged_archive(
    data: bytes, changes: list[tuple[int, int]], mend: bool, chunk: int
) -> None:
    damaged = bytearray(data)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    if mend:  # make the first header's checksum right, so that what is behind it is looked at
        damaged[148:156] = b"%06o\0 " % sum(damaged[:148] + b" " * 8 + damaged[156:512])
    assert scan(NATIVE, bytes(damaged), chunk).verdict == scan(REFERENCE, bytes(damaged), 1 << 20).verdict


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.05, 0.3]), st.integers(1, 3000))
def test_the_engines_agree_on_archives_of_every_kind(choose: random.Random, odd: float, chunk: int) -> None:
    data = random_archive(choose, odd)
    assert scan(NATIVE, data, chunk).verdict == scan(REFERENCE, data).verdict


sparse_fields = [b"map", b"size", b"major", b"minor", b"offset", b"numbytes", b"numblocks", b"realsize", b"name"]
fields = st.sampled_from(
    [
        b"path",
        b"linkpath",
        b"size",
        b"uid",
        b"mtime",
        b"SCHILY.xattr.user.x",
        *(b"GNU.sparse." + f for f in sparse_fields),
    ]
)
values = st.sampled_from([b"", b"0", b"1", b"512", b"-1", b"0,0", b"0,512", b"a/b", b"../x", b"x\0y"]) | st.binary(
    max_size=8
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(fields, values), max_size=5),
    st.sampled_from([b"x", b"g"]),
    st.sampled_from([b"0", b"5", b"1", b"2", b"S", b"\0"]),
    st.sampled_from([0, 512, 1024]),
)
def test_the_engines_agree_on_every_set_of_pax_records(
    records: list[tuple[bytes, bytes]], kind: bytes, typeflag: bytes, size: int
) -> None:
    data = (
        pax(*records, typeflag=kind)
        + block(b"name", typeflag, size, link=b"t")
        + padded(b"1\n0\n0\n".ljust(size))
        + END
    )
    assert scan(NATIVE, data).verdict == scan(REFERENCE, data).verdict


def test_written_headers_are_read_by_tarfile(tmp_path: Path) -> None:
    entry = Entry(b"d/" + b"n" * 120, EntryType.FILE, 0o4711, 3_000_000, 12, 99, 5, xattrs=((b"user.k", b"v\n"),))
    data = header_of(entry) + padded(b"hello") + END
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        member = tar.next()
        assert member is not None
        assert (member.name.encode(), member.mode, member.uid, member.gid, member.mtime, member.size) == (
            entry.path, entry.mode, entry.uid, entry.gid, entry.mtime, 5,
        )  # fmt: skip
        assert member.pax_headers["SCHILY.xattr.user.k"] == "v\n"


def test_a_table_is_the_same_once_it_is_complete(engine: Engine) -> None:
    scanner = engine.scanner()
    scanner.feed(archive([(Entry(b"a", EntryType.DIRECTORY), b""), (Entry(b"a/b", EntryType.FILE, size=1), b"1")]))
    columns = scanner.entries.columns()
    assert scanner.entries.columns() == columns
    assert [scanner.entries.path(number) for number in range(len(scanner.entries))] == [b"a", b"a/b"]


def test_complete_table_refuses_further_entries() -> None:
    scanner = NATIVE.scanner()
    scanner.entries.columns()
    with pytest.raises(ValueError, match="complete"):
        scanner.feed(bytes(512))
