"""Ownership: the policy for owners and modes in a directory output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from fastpull.errors import InvalidSetting

OwnerName: TypeAlias = Literal["keep", "me"]
SPECIAL_BITS = 0o6000


@dataclass(frozen=True, slots=True)
class Ownership:
    """A policy for owners and modes.

    ``keep`` needs root: owners, modes, devices and extended attributes are those of the image.

    ``me`` works for every user: all files belong to the user that pulls. setuid and setgid bits are removed, since they
    would give this user's rights to others. Files become readable and directories accessible for their owner, so that
    the output can be used, copied and removed. Devices are left out.

    Attributes:
        keep: whether owners are kept.
        file_mode_and, file_mode_or, directory_mode_or: masks that remove bits from modes and add bits to them.
    """

    keep: bool
    file_mode_and: int
    file_mode_or: int
    directory_mode_or: int

    @classmethod
    def named(cls, name: OwnerName) -> Self:
        """Return the policy with a name.

        Raises:
            InvalidSetting: the name is unknown.
        """
        if name == "keep":
            return cls(keep=True, file_mode_and=0o7777, file_mode_or=0, directory_mode_or=0)
        if name == "me":
            return cls(keep=False, file_mode_and=0o1777, file_mode_or=0o400, directory_mode_or=0o700)
        raise InvalidSetting(name, "unknown owner policy, it is 'keep' or 'me'")

    def file_mode(self, mode: int) -> int:
        """Return the mode for anything that is not a directory."""
        return mode & self.file_mode_and | self.file_mode_or

    def directory_mode(self, mode: int) -> int:
        """Return the mode for a directory."""
        return mode & self.file_mode_and | self.directory_mode_or
