"""Limits of what an image may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fastpull.config.schema import COUNT, SIZE, _setting
from fastpull.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an image may take before it is refused; each is a setting.

    What no setting raises stands in docs/threat-model.md, with these.

    Attributes:
        max_layer_size: bytes of a layer, uncompressed, or of its files with their holes.
        max_image_size: the same for all layers together.
        max_entries: of all layers together; each takes some 300 bytes of memory until the output is made.
        max_ratio: uncompressed bytes for each byte of a blob. A layer is asked only once it has taken 1 GiB, or a tenth
            of the free space where the output is made: what is small may be as compressible as it likes.
        max_zstd_window: bytes that a zstd frame may ask to keep in memory; by default what the zstd tool allows
            without ``--long``.
    """

    max_layer_size: int = _setting(SIZE, "a layer, uncompressed", default=256 << 30)
    max_image_size: int = _setting(SIZE, "all layers together, uncompressed", default=512 << 30)
    max_entries: int = _setting(COUNT, "entries of all layers together", default=4_000_000)
    max_ratio: int = _setting(COUNT, "uncompressed bytes for a byte of a blob, in a layer of more than 1G", default=200)
    max_zstd_window: int = _setting(SIZE, "memory that a zstd layer may ask for", default=128 << 20)

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 1 <= getattr(self, one.name) < 1 << 63:
                raise InvalidSetting(str(getattr(self, one.name)), f"{one.name} has to be at least 1, and below 2^63")


DEFAULT_LIMITS = Limits()
