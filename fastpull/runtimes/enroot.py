"""enroot: ``/etc/rc``, ``/etc/rc.local``, ``/etc/environment`` and ``/etc/fstab``, as ``enroot import`` writes them.

``enroot start`` runs ``$SHELL /etc/rc ARGUMENTS``. ``/etc/rc`` first reads ``/etc/rc.local``, which pyxis replaces. All
files belong to one user, and the content of ``/dev`` is left out.

Two things differ from enroot: words are quoted for every shell instead of with bash's ``$'…'``, and the working
directory is quoted.

Spec: enroot's src/docker.sh (docker::configure, docker::import).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fastpull.errors import InvalidInput
from fastpull.oci.reference import Reference
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, ImageFiles
from fastpull.runtimes.execution import Execution, FromConfig
from fastpull.runtimes.text import as_one_line, listed, split_lines

if TYPE_CHECKING:
    from fastpull.oci.image import Image

_RC_LOCAL = b"""\
# This file is sourced by /etc/rc when the container starts.
# It can be used to manipulate the entrypoint or the command of the container.
"""


class Enroot(FromConfig):
    """The profile with the files of an enroot image."""

    name = "enroot"
    has_one_owner = True

    def additions(self, image: Image, _files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        execution = Execution.of(image)
        fstab = "".join(
            f"${{ENROOT_ROOTFS}}{volume} {volume} none x-create=dir,bind,rw,nosuid,nodev\n"
            for volume in execution.volumes
        )
        variables, left_out = split_lines(image.config.env)
        environment = "".join(line + "\n" for line in variables)
        inside = (
            AddedFile(b"etc/fstab", fstab.encode()),
            AddedFile(b"etc/environment", environment.encode()),
            AddedFile(b"etc/rc", _rc(image, execution).encode()),
            AddedFile(b"etc/rc.local", _RC_LOCAL),
            AddedDirectory(execution.working_dir.encode(), "the working directory"),
        )
        return Additions(inside, hidden=(b"dev",), warnings=(*_warnings(execution, left_out), *execution.warnings))


def uri_of(source: str) -> str:
    """Return a source in enroot's syntax, ``docker://REGISTRY#IMAGE:TAG``; other sources stay unchanged."""
    try:
        reference = Reference.parse(source.removeprefix("docker://"))
    except InvalidInput:
        return source  # a layout or an archive
    version = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
    return f"docker://{reference.registry}#{reference.repository}{version}"


def _rc(image: Image, execution: Execution) -> str:
    entrypoint, cmd = _lines(execution.entrypoint), _lines(execution.cmd)
    if not entrypoint and not cmd:
        cmd = ["/bin/sh"]
    comments = [f"# enroot-provenance: {uri_of(image.source)}"]
    comments += [f"# {key} {value}" for key, value in image.config.labels]
    workdir = re.sub(r'([\\"$`])', r"\\\1", execution.working_dir)
    start = " ".join(map(quote, entrypoint))
    return "\n".join(
        [
            *map(as_one_line, comments),
            "",
            f'mkdir -p "{workdir}" 2> /dev/null',
            f'cd "{workdir}" && unset OLDPWD || exit 1',
            "",
            "if [ -s /etc/rc.local ]; then",
            "    . /etc/rc.local",
            "fi",
            "",
            "if [ $# -gt 0 ]; then",
            f'    exec {start} "$@"',
            "else",
            f"    exec {start} {' '.join(map(quote, cmd))}",
            "fi",
            "",
        ]
    )


def quote(word: str) -> str:
    """Return a word quoted for every shell; for printable words, the result of bash's ``${word@Q}``."""
    return "\\'" if word == "'" else "'" + word.replace("'", "'\\''") + "'"


def _lines(words: tuple[str, ...]) -> list[str]:
    """Return words as enroot reads them: a word of several lines becomes several words."""
    return [line for word in words for line in word.split("\n")]


def _warnings(execution: Execution, left_out: list[str]) -> list[str]:
    warnings = []
    if any("\n" in word for word in (*execution.entrypoint, *execution.cmd)):
        warnings.append("enroot reads a word of several lines in the entrypoint or command as several words")
    if left_out:
        warnings.append(
            f"variables of several lines cannot be in /etc/environment and are left out: {listed(left_out)}"
        )
    return warnings
