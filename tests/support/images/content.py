"""Deterministic content of generated files, about as compressible as programs."""

from __future__ import annotations

import random
from functools import cache

_WORDS = (
    b"int return static const struct void if for while char size_t err NULL self import from def ( ) { } ; =".split()
)


@cache
def text(size: int) -> bytes:
    """Return program words mixed with noise, which compress to about a third."""
    chance = random.Random(7)
    pieces, total = [], 0
    while total < size:
        piece = b" ".join(chance.choices(_WORDS, k=400)) + chance.randbytes(400)
        pieces.append(piece)
        total += len(piece)
    return b"".join(pieces)[:size]
