"""The user of a container's process: the image's ``User``, looked up in the image's files.

Spec: image-spec conversion.md, Config.User; passwd(5), group(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.runtimes.execution import refuse

if TYPE_CHECKING:
    from fastpull.oci.image import Image
    from fastpull.runtimes.base import ImageFiles

PASSWD, GROUP = b"etc/passwd", b"etc/group"
_MAX_ID = (1 << 32) - 2  # the highest number means "no change" in chown(2)


@dataclass(frozen=True, slots=True)
class ProcessUser:
    """The ids of a process.

    Attributes:
        uid, gid: user and primary group.
        additional_gids: supplementary groups, sorted.
    """

    uid: int
    gid: int
    additional_gids: tuple[int, ...] = ()


def files_for(image: Image) -> tuple[bytes, ...]:
    """Return the files that are needed to look up an image's user."""
    return (PASSWD, GROUP) if image.config.user else ()


def find_user(image: Image, files: ImageFiles) -> ProcessUser:
    """Return the user of an image: ``USER`` or ``USER:GROUP``, each a name or a number; root if there is none.

    A number needs no line in ``/etc/passwd``; if it has one, the line gives the group. Only a user given by name and
    without a group has the supplementary groups of ``/etc/group``.

    Raises:
        MalformedDocument: the user or group does not exist in the image, or a number is too large.
    """
    text = image.config.user
    if not text:
        return ProcessUser(0, 0)
    user, colon, group = text.partition(":")
    users = list(_lines(files.get(PASSWD), 4))
    groups = list(_lines(files.get(GROUP), 3))
    uid, name = _number(image, user), user
    known = next((line for line in users if (line[0] == user if uid is None else line[2] == str(uid))), None)
    gid = 0
    if known is not None:
        found = _number(image, known[2]), _number(image, known[3])
        if found[0] is None or found[1] is None:
            refuse(image, f"/etc/passwd has no numbers for the user {user!r}, as")
        uid, gid, name = found[0], found[1], known[0]
    elif uid is None:
        refuse(image, f"the user {user!r} is not in the image's /etc/passwd, as named")
    if colon and group:
        return ProcessUser(uid, _find_group(image, group, groups))
    if user.isdigit():
        return ProcessUser(uid, gid)
    others = {_number(image, line[2]) for line in groups if name in line[3:] and line[2].isdigit()}
    return ProcessUser(uid, gid, tuple(sorted(other for other in others if other not in (None, gid))))


def _find_group(image: Image, group: str, groups: list[list[str]]) -> int:
    number = _number(image, group)
    if number is None:
        line = next((line for line in groups if line[0] == group), None)
        number = None if line is None else _number(image, line[2])
    if number is None:
        refuse(image, f"the group {group!r} is not in the image's /etc/group, as named")
    return number


def _number(image: Image, text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) > 10 or int(text) > _MAX_ID:
        refuse(image, f"{text[:20]} is too large for an id, as")
    return int(text)


def _lines(content: bytes | None, least: int) -> Iterator[list[str]]:
    """Yield the lines of passwd or group, split at colons; the members of a group split at commas."""
    for line in (content or b"").decode(errors="surrogateescape").split("\n"):
        fields = line.split(":")
        if len(fields) >= least and not line.startswith("#"):
            yield [*fields[:3], *fields[3].split(",")] if least == 3 and len(fields) > 3 else fields
