"""Folders to work in, in which one run does not pay for what another has removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from tests.support.programs import run
from tests.support.setup_errors import ProgramFailed, SetupError


def make_folder(path: str) -> str:
    """Makes a folder, unless it is there, and returns its path.

    Raises:
        SetupError: it cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{path} cannot be used ({error.strerror})") from error
    return path


def spread(path: str) -> None:
    """Has new subfolders of a folder spread over the disk, each where the hash of its name says.

    An ext4 without a journal, as virtual machines often have it, takes minutes to use the inode of a removed file
    again, and until then looks at all of them for each new file in that corner of the disk: making 8,000 files after
    8,000 were removed takes 2 to 6 s instead of 0.1 s. Subfolders of random names stay clear of such corners. Other
    filesystems need no such thing; those that do not know it are left as they are.
    """
    with contextlib.suppress(ProgramFailed, OSError):
        run(["chattr", "+T", path])


@contextlib.contextmanager
def temporary_folder(parent: str, prefix: str) -> Iterator[str]:
    """A new folder of a random name, removed at the end with all that is in it.

    Raises:
        SetupError: at the end, if something is mounted there, because removing would reach into it.
    """
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield path
    finally:
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            if any(line.split()[4].startswith(path + "/") for line in mounts):
                raise SetupError(f"something is mounted below {path}; unmount it, then remove that folder")
        shutil.rmtree(path)
