"""Plain: the image with the mount points that every runtime needs.

For bubblewrap, systemd-nspawn, LXC, Apptainer, ``podman run --rootfs``, ``unshare``, ``chroot`` and overlays. Most
images have these directories. An image of a single program has none, and a squashfs image cannot get them later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull.runtimes.base import AddedDirectory, Additions, ImageFiles
from fastpull.runtimes.execution import Execution, FromConfig

if TYPE_CHECKING:
    from fastpull.oci.image import Image

MOUNT_POINTS = (
    AddedDirectory(b"dev", "a mount point", is_mount_point=True),
    AddedDirectory(b"proc", "a mount point", is_mount_point=True),
    AddedDirectory(b"run", "a mount point", is_mount_point=True),
    AddedDirectory(b"sys", "a mount point", is_mount_point=True),
    AddedDirectory(b"tmp", "a mount point", mode=0o1777, is_mount_point=True),
)
"""The mount points that every runtime needs."""


def working_directory(execution: Execution) -> AddedDirectory:
    """Return the working directory of an image's process."""
    return AddedDirectory(execution.working_dir.encode(), "the working directory")


class Plain(FromConfig):
    """The profile that adds missing mount points and the working directory."""

    name = "plain"

    def additions(self, image: Image, _files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        return Additions((*MOUNT_POINTS, working_directory(Execution.of(image))))
