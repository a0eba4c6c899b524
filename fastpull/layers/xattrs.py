"""The extended attributes of a layer that an output keeps."""

from __future__ import annotations

from fastpull.layers.entry import EntryType

_DROPPED = (
    b"trusted.",  # overlayfs reads trusted.overlay.*: an image must not make directories opaque on its own
    b"user.overlay.",
    b"security.selinux",  # the policy of the host assigns labels
    b"security.ima",
    b"security.evm",
    b"system.",  # POSIX ACLs name the host's users
)


_CAPABILITY = b"security.capability"
_CAPABILITY_SIZES = {
    b"\x00\x00\x02": 20,
    b"\x00\x00\x03": 24,
}  # by the last bytes of the header word; the kernel accepts no others


def is_kept(name: bytes, value: bytes, kind: EntryType) -> bool:
    """Return whether an output keeps an attribute; other attributes are dropped and counted.

    An attribute that the kernel refuses for the type of the entry is dropped, too: otherwise such an image could not be
    unpacked into a directory.

    Spec: xattr(7); capabilities(7), File capability extended attribute versioning.
    """
    space, _, rest = name.partition(b".")
    if not rest or name.startswith(_DROPPED):
        return False
    if name == _CAPABILITY:
        return kind is EntryType.FILE and _CAPABILITY_SIZES.get(value[1:4]) == len(value)
    return space == b"security" or (space == b"user" and kind in (EntryType.FILE, EntryType.DIRECTORY))
