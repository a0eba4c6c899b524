"""Creation of sources from their textual form."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import in_thread
from fastpull.errors import InvalidReference, InvalidSource
from fastpull.oci.reference import Reference
from fastpull.sources.archives import Archives
from fastpull.sources.local import is_path, local_advice, path_of, scheme_of_archive, scheme_of_directory

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive
    from fastpull.sources.archive_opener import ArchiveOpener
    from fastpull.sources.base import Source

SCHEMES = ("docker://", "oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "containers-storage:")
"""Prefixes of sources. A reference without a prefix is an image in a registry."""


@dataclass(frozen=True, slots=True)
class SourceFactory:
    """A factory of sources.

    Attributes:
        registry: creates the source of a registry reference.
        archive_opener: opens archives.
        archives: open archives.
    """

    registry: Callable[[str], Source]
    archive_opener: ArchiveOpener
    archives: Archives = field(default_factory=Archives)

    async def with_scheme(self, text: str) -> str:
        """Return a source text unchanged, or, for a path, with the scheme of the file or directory found there.

        Raises:
            InvalidSource: the path does not exist, or is not an image.
            MalformedDocument, LimitExceeded, CacheError: the archive cannot be read, see `open_archive`.
        """
        if not is_path(text):
            return text
        path = path_of(text)
        scheme = await in_thread(self.archive_opener.executor, scheme_of_directory, text, path)
        if scheme is None:
            async with self._use_file(text, path) as archive:
                scheme = scheme_of_archive(text, archive)
        return f"{scheme}:{text}"

    def open(self, text: str) -> Source:
        """Create the source for ``REF`` or one of `SCHEMES`, without any I/O.

        Raises:
            InvalidSource, InvalidDigest: the text has another form.
        """
        scheme, colon, rest = text.partition(":")
        if colon and f"{scheme}:" in SCHEMES:
            return self._open_local(text, scheme, rest)
        if (colon and scheme == "dir") or (not text.startswith("docker://") and "://" in text):
            raise InvalidSource(text, f"unknown scheme (known are {', '.join(SCHEMES)})")
        try:
            return self.registry(text.removeprefix("docker://"))
        except InvalidReference as error:
            if advice := local_advice(text):
                raise InvalidSource(text, f"{error.reason}; {advice[0].lower()}{advice[1:]}") from error
            raise

    def _open_local(self, text: str, scheme: str, rest: str) -> Source:
        # loading these modules must not delay pulls from a registry
        from fastpull.sources.docker_archive import DockerArchiveReference, DockerArchiveSource  # noqa: PLC0415
        from fastpull.sources.docker_daemon import export_from_docker  # noqa: PLC0415
        from fastpull.sources.layout import LayoutReference, LayoutSource, use_directory  # noqa: PLC0415
        from fastpull.sources.podman import export_from_podman  # noqa: PLC0415

        match scheme:
            case "oci":
                layout = LayoutReference.parse(scheme, rest)
                return LayoutSource(layout, partial(use_directory, layout.path))
            case "oci-archive":
                layout = LayoutReference.parse(scheme, rest)
                return LayoutSource(layout, partial(self._use_file, str(layout), layout.path))
            case "docker-archive":
                reference = DockerArchiveReference.parse(rest)
                use = partial(self._use_file, str(reference), reference.path)
                return DockerArchiveSource(text, reference.wanted, lambda _: use(), self.archive_opener.executor)
            case "docker-daemon":
                return self._exported(text, rest, export_from_docker)
            case _:
                assert scheme == "containers-storage"
                return self._exported(text, rest, export_from_podman)

    def _use_file(self, name: str, path: str) -> AbstractAsyncContextManager[Archive]:
        from fastpull.sources.archive import open_archive  # noqa: PLC0415  # not needed for registries

        archive_opener = self.archive_opener
        try:
            state = os.stat(path)
            key = path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns  # a changed file has a new key
        except OSError:
            key = path, 0, 0, 0, 0  # opening it raises the right error
        return self.archives.use(
            key,
            lambda: archive_opener.open(partial(open_archive, name, path, archive_opener.store, archive_opener.limits)),
        )

    def _exported(
        self, name: str, image: str, export: Callable[[str, str, ArchiveOpener], Awaitable[Archive]]
    ) -> Source:
        from fastpull.sources.docker_archive import DockerArchiveSource  # noqa: PLC0415  # see `_open_local`

        if not image.startswith("sha256:"):
            Reference.parse(image)  # an ID parses, too; other text must not become part of a path or a command
        elif not image.removeprefix("sha256:").isalnum():
            raise InvalidSource(name, "not an image ID")

        def use(anew: bool) -> AbstractAsyncContextManager[Archive]:
            return self.archives.use(name, lambda: export(name, image, self.archive_opener), anew=anew)

        return DockerArchiveSource(name, "", use, self.archive_opener.executor)
