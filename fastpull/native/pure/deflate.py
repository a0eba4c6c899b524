"""The headers of deflate blocks.

Spec: RFC 1951, 3.2.6 and 3.2.7.
"""

from __future__ import annotations

from fractions import Fraction

_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_MAX_HEADER = 17 + 19 * 3 + 316 * 14  # bits


def find_deflate_block(data: bytes, start: int, stop: int) -> int:
    """See the native module."""
    for bit in range(start, stop):
        if (bit >> 3) + 16 > len(data):
            break
        if data[bit >> 3] >> (bit & 7) & 1 == 0 and _is_header(data, bit):
            return bit
    return -1


class _Bits:
    def __init__(self, data: bytes, bit: int) -> None:
        first, last = bit >> 3, (bit + _MAX_HEADER >> 3) + 1
        self._value = int.from_bytes(data[first:last], "little") >> (bit & 7)
        self.left = 8 * len(data) - bit

    def take(self, count: int) -> int:
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        self.left -= count
        return value


def _is_header(data: bytes, bit: int) -> bool:
    bits = _Bits(data, bit)
    if bits.take(1) or bits.take(2) != 2:
        return False
    literals, distances, count = bits.take(5) + 257, bits.take(5) + 1, bits.take(4) + 4
    if literals > 286 or distances > 30:
        return False
    precode = dict.fromkeys(range(19), 0)
    for symbol in _ORDER[:count]:
        precode[symbol] = bits.take(3)
    if not _is_complete(list(precode.values())):
        return False
    codes = _codes(precode)
    lengths: list[int] = []
    while len(lengths) < literals + distances:
        length = code = 0
        while (length, code) not in codes:
            length, code = length + 1, code << 1 | bits.take(1)
        symbol = codes[length, code]
        if symbol < 16:
            lengths.append(symbol)
        elif symbol == 16:
            if not lengths:
                return False
            lengths += [lengths[-1]] * (3 + bits.take(2))
        else:
            lengths += [0] * (3 + bits.take(3) if symbol == 17 else 11 + bits.take(7))
    if len(lengths) > literals + distances or bits.left < 0 or not lengths[256]:
        return False
    return _is_complete(lengths[:literals]) and _is_complete(lengths[literals:])


def _is_complete(lengths: list[int]) -> bool:
    return sum(Fraction(1, 1 << length) for length in lengths if length) == 1


def _codes(lengths: dict[int, int]) -> dict[tuple[int, int], int]:
    """Return the canonical codes: symbols by the length and the bits of their code."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items() if length):
        code <<= length - before
        codes[length, code] = symbol
        code, before = code + 1, length
    return codes
