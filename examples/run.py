"""A container runtime in some 60 lines: ``python examples/run.py debian:12 [COMMAND...]``.

Pulls an image into a directory, shows the progress, and starts the image's program there in new namespaces. Needs no
root: the program is root of a user namespace that maps only the calling user.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import fastpull
from fastpull.errors import FastpullError
from fastpull.progress import Committing, Event, LayerProgress, Warned


class Progress:
    """One live line."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case LayerProgress():
                self._read[str(event.digest)] = event.read
                print(f"\r{sum(self._read.values()) >> 20} MiB", end="", file=sys.stderr)
            case Committing():
                print("\rready    ", file=sys.stderr)
            case Warned(_, message):
                print(f"\rnote: {message}", file=sys.stderr)


async def unpack(source: str, rootfs: Path) -> fastpull.oci.ImageConfig:
    """Make the root filesystem, and return the image's config."""
    async with fastpull.Client(on_event=Progress()) as client:
        image = await client.resolve(source)
        await client.pull(image, fastpull.Directory(rootfs), runtimes=["plain"])
    return image.config


def command_for(config: fastpull.oci.ImageConfig, rootfs: Path, arguments: list[str]) -> list[str]:
    """Return the command that starts the image's program; arguments replace those of the image."""
    words = [*config.entrypoint, *(arguments or config.cmd)] or ["/bin/sh"]
    rootless = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    place = [f"--root={rootfs}", f"--wd={config.working_dir or '/'}"]
    unshare = shutil.which("unshare") or "/usr/bin/unshare"
    return [unshare, *rootless, "--mount", "--pid", "--fork", "--ipc", "--uts", *place, "--", *words]


def main() -> int:
    """Pull the image, start its program, and return the program's exit code."""
    if len(sys.argv) < 2:
        print("usage: run.py IMAGE [PROGRAM [ARGUMENT...]]", file=sys.stderr)
        return 2
    source, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        rootfs = Path(folder, "rootfs")
        try:
            config = asyncio.run(unpack(source, rootfs))
        except FastpullError as error:
            print(f"run: {error}", file=sys.stderr)
            return error.exit_code
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **dict(one.partition("=")[::2] for one in config.env)}
        command = command_for(config, rootfs, arguments)
        return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(command[0], command, environment), 0)[1])


if __name__ == "__main__":
    sys.exit(main())
