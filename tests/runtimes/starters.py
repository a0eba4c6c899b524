"""Commands that start each runtime, and the set-up that this machine needs for them.

What a machine's kernel refuses is in `REFUSALS`, and nowhere else.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.runtimes.image import CMD, DIRECTORY, ENTRYPOINT, ENV, GID, UID

NOBODY = 65534
_HERE = ENTRYPOINT + CMD
_IMAGE_IDS = f"{UID}:{GID}"
_CALLER, _ROOT = f"{NOBODY}:{NOBODY}", "0:0"


@dataclass(frozen=True)
class Outputs:
    """The outputs of root and of an unprivileged user."""

    folder: Path
    bundle: Path
    directory: Path
    squashfs: Path


@dataclass(frozen=True)
class Start:
    """A way to start a container.

    Attributes:
        runtime, output: as the table in docs/runtimes.md has them.
        user: who starts it: ``root`` or ``user``.
        tools: that it takes.
        command: makes the command.
        ids: of the process inside.
        before: of the shell in a mount namespace of its own, as root.
    """

    runtime: str
    output: str
    user: str
    tools: tuple[str, ...]
    command: Callable[[Outputs], list[str]]
    ids: str
    before: str = ""

    def __str__(self) -> str:
        return f"{self.runtime}, {self.output}, {self.user}"


def _at_directory(*before: str) -> list[str]:
    """Return a shell command for runtimes that change only the root: it sets directory and environment."""
    return [*before, "/usr/bin/env", "-i", *ENV, "/bin/sh", "-c", f'cd "{DIRECTORY}" && exec "$@"', "sh", *_HERE]


def _runc(outputs: Outputs) -> list[str]:
    return ["runc", "--root", f"{outputs.folder}/runc", "run", "-b", str(outputs.bundle), "fastpull-test"]


def _crun(*options: str) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        return ["crun", "--root", f"{outputs.folder}/crun", *options, "run", "-b", str(outputs.bundle), "fastpull-test"]

    return command


def _bubblewrap(ids: tuple[int, int] | None, read_only: bool) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        root = ["--ro-bind", str(outputs.folder / "mnt"), "/"] if read_only else ["--bind", str(outputs.directory), "/"]
        who = ["--uid", str(ids[0]), "--gid", str(ids[1])] if ids else []
        env = [word for text in ENV for word in ("--setenv", *text.split("=", 1))]
        rest = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--clearenv", *env, "--chdir", DIRECTORY]
        return ["bwrap", "--unshare-all", *who, *root, *rest, *_HERE]

    return command


def _charliecloud(output: str, *options: str) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        return ["ch-run", "--set-env", "-c", DIRECTORY, *options, str(getattr(outputs, output)), "--", *_HERE]

    return command


def _chroot(*options: str) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        return _at_directory("unshare", *options, "--mount", "--pid", "--fork", "chroot", str(outputs.directory))

    return command


def _podman(*options: str) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        store = ["--root", f"{outputs.folder}/podman", "--runroot", f"{outputs.folder}/run"]  # up to 50 characters
        env = [word for text in ENV for word in ("--env", text)]
        start = ["run", "--rm", "--network", "none", "--workdir", DIRECTORY, *options, *env]
        # what crun says of a hybrid cgroup layout, and limits above the caller's own, are podman's and this machine's
        machine = ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs"]
        return ["podman", *machine, *store, *start, "--rootfs", str(outputs.directory), *_HERE]

    return command


def _nspawn(root: str) -> Callable[[Outputs], list[str]]:
    def command(outputs: Outputs) -> list[str]:
        where = outputs.directory if root == "directory" else outputs.folder / root
        env = [f"--setenv={text}" for text in ENV]
        lonely = ["--register=no", "--keep-unit", "--as-pid2", "--quiet"]
        options = [f"--chdir={DIRECTORY}", "--user=app", *env]
        volatile = [] if root == "directory" else ["--volatile=overlay"]
        return ["systemd-nspawn", *lonely, *options, *volatile, "-D", str(where), *_HERE]

    return command


def _overlay(outputs: Outputs) -> list[str]:
    return _at_directory("chroot", f"--userspec={_IMAGE_IDS}", str(outputs.folder / "over/merged"))


_MOUNT = "mkdir -p mnt && mount -o loop,ro {squashfs} mnt"
_OVERLAY = (
    _MOUNT + " && mkdir -p over && mount -t tmpfs over over && mkdir over/upper over/work over/merged"
    " && mount -t overlay -o lowerdir=mnt,upperdir=over/upper,workdir=over/work overlay over/merged"
)
_NO_UNIFIED = "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified"  # crun refuses a hybrid layout
_FUSE = "mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse"  # as a machine with users has it
_RUN = "mount -t tmpfs run /run"  # systemd's own, with a filesystem of its own

STARTS = [
    Start("runc", "bundle", "root", ("runc",), _runc, _IMAGE_IDS),
    Start("runc", "bundle", "user", ("runc",), _runc, _ROOT),
    Start("crun", "bundle", "root", ("crun",), _crun(), _IMAGE_IDS, _NO_UNIFIED),
    Start("crun", "bundle", "user", ("crun",), _crun("--cgroup-manager=disabled"), _ROOT, _NO_UNIFIED),
    Start("bubblewrap", "directory", "root", ("bwrap",), _bubblewrap(None, read_only=False), _ROOT),
    Start("bubblewrap", "directory", "user", ("bwrap",), _bubblewrap((UID, GID), read_only=False), _IMAGE_IDS),
    Start("bubblewrap", "squashfs", "root", ("bwrap",), _bubblewrap(None, read_only=True), _ROOT, _MOUNT),
    Start("bubblewrap", "squashfs", "user", ("bwrap",), _bubblewrap((UID, GID), read_only=True), _IMAGE_IDS, _MOUNT),
    Start("ch-run", "directory", "root", ("ch-run",), _charliecloud("directory"), _ROOT),
    Start("ch-run", "directory", "user", ("ch-run",), _charliecloud("directory"), _CALLER),
    Start("ch-run", "squashfs", "root", ("ch-run",), _charliecloud("squashfs"), _ROOT, _FUSE),
    Start("ch-run", "squashfs", "user", ("ch-run",), _charliecloud("squashfs"), _CALLER, _FUSE),
    Start("unshare + chroot", "directory", "root", (), _chroot(), _ROOT),
    Start("unshare + chroot", "directory", "user", (), _chroot("--user", "--map-root-user"), _ROOT),
    Start(
        "podman --rootfs",
        "directory",
        "root",
        ("podman", "runc"),
        _podman("--user", "app", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"),
        _IMAGE_IDS,
    ),
    Start("podman --rootfs", "directory", "user", ("podman", "runc"), _podman(), _ROOT),
    Start("systemd-nspawn", "directory", "root", ("systemd-nspawn",), _nspawn("directory"), _IMAGE_IDS, _RUN),
    Start("systemd-nspawn", "squashfs", "root", ("systemd-nspawn",), _nspawn("mnt"), _IMAGE_IDS, f"{_MOUNT} && {_RUN}"),
    Start("kernel + overlay", "squashfs", "root", (), _overlay, _IMAGE_IDS, _OVERLAY),
]

REFUSALS = {
    r"cgroups in hybrid mode not supported": "crun takes no hybrid cgroup layout",
    r"unshare.*Operation not permitted|setting up uid map: Permission denied|No permissions to create new namespace": (
        "this kernel gives users no namespaces of their own"
    ),
    r"failed to open /dev/fuse|fuse: device not found": "this kernel has no FUSE",
    r"unknown filesystem type 'squashfs'": "this kernel reads no squashfs",
    r"failed to setup loop device": "there are no loop devices here",
}
"""Messages of a kernel or its set-up, with the reason to skip the test."""


def run(start: Start, outputs: Outputs) -> subprocess.CompletedProcess[str]:
    """Start a container in its own mount namespace; return the result."""
    command, home = start.command(outputs), outputs.folder
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "root", "XDG_RUNTIME_DIR": str(home)}
    if start.user == "user":
        ids = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        command = ["setpriv", *ids, *command]
        environment["USER"] = "nobody"
    before = start.before.format(squashfs=shlex.quote(str(outputs.squashfs)))
    script = f"{before or 'true'} && exec {shlex.join(command)}"
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(error: str) -> str | None:
    """Return why this machine cannot run the test; None for any other failure."""
    return next((reason for pattern, reason in REFUSALS.items() if re.search(pattern, error)), None)
