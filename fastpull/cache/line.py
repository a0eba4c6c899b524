"""Small files of the cache: a line of JSON, and a line with its fingerprint.

The fingerprint is the XXH3-64 of the first line, in hexadecimal: tells accidents, never attacks.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash


def to_bytes(value: object) -> bytes:
    """The file of a value."""
    line = json.dumps(value).encode() + b"\n"
    return line + xxhash.xxh3_64_hexdigest(line).encode() + b"\n"


def from_bytes(content: bytes) -> Any:
    """The value of a file.

    Raises:
        ValueError: it is not as it was written.
    """
    end = content.find(b"\n") + 1
    if content[end:] != xxhash.xxh3_64_hexdigest(content[:end]).encode() + b"\n":
        raise ValueError("the fingerprint does not fit")
    return json.loads(content[:end])
