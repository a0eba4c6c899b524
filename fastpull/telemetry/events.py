"""Events: messages from a client about its progress.

Events are values. The client calls ``on_event`` with each of them, in order, on the thread of the event loop.
Progress of one layer is sent at most ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fastpull.errors import printable

if TYPE_CHECKING:
    from fastpull.oci.digest import Digest
    from fastpull.oci.image import Image


@dataclass(frozen=True, slots=True)
class Resolved:
    """A reference was resolved.

    Attributes:
        image: the image that it refers to.
    """

    image: Image


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another process is downloading a blob; the pull uses it when it is complete.

    Attributes:
        source: the image.
        digest: digest of the blob.
    """

    source: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class WaitingForImage:
    """Another process is making the finished image; the pull uses it when it is complete.

    Attributes:
        source: the image.
    """

    source: str


@dataclass(frozen=True, slots=True)
class LayerProgress:
    """Progress of a layer.

    Attributes:
        source: the image.
        digest: digest of the blob.
        size: size of the blob, in bytes.
        read: bytes of the blob that were verified, and unpacked if the layer is unpacked.
        unpacked: uncompressed bytes so far; 0 while a cache is warmed.
        present: bytes of the blob on this machine, downloaded or cached.
    """

    source: str
    digest: Digest
    size: int
    read: int
    unpacked: int
    present: int


@dataclass(frozen=True, slots=True)
class LayerDone:
    """A layer is complete and verified.

    Attributes:
        source: the image.
        digest: digest of the blob.
        size: size of the blob, in bytes.
        unpacked: uncompressed size, in bytes; 0 if a cache was warmed.
        was_cached: whether nothing of the blob was downloaded.
    """

    source: str
    digest: Digest
    size: int
    unpacked: int
    was_cached: bool


NOTICED_SECONDS = 1.0
"""Seconds of a pause after which users should be told its reason."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request failed and will be repeated.

    Attributes:
        host: host of the request.
        reason: what happened, safe for terminals.
        pause_seconds: seconds until the next attempt.
        is_repeated: whether an event for the same cause was sent shortly before, for any connection. If the pause is at
            least `NOTICED_SECONDS`, the earlier event must have had such a pause, too.
    """

    host: str
    reason: str
    pause_seconds: float
    is_repeated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True, slots=True)
class Committing:
    """All layers are complete; the output is being made.

    Attributes:
        source: the image.
        entries: number of entries of all layers.
    """

    source: str
    entries: int


@dataclass(frozen=True, slots=True)
class Copying:
    """A finished image is being copied out of the cache.

    Attributes:
        source: the image.
        size: size of the file, in bytes.
        copied: bytes copied so far.
    """

    source: str
    size: int
    copied: int


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The output exists already, made from this image in the same way; nothing is done.

    Attributes:
        source: the image.
        path: path of the output.
    """

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Warned:
    """A problem that did not stop the work.

    Attributes:
        source: the image, or the cache.
        message: one sentence, safe for terminals.
    """

    source: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Progress of a node of an MPI job.

    Attributes:
        source: the image.
        rank: rank of the node.
        host: host name of the node.
        size: size of the image's blobs, in bytes.
        read: bytes of the blobs on the node. If nodes build layers for each other, the part of the built layers on the
            node, scaled to bytes of blobs.
    """

    source: str
    rank: int
    host: str
    size: int
    read: int


@dataclass(frozen=True, slots=True)
class NodeDone:
    """A node of an MPI job has finished an image.

    Attributes:
        source: the image.
        rank: rank of the node.
        host: host name of the node.
        seconds: seconds since the job began the image.
        fetched: bytes of blobs from the registry.
        received: bytes from other nodes: blobs, and layers that these nodes built.
        error: the error; empty if the node succeeded.
    """

    source: str
    rank: int
    host: str
    seconds: float
    fetched: int
    received: int
    error: str


Event: TypeAlias = (
    Resolved
    | Waiting
    | WaitingForImage
    | LayerProgress
    | LayerDone
    | Retrying
    | Committing
    | Copying
    | Unchanged
    | Warned
    | NodeProgress
    | NodeDone
)
OnEvent: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Ignore an event; the default for ``on_event``."""
