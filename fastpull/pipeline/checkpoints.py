"""Checkpoints of a gzip stream: places where it can be entered, so that several threads inflate it at once.

A checkpoint is the first bit of a deflate block, with the 32 KiB of output before it. The first reading of a stream
records them (`CheckpointRecorder`), the later ones inflate the pieces between them side by side
(`fastpull.pipeline.parallel`). Each piece has a fingerprint of its output: a damaged table is noticed, and never leads
to other bytes than the stream's own.

Spec: RFC 1951, RFC 1952.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import xxhash
import zstandard

from fastpull.layers.deflate import WINDOW_SIZE, InflateError, RawInflater
from fastpull.native import find_deflate_block
from fastpull.oci.digest import Digest

SPACING = 8 << 20
"""Bytes of output between two checkpoints, at least: recording takes 1 % of the time of inflating, and the table 0.5 %
of the blob; a piece that was inflated ahead takes so much memory."""

_PROOF_SIZE = 16 << 10  # output that a candidate has to give as the stream did
_REACH = 32 << 10  # compressed bytes that have to follow a candidate, so that its proof needs no more
_MAGIC = b"fastpull checkpoints 1\n"
_RECORD = struct.Struct("<QQQI")


@dataclass(frozen=True, slots=True)
class GzipPiece:
    """A piece of a stream.

    Attributes:
        bit: the first bit of its first block, in the compressed stream; 0 for the start of the stream.
        offset: the first byte, in the output.
        size: the bytes of output.
        fingerprint: XXH3-64 of the output.
        window: the output before the piece, up to 32 KiB.
    """

    bit: int
    offset: int
    size: int
    fingerprint: int
    window: bytes


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The pieces of one gzip stream.

    Attributes:
        diff_id: the verified digest of the whole output.
        pieces: in their order, without gaps.
    """

    diff_id: Digest
    pieces: Sequence[GzipPiece]

    def to_bytes(self) -> bytes:
        """Return the table as a file; windows are compressed."""
        head = json.dumps({"diff_id": str(self.diff_id), "pieces": len(self.pieces)}).encode()
        parts = [_MAGIC, struct.pack("<I", len(head)), head]
        compressor = zstandard.ZstdCompressor(level=1)
        for piece in self.pieces:
            window = compressor.compress(piece.window)
            parts += _RECORD.pack(piece.bit, piece.size, piece.fingerprint, len(window)), window
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a table.

        Raises:
            ValueError: the content is no table, or one that no stream can have.
        """
        try:
            return cls._read(memoryview(content))
        except (struct.error, zstandard.ZstdError, KeyError, TypeError) as error:
            raise ValueError("malformed checkpoints") from error

    @classmethod
    def _read(cls, content: memoryview) -> Self:
        at = len(_MAGIC)
        if content[:at] != _MAGIC:
            raise ValueError("no checkpoints")
        (size,) = struct.unpack_from("<I", content, at)
        head = json.loads(bytes(content[at + 4 : at + 4 + size]))
        at += 4 + size
        pieces: list[GzipPiece] = []
        offset = 0
        decompressor = zstandard.ZstdDecompressor()
        while at < len(content):
            bit, size, fingerprint, packed = _RECORD.unpack_from(content, at)
            at += _RECORD.size
            window = decompressor.decompress(content[at : at + packed], max_output_size=WINDOW_SIZE)
            at += packed
            piece = GzipPiece(bit, offset, size, fingerprint, window)
            last_bit = pieces[-1].bit if pieces else -1
            if not last_bit < bit < 1 << 63 or not 0 < size < 1 << 62 or len(window) != min(offset, WINDOW_SIZE):
                raise ValueError("impossible checkpoints")
            pieces.append(piece)
            offset += size
        if not pieces or pieces[0].bit or len(pieces) != head["pieces"]:
            raise ValueError("incomplete checkpoints")
        return cls(Digest.parse(head["diff_id"]), pieces)


class _Candidate:
    """A place that looks like a block, until the stream's own output proves it.

    Attributes:
        piece: the piece that would end here.
        bit, window: of the piece that would begin here.
        hasher: of its output.
        proof: what the output has to begin with.
    """

    __slots__ = ("bit", "hasher", "matched", "piece", "proof", "window")

    def __init__(self, piece: GzipPiece, bit: int, window: bytes, proof: bytes) -> None:
        self.piece = piece
        self.bit = bit
        self.window = window
        self.hasher = xxhash.xxh3_64()
        self.proof = proof
        self.matched = 0


class CheckpointRecorder:
    """Records checkpoints while a stream is inflated from its start to its end on one thread.

    The reader of the stream asks `split` before it hands each part of the stream to its decompressor, and tells
    `output` what came out.

    Args:
        spacing: bytes of output between two checkpoints, at least.
    """

    def __init__(self, spacing: int = SPACING) -> None:
        self._spacing = spacing
        self._pieces: list[GzipPiece] = []
        self._bit = self._offset = self._size = 0
        self._window = b""
        self._hasher = xxhash.xxh3_64()
        self._recent: deque[bytes] = deque()
        self._recent_size = 0
        self._candidate: _Candidate | None = None

    def output(self, data: bytes) -> None:
        """Take the next bytes of output."""
        self._hasher.update(data)
        self._size += len(data)
        self._recent.append(data)
        self._recent_size += len(data)
        while self._recent_size - len(self._recent[0]) >= WINDOW_SIZE:
            self._recent_size -= len(self._recent.popleft())
        if self._candidate is not None:
            self._prove(self._candidate, data)

    def split(self, data: bytes, offset: int) -> int:
        """Return where to cut the next part of the stream, because a block may begin there; 0 for nowhere.

        The first part of a cut is to be inflated to its end, and told to `output`, before `begin` is called.

        Args:
            data: the next bytes of the stream.
            offset: of the first of them, in the stream.
        """
        if self._candidate is not None or self._size < self._spacing:
            return 0
        bit = find_deflate_block(data, 8, max(8, 8 * (len(data) - _REACH)))
        if bit < 0:
            return 0
        self._next = bit + 8 * offset
        return bit >> 3

    def begin(self, data: bytes) -> None:
        """Begin a piece at the place that `split` returned.

        Args:
            data: the stream from there on.
        """
        window = b"".join(self._recent)[-WINDOW_SIZE:]
        try:
            proof = RawInflater(self._next & 7, window).inflate(data[:_REACH], _PROOF_SIZE)
        except InflateError:  # random bits are no stream
            return
        if len(proof) < _PROOF_SIZE // 4:
            return
        piece = GzipPiece(self._bit, self._offset, self._size, self._hasher.intdigest(), self._window)
        self._candidate = _Candidate(piece, self._next, window, proof)

    def finish(self, diff_id: Digest) -> Checkpoints | None:
        """Return the checkpoints of a stream that was inflated to its end; None if there are none.

        Args:
            diff_id: the verified digest of the output.
        """
        if not self._pieces:
            return None
        last = GzipPiece(self._bit, self._offset, self._size, self._hasher.intdigest(), self._window)
        return Checkpoints(diff_id, (*self._pieces, last))

    def _prove(self, candidate: _Candidate, data: bytes) -> None:
        matched = candidate.matched
        expected = candidate.proof[matched : matched + len(data)]
        if data[: len(expected)] != expected:
            self._candidate = None
            return
        candidate.hasher.update(data)
        candidate.matched += len(data)
        if candidate.matched >= len(candidate.proof):
            piece = candidate.piece
            self._pieces.append(piece)
            self._bit, self._window, self._hasher = candidate.bit, candidate.window, candidate.hasher
            self._offset, self._size = piece.offset + piece.size, candidate.matched
            self._candidate = None
