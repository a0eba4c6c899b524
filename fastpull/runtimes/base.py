"""Runtime profiles: what a container runtime needs in a root filesystem, or beside it, to start an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from fastpull.oci.image import Image

ImageFiles: TypeAlias = Mapping[bytes, bytes | None]
"""Content of files of the image by path, with symbolic links resolved inside the image; None for a missing file."""


class OutputShape(Enum):
    """Where the root filesystem is in the output for a runtime."""

    ROOTFS = "rootfs"
    """The output is the root filesystem."""
    BUNDLE = "bundle"
    """The root filesystem is the directory ``rootfs`` in the output; sidecar files are beside it."""
    SIDECARS = "sidecars"
    """The output is one file; sidecar files beside it have the same name with other endings."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A small file to add to the root filesystem.

    Attributes:
        path: path from the root; symbolic links on the way are resolved inside the root.
        content: content of the file.
        replace: whether the file replaces what the image has at the path, also a directory.
    """

    path: bytes
    content: bytes
    replace: bool = True


@dataclass(frozen=True, slots=True)
class AddedDirectory:
    """A directory to add to the root filesystem; an existing one stays unchanged.

    Attributes:
        path: path from the root; symbolic links are resolved inside the root.
        purpose: what the directory is for, in messages.
        mode: mode of a directory that is created.
        is_mount_point: whether anything at the path will do, also a broken symbolic link.
    """

    path: bytes
    purpose: str
    mode: int = 0o755
    is_mount_point: bool = False


@dataclass(frozen=True, slots=True)
class Additions:
    """What a runtime profile adds to an image.

    Attributes:
        inside: files and directories in the root filesystem.
        hidden: directories of the image whose content is left out, by path without symbolic links.
        sidecars: name and content of files beside the root filesystem; for `OutputShape.SIDECARS`, the ending and
            content.
        warnings: differences between the image's config and what the runtime will do, one sentence each.
    """

    inside: tuple[AddedFile | AddedDirectory, ...] = ()
    hidden: tuple[bytes, ...] = ()
    sidecars: tuple[tuple[str, bytes], ...] = ()
    warnings: tuple[str, ...] = ()


class RuntimeProfile(Protocol):
    """The requirements of one runtime. All methods are pure."""

    @property
    def name(self) -> str:
        """The name for ``--for``."""

    @property
    def output_shape(self) -> OutputShape:
        """Where the root filesystem is in the output."""

    @property
    def sidecar_names(self) -> tuple[str, ...]:
        """The names of all files in `Additions.sidecars`; for `OutputShape.SIDECARS`, their endings."""

    @property
    def has_one_owner(self) -> bool:
        """Whether everything in the root filesystem belongs to the user that starts the container."""

    def required_files(self, image: Image, /) -> tuple[bytes, ...]:
        """Return the paths of the files of the image that `additions` needs.

        Raises:
            MalformedDocument: the image's config is invalid; nothing has been downloaded yet.
        """

    def additions(self, image: Image, files: ImageFiles, /) -> Additions:
        """Return what the profile adds to the image.

        Args:
            image: image with its config; its volumes are resolved inside the image.
            files: the files that `required_files` returned.

        Raises:
            MalformedDocument: the image's config is invalid.
        """
