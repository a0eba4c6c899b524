"""From a manifest or index to an image, whatever the source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastpull.errors import DigestMismatch, MalformedDocument, NoMatchingPlatform, SizeMismatch, UnsupportedMediaType
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.image import Image, ImageConfig
from fastpull.oci.manifest import MAX_INDEX_DEPTH, Index, parse_manifest

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.platform import Platform


MAX_DOCUMENTS = 64
"""How many manifests and configs are looked into for one image: each may be an index of many others."""


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A manifest, index or config, verified.

    Attributes:
        digest: of the body.
        body: exactly as it is stored.
        media_type: what the source said it is, or None.
    """

    digest: Digest
    body: bytes
    media_type: str | None


Fetch = Callable[["Descriptor"], Awaitable[FetchedDocument]]
"""Fetches a manifest or config by its descriptor; `checked` is for the implementer to call."""


def checked(body: bytes, expected: Descriptor | Digest, subject: str, media_type: str | None = None) -> FetchedDocument:
    """Verifies a document against what names it.

    Raises:
        SizeMismatch, DigestMismatch: it is something else.
    """
    digest = expected if isinstance(expected, Digest) else expected.digest
    if not isinstance(expected, Digest) and len(body) != expected.size:
        raise SizeMismatch(subject, expected.size, len(body))
    actual = Digest.of(body, digest.algorithm)
    if actual != digest:
        raise DigestMismatch(subject, str(digest), str(actual))
    return FetchedDocument(digest, body, media_type)


async def resolve_image(source: str, top: FetchedDocument, platform: Platform, fetch: Fetch) -> Image:
    """Follows indexes to the manifest for a platform, and reads its config.

    Args:
        source: of the image, for messages and for `Image.source`.
        top: what the reference names.
        platform: that is wanted. A reference to a single manifest is taken as it is only if its config fits. A config
            without operating system or architecture fits every one, with a warning in the image.
        fetch: gets the documents below.

    Raises:
        NoMatchingPlatform: nothing fits.
        MalformedDocument, UnsupportedMediaType, SizeMismatch, DigestMismatch: a document is not what it should be.

    Spec: image-spec image-index.md, manifest.md, config.md.
    """
    left = MAX_DOCUMENTS

    async def get(descriptor: Descriptor) -> FetchedDocument:
        nonlocal left
        if descriptor.data is not None:
            return FetchedDocument(descriptor.digest, descriptor.data, descriptor.media_type)
        if left == 0:
            raise MalformedDocument(source, f"more than {MAX_DOCUMENTS} manifests to look into")
        left -= 1
        return await fetch(descriptor)

    return await _resolve(source, top, platform, get, MAX_INDEX_DEPTH)


async def _resolve(source: str, document: FetchedDocument, platform: Platform, fetch: Fetch, depth: int) -> Image:
    manifest = parse_manifest(document.body, document.media_type, f"{source} ({document.digest})")
    if isinstance(manifest, Index):
        if depth == 0:
            raise MalformedDocument(source, f"more than {MAX_INDEX_DEPTH} indexes within each other")
        return await _resolve_index(source, manifest, platform, fetch, depth)
    config = await fetch(manifest.config)
    parsed = ImageConfig.parse(config.body, f"config of {source}")
    completed = replace(parsed, platform=parsed.platform.completed(platform))
    if platform.rank(completed.platform) is None:
        raise NoMatchingPlatform(source, str(platform), (str(completed.platform),))
    warnings = () if parsed.platform.is_complete else (f"the config names no platform, taken for {platform} as asked",)
    return Image(source, document.digest, manifest, completed, warnings)


async def _resolve_index(source: str, index: Index, platform: Platform, fetch: Fetch, depth: int) -> Image:
    """Resolve the best entry that fits and can be read: what one cannot be read for, another may do without."""
    available: list[str] = list(index.platforms)
    unreadable: list[tuple[Descriptor, UnsupportedMediaType]] = []
    for candidate in index.candidates(platform):
        try:
            return await _resolve(source, await fetch(candidate), platform, fetch, depth - 1)
        except NoMatchingPlatform as error:
            available.extend(error.available)
        except UnsupportedMediaType as error:
            unreadable.append((candidate, error))
    # a manifest without a platform may be an artifact that belongs to the image beside it
    fitting = [found for found in unreadable if found[0].platform or found[0].media_type in media_types.INDEXES]
    if fitting or (unreadable and not available):
        entry, first = (fitting or unreadable)[0]
        raise first if entry.media_type in media_types.INDEXES else _with_entries(first, unreadable, available)
    raise NoMatchingPlatform(source, str(platform), tuple(dict.fromkeys(available)))


def _with_entries(
    error: UnsupportedMediaType, unreadable: list[tuple[Descriptor, UnsupportedMediaType]], available: list[str]
) -> UnsupportedMediaType:
    """The error, with all that the index has."""
    cannot = [
        f"{entry.platform or 'no platform'} ({failure.reason} {failure.media_type!r})" for entry, failure in unreadable
    ]
    tried = {str(entry.platform) for entry, _ in unreadable}
    entries = (*cannot, *(name for name in available if name not in tried))
    advice = f"The index has: {', '.join(dict.fromkeys(entries))}"
    error.advice = f"{error.advice}. {advice}" if error.advice else advice
    return error
