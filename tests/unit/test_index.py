from __future__ import annotations

import json

import pytest

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.index import LayerIndex
from fastpull.oci.digest import Digest

ENTRIES = [
    Entry(b"", EntryType.DIRECTORY, 0o755),
    Entry(b"a/\xff", EntryType.FILE, 0o4755, 1, 2, -3, 1 << 40, xattrs=((b"user.a", b"\0"), (b"user.b", b"x"))),
    Entry(b"l", EntryType.SYMLINK, 0o777, linkname=b"../x"),
    Entry(b"d", EntryType.BLOCK, device=(259, 65537)),
    Entry(b"h", EntryType.HARDLINK, linkname=b"a/\xff"),
]


def made() -> LayerIndex:
    columns = LayerIndex.of(ENTRIES).columns
    return LayerIndex(Digest.of(b"blob"), Digest.of(b"diff", "sha512"), 12345, columns)


def test_index_returns_its_entries_unchanged() -> None:
    index = made()
    assert len(index) == len(ENTRIES)
    assert list(index) == ENTRIES
    assert list(index.paths()) == [entry.path for entry in ENTRIES]


def test_index_survives_a_round_trip() -> None:
    index = LayerIndex.from_bytes(made().to_bytes())
    assert (index.blob, index.diff_id, index.size) == (Digest.of(b"blob"), Digest.of(b"diff", "sha512"), 12345)
    assert index.columns == made().columns
    assert list(index) == ENTRIES


def test_last_of_equal_attributes_applies_and_empty_one_removes() -> None:
    entry = Entry(
        b"f", EntryType.FILE, xattrs=((b"user.a", b"1"), (b"user.b", b"2"), (b"user.a", b"3"), (b"user.b", b""))
    )
    assert LayerIndex.of([entry])[0].xattrs == ((b"user.a", b"3"),)


@pytest.mark.parametrize("content", [b"", b"fastpull index 0\n{}\n", b"junk" * 100])
def test_other_formats_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="version"):
        LayerIndex.from_bytes(content)


def test_another_byte_order_is_refused() -> None:
    content = made().to_bytes()
    magic, head, rest = content.split(b"\n", 2)
    changed = {**json.loads(head), "byte_order": "middle"}
    with pytest.raises(ValueError, match="byte order"):
        LayerIndex.from_bytes(b"\n".join((magic, json.dumps(changed).encode(), rest)))


def test_entry_takes_at_most_45_bytes_and_its_name() -> None:
    entries = [Entry(b"%06d" % number, EntryType.FILE) for number in range(1000)]
    columns = LayerIndex.of(entries).columns
    assert sum(map(len, columns)) / 1000 <= 45 + 6


def test_deeply_nested_head_is_refused() -> None:
    head = json.dumps({"columns": "DEEP"}).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="no index of this version"):
        LayerIndex.from_bytes(b"fastpull index 1\n" + head.encode() + b"\n")
