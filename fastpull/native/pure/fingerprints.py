"""Fingerprints of content, in plain Python."""

from __future__ import annotations


class Fingerprints:
    """Fingerprints, numbered in the order they came; see ``native/prints.pxi`` for the contract."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> bytes:
        return self._items[number]

    def find(self, fingerprint: bytes) -> int:
        """The number of a fingerprint, of equal ones the last; -1 if it is not here."""
        return self._numbers.get(fingerprint, -1)

    def add(self, fingerprint: bytes) -> int:
        """Append a fingerprint, which may be here already; return its number."""
        self._numbers[fingerprint] = len(self._items)
        self._items.append(fingerprint)
        return self._numbers[fingerprint]
