"""Both scanner engines, for tests of their common contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastpull.layers.faults import Fault
from fastpull.layers.index import Columns, LayerIndex
from fastpull.native import _native
from fastpull.native.pure import blocks, files, payload, scanner
from fastpull.oci.digest import Digest

NOTHING = Digest.of(b"")


@dataclass(frozen=True)
class Engine:
    name: str
    scanner: Any
    writer: Any
    cutter: Any
    payload: Any

    def __repr__(self) -> str:
        return self.name


NATIVE = Engine("native", _native.Scanner, _native.FileWriter, _native.BlockCutter, _native.PayloadWriter)
REFERENCE = Engine("reference", scanner.Scanner, files.FileWriter, blocks.BlockCutter, payload.PayloadWriter)
ENGINES = [NATIVE, REFERENCE]


@dataclass
class Scanned:
    """The result of a scan."""

    fault: Fault
    index: LayerIndex
    contents: dict[int, bytes]
    offset: int
    culprit: bytes

    @property
    def verdict(self) -> tuple[Any, ...]:
        """Return the values that both engines have to agree on."""
        if self.fault:
            return (self.fault,)
        return (self.fault, list(self.index), self.contents)


def scan(engine: Engine, data: bytes, chunk: int = 1 << 20) -> Scanned:
    """Feed a stream in chunks, and assemble the payload of each file from its spans."""
    running = engine.scanner()
    parts: dict[int, list[tuple[int, bytes]]] = {}
    flags: dict[int, list[int]] = {}
    fault = 0
    for at in range(0, len(data), chunk):
        piece = data[at : at + chunk]
        fault = running.feed(piece)
        if fault:
            break
        for entry, chunk_offset, length, file_offset, flag in running.spans:
            parts.setdefault(entry, []).append((file_offset, piece[chunk_offset : chunk_offset + length]))
            flags.setdefault(entry, []).append(flag)
    fault = fault or running.finish()
    index = LayerIndex(NOTHING, NOTHING, len(data), Columns(*running.entries.columns()))
    contents = {}
    for number, pieces in parts.items():
        size = 0 if fault else index.sizes[number]
        content = bytearray(min(size, 1 << 27))
        for offset, piece in pieces:
            content[offset : offset + len(piece)] = piece
        contents[number] = bytes(content)
        if not fault:
            assert flags[number][0] & 1, "the first span says so"
            assert flags[number][-1] & 2, "the last span says so"
            assert all(not flag & 1 for flag in flags[number][1:])
            assert all(not flag & 2 for flag in flags[number][:-1])
    return Scanned(Fault(fault), index, contents, running.offset, running.culprit)
