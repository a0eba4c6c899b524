"""Charliecloud: ``/ch/environment``, ``/ch/metadata.json``, and the mount points of ``ch-run``.

``ch-run --set-env IMAGE -- COMMAND`` reads the environment. It expands ``$`` without ``--env-no-expand``, and removes
one pair of single quotes around a value.

Spec: Charliecloud's lib/charliecloud/image.py, ch-run(1).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastpull.oci.json import JsonDocument
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, ImageFiles
from fastpull.runtimes.execution import Execution, FromConfig
from fastpull.runtimes.text import listed, split_lines

if TYPE_CHECKING:
    from fastpull.oci.image import Image

_DIRECTORIES = ("bin", "dev", "etc", "mnt", "proc", "sys", "tmp", "usr", *(f"mnt/{number}" for number in range(10)))
_SHELL = ["/bin/sh", "-c"]


class Charliecloud(FromConfig):
    """The profile with the files that ``ch-image pull`` writes."""

    name = "charliecloud"

    def additions(self, image: Image, _files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        execution = Execution.of(image)
        lines, left_out = split_lines(f"{name}={_quoted(value)}" for name, value in sorted(execution.env))
        environment = "".join(line + "\n" for line in lines)
        inside: list[AddedFile | AddedDirectory] = [
            *(
                AddedDirectory(name.encode(), "a mount point", 0o1777 if name == "tmp" else 0o755, is_mount_point=True)
                for name in _DIRECTORIES
            ),
            AddedFile(b"etc/hosts", b"", replace=False),
            AddedFile(b"etc/resolv.conf", b"", replace=False),
            AddedFile(b"ch/environment", environment.encode()),
            AddedFile(b"ch/metadata.json", _metadata(image, execution)),
            AddedDirectory(execution.working_dir.encode(), "the working directory"),
            *(AddedDirectory(volume.encode(), "a volume") for volume in execution.volumes),
        ]
        warnings = list(execution.warnings)
        if left_out:
            warnings.append(
                f"variables of several lines cannot be in /ch/environment and are left out: {listed(left_out)}"
            )
        return Additions(tuple(inside), warnings=tuple(warnings))


def _quoted(value: str) -> str:
    """Return a value with another pair of quotes if ``ch-run`` would remove its own."""
    return f"'{value}'" if len(value) > 1 and value[0] == value[-1] == "'" else value


def _metadata(image: Image, execution: Execution) -> bytes:
    document = JsonDocument.parse(image.config.raw, image.source)
    metadata = {
        "arch": image.platform.architecture,
        "cwd": execution.working_dir,
        "env": dict(execution.env),
        "history": [dict(step) for step in document.objects("history")],
        "labels": dict(image.config.labels),
        "shell": _SHELL,
        "volumes": list(execution.volumes),
    }
    return json.dumps(metadata, indent=2, sort_keys=True).encode() + b"\n"
