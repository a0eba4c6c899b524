"""Which extended attributes of a layer reach an output."""

from __future__ import annotations

_DROPPED = (
    b"trusted.",  # overlayfs reads trusted.overlay.*: an image must not make directories opaque on its own
    b"user.overlay.",
    b"security.selinux",  # the host's policy labels what the host stores
    b"security.ima",
    b"security.evm",
    b"system.",  # POSIX ACLs name the host's users
)


def is_kept(name: bytes) -> bool:
    """Whether an attribute belongs to the root filesystem; others are dropped, and counted."""
    return name.startswith((b"user.", b"security.")) and not name.startswith(_DROPPED)
