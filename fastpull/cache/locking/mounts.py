"""How far the locks of a filesystem reach: to all nodes that have it mounted, or to one of them."""

from __future__ import annotations

import os

_LOCAL = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"nolock", "local_lock=all", "local_lock=flock"},
    "lustre": {"localflock"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
}
"""Of filesystems that nodes share, the mount options with which a lock holds on its own node only: nfs(5),
mount.cifs(8), mount.lustre(8)."""


def local_lock_option(path: str) -> str:
    """The mount option that keeps locks below ``path`` on this node, with the filesystem's name; or nothing.

    Raises:
        OSError: there is no such path.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return find_local_lock_option(file.read(), os.stat(path).st_dev)


def find_local_lock_option(mounts: str, device: int) -> str:
    """`local_lock_option` of a device.

    Args:
        mounts: a list in the form of ``/proc/self/mountinfo``.
        device: as in ``st_dev``.

    Spec: proc_pid_mountinfo(5).
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in filter(None, mounts.split("\n")):  # a path may hold every other separator
        mount, _, filesystem = line.partition(" - ")
        fields, (kind, _, options) = mount.split(" "), filesystem.split(" ", 2)
        if fields[2] == number:
            found = _LOCAL.get(kind, set()) & {*options.split(","), *fields[5].split(",")}
            if found:
                return f"{kind} with {min(found)}"
    return ""
