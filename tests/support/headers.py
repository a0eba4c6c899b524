"""Tar headers, built field by field, valid or not."""

from __future__ import annotations

from fastpull.layers.archive import END, padded

__all__ = ["END", "block", "extended", "pax", "record"]


def block(
    name: bytes = b"f",
    typeflag: bytes = b"0",
    size: int | bytes = 0,
    *,
    mode: bytes = b"0000644\0",
    uid: bytes = b"0000000\0",
    gid: bytes = b"0000000\0",
    mtime: bytes = b"00000000000\0",
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    devices: bytes = bytes(16),
    prefix: bytes = b"",
    tail: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:
    """Return a header from its fields, valid or not."""
    said = size if isinstance(size, bytes) else b"%011o\0" % size
    made = b"".join(
        (
            name.ljust(100, b"\0"),
            mode,
            uid,
            gid,
            said,
            mtime,
            b" " * 8,
            typeflag,
            link.ljust(100, b"\0"),
            magic,
            bytes(64),
            devices,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    if tail:
        made = made[: 512 - len(tail)] + tail
    assert len(made) == 512
    return made[:148] + (checksum or b"%06o\0 " % sum(made)) + made[156:]


def extended(body: bytes, typeflag: bytes = b"x") -> bytes:
    return block(b"ext", typeflag, len(body)) + padded(body)


def record(key: bytes, value: bytes) -> bytes:
    body = b" %s=%s\n" % (key, value)
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    return b"%d" % length + body


def pax(*records: tuple[bytes, bytes], typeflag: bytes = b"x") -> bytes:
    return extended(b"".join(record(key, value) for key, value in records), typeflag)
