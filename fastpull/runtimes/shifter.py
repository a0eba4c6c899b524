"""Shifter: ``ID.squashfs`` and its sidecar file ``ID.meta``, as Shifter's image gateway writes them.

Spec: shifter's imagegw/converters.py (writemeta).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull.runtimes.base import Additions, ImageFiles, OutputShape
from fastpull.runtimes.execution import Execution, FromConfig
from fastpull.runtimes.plain import MOUNT_POINTS, working_directory
from fastpull.runtimes.text import is_one_line, listed, split_lines

if TYPE_CHECKING:
    from fastpull.oci.image import Image


class Shifter(FromConfig):
    """The profile with a text file of entrypoint, command, working directory, user and environment."""

    name = "shifter"
    output_shape = OutputShape.SIDECARS
    sidecar_names = (".meta",)
    has_one_owner = True

    def additions(self, image: Image, _files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        execution, config = Execution.of(image), image.config
        lines, warnings = ["FORMAT: squashfs"], []
        if execution.entrypoint:
            lines.append(f"ENTRY: {list(execution.entrypoint)!r}")
        if execution.cmd:
            lines.append(f"CMD: {list(execution.cmd)!r}")
        for key, text in (("WORKDIR", config.working_dir), ("USER", config.user)):
            if not is_one_line(text):
                warnings.append(f"{key} has several lines, which the .meta file cannot hold, and is left out")
            elif text:
                lines.append(f"{key}: {text}")
        variables, left_out = split_lines(f"{name}={value}" for name, value in execution.env)
        lines += [f"ENV: {variable}" for variable in variables]
        if left_out:
            warnings.append(
                f"variables of several lines cannot be in the .meta file and are left out: {listed(left_out)}"
            )
        meta = "".join(line + "\n" for line in lines).encode()
        return Additions(
            (*MOUNT_POINTS, working_directory(execution)), sidecars=((".meta", meta),), warnings=tuple(warnings)
        )
