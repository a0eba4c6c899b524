"""Image manifests and image indexes, OCI's and Docker's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpull.errors import NoMatchingPlatform, UnsupportedMediaType
from fastpull.oci import media_types
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.foreign import foreign_format
from fastpull.oci.json import JsonDocument

if TYPE_CHECKING:
    from fastpull.oci.platform import Platform

MAX_INDEX_DEPTH = 4
"""Maximum nesting of indexes; builders make one or two levels."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image for one platform.

    Attributes:
        media_type: media type of OCI or Docker.
        config: descriptor of the image's config.
        layers: descriptors from the base to the top.
        raw: bytes of the manifest.

    Spec: image-spec manifest.md.
    """

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Index:
    """The manifests of one image for several platforms, or further indexes.

    Attributes:
        subject: name of the index in messages.
        media_type: media type of OCI or Docker.
        manifests: descriptors, in the author's order of preference.

    Spec: image-spec image-index.md.
    """

    subject: str
    media_type: str
    manifests: tuple[Descriptor, ...] = field(default=())

    def candidates(self, wanted: Platform) -> tuple[Descriptor, ...]:
        """Return the entries that may be the image for a platform, the best first.

        Entries with a matching platform come first, those that require features of the operating system last among
        them. Nested indexes and manifests without a platform follow. Attestations (``unknown/unknown``) and other
        objects are never images.

        Raises:
            NoMatchingPlatform: no entry matches.
        """
        named: list[tuple[tuple[bool, int], Descriptor]] = []
        unnamed: list[Descriptor] = []
        for entry in self.manifests:
            if entry.is_attestation or entry.media_type not in media_types.MANIFESTS | media_types.INDEXES:
                continue
            if entry.platform is None:
                unnamed.append(entry)
            elif (rank := wanted.rank(entry.platform)) is not None:
                named.append(((bool(entry.os_features), rank), entry))
        named.sort(key=lambda pair: pair[0])
        found = (*(entry for _, entry in named), *unnamed)
        if not found:
            raise NoMatchingPlatform(self.subject, str(wanted), self.platforms)
        return found

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms that entries name, each once."""
        named = (str(entry.platform) for entry in self.manifests if entry.platform and not entry.is_attestation)
        return tuple(dict.fromkeys(named))


def parse_manifest(body: bytes, content_type: str | None, subject: str) -> Manifest | Index:
    """Read the body of a manifest or an index.

    Args:
        body: exactly the bytes that the digest names.
        content_type: what the source said it is; it has to agree with the body.
        subject: what it is, for messages.

    Raises:
        MalformedDocument: not strict JSON, both ``layers`` and ``manifests``, a type that contradicts itself.
        UnsupportedMediaType: a schema 1 image, an artifact, a layer that is no layer.

    Spec: image-spec manifest.md, image-index.md; distribution-spec, Pulling manifests.
    """
    document = JsonDocument.parse(body, subject)
    said = media_types.essence(content_type or "")
    if document.integer("schemaVersion") == 1 or said in media_types.SCHEMA_1:
        raise UnsupportedMediaType(subject, said or "schemaVersion 1", "Docker's schema 1 is not supported, it was")
    if document.integer("schemaVersion") != 2:
        document.fail("a schemaVersion other than 2")
    if "layers" in document and "manifests" in document:
        document.fail("both 'layers' and 'manifests'")
    media_type = _media_type(document, said)
    if media_type in media_types.INDEXES:
        return Index(subject, media_type, _descriptors(document, "manifests"))
    if media_type in media_types.MANIFESTS:
        return _manifest(document, media_type, subject, body)
    raise UnsupportedMediaType(subject, media_type)


def _media_type(document: JsonDocument, said: str) -> str:
    written = document.text_or("mediaType", "")
    known = media_types.MANIFESTS | media_types.INDEXES
    if written and said in known and written != said:
        document.fail(f"'mediaType' is {written}, but the content type is {said}")
    if written or said in known:
        return written or said
    return media_types.OCI_INDEX if "manifests" in document else media_types.OCI_MANIFEST


def _manifest(document: JsonDocument, media_type: str, subject: str, body: bytes) -> Manifest:
    if "manifests" in document:
        document.fail(f"'manifests' in a {media_type}")
    config = document.child("config")
    if config is None:
        document.fail("'config' is missing")
    described = Descriptor.from_document(config)
    artifact = document.text_or("artifactType", "")
    layers = _descriptors(document, "layers")
    if described.media_type not in media_types.CONFIGS:
        found = foreign_format(artifact, described.media_type, *(layer.media_type for layer in layers))
        kind = found.name if found else "an artifact"
        reason = f"not a container image but {kind}, of type"
        advice = found.advice if found else "oras pull fetches artifacts"
        raise UnsupportedMediaType(subject, artifact or described.media_type, reason, advice)
    for layer in layers:
        if layer.media_type not in media_types.LAYERS:
            found = foreign_format(layer.media_type)
            reason = f"unsupported layer, {found.name}, of type" if found else "unsupported layer of type"
            raise UnsupportedMediaType(subject, layer.media_type, reason, found.advice if found else "")
    return Manifest(media_type, described, layers, body)


def _descriptors(document: JsonDocument, name: str) -> tuple[Descriptor, ...]:
    if name not in document:
        document.fail(f"{name!r} is missing")
    return tuple(Descriptor.from_document(child) for child in document.children(name))
