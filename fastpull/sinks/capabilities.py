"""Optional abilities of sinks, as protocols that callers check with `isinstance`.

========================  ==========================================================  ==========================
protocol                  ability                                                     sinks
========================  ==========================================================  ==========================
`NamedSink`               has a path                                                  all
`MarkedSink`              writes a marker, so that an unchanged output is recognised  all
`SidecarFilesSink`        publishes files beside the root filesystem                  `BundleSink`, `SidecarSink`
`FinishedImageSink`       publishes a finished image of the cache                     `Squashfs`
`DistributedSink`         is written by several nodes together                        `Squashfs`
========================  ==========================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fastpull.sinks.base import Sink

if TYPE_CHECKING:
    from fastpull.cache.images.store import FinishedImage
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.output.marker import Marker, OutputIdentity
    from fastpull.sinks.squashfs.blocks.layer_blocks import LayerBlocks
    from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
    from fastpull.sinks.squashfs.recipe import Recipe


@runtime_checkable
class NamedSink(Sink, Protocol):
    """A sink whose output has a path.

    Attributes:
        path: path of the output as the caller gave it; ``-`` is standard output.
    """

    path: str


@runtime_checkable
class MarkedSink(NamedSink, Protocol):
    """A sink that writes a marker on its output, so that a later pull recognises an unchanged output."""

    def recipe_facts(self) -> dict[str, Any]:
        """Return everything that decides the output apart from image and runtimes, as JSON values."""

    def read_marker(self) -> Marker | None:
        """Return the marker of the existing output.

        None means that there is no valid marker, or that the output is to be replaced. Must be called before `begin`.
        """

    def set_identity(self, identity: OutputIdentity, /) -> None:
        """Set the identity for the marker; without it no marker is written. Must be called before `commit`."""


@runtime_checkable
class SidecarFilesSink(Sink, Protocol):
    """A sink that publishes sidecar files together with the root filesystem."""

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """Set the sidecar files. Must be called before `commit`.

        Args:
            files: content by name, or by ending.
        """


@runtime_checkable
class FinishedImageSink(NamedSink, Protocol):
    """A sink that can publish a finished image of the cache in place of an image made from layers.

    Attributes:
        copied: bytes that `take_finished` has copied so far; may be read from other threads.
    """

    copied: int

    @property
    def recipe(self) -> Recipe:
        """The recipe of the finished image."""

    def take_finished(self, image: FinishedImage) -> SquashfsReport | None:
        """Publish a finished image of the cache.

        Returns:
            The report; None if the file is missing or damaged. Nothing is published then, and the sink stays usable.

        Raises:
            OutputError: the output cannot be made.
            Aborted: `cancel` was called.
        """


@runtime_checkable
class DistributedSink(NamedSink, Protocol):
    """A sink whose layers can be made on other nodes.

    Attributes:
        on_layer_blocks: called with the layer's index and its blocks whenever `layer` begins to write a layer.
    """

    on_layer_blocks: Callable[[int, LayerBlocks], None]

    def open_layer_blocks(self, number: int, rank: int) -> LayerBlocks:
        """Open the block files of a layer, to be filled by `layer` or by another node."""

    def save_layer_blocks(self, number: int, index: LayerIndex) -> int:
        """Append the tables of a complete layer to its fragment file; return the size of that file."""

    def load_layer_blocks(self, number: int, data_size: int, fragment_file_size: int, subject: str) -> LayerIndex:
        """Load a layer whose block files another node has made; return its index."""

    def read_file(self, origin: Origin, size: int) -> bytes:
        """Return the content of a small file of a complete layer."""

    def assemble(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """Make the output without publishing it."""

    def fingerprint(self) -> str:
        """Return the fingerprint of the assembled output."""

    def publish(self) -> None:
        """Publish the assembled output."""
