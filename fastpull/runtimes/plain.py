"""Plain: the image as it is, for whatever starts a root filesystem, with the mount points that all of them need.

For bubblewrap, systemd-nspawn, LXC, Apptainer, ``podman run --rootfs``, ``unshare`` and ``chroot``, an overlay. Most
images have these directories; one that is a single program has not, and nothing can make them in a squashfs image.
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
"""What every runtime mounts something on."""


def working_directory(execution: Execution) -> AddedDirectory:
    """The directory that an image's process begins in."""
    return AddedDirectory(execution.working_dir.encode(), "the working directory")


class Plain(FromConfig):
    """Mount points and the working directory, where the image has none."""

    name = "plain"

    def additions(self, image: Image, _files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        return Additions((*MOUNT_POINTS, working_directory(Execution.of(image))))
