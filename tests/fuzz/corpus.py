"""Kept inputs: a file for each target and a line for each input, zlib-compressed in Base85.

Each input reached code that no input before it reached. ``make fuzz ARGS="--keep"`` rewrites the files.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).with_name("corpus")


def read(name: str) -> list[bytes]:
    """Return the inputs of a target."""
    path = _FOLDER / f"{name}.txt"
    return [zlib.decompress(base64.b85decode(line)) for line in path.read_bytes().splitlines()] if path.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target."""
    _FOLDER.mkdir(exist_ok=True)
    lines = [base64.b85encode(zlib.compress(data, 9)) + b"\n" for data in inputs]
    (_FOLDER / f"{name}.txt").write_bytes(b"".join(lines))
