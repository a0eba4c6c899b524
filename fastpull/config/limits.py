"""Limits on the resources that an image may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fastpull.config.schema import COUNT, SIZE, setting_field
from fastpull.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits beyond which an image is refused; each attribute is a setting.

    docs/threat-model.md lists these limits, and those that no setting raises.

    Attributes:
        max_layer_size: bytes of one uncompressed layer, or of its files with their holes.
        max_image_size: the same for all layers together.
        max_entries: entries of all layers together; each takes some 300 bytes of memory until the output is made.
        max_ratio: uncompressed bytes for each byte of a blob. It is checked once a layer has taken 1 GiB, or a tenth of
            the free space at the output, so that small layers may compress well.
        max_zstd_window: window bytes of a zstd frame; by default the maximum of the zstd tool without ``--long``.
    """

    max_layer_size: int = setting_field(SIZE, "size of one uncompressed layer", default=256 << 30)
    max_image_size: int = setting_field(SIZE, "size of all uncompressed layers together", default=512 << 30)
    max_entries: int = setting_field(COUNT, "entries of all layers together", default=4_000_000)
    max_ratio: int = setting_field(
        COUNT, "uncompressed bytes for each byte of a blob, in a layer of more than 1G", default=200
    )
    max_zstd_window: int = setting_field(SIZE, "window of a zstd layer", default=128 << 20)

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 1 <= getattr(self, one.name) < 1 << 63:
                raise InvalidSetting(str(getattr(self, one.name)), f"{one.name} must be at least 1, and below 2^63")


DEFAULT_LIMITS = Limits()
