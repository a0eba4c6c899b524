"""Digests: identifiers of content."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fastpull.errors import InvalidDigest

if TYPE_CHECKING:
    from hashlib import _Hash

_GRAMMAR = re.compile(r"(?P<algorithm>[a-z0-9]+(?:[.+_-][a-z0-9]+)*):(?P<encoded>[a-zA-Z0-9=_-]+)")
_ENCODED = {
    "sha256": re.compile(r"[a-f0-9]{64}"),
    "sha512": re.compile(r"[a-f0-9]{128}"),
}
ALGORITHMS = tuple(_ENCODED)


@dataclass(frozen=True, slots=True)
class Digest:
    """A content identifier, such as ``sha256:6c3c62…``.

    An existing digest is valid, so that its parts are safe in a path.

    Attributes:
        algorithm: ``sha256`` or ``sha512``.
        encoded: the hash in lower-case hexadecimal.

    Raises:
        InvalidDigest: the text is malformed, or the algorithm is not supported.

    Spec: image-spec descriptor.md, Digests.
    """

    algorithm: str
    encoded: str

    def __post_init__(self) -> None:
        form = _ENCODED.get(self.algorithm)
        if form is None:
            raise InvalidDigest(str(self), "digest algorithm is not supported")
        if not form.fullmatch(self.encoded):
            raise InvalidDigest(str(self), "digest does not have the form of its algorithm")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``algorithm:encoded``."""
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise InvalidDigest(text, "not a digest")
        return cls(match["algorithm"], match["encoded"])

    @classmethod
    def of(cls, content: bytes, algorithm: str = "sha256") -> Self:
        """Return the digest of ``content``."""
        return cls(algorithm, hashlib.new(algorithm, content).hexdigest())

    @classmethod
    def sealed(cls, hasher: _Hash) -> Self:
        """Return the digest of the bytes that a hasher has hashed."""
        return cls(hasher.name, hasher.hexdigest())

    def hasher(self) -> _Hash:
        """Return a new hasher of this algorithm."""
        return hashlib.new(self.algorithm)

    @property
    def short(self) -> str:
        """The first twelve hexadecimal digits, as in docker."""
        return self.encoded[:12]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.encoded}"
