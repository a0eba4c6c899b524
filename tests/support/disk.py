"""A filesystem of its own, whose power can be cut: ext4 on a loop device."""

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
    """What a power cut takes with it; the values are the kernel's ``EXT4_GOING_FLAGS_*``.

    ``DATA``: the bytes that were not written back, while what the journal says of files is there.
    ``ALL``: that, too, since the journal was last committed.
    """

    DATA = 1
    ALL = 2


class Disk:
    """An ext4 filesystem in a file, mounted through a loop device; needs root.

    Args:
        folder: gets the file, and the mount point.
        size: in bytes.

    Attributes:
        place: where it is mounted.
    """

    def __init__(self, folder: Path, size: int = 192 << 20) -> None:
        self._image = folder / "disk.ext4"
        self.place = folder / "disk"
        self.place.mkdir()
        with open(self._image, "wb") as file:
            file.truncate(size)

    def format(self) -> None:
        """Makes it empty; what was on it stays below, to be seen where a filesystem shows what was never written."""
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", self._image], check=True)

    def mount(self, options: str = "defaults") -> None:
        """Mounts it; after a cut the journal is replayed. Nothing is committed without being asked for."""
        subprocess.run(["mount", "-o", f"loop,commit=1000,{options}", self._image, self.place], check=True)

    def unmount(self) -> None:
        """Unmounts it, and goes on with a copy.

        Whoever has made a mount namespace meanwhile keeps the mount, and with it the filesystem, in whatever state it
        is: of the same file, the next mount would be of that.
        """
        subprocess.run(["umount", self.place], check=True)
        copy = self._image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", self._image, copy], check=True)
        copy.replace(self._image)

    def settle(self) -> None:
        """Writes everything back, as the kernel does from time to time."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            error_number = sync_filesystem(fd)
        finally:
            os.close(fd)
        if error_number:
            raise OSError(error_number, os.strerror(error_number))

    def cut(self, what: DiskCut) -> None:
        """Cuts the power: from now on nothing reaches the disk. Raises OSError where the kernel refuses."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", what))
        finally:
            os.close(fd)
