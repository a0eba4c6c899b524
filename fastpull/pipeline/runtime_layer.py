"""Dressing: what runtimes want is put on top of an image, as one more layer that the sink takes like all others.

::

    tree of the image ─ files that profiles ask for ─> wishes ─ compose ─> a layer ─> sink, and over the tree
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

_MAX_FILE = 4 << 20  # of what a profile reads: the users of a large site are some hundred KiB


class RuntimeLayer:
    """What some runtimes want of one image.

    Args:
        image: with its config.
        profiles: of the runtimes.

    Raises:
        MalformedDocument: the config says something that cannot be.
    """

    def __init__(self, image: Image, profiles: Sequence[RuntimeProfile]) -> None:
        self._image = image
        self._profiles = profiles
        self._reads = {profile.name: profile.required_files(image) for profile in profiles}
        self._wishes: list[tuple[RuntimeProfile, Additions]] = []
        self._volume_warnings: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._profiles)

    async def look(self, tree: Tree, read: ReadFile) -> None:
        """Reads what the profiles have to see, and asks them what they want.

        Args:
            tree: of the image.
            read: reads a file of a size.

        Raises:
            MalformedDocument: the image has no user of the name that its config says, for example.
            LimitExceeded: a file is too large to be looked at.
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
        self._wishes = [(profile, profile.additions(image, files)) for profile in self._profiles]

    @property
    def warnings(self) -> list[str]:
        """What the runtimes will not do as the image says."""
        found = [warning for _, additions in self._wishes for warning in additions.warnings]
        return list(dict.fromkeys([*self._volume_warnings, *found]))

    def apply(self, tree: Tree, sink: Sink) -> None:
        """Gives the layer to the sink, and puts it on top of the tree.

        Args:
            tree: of the image; changed.
            sink: that has all layers of the image.

        Raises:
            InvalidSetting: two profiles want different things at one place.
            LayerError: the image has something else where a directory has to be.
            OutputError: the layer cannot be written.
        """
        if any(profile.has_one_owner for profile in self._profiles):
            tree.indexes = tuple(index.owned_by_one() for index in tree.indexes)
        names = ", ".join(profile.name for profile in self._profiles)
        subject, number = f"what {names} adds to {self._image.source}", len(tree.indexes)
        content = archive(compose(tree, self._wishes, max(0, self._image.config.created_seconds), subject))
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
        files = sidecars_of(self._wishes)
        if files:
            if not isinstance(sink, SidecarFilesSink):
                raise InvalidSetting(names, "this sink takes nothing beside the root filesystem")
            sink.set_sidecars(files)
