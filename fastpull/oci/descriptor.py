"""Descriptors: typed, sized references to content."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from fastpull.errors import InvalidDigest
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.platform import Platform

if TYPE_CHECKING:
    from fastpull.oci.json import JsonDocument

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_MAX_SIZE = (1 << 63) - 1
_ATTESTATION = Platform("unknown", "unknown")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to content by digest, with its type and size.

    Attributes:
        media_type: RFC 6838 type and subtype.
        digest: digest of the content.
        size: size of the content, in bytes.
        platform: platform of the manifest, in an index.
        os_features: features of the operating system that the manifest requires, in an index.
        annotations: annotations, unchanged.
        urls: further locations of the content; fastpull never requests them.
        data: the content itself, if the descriptor embeds it.

    Raises:
        ValueError: the size is out of range, the media type is invalid, or `data` does not match the digest.

    Spec: image-spec descriptor.md.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    urls: tuple[str, ...] = ()
    data: bytes | None = field(default=None, repr=False)
    os_features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MAX_SIZE:
            raise ValueError(f"size {self.size} is out of range")
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError(f"{self.media_type!r} is not a media type")
        if self.data is not None and len(self.data) != self.size:
            raise ValueError(f"'data' has {len(self.data)} bytes, and not {self.size}")
        if self.data is not None and Digest.of(self.data, self.digest.algorithm) != self.digest:
            raise ValueError(f"'data' is not what {self.digest} names")

    @classmethod
    def from_document(cls, document: JsonDocument) -> Self:
        """Parse a descriptor of a manifest or an index.

        Raises:
            MalformedDocument: a field is missing or invalid.
        """
        platform = document.child("platform")
        try:
            return cls(
                document.text("mediaType"),
                Digest.parse(document.text("digest")),
                document.integer("size"),
                _platform(platform) if platform else None,
                tuple(document.mapping("annotations").items()),
                document.texts("urls"),
                base64.b64decode(document.text("data"), validate=True) if "data" in document else None,
                platform.texts("os.features") if platform else (),
            )
        except InvalidDigest as error:
            document.fail(error.message)
        except binascii.Error:
            document.fail("'data' is not base64")
        except ValueError as error:
            document.fail(str(error))

    @property
    def is_attestation(self) -> bool:
        """Whether this entry of an index is an attestation (``unknown/unknown``) and not an image."""
        return self.platform == _ATTESTATION

    @property
    def is_nondistributable(self) -> bool:
        """Whether this is a layer that registries must not distribute."""
        return self.media_type.startswith((media_types.OCI_FOREIGN_LAYER, media_types.DOCKER_FOREIGN_LAYER))

    def annotation(self, name: str) -> str | None:
        """Return the value of an annotation, or None."""
        return dict(self.annotations).get(name)


def _platform(document: JsonDocument) -> Platform | None:
    """Return the platform of an entry of an index; None if it is incomplete, because the config decides then."""
    os, architecture, variant = (document.text_or(name, "") for name in ("os", "architecture", "variant"))
    platform = Platform.normalised(os, architecture, variant)
    return platform if platform.is_complete else None
