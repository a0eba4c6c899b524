"""Which extended attributes of a layer reach an output."""

from __future__ import annotations

from fastpull.layers.entry import EntryType

_DROPPED = (
    b"trusted.",  # overlayfs reads trusted.overlay.*: an image must not make directories opaque on its own
    b"user.overlay.",
    b"security.selinux",  # the host's policy labels what the host stores
    b"security.ima",
    b"security.evm",
    b"system.",  # POSIX ACLs name the host's users
)


_CAPABILITY = b"security.capability"
_CAPABILITY_SIZES = {
    b"\x00\x00\x02": 20,
    b"\x00\x00\x03": 24,
}  # by the end of the header word; the kernel sets no other


def is_kept(name: bytes, value: bytes, kind: EntryType) -> bool:
    """Whether an attribute belongs to the root filesystem; others are dropped, and counted.

    What the kernel refuses to set on what the entry is would be in no directory, and nobody could unpack the rest of an
    image that has it.

    Spec: xattr(7); capabilities(7), File capability extended attribute versioning.
    """
    space, _, rest = name.partition(b".")
    if not rest or name.startswith(_DROPPED):
        return False
    if name == _CAPABILITY:
        return kind is EntryType.FILE and _CAPABILITY_SIZES.get(value[1:4]) == len(value)
    return space == b"security" or (space == b"user" and kind in (EntryType.FILE, EntryType.DIRECTORY))
