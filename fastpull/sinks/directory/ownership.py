"""Ownership: what becomes of owners and modes when the one who unpacks may not, or shall not, keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from fastpull.errors import InvalidSetting

OwnerName: TypeAlias = Literal["keep", "me"]
SPECIAL_BITS = 0o6000


@dataclass(frozen=True, slots=True)
class Ownership:
    """A policy for owners and modes.

    ``keep`` is for root: owners, modes, devices and all attributes are as the image says.

    ``me`` is for everybody: all files belong to whoever unpacks. setuid and setgid bits go, since they would lend that
    user's rights, and not root's, to everybody. Files become readable, directories fully accessible to their owner, so
    that the tree can be used, copied and removed. There are no devices.

    Attributes:
        keep: whether owners are kept.
        file_mode_and, file_mode_or, directory_mode_or: what is kept of a mode, and what is added.
    """

    keep: bool
    file_mode_and: int
    file_mode_or: int
    directory_mode_or: int

    @classmethod
    def named(cls, name: OwnerName) -> Self:
        """Looks a policy up.

        Raises:
            InvalidSetting: there is none of this name.
        """
        if name == "keep":
            return cls(keep=True, file_mode_and=0o7777, file_mode_or=0, directory_mode_or=0)
        if name == "me":
            return cls(keep=False, file_mode_and=0o1777, file_mode_or=0o400, directory_mode_or=0o700)
        raise InvalidSetting(name, "unknown owner policy, it is 'keep' or 'me'")

    def file_mode(self, mode: int) -> int:
        """The mode of a file that is not a directory."""
        return mode & self.file_mode_and | self.file_mode_or

    def directory_mode(self, mode: int) -> int:
        """The mode of a directory."""
        return mode & self.file_mode_and | self.directory_mode_or
