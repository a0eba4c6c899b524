"""Programs of the system: look them up and run them."""

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
    "crane": "none: part of go-containerregistry",
    "docker-registry": "docker-registry",
    "enroot": "none: see its project page",
    "fastpull": "none: install this project into the environment of the running interpreter",
    "gzip": "gzip",
    "mksquashfs": "squashfs-tools",
    "openssl": "openssl",
    "oras": "none: see its project page",
    "podman": "podman",
    "skopeo": "skopeo",
    "tar": "tar",
    "tar2sqfs": "squashfs-tools-ng",
    "umoci": "umoci",
    "unshare": "util-linux",
}
"""The Debian package of each program."""

PROGRAMS = tuple(DEBIAN_PACKAGES)


def path_of(program: str) -> str | None:
    """Return the path of a program, or None; fastpull is looked up beside the running interpreter."""
    if program == "fastpull":
        return shutil.which(program, path=sysconfig.get_path("scripts"))
    return shutil.which(program)


def missing(programs: Iterable[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [program for program in programs if path_of(program) is None]


def require(programs: Iterable[str]) -> None:
    """Check that programs are installed.

    Raises:
        SetupError: Some are missing; the message names them and their packages.
    """
    absent = missing(programs)
    if absent:
        packages = " ".join(sorted({DEBIAN_PACKAGES[program] for program in absent}))
        raise SetupError(f"missing programs: {', '.join(absent)} (Debian packages: {packages})")


def require_root() -> None:
    """Check that the process runs as root.

    Raises:
        SetupError: It does not.
    """
    if os.geteuid() != 0:
        raise SetupError(
            "root is required, to build images and to unpack trees with their owners; run this command as root"
        )


def run(command: Sequence[str], log: IO[str] | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end, and return its standard output.

    Args:
        command: name and arguments of the program.
        log: a file that receives the command line and the output.
        environment: variables added to those of this process.

    Raises:
        ProgramFailed: The program exited with a nonzero code.
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
