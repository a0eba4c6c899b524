"""Small files of the cache: a line of JSON, and a line with its fingerprint.

The fingerprint is the XXH3-64 of the first line, in hexadecimal. It detects accidents, not attacks.
"""

from __future__ import annotations

import json
import math
from typing import Any

import xxhash

_MAX_DIGITS = 20
_MAX_NUMBER = 1e15


def to_bytes(value: object) -> bytes:
    """Return the file content for a value."""
    line = json.dumps(value).encode() + b"\n"
    return line + xxhash.xxh3_64_hexdigest(line).encode() + b"\n"


def from_bytes(content: bytes) -> Any:
    """Return the value of a file.

    Raises:
        ValueError: the file is damaged, or another program wrote values that fastpull never writes: numbers out of
            range, deep nesting, invalid text.
    """
    end = content.find(b"\n") + 1
    if content[end:] != xxhash.xxh3_64_hexdigest(content[:end]).encode() + b"\n":
        raise ValueError("fingerprint mismatch")
    try:
        value = json.loads(content[:end], parse_int=_integer, parse_float=_number, parse_constant=_number)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("number with too many digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or abs(value) > _MAX_NUMBER:
        raise ValueError("number out of range")
    return value
