"""Mutations of inputs."""

from __future__ import annotations

import random
import zlib

from tests.support.archives import random_archive
from tests.support.headers import pax

_BLOCK = 512
_PLACES = (0, 99, 100, 108, 116, 124, 135, 136, 148, 156, 156, 156, 157, 257, 263, 329, 337, 345, 386, 482, 483, 504)
_BYTES = (0, 9, 10, 32, 44, 46, 47, 48, 49, 51, 53, 55, 57, 58, 64, 75, 76, 83, 103, 120, 127, 128, 255)
_KEYS = ("path", "linkpath", "size", "uid", "gid", "mtime", "SCHILY.xattr.user.x", "comment")
_SPARSE = ("map", "size", "major", "minor", "offset", "numbytes", "numblocks", "realsize", "name")
_VALUES = (b"", b"0", b"1", b"512", b"1023", b"-1", b"0,512", b"0,512,1024,512", b"a/b", b"../x", b"1.5", b"9" * 25)
_TOKENS = {
    "reference": (
        b":",
        b"/",
        b"@sha256:" + b"0" * 64,
        b"#",
        b"localhost",
        b"[::1]",
        b".",
        b"_",
        b"-",
        b"://",
        b"%2f",
        b" ",
    ),
    "manifest": (
        b'"mediaType"',
        b'"size":',
        b'"digest":',
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"null",
        b"1e400",
        b"-1",
        b"\\ud800",
        b'"layers":[]',
        b'"manifests":[]',
        b"NaN",
        b"\0application/vnd.oci.image.index.v1+json",
        b'"platform":{"os":"linux","architecture":"arm64"}',
        b'"annotations":{}',
    ),
    "content-range": (b"bytes ", b"-", b"/", b"*", b"0", b"99999999999999999999", b" ", b"\t", b"items "),
}


def mutated(name: str, inputs: list[bytes], choose: random.Random) -> bytes:
    """Return a new input for a target, mostly a mutation of a known one."""
    data = bytearray(choose.choice(inputs))
    if name == "archive":
        if choose.random() < 0.05:
            return random_archive(choose, choose.choice((0.0, 0.1, 0.4)))
        for _ in range(choose.choice((1, 1, 2, 4))):
            _change_archive(data, inputs, choose)
        return _with_checksums(data) if choose.random() < 0.95 else bytes(data)
    for _ in range(choose.choice((1, 1, 2, 4))):
        _change_text(data, inputs, choose, _TOKENS[name])
    return bytes(data[: 1 << 12])


def _change_archive(data: bytearray, inputs: list[bytes], choose: random.Random) -> None:
    start = choose.randrange(len(data) // _BLOCK + 1) * _BLOCK
    match choose.randrange(8):
        case 0 | 1 | 2 if data:
            at = min(start + choose.choice((*_PLACES, choose.randrange(_BLOCK))), len(data) - 1)
            data[at] = choose.choice((*_BYTES, choose.randrange(256)))
        case 3:
            del data[start : start + _BLOCK * choose.randrange(1, 3)]
        case 4:
            other = choose.choice(inputs)
            begin = choose.randrange(len(other) // _BLOCK + 1) * _BLOCK
            data[start:start] = other[begin : begin + _BLOCK * choose.randrange(1, 5)]
            del data[1 << 14 :]
        case 5:
            keys = choose.choice((_KEYS, tuple(f"GNU.sparse.{key}" for key in _SPARSE)))
            records = ((choose.choice(keys).encode(), choose.choice(_VALUES)) for _ in range(choose.randrange(1, 5)))
            data[start:start] = pax(*records, typeflag=choose.choice((b"x", b"x", b"g")))
        case 6 if data:  # text within a pax header or a map
            at = choose.randrange(len(data))
            data[at : at + choose.randrange(3)] = bytes(
                choose.choice(b"0123456789 =\n,") for _ in range(choose.randrange(3))
            )
        case _:
            del data[choose.randrange(len(data) + 1) :]


def _with_checksums(data: bytearray) -> bytes:
    """Return the archive with valid checksums in apparent headers, so that scanners read beyond them."""
    for start in range(0, len(data) - _BLOCK + 1, _BLOCK):
        if data[start + 257 : start + 262] == b"ustar" or data[start + 148 : start + 154].strip(b" \0").isdigit():
            data[start + 148 : start + 156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % (
                _sum(data[start : start + 256]) + _sum(data[start + 256 : start + _BLOCK])
            )
    return bytes(data)


def _sum(data: bytearray) -> int:
    """Sum at most 256 bytes with the low half of Adler-32, ten times as fast as `sum`."""
    return (zlib.adler32(data) & 0xFFFF) - 1


def _change_text(data: bytearray, inputs: list[bytes], choose: random.Random, tokens: tuple[bytes, ...]) -> None:
    at, length = choose.randrange(len(data) + 1), choose.choice((0, 1, 2, 8, 40))
    match choose.randrange(5):
        case 0:
            data[at : at + 1] = bytes([choose.randrange(256)])
        case 1:
            data[at : at + choose.choice((0, length))] = choose.choice(tokens)
        case 2:
            del data[at : at + length]
        case 3:
            data[at:at] = data[at : at + length]
        case _:
            other = choose.choice(inputs)
            begin = choose.randrange(len(other) + 1)
            data[at : at + length] = other[begin : begin + choose.choice((length, 200))]
