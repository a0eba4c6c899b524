"""OCI image layouts: a directory with ``index.json`` and ``blobs/``. Spec: image-spec image-layout.md."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.errors import InvalidReference, MalformedDocument, NoMatchingPlatform, NotFound, SizeMismatch
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.oci.json import Document as JsonDocument
from fastpull.oci.manifest import Index, parse_manifest
from fastpull.policy import Identity
from fastpull.sources.resolve import Document, checked, resolve_image
from fastpull.tasks import Aborted

if TYPE_CHECKING:
    from fastpull.meter import Part
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.sources.base import Blob

_REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """``DIR[:TAG|@DIGEST]``.

    Attributes:
        path: of the layout's directory.
        tag: the ``org.opencontainers.image.ref.name`` of an entry of ``index.json``.
        digest: of an entry, or of any manifest in the layout.
    """

    path: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> LayoutReference:
        """Reads what follows ``oci:``.

        Raises:
            InvalidReference, InvalidDigest: a part is empty, or no digest.
        """
        path, at, digest = text.rpartition("@")
        if at and ":" in digest:
            return cls(path, digest=Digest.parse(digest))
        path, colon, tag = text.rpartition(":")
        if colon and "/" not in tag:
            if not path or not tag:
                raise InvalidReference(text, "an empty part in an oci: source")
            return cls(path, tag)
        if not text:
            raise InvalidReference(text, "no directory in an oci: source")
        return cls(text)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"oci:{self.path}{f'@{self.digest}' if self.digest else tag}"


class _File:
    """A blob of a layout, which is on this machine already and stays where it is."""

    is_fresh = True
    is_cached = False
    is_remote = False
    is_trusted = False

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._aborted = False

    def readinto(self, buffer: memoryview, offset: int) -> int:
        if self._aborted:
            raise Aborted
        try:
            return os.preadv(self._fd, [buffer], offset)
        except OSError as error:
            raise MalformedDocument(self._path, f"an unreadable blob ({error.strerror})") from error

    def abort(self) -> None:
        self._aborted = True

    async def accept(self, fingerprint: str) -> None:
        pass

    async def reject(self) -> None:
        pass


class LayoutSource:
    """An image in a layout. The layout is not trusted: nothing is read through a symbolic link in it."""

    def __init__(self, reference: LayoutReference) -> None:
        self._reference = reference

    @property
    def identity(self) -> Identity:
        """See `fastpull.sources.base.Source`."""
        return Identity.of_path("oci", str(self._reference), self._reference.path)

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`."""
        name = str(self._reference)
        self._check_layout()
        if self._reference.digest is not None:
            top = checked(self._read(self._reference.digest), self._reference.digest, name)
            return await resolve_image(name, top, platform, self._fetch)
        entries = self._entries()
        available: list[str] = []
        for entry in entries:
            try:
                return await resolve_image(name, await self._fetch(entry), platform, self._fetch)
            except NoMatchingPlatform as error:
                available.extend(error.available)
        raise NoMatchingPlatform(name, str(platform), tuple(dict.fromkeys(available)))

    @asynccontextmanager
    async def open_blob(
        self,
        descriptor: Descriptor,
        rank: int,  # noqa: ARG002  # nothing waits
        part: Part,  # noqa: ARG002
    ) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        fd = self._open(descriptor.digest)
        try:
            size = os.fstat(fd).st_size
            if size != descriptor.size:
                raise SizeMismatch(f"blob {descriptor.digest} of {self._reference}", descriptor.size, size)
            yield _File(fd, f"blob {descriptor.digest} of {self._reference}")
        finally:
            os.close(fd)

    def _entries(self) -> tuple[Descriptor, ...]:
        """The entries of ``index.json`` that the reference may mean, of which one tag may have several platforms."""
        path = os.path.join(self._reference.path, "index.json")
        index = parse_manifest(self._read_file("index.json"), None, path)
        if not isinstance(index, Index):
            raise MalformedDocument(path, "no image index")
        tag = self._reference.tag
        found = tuple(entry for entry in index.manifests if tag is None or entry.annotation(_REF_NAME) == tag)
        names = sorted({name for entry in index.manifests if (name := entry.annotation(_REF_NAME))})
        if not found:
            advice = f"It has {', '.join(names)}" if names else "None of its images has a tag"
            raise NotFound(f"tag {tag!r}" if tag else "image", self._reference.path, advice)
        if tag is None and len(names) > 1:
            raise InvalidReference(str(self._reference), f"several images, choose one of {', '.join(names)}")
        return found

    def _check_layout(self) -> None:
        if not os.path.isdir(self._reference.path):
            raise NotFound("OCI layout", self._reference.path, "There is no such directory")
        path = os.path.join(self._reference.path, "oci-layout")
        version = JsonDocument.parse(self._read_file("oci-layout"), path).text("imageLayoutVersion")
        if not version.startswith("1."):
            raise MalformedDocument(path, f"a layout of version {version}")

    async def _fetch(self, descriptor: Descriptor) -> Document:
        subject = f"{descriptor.digest} of {self._reference}"
        return checked(self._read(descriptor.digest), descriptor, subject, descriptor.media_type)

    def _read(self, digest: Digest) -> bytes:
        return self._read_file(os.path.join("blobs", digest.algorithm, digest.encoded))

    def _read_file(self, name: str) -> bytes:
        fd = self._open_file(name)
        with open(fd, "rb") as file:
            body = file.read(MAX_DOCUMENT_SIZE + 1)
        if len(body) > MAX_DOCUMENT_SIZE:
            raise MalformedDocument(os.path.join(self._reference.path, name), f"more than {MAX_DOCUMENT_SIZE} bytes")
        return body

    def _open(self, digest: Digest) -> int:
        return self._open_file(os.path.join("blobs", digest.algorithm, digest.encoded))

    def _open_file(self, name: str) -> int:
        """Opens a regular file of the layout, component by component, following no link below the layout's root."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        *folders, last = name.split("/")
        path = os.path.join(self._reference.path, name)
        with contextlib.ExitStack() as stack:
            try:
                above = os.open(self._reference.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, above)
                for folder in folders:
                    above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
                    stack.callback(os.close, above)
                fd = os.open(last, flags, dir_fd=above)
            except FileNotFoundError:
                raise NotFound(name, f"layout {self._reference.path}") from None
            except OSError as error:
                raise MalformedDocument(path, f"no readable file ({error.strerror})") from error
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise MalformedDocument(path, "no regular file")
        return fd
