"""What a dialect is: it looks at an image's config, and says what its runtime wants to find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from fastpull.oci.image import Image

Files: TypeAlias = Mapping[bytes, bytes | None]
"""Files of the image by path, as a process in it would open them; None for what is no file."""


class OutputShape(Enum):
    """Where the root filesystem is in what a runtime takes."""

    NONE = "none"
    """It is the output."""
    FOLDER = "folder"
    """It is the directory ``rootfs`` in the output; files may be beside it."""
    PAIR = "pair"
    """It is the output, a file; files of the same name but for the ending may be beside it."""


@dataclass(frozen=True, slots=True)
class File:
    """A small file that a runtime wants.

    Attributes:
        path: from the root; symbolic links on the way are followed inside the root.
        content: of it.
        replace: whether it takes the place of what is there, directories included, or only fills a gap.
    """

    path: bytes
    content: bytes
    replace: bool = True


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that a runtime wants; one that is there is left as it is.

    Attributes:
        path: from the root; symbolic links are followed inside the root.
        what: it is, for messages.
        mode: of the directory, if it has to be made.
        is_mount_point: whatever is there will do, also a link that leads nowhere before something is mounted.
    """

    path: bytes
    what: str
    mode: int = 0o755
    is_mount_point: bool = False


@dataclass(frozen=True, slots=True)
class Additions:
    """What a dialect makes of an image.

    Attributes:
        inside: files and directories in the root filesystem.
        hidden: directories of the image, by path without links, whose content is left out.
        beside: files beside the root filesystem, by name; for a `OutputShape.PAIR` by ending.
        warnings: what the runtime will not do as the image says, a sentence each.
    """

    inside: tuple[File | Folder, ...] = ()
    hidden: tuple[bytes, ...] = ()
    beside: tuple[tuple[str, bytes], ...] = ()
    warnings: tuple[str, ...] = ()


class RuntimeProfile(Protocol):
    """One runtime's wishes. Its methods are pure."""

    @property
    def name(self) -> str:
        """As users type it."""

    @property
    def frame(self) -> OutputShape:
        """Where the root filesystem is in the output."""

    @property
    def companions(self) -> tuple[str, ...]:
        """The names, for a `OutputShape.PAIR` the endings, of all files that `Additions.beside` will have."""

    @property
    def has_one_owner(self) -> bool:
        """Whether everything in the root filesystem belongs to whoever starts it."""

    def reads(self, image: Image, /) -> tuple[bytes, ...]:
        """Files of the image, by path, that `additions` has to see.

        Raises:
            MalformedDocument: the config says something that cannot be; nothing was downloaded yet.
        """

    def additions(self, image: Image, files: Files, /) -> Additions:
        """What the runtime wants.

        Args:
            image: with its config, whose volumes are where they are in the image, without links on the way.
            files: what `reads` asked for.

        Raises:
            MalformedDocument: the config says something that cannot be.
        """
