"""gzip streams entered at checkpoints: what several threads inflate is what one inflates, or it is noticed."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.concurrency.cores import IdleCores
from fastpull.concurrency.threads import Aborted
from fastpull.layers.deflate import WINDOW_SIZE, RawInflater
from fastpull.layers.gzip_stream import GzipStream
from fastpull.native import _native
from fastpull.native.pure import deflate as pure
from fastpull.oci.digest import Digest
from fastpull.pipeline.checkpoints import CheckpointRecorder, Checkpoints, GzipPiece
from fastpull.pipeline.parallel import CheckpointsDamaged, ParallelInflater

SPACING = 64 << 10
WORDS = [bytes(random.Random(number).choices(range(256), k=2 + number % 9)) for number in range(4000)]


def content(seed: int, size: int) -> bytes:
    """Bytes that deflate to a third, in blocks of all kinds but stored ones."""
    chance = random.Random(seed)
    return b"".join(chance.choices(WORDS, k=size // 4))[:size]


def deflated(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
    return compressor.compress(data) + compressor.flush()


class Pieces(io.RawIOBase):
    """A stream that gives what it has in pieces of random sizes."""

    def __init__(self, data: bytes, seed: int) -> None:
        self._data = io.BytesIO(data)
        self._chance = random.Random(seed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._data.readinto(memoryview(buffer)[: self._chance.choice([1, 700, 90_000, 1 << 20])])


def record(stream: bytes, seed: int = 0, spacing: int = SPACING) -> tuple[bytes, Checkpoints | None]:
    recorder = CheckpointRecorder(spacing)
    reader, output = GzipStream(Pieces(stream, seed), recorder), []
    while chunk := reader.read(50_000):
        output.append(chunk)
    data = b"".join(output)
    return data, recorder.finish(Digest.of(data))


def inflate(stream: bytes, pieces: list[GzipPiece] | tuple[GzipPiece, ...], cores: int = 4, ahead: int = 3) -> bytes:
    def read_at(buffer: memoryview, offset: int) -> int:
        part = stream[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    idle = IdleCores(cores)
    with ThreadPoolExecutor(4) as executor, idle.occupy():
        reader, output = ParallelInflater(pieces, read_at, executor, idle, ahead), []
        try:
            while chunk := reader.read(0):
                output.append(chunk)
        finally:
            reader.close()
        assert idle.computing == 1
    return b"".join(output)


def test_blocks_are_found_at_every_bit_and_the_stream_goes_on_from_there() -> None:
    data = content(1, 3 << 20)
    stream, bit, phases = deflated(data), 0, set()
    while (bit := _native.find_deflate_block(stream, bit, 8 * len(stream))) >= 0:
        before = zlib.decompressobj(-15).decompress(stream[: bit >> 3])
        after = RawInflater(bit & 7, before[-WINDOW_SIZE:]).inflate(stream[bit >> 3 :], 1000)
        assert after == data[len(before) : len(before) + len(after)]
        phases.add(bit & 7)
        bit += 1
    assert phases == set(range(8))


@given(st.integers(0, 2**32), st.sampled_from([1, 6, 9]))
@settings(max_examples=10, deadline=None)
def test_both_engines_find_the_same_blocks(seed: int, level: int) -> None:
    stream = bytearray(deflated(content(seed, 30_000), level))
    chance = random.Random(seed)
    for _ in range(chance.randrange(4)):
        stream[chance.randrange(len(stream))] = chance.randrange(256)
    data, stop = bytes(stream), 8 * min(len(stream), 3000)
    found = []
    for find in (_native.find_deflate_block, pure.find_deflate_block):
        bit, bits = 0, []
        while (bit := find(data, bit, stop)) >= 0:
            bits.append(bit)
            bit += 1
        found.append(bits)
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 16, 17, 100])
def test_short_and_random_data_hold_no_block(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert _native.find_deflate_block(data, 0, 8 * size + 1000) == -1


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_pieces_give_the_bytes_of_the_stream(data: st.DataObject) -> None:
    members = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 400_000),
                st.sampled_from([0, 1, 6, 9]),
                st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    stream = b""
    for number, (size, level, strategy) in enumerate(members):
        plain = content(number, size)
        body = deflated(plain, level, strategy)
        trailer = zlib.crc32(plain).to_bytes(4, "little") + len(plain).to_bytes(4, "little")
        stream += b"\x1f\x8b\x08\x08\0\0\0\0\0\xffname\0" + body + trailer + bytes(number * 3)
    expected = gzip.decompress(stream)
    output, checkpoints = record(stream, data.draw(st.integers(0, 9)))
    assert output == expected
    if checkpoints is not None:
        assert Checkpoints.from_bytes(checkpoints.to_bytes()) == replace(checkpoints, pieces=list(checkpoints.pieces))
        cores, ahead = data.draw(st.sampled_from([(1, 3), (2, 1), (4, 3)]))
        assert inflate(stream, tuple(checkpoints.pieces), cores, ahead) == expected


def test_a_long_stream_has_checkpoints_at_least_the_spacing_apart() -> None:
    data = content(3, 4 << 20)
    _, checkpoints = record(gzip.compress(data, 6))
    assert checkpoints is not None
    assert len(checkpoints.pieces) > 15
    assert all(piece.size >= SPACING for piece in checkpoints.pieces[:-1])
    assert len(checkpoints.to_bytes()) < len(checkpoints.pieces) * (WINDOW_SIZE + 100)


@pytest.mark.parametrize("change", ["bit", "window", "fingerprint", "size"])
def test_wrong_checkpoints_are_noticed(change: str) -> None:
    stream = gzip.compress(content(4, 1 << 20), 6)
    _, checkpoints = record(stream)
    assert checkpoints is not None
    pieces = list(checkpoints.pieces)
    if change == "bit":
        pieces[2] = replace(pieces[2], bit=pieces[2].bit + 1)
    elif change == "window":
        pieces[2] = replace(pieces[2], window=bytes(WINDOW_SIZE))
    elif change == "fingerprint":
        pieces[2] = replace(pieces[2], fingerprint=pieces[2].fingerprint ^ 1)
    else:
        pieces[2] = replace(pieces[2], size=pieces[2].size + 1)
    for cores in (1, 4):
        with pytest.raises(CheckpointsDamaged):
            inflate(stream, pieces, cores)


def test_damaged_streams_are_noticed() -> None:
    stream = bytearray(gzip.compress(content(5, 1 << 20), 6))
    _, checkpoints = record(bytes(stream))
    assert checkpoints is not None
    stream[len(stream) // 2] ^= 0x10
    with pytest.raises(CheckpointsDamaged):
        inflate(bytes(stream), tuple(checkpoints.pieces))
    with pytest.raises(CheckpointsDamaged):
        inflate(bytes(stream[: len(stream) // 3]), tuple(checkpoints.pieces))


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_mutated_table_is_refused_or_noticed(seed: int) -> None:
    chance = random.Random(seed)
    table = bytearray(TABLE)
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.randrange(len(table))
        if chance.random() < 0.7:
            table[at] = chance.randrange(256)
        else:
            del table[at : at + chance.choice([1, 8, 5000])]
    try:
        checkpoints = Checkpoints.from_bytes(bytes(table))
    except ValueError:
        return
    with contextlib.suppress(CheckpointsDamaged):
        assert inflate(STREAM, tuple(checkpoints.pieces)) == DATA


DATA = content(6, 300_000)
STREAM = gzip.compress(DATA, 6)
_RECORDED = record(STREAM)[1]
assert _RECORDED is not None
TABLE = _RECORDED.to_bytes()


def test_a_reader_that_is_closed_ends_its_threads() -> None:
    def read_at(buffer: memoryview, offset: int) -> int:
        part = STREAM[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    idle = IdleCores(8)
    with ThreadPoolExecutor(4) as executor:
        assert _RECORDED is not None
        reader = ParallelInflater(_RECORDED.pieces, read_at, executor, idle, 4)
        reader.read(0)
        reader.close()
        with pytest.raises(Aborted):
            while reader.read(0):
                pass
    assert idle.computing == 0


@pytest.mark.parametrize("stream", [b"", b"\x1f", gzip.compress(b"x" * 1000)[:-1], gzip.compress(b"x") + b"junk"])
def test_streams_that_are_not_whole_are_errors(stream: bytes) -> None:
    with pytest.raises((EOFError, OSError)):
        record(stream)
