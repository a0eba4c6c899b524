"""Events: what a client tells while it works.

Events are values; they are given to the client's ``on_event`` on the event loop's thread, in order. What concerns one
layer at high speed is told ten times a second at most.
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
        image: what it is.
    """

    image: Image


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody else is downloading a blob; it will be used when it is there.

    Attributes:
        source: the image.
        digest: of the blob.
    """

    source: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class WaitingForImage:
    """Somebody else is making the finished image; it will be used when it is there.

    Attributes:
        source: the image.
    """

    source: str


@dataclass(frozen=True, slots=True)
class LayerProgress:
    """A layer moved on.

    Attributes:
        source: the image.
        digest: of the blob.
        size: of the blob, in bytes.
        read: how much of it was verified, and unpacked where it is unpacked.
        unpacked: uncompressed bytes so far; 0 when a cache is warmed.
        present: how much of the blob is on this machine, downloaded or cached.
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
        digest: of the blob.
        size: of the blob, in bytes.
        unpacked: uncompressed size in bytes; 0 when a cache is warmed.
        was_cached: nothing of it was downloaded.
    """

    source: str
    digest: Digest
    size: int
    unpacked: int
    was_cached: bool


NOTICED_SECONDS = 1.0
"""A pause from which on users are told why nothing happens."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request failed, and will be repeated.

    Attributes:
        host: that was asked.
        reason: what happened, safe for terminals.
        pause_seconds: until the next try.
        is_repeated: a failure of the same cause was told a moment ago, of this or another connection; of one with a
            pause of at least `NOTICED_SECONDS` only where that had such a pause, too.
    """

    host: str
    reason: str
    pause_seconds: float
    is_repeated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True, slots=True)
class Committing:
    """All layers are there; the output is being finished.

    Attributes:
        source: the image.
        entries: of all layers.
    """

    source: str
    entries: int


@dataclass(frozen=True, slots=True)
class Copying:
    """A finished image is being copied out of the cache.

    Attributes:
        source: the image.
        size: of the file, in bytes.
        copied: so far.
    """

    source: str
    size: int
    copied: int


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The output is there already, made of this image in this way; nothing is done.

    Attributes:
        source: the image.
        path: of the output.
    """

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something is not as it should be, and did not stop the work.

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
    """A node of an MPI job moved on.

    Attributes:
        source: the image.
        rank: of the node.
        host: its name.
        size: of the image's blobs, in bytes.
        read: how much of them the node has; where nodes compress layers for each other, how much of what it needs of
            their compressed layers, put as bytes of blobs.
    """

    source: str
    rank: int
    host: str
    size: int
    read: int


@dataclass(frozen=True, slots=True)
class NodeDone:
    """A node of an MPI job has ended its work on an image.

    Attributes:
        source: the image.
        rank: of the node.
        host: its name.
        seconds: since the job began with the image.
        fetched: bytes of blobs that it got from the registry.
        received: bytes that it got from other nodes, of blobs and of layers that those have compressed for all.
        error: why it failed; empty if it did not.
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
    """The listener of a client that has none."""
