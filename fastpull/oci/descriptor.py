"""Descriptors: typed, sized references to content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest
from fastpull.oci.platform import Platform

if TYPE_CHECKING:
    from fastpull.oci.json import Document

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_MAX_SIZE = (1 << 63) - 1
_ATTESTATION = Platform("unknown", "unknown")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Names a piece of content by digest, with its type and size.

    Attributes:
        media_type: RFC 6838 type and subtype.
        digest: of the content's bytes.
        size: of the content, in bytes.
        platform: in an index, what the manifest runs on.
        annotations: as they came.

    Raises:
        ValueError: a size out of range or no media type.

    Spec: image-spec descriptor.md.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MAX_SIZE:
            raise ValueError(f"size {self.size} is out of range")
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError(f"{self.media_type!r} is not a media type")

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """Reads a descriptor out of a manifest or an index.

        Raises:
            MalformedDocument: a field is missing or breaks its rules.
        """
        platform = document.child("platform")
        try:
            return cls(
                document.text("mediaType"),
                Digest.parse(document.text("digest")),
                document.integer("size"),
                _platform(platform) if platform else None,
                tuple(document.mapping("annotations").items()),
            )
        except InvalidDigest as error:
            document.fail(error.message)
        except ValueError as error:
            document.fail(str(error))

    @property
    def is_attestation(self) -> bool:
        """Whether this entry of an index is a build's attestation and not an image (``unknown/unknown``)."""
        return self.platform == _ATTESTATION

    def annotation(self, name: str) -> str | None:
        """The value of an annotation, or None."""
        return dict(self.annotations).get(name)


def _platform(document: Document) -> Platform:
    os, architecture, variant = (document.text_or(name, "") for name in ("os", "architecture", "variant"))
    return Platform.normalised(os, architecture, variant)
