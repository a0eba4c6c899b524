"""The runtime layer: what runtimes need, as one more layer on top of the image.

::

    tree of the image ── files that the profiles require ──> additions ── compose ──> a layer ──> sink and tree
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from fastpull.errors import InvalidSetting, LimitExceeded
from fastpull.layers.archive import archive
from fastpull.layers.entry import EntryType
from fastpull.layers.merge import overlay
from fastpull.layers.tree import DirectoryNode
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.runtimes.compose import compose, sidecars_of
from fastpull.runtimes.volumes import resolve_volumes
from fastpull.sinks.capabilities import SidecarFilesSink

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.oci.image import Image
    from fastpull.runtimes.base import Additions, RuntimeProfile
    from fastpull.sinks.base import Sink

ReadFile: TypeAlias = "Callable[[Origin, int], Awaitable[bytes]]"

_MAX_FILE = 4 << 20  # bytes that a profile may read; the user database of a large site has some hundred KiB


class RuntimeLayer:
    """What some runtimes add to one image.

    Args:
        image: the image, with its config.
        profiles: profiles of the runtimes.

    Raises:
        MalformedDocument: the config of the image holds an invalid value.
    """

    def __init__(self, image: Image, profiles: Sequence[RuntimeProfile]) -> None:
        self._image = image
        self._profiles = profiles
        self._reads = {profile.name: profile.required_files(image) for profile in profiles}
        self._additions: list[tuple[RuntimeProfile, Additions]] = []
        self._volume_warnings: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._profiles)

    async def plan(self, tree: Tree, read: ReadFile) -> None:
        """Read the files that the profiles require, and collect the additions.

        Args:
            tree: tree of the image.
            read: reads a file of a given size.

        Raises:
            MalformedDocument: the config refers to something that the image lacks, such as a user.
            LimitExceeded: a required file is too large.
        """
        files: dict[bytes, bytes | None] = {}
        for path in {path for paths in self._reads.values() for path in paths}:
            node = tree.locate(path).node
            if node is None or isinstance(node, DirectoryNode) or tree.type(node) is not EntryType.FILE:
                files[path] = None
                continue
            size = tree.entry(node).size
            if size > _MAX_FILE:
                raise LimitExceeded(
                    self._image.source, f"a file of {size} bytes, where up to {_MAX_FILE} are read", path
                )
            files[path] = await read(node, size) if size else b""
        image, self._volume_warnings = resolve_volumes(self._image, tree)
        self._additions = [(profile, profile.additions(image, files)) for profile in self._profiles]

    @property
    def warnings(self) -> list[str]:
        """Settings of the image that the runtimes will not follow, one sentence each."""
        found = [warning for _, additions in self._additions for warning in additions.warnings]
        return list(dict.fromkeys([*self._volume_warnings, *found]))

    def apply(self, tree: Tree, sink: Sink) -> None:
        """Write the layer to the sink, and merge it into the tree.

        Args:
            tree: tree of the image; changed.
            sink: sink that has all layers of the image.

        Raises:
            InvalidSetting: two profiles add different things at one path, or the sink takes no sidecar files.
            LayerError: the image has another entry where a directory must be.
            OutputError: the layer cannot be written.
        """
        if any(profile.has_one_owner for profile in self._profiles):
            tree.indexes = tuple(index.owned_by_one() for index in tree.indexes)
        names = ", ".join(profile.name for profile in self._profiles)
        subject, number = f"what {names} adds to {self._image.source}", len(tree.indexes)
        content = archive(compose(tree, self._additions, max(0, self._image.config.created_seconds), subject))
        scanner = LayerScanner(subject)
        writer = sink.layer(number, number, scanner.entries, None)
        try:
            writer.write(content, scanner.feed(content))
            scanner.finish()
            writer.finish()
        finally:
            writer.close()
        digest = Digest.of(content)
        overlay(tree, scanner.index(digest, digest, len(content)))
        files = sidecars_of(self._additions)
        if files:
            if not isinstance(sink, SidecarFilesSink):
                raise InvalidSetting(names, "this sink takes nothing beside the root filesystem")
            sink.set_sidecars(files)
