"""Resolution of a manifest or index to an image, for every source."""

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
"""Largest number of manifests and configs fetched for one image; an index may list many others."""


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A verified manifest, index or config.

    Attributes:
        digest: digest of the body.
        body: exact bytes.
        media_type: media type stated by the source, or None.
    """

    digest: Digest
    body: bytes
    media_type: str | None


Fetch = Callable[["Descriptor"], Awaitable[FetchedDocument]]
"""Type of a function that fetches a manifest or config by descriptor, and verifies it with `checked`."""


def checked(body: bytes, expected: Descriptor | Digest, subject: str, media_type: str | None = None) -> FetchedDocument:
    """Verify a document against its descriptor or digest.

    Raises:
        SizeMismatch, DigestMismatch: it does not match.
    """
    digest = expected if isinstance(expected, Digest) else expected.digest
    if not isinstance(expected, Digest) and len(body) != expected.size:
        raise SizeMismatch(subject, expected.size, len(body))
    actual = Digest.of(body, digest.algorithm)
    if actual != digest:
        raise DigestMismatch(subject, str(digest), str(actual))
    return FetchedDocument(digest, body, media_type)


async def resolve_image(source: str, top: FetchedDocument, platform: Platform, fetch: Fetch) -> Image:
    """Follow indexes to the manifest for a platform, and read its config.

    Args:
        source: name of the image, for messages and for `Image.source`.
        top: document that the reference names.
        platform: requested platform. A single manifest without an index must match it by its config. A config without
            operating system or architecture matches every platform, with a warning in the image.
        fetch: fetches the documents below.

    Raises:
        NoMatchingPlatform: no manifest matches.
        MalformedDocument, UnsupportedMediaType, SizeMismatch, DigestMismatch: a document is invalid.

    Spec: image-spec image-index.md, manifest.md, config.md.
    """
    left = MAX_DOCUMENTS

    async def get(descriptor: Descriptor) -> FetchedDocument:
        nonlocal left
        if descriptor.data is not None:
            return FetchedDocument(descriptor.digest, descriptor.data, descriptor.media_type)
        if left == 0:
            raise MalformedDocument(source, f"more than {MAX_DOCUMENTS} manifests to read")
        left -= 1
        return await fetch(descriptor)

    return await _resolve(source, top, platform, get, MAX_INDEX_DEPTH)


async def _resolve(source: str, document: FetchedDocument, platform: Platform, fetch: Fetch, depth: int) -> Image:
    manifest = parse_manifest(document.body, document.media_type, f"{source} ({document.digest})")
    if isinstance(manifest, Index):
        if depth == 0:
            raise MalformedDocument(source, f"more than {MAX_INDEX_DEPTH} nested indexes")
        return await _resolve_index(source, manifest, platform, fetch, depth)
    config = await fetch(manifest.config)
    parsed = ImageConfig.parse(config.body, f"config of {source}")
    completed = replace(parsed, platform=parsed.platform.completed(platform))
    if platform.rank(completed.platform) is None:
        raise NoMatchingPlatform(source, str(platform), (str(completed.platform),))
    warnings = (
        () if parsed.platform.is_complete else (f"the config names no platform; assuming the requested {platform}",)
    )
    return Image(source, document.digest, manifest, completed, warnings)


async def _resolve_index(source: str, index: Index, platform: Platform, fetch: Fetch, depth: int) -> Image:
    """Resolve the best matching entry that can be read. An unreadable entry does not hide a readable one."""
    available: list[str] = list(index.platforms)
    unreadable: list[tuple[Descriptor, UnsupportedMediaType]] = []
    for candidate in index.candidates(platform):
        try:
            return await _resolve(source, await fetch(candidate), platform, fetch, depth - 1)
        except NoMatchingPlatform as error:
            available.extend(error.available)
        except UnsupportedMediaType as error:
            unreadable.append((candidate, error))
    # a manifest without a platform may be an artifact attached to another image of the index
    fitting = [found for found in unreadable if found[0].platform or found[0].media_type in media_types.INDEXES]
    if fitting or (unreadable and not available):
        entry, first = (fitting or unreadable)[0]
        raise first if entry.media_type in media_types.INDEXES else _with_entries(first, unreadable, available)
    raise NoMatchingPlatform(source, str(platform), tuple(dict.fromkeys(available)))


def _with_entries(
    error: UnsupportedMediaType, unreadable: list[tuple[Descriptor, UnsupportedMediaType]], available: list[str]
) -> UnsupportedMediaType:
    """Add all entries of the index to an error."""
    cannot = [
        f"{entry.platform or 'no platform'} ({failure.reason} {failure.media_type!r})" for entry, failure in unreadable
    ]
    tried = {str(entry.platform) for entry, _ in unreadable}
    entries = (*cannot, *(name for name in available if name not in tried))
    advice = f"The index has: {', '.join(dict.fromkeys(entries))}"
    error.advice = f"{error.advice}. {advice}" if error.advice else advice
    return error
