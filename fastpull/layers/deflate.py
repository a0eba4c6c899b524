"""Raw deflate streams entered at any bit.

A decompressor takes whole bytes, and a block begins at any bit. So the stream is given a prefix of empty blocks whose
length in bits brings the block to the bit at which it stands in its byte: an empty block with fixed codes has 10 bits,
and the one with dynamic codes made here has 95, which gives the odd positions.

Spec: RFC 1951, 3.2.
"""

from __future__ import annotations

from typing import Any

from isal import igzip_lib

InflateError: Any = igzip_lib.IsalError
"""What ISA-L raises for a corrupt stream."""

WINDOW_SIZE = 32 << 10
"""The distance that a match reaches back, at most."""


def _empty_dynamic_block() -> tuple[int, int]:
    """Return the bits of an empty block with dynamic codes, and their number, which is odd."""
    bits = count = 0

    def put(value: int, width: int) -> None:
        nonlocal bits, count
        bits |= value << count
        count += width

    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    lengths = {18: 1, 0: 2, 1: 2}  # of the codes 0, 10 and 11
    put(0, 1)  # not the last block
    put(2, 2)  # dynamic codes
    put(0, 5)  # 257 literals and lengths
    put(0, 5)  # one distance
    put(len(order) - 4, 4)
    for symbol in order:
        put(lengths.get(symbol, 0), 3)
    put(0, 1)  # 138 literals without a code
    put(138 - 11, 7)
    put(0, 1)  # and 118
    put(118 - 11, 7)
    put(3, 2)  # the end of the block has a code of one bit
    put(3, 2)  # and so has the distance
    put(0, 1)  # the end of the block
    return bits, count


_FIXED = (2, 10)  # not the last, fixed codes, and the end of the block: seven zeros
_DYNAMIC = _empty_dynamic_block()


def _prefix(phase: int) -> tuple[int, int]:
    bits, count = _DYNAMIC if phase % 2 else (0, 0)
    while count % 8 != phase:
        bits |= _FIXED[0] << count
        count += _FIXED[1]
    return bits, count


_PREFIXES = tuple(_prefix(phase) for phase in range(8))


class RawInflater:
    """Inflates a raw deflate stream from a block's first bit on.

    Args:
        phase: the bit of the first byte at which the block begins, 0 to 7.
        window: the bytes before the block, up to `WINDOW_SIZE`.
    """

    def __init__(self, phase: int, window: bytes) -> None:
        self._phase = phase
        self._is_fresh = True
        self._inflater: Any = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE, zdict=window)

    def inflate(self, data: bytes, max_size: int = -1) -> bytes:
        """Return what the next bytes of the stream inflate to, at most ``max_size`` bytes of it."""
        if self._is_fresh and data:
            self._is_fresh = False
            if self._phase:
                bits, count = _PREFIXES[self._phase]
                bits |= data[0] >> self._phase << count
                data = bits.to_bytes(count // 8 + 1, "little") + data[1:]
        result: bytes = self._inflater.decompress(data, max_size)
        return result

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing more to return without more of the stream."""
        return bool(self._inflater.needs_input)

    @property
    def ended(self) -> bool:
        """Whether the last block has ended."""
        return bool(self._inflater.eof)

    @property
    def rest(self) -> bytes:
        """The bytes behind the last block."""
        rest: bytes = self._inflater.unused_data
        return rest
