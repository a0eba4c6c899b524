"""OCI image layouts: ``index.json`` and ``blobs/``, in a directory or in an archive.

Spec: image-spec image-layout.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.config.policy import Identity
from fastpull.errors import InvalidSource, MalformedDocument, NoMatchingPlatform, NotFound, SizeMismatch
from fastpull.oci.digest import Digest
from fastpull.oci.json import JsonDocument
from fastpull.oci.manifest import Index, parse_manifest
from fastpull.sources.files import DirectoryFiles
from fastpull.sources.resolve import FetchedDocument, checked, resolve_image

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.sources.base import Blob
    from fastpull.sources.files import SourceFiles
    from fastpull.telemetry.timing import TimingScope

_REF_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
"""Annotations that name an entry of ``index.json``: that of the specification, and docker's full reference."""


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """``PATH[:TAG|@DIGEST]``. The path ends at the first colon, as in skopeo and podman.

    Attributes:
        scheme: ``oci`` or ``oci-archive``.
        path: path of the layout directory or archive.
        tag: ``org.opencontainers.image.ref.name`` of an entry of ``index.json``.
        digest: digest of an entry, or of any manifest in the layout.
    """

    scheme: str
    path: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, scheme: str, text: str) -> LayoutReference:
        """Parse the text after the scheme.

        Raises:
            InvalidSource, InvalidDigest: a part is empty, or not a digest.
        """
        before, at, pinned = text.rpartition("@")
        digest = Digest.parse(pinned) if at and ":" in pinned else None
        path, colon, tag = (before if digest else text).partition(":")
        if not path or (colon and not tag):
            raise InvalidSource(text, f"an empty part in an {scheme}: source")
        if digest and tag:
            raise InvalidSource(text, f"both tag and digest in an {scheme}: source, which accepts only one")
        return cls(scheme, path, tag or None, digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.scheme}:{self.path}{f'@{self.digest}' if self.digest else tag}"


@asynccontextmanager
async def use_directory(path: str) -> AsyncIterator[SourceFiles]:
    """Yield the files of a directory, which need no opening."""
    yield DirectoryFiles(path)


class LayoutSource:
    """An image in a layout, which is not trusted.

    Args:
        reference: reference of the image.
        use: returns a context with the files of the layout.
    """

    def __init__(self, reference: LayoutReference, use: Callable[[], AbstractAsyncContextManager[SourceFiles]]) -> None:
        self._reference = reference
        self._use = use

    @property
    def identity(self) -> Identity:
        """See `fastpull.sources.base.Source`."""
        return Identity.of_path(self._reference.scheme, str(self._reference), self._reference.path)

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`."""
        async with self._use() as files:
            return await _LayoutReader(self._reference, files).resolve(platform)

    @asynccontextmanager
    async def open_blob(
        self,
        descriptor: Descriptor,
        priority: int,  # noqa: ARG002  # nothing to schedule
        timing: TimingScope,  # noqa: ARG002
    ) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        async with self._use() as files:
            with files.open(_path_of(descriptor.digest)) as extent:
                if extent.size != descriptor.size:
                    raise SizeMismatch(f"blob {descriptor.digest} of {self._reference}", descriptor.size, extent.size)
                yield extent


class _LayoutReader:
    """A reader of the documents of a layout."""

    def __init__(self, reference: LayoutReference, files: SourceFiles) -> None:
        self._reference = reference
        self._files = files

    async def resolve(self, platform: Platform) -> Image:
        name = str(self._reference)
        self._check_version()
        if self._reference.digest is not None:
            top = checked(self._read(_path_of(self._reference.digest)), self._reference.digest, name)
            return await resolve_image(name, top, platform, self._fetch)
        available: list[str] = []
        for entry in self._entries():
            try:
                return await resolve_image(name, await self._fetch(entry), platform, self._fetch)
            except NoMatchingPlatform as error:
                available.extend(error.available)
        raise NoMatchingPlatform(name, str(platform), tuple(dict.fromkeys(available)))

    def _entries(self) -> tuple[Descriptor, ...]:
        """Return the entries of ``index.json`` that match the reference; one tag may have an entry per platform."""
        subject = f"index.json of {self._files.name}"
        index = parse_manifest(self._read("index.json"), None, subject)
        if not isinstance(index, Index):
            raise MalformedDocument(subject, "not an image index")
        tag = self._reference.tag
        found = tuple(
            entry for entry in index.manifests if tag is None or tag in {entry.annotation(name) for name in _REF_NAMES}
        )
        names = sorted({name for entry in index.manifests if (name := entry.annotation(_REF_NAMES[0]))})
        if not found:
            advice = f"It has {', '.join(names)}" if names else "None of its images has a tag"
            raise NotFound(f"tag {tag!r}" if tag else "image", self._files.name, advice)
        if tag is None and len(names) > 1:
            raise InvalidSource(str(self._reference), f"several images, choose one of {', '.join(names)}")
        return found

    def _check_version(self) -> None:
        subject = f"oci-layout of {self._files.name}"
        try:
            body = self._read("oci-layout")
        except NotFound as error:
            advice = "It is not an OCI layout; use docker-archive: for the output of docker save"
            raise NotFound("file 'oci-layout'", error.where, advice) from None
        version = JsonDocument.parse(body, subject).text("imageLayoutVersion")
        if not version.startswith("1."):
            raise MalformedDocument(subject, f"a layout of version {version}")

    async def _fetch(self, descriptor: Descriptor) -> FetchedDocument:
        subject = f"{descriptor.digest} of {self._reference}"
        return checked(self._read(_path_of(descriptor.digest)), descriptor, subject, descriptor.media_type)

    def _read(self, path: str) -> bytes:
        with self._files.open(path) as extent:
            return extent.document()


def _path_of(digest: Digest) -> str:
    return f"blobs/{digest.algorithm}/{digest.encoded}"
