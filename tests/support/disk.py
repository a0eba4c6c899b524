"""An ext4 filesystem on a loop device with simulated power cuts."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from enum import IntEnum
from pathlib import Path

from fastpull.native import sync_filesystem

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of include/uapi/linux/ext4.h


class DiskCut(IntEnum):
    """The data lost in a power cut, as the kernel's ``EXT4_GOING_FLAGS_*``.

    ``DATA``: bytes that were not written back; the journal stays.
    ``ALL``: also the journal since its last commit.
    """

    DATA = 1
    ALL = 2


class Disk:
    """An ext4 filesystem in a file, mounted through a loop device; needs root.

    Args:
        folder: folder for the file and the mount point.
        size: size in bytes.

    Attributes:
        place: mount point.
    """

    def __init__(self, folder: Path, size: int = 192 << 20) -> None:
        self._image = folder / "disk.ext4"
        self.place = folder / "disk"
        self.place.mkdir()
        with open(self._image, "wb") as file:
            file.truncate(size)

    def format(self) -> None:
        """Format the disk; old bytes stay, so that reads of unwritten blocks become visible."""
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", self._image], check=True)

    def mount(self, options: str = "defaults") -> None:
        """Mount the disk, and replay the journal after a cut; nothing is committed without a request."""
        subprocess.run(["mount", "-o", f"loop,commit=1000,{options}", self._image, self.place], check=True)

    def unmount(self) -> None:
        """Unmount the disk, and continue with a copy of its file.

        A mount namespace created meanwhile keeps the old mount. The next mount of the same file would share its state.
        """
        subprocess.run(["umount", self.place], check=True)
        copy = self._image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", self._image, copy], check=True)
        copy.replace(self._image)

    def settle(self) -> None:
        """Write all dirty data back, as the kernel does periodically."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            error_number = sync_filesystem(fd)
        finally:
            os.close(fd)
        if error_number:
            raise OSError(error_number, os.strerror(error_number))

    def cut(self, what: DiskCut) -> None:
        """Cut the power, so that no further write reaches the disk; raises OSError where the kernel refuses."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", what))
        finally:
            os.close(fd)
