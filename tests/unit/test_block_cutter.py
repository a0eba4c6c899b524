"""The block cutter, which cuts payload into squashfs blocks: one contract for both engines."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.layers.archive import archive
from tests.support.engines import ENGINES, NATIVE, REFERENCE, Engine
from tests.support.layers import Member, file, folder, symlink

BLOCK = 4096


@dataclass
class CutBlocks:
    """The result for a layer: blocks by number (None for a hole), tail-ends by entry."""

    blocks: list[bytes | None] = field(default_factory=list)
    tails: dict[int, bytes] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)


def cut(
    engine: Engine,
    layer: bytes,
    *,
    chunk: int = 10_000,
    tails_apart: bool = True,
    capacity: int = 2 * BLOCK,
    wanted: bytearray | None = None,
) -> CutBlocks:
    scanner, buffer, made = engine.scanner(), bytearray(capacity), CutBlocks()
    cutter = engine.cutter(scanner.entries, BLOCK, tails_apart, buffer, wanted)

    def take() -> None:
        nonlocal buffer
        full, buffer = buffer, bytearray(capacity)
        at = 0
        assert cutter.pending <= capacity
        for length in array("I", cutter.take(buffer)):
            made.blocks.append(bytes(full[at : at + length]) if length else None)
            at += length

    for at in range(0, len(layer), chunk):
        piece = layer[at : at + chunk]
        assert scanner.feed(piece) == 0
        while code := cutter.cut(piece, scanner.spans):
            assert code == 1
            take()
        data, entries, lengths = cutter.take_tails()
        for entry, length in zip(array("I", entries), array("I", lengths), strict=True):
            made.tails[entry], data = data[:length], data[length:]
        assert not data
    assert scanner.finish() == 0
    take()
    made.firsts = list(array("Q", cutter.firsts_bytes()))
    return made


def content(size: int, seed: int = 1) -> bytes:
    return bytes((at * 7 + at // 256 + seed) % 255 + 1 for at in range(size))


def whole(made: CutBlocks, number: int, size: int) -> bytes:
    """Return the content of an entry from its blocks and its tail-end."""
    count = size // BLOCK + (1 if size % BLOCK and number not in made.tails else 0)
    first = made.firsts[number] if count else 0
    parts = [BLOCK * b"\0" if block is None else block for block in made.blocks[first : first + count]]
    return (b"".join(parts) + made.tails.get(number, b""))[:size]


SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 1, 50_000]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("tails_apart", [True, False], ids=["fragments", "no-fragments"])
@pytest.mark.parametrize("chunk", [100, 4096, 10_000, 1 << 20])
def test_every_byte_is_in_a_block_or_a_tail_end(engine: Engine, tails_apart: bool, chunk: int) -> None:
    members = [folder("d"), *(file(f"d/{size}", content(size, size)) for size in SIZES), symlink("l", "d")]
    made = cut(engine, archive(members), chunk=chunk, tails_apart=tails_apart)
    for number, (entry, expected) in enumerate(members):
        assert whole(made, number, entry.size) == expected
    assert set(made.tails) == (
        {n for n, (entry, _) in enumerate(members) if entry.size % BLOCK} if tails_apart else set()
    )


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_zero_blocks_are_holes(engine: Engine) -> None:
    made = cut(engine, archive([file("a", bytes(BLOCK) + content(BLOCK) + bytes(BLOCK) + b"x")]))
    assert [block is None for block in made.blocks] == [True, False, True]
    assert made.tails == {0: b"x"}


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_without_fragments_a_last_block_of_zeros_is_a_hole(engine: Engine) -> None:
    made = cut(engine, archive([file("a", content(BLOCK) + bytes(10)), file("b", bytes(5))]), tails_apart=False)
    assert [block is None for block in made.blocks] == [False, True, True]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_an_unwanted_file_has_no_blocks_but_a_tail_end(engine: Engine) -> None:
    layer = archive([file("a", content(2 * BLOCK + 5, 1)), file("b", content(BLOCK + 7, 2))])
    made = cut(engine, layer, wanted=bytearray([0]))
    assert made.blocks == [content(BLOCK, 2)]
    assert made.firsts[1] == 0
    assert made.tails == {0: content(2 * BLOCK + 5, 1)[-5:], 1: content(BLOCK + 7, 2)[-7:]}


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_file_of_too_many_blocks_is_reported_by_entry(engine: Engine, sparse_giant: bytes) -> None:
    scanner = engine.scanner()
    cutter = engine.cutter(scanner.entries, BLOCK, True, bytearray(2 * BLOCK))
    assert scanner.feed(sparse_giant) == 0
    assert cutter.cut(sparse_giant, scanner.spans) == 2
    assert scanner.entries.path(cutter.failed) == b"giant"


@pytest.fixture
def sparse_giant() -> bytes:
    """Return a tar with a sparse file of 2^40 bytes and no stored bytes."""
    return sparse_file(b"giant", 1 << 40, [(1 << 40, b"")])


def sparse_file(name: bytes, size: int, pieces: list[tuple[int, bytes]]) -> bytes:
    """Return a tar with one sparse file in the pax format 0.1 of GNU tar."""
    records = [b"GNU.sparse.size=%d" % size, b"GNU.sparse.numblocks=%d" % len(pieces)]
    records.append(b"GNU.sparse.map=" + b",".join(b"%d,%d" % (offset, len(data)) for offset, data in pieces))
    pax = b"".join(_record(record) for record in records)
    payload = b"".join(data for _, data in pieces)
    return (
        _header(b"pax", len(pax), b"x")
        + _padded(pax)
        + _header(name, len(payload), b"0")
        + _padded(payload)
        + bytes(1024)
    )


def _record(text: bytes) -> bytes:
    length = len(text) + 3
    while len(str(length)) + len(text) + 2 != length:
        length = len(str(length)) + len(text) + 2
    return b"%d %s\n" % (length, text)


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    fields = [name.ljust(100, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size, b"0" * 11 + b"\0"]
    head = b"".join(fields) + b" " * 8 + kind + bytes(100) + b"ustar\x0000" + bytes(247)
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_gaps_of_sparse_files_become_holes(engine: Engine) -> None:
    size = 1000 * BLOCK + 17
    pieces = [(BLOCK // 2, content(512)), (500 * BLOCK, content(BLOCK + 3))]
    made = cut(engine, sparse_file(b"s", size, pieces))
    expected = bytearray(size)
    for offset, data in pieces:
        expected[offset : offset + len(data)] = data
    assert whole(made, 0, size) == expected
    assert sum(block is not None for block in made.blocks) == 3
    assert made.tails == {0: bytes(17)}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_engines_agree_for_any_chunks(data: st.DataObject) -> None:
    members: list[Member] = []
    for number in range(data.draw(st.integers(1, 6))):
        parts = data.draw(st.lists(st.tuples(st.booleans(), st.integers(0, 2 * BLOCK + 1)), max_size=4))
        members.append(file(f"f{number}", b"".join(content(size) if full else bytes(size) for full, size in parts)))
    wanted = data.draw(st.none() | st.lists(st.integers(0, 1), max_size=6).map(bytearray))
    tails_apart = data.draw(st.booleans())
    layer = archive(members)

    def run(engine: Engine) -> CutBlocks:
        return cut(
            engine,
            layer,
            chunk=data.draw(st.integers(1, 20_000)),
            tails_apart=tails_apart,
            capacity=data.draw(st.sampled_from([2 * BLOCK, 5 * BLOCK + 1])),
            wanted=wanted,
        )

    one, other = run(NATIVE), run(REFERENCE)
    assert (one.blocks, one.tails, one.firsts) == (other.blocks, other.tails, other.firsts)
    for number, (entry, expected) in enumerate(members):
        if wanted is None or number >= len(wanted) or wanted[number]:
            assert whole(one, number, entry.size) == expected


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_incomplete_tail_end_is_not_carried_over_from_the_buffer(engine: Engine) -> None:
    """The cutter keeps it outside the buffer, whose blocks may fill the whole buffer."""
    layer = archive([file("f", b"b" * 2 * BLOCK + b"t" * (BLOCK - 1))])
    scanner, buffer = engine.scanner(), bytearray(2 * BLOCK)
    cutter = engine.cutter(scanner.entries, BLOCK, True, buffer, None)
    piece = layer[: 512 + 2 * BLOCK + 1000]
    assert scanner.feed(piece) == 0
    assert cutter.cut(piece, scanner.spans) == 0
    other = bytearray(b"o" * 2 * BLOCK)
    cutter.take(other)
    assert other == b"o" * 2 * BLOCK
