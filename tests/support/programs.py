"""Programs of the system: which there are, and running them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from tests.support.setup_errors import ProgramFailed, SetupError

DEBIAN_PACKAGES = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "crane": "none: it is part of go-containerregistry",
    "docker-registry": "docker-registry",
    "enroot": "none: it is on its project's pages",
    "fastpull": "none: it is this project, to be installed in the running interpreter's environment",
    "gzip": "gzip",
    "mksquashfs": "squashfs-tools",
    "openssl": "openssl",
    "oras": "none: it is on its project's pages",
    "podman": "podman",
    "skopeo": "skopeo",
    "tar": "tar",
    "tar2sqfs": "squashfs-tools-ng",
    "umoci": "umoci",
    "unshare": "util-linux",
}
"""Where each program comes from."""

PROGRAMS = tuple(DEBIAN_PACKAGES)


def path_of(program: str) -> str | None:
    """The program's path, or None if it is not installed; fastpull is that of the running interpreter."""
    if program == "fastpull":
        return shutil.which(program, path=sysconfig.get_path("scripts"))
    return shutil.which(program)


def missing(programs: Iterable[str]) -> list[str]:
    """Those that are not installed."""
    return [program for program in programs if path_of(program) is None]


def require(programs: Iterable[str]) -> None:
    """Makes sure that programs are there.

    Raises:
        SetupError: some are not; names them and their packages.
    """
    absent = missing(programs)
    if absent:
        packages = " ".join(sorted({DEBIAN_PACKAGES[program] for program in absent}))
        raise SetupError(f"missing programs: {', '.join(absent)} (Debian packages: {packages})")


def require_root() -> None:
    """Makes sure that this is root.

    Raises:
        SetupError: it is not.
    """
    if os.geteuid() != 0:
        raise SetupError("needs root: images are built with their owners, and trees are unpacked with them")


def run(command: Sequence[str], log: IO[str] | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Runs a program to its end, and returns what it printed.

    Args:
        command: its name and arguments.
        log: gets the command line and what the program says.
        environment: added to this process's own.

    Raises:
        ProgramFailed: it did not succeed.
    """
    result = subprocess.run(
        [path_of(command[0]) or command[0], *command[1:]],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )
    if log is not None:
        log.write(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}\n")
        log.flush()
    if result.returncode:
        raise ProgramFailed(command[0], result.returncode, result.stdout + result.stderr)
    return result.stdout
