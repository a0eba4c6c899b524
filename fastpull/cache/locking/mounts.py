"""The reach of a filesystem's locks: all nodes that mount it, or one node."""

from __future__ import annotations

import os

_LOCAL = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"nolock", "local_lock=all", "local_lock=flock"},
    "lustre": {"localflock"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
}
"""Mount options that limit locks to one node, by type of shared filesystem: nfs(5), mount.cifs(8), mount.lustre(8)."""


def local_lock_option(path: str) -> str:
    """Return the mount option that limits locks below ``path`` to this node, with the filesystem type.

    Empty if no option does.

    Raises:
        OSError: the path does not exist.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return find_local_lock_option(file.read(), os.stat(path).st_dev)


def find_local_lock_option(mounts: str, device: int) -> str:
    """Return the result of `local_lock_option` for a device.

    Args:
        mounts: list of mounts in the format of ``/proc/self/mountinfo``.
        device: number as in ``st_dev``.

    Spec: proc_pid_mountinfo(5).
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in filter(None, mounts.split("\n")):  # a path may contain every other separator
        mount, _, filesystem = line.partition(" - ")
        fields, (kind, _, options) = mount.split(" "), filesystem.split(" ", 2)
        if fields[2] == number:
            found = _LOCAL.get(kind, set()) & {*options.split(","), *fields[5].split(",")}
            if found:
                return f"{kind} with {min(found)}"
    return ""
