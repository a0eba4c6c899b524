"""OCI runtime bundle: ``config.json`` and ``rootfs/``, for runc, crun, youki and programs that use them.

Spec: image-spec conversion.md; runtime-spec bundle.md, config.md, config-linux.md.
"""

from __future__ import annotations

import json
import os
import posixpath
import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fastpull.runtimes.base import Additions, ImageFiles, OutputShape
from fastpull.runtimes.execution import Execution
from fastpull.runtimes.plain import working_directory
from fastpull.runtimes.text import listed, shown
from fastpull.runtimes.users import ProcessUser, files_for, find_user

if TYPE_CHECKING:
    from fastpull.oci.image import Image

_SPEC_VERSION = "1.0.2"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAPABILITIES = (  # the defaults of docker and podman
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
_MASKED = ("acpi", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats")
_INSTRUCTIONS = (  # prefixes of annotations that control what runtimes, hooks and managers do on the host
    "run.oci.",  # crun
    "org.systemd.property.",  # runc, crun
    "org.criu.",
    "io.containerd.",
    "io.katacontainers.",
    "io.kubernetes.",
    "io.podman.",
    "dev.gvisor.",
    "krun.",
    "module.wasm.",
    "com.nvidia.",
    "nvidia.",
)
_READ_ONLY = ("asound", "bus", "fs", "irq", "sys", "sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Caller:
    """The user that will start a container, with the ids that it may map into it.

    Attributes:
        uid, gid: ids of the user.
        subordinate_uids, subordinate_gids: first id and count of the subordinate ids; None if there are none.
    """

    uid: int
    gid: int
    subordinate_uids: tuple[int, int] | None = None
    subordinate_gids: tuple[int, int] | None = None

    @classmethod
    def of_process(cls) -> Self:
        """Return the user of this process, with its ids of ``/etc/subuid`` and ``/etc/subgid``."""
        uid = os.geteuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = ""
        names = {name, str(uid)}
        return cls(uid, os.getegid(), _subordinate("/etc/subuid", names), _subordinate("/etc/subgid", names))


def _subordinate(path: str, names: set[str]) -> tuple[int, int] | None:
    """Return a user's first range in a file of subuid(5); None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, numbers = line.strip().partition(":")
                first, _, count = numbers.partition(":")
                if name in names and first.isdigit() and count.isdigit():
                    return int(first), int(count)
    except OSError:
        pass
    return None


@dataclass(frozen=True, slots=True)
class Bundle:
    """The profile with ``config.json`` made from the image's config and the defaults of ``runc spec``.

    For an unprivileged user, the container has a user namespace in which that user is root, and the network of the
    host. It has other ids only if ``/etc/subuid`` and ``/etc/subgid`` give the user subordinate ids.

    Attributes:
        caller: user that will start the container.
    """

    caller: Caller = field(default_factory=Caller.of_process)
    name = "bundle"
    output_shape = OutputShape.BUNDLE
    sidecar_names = ("config.json",)
    has_one_owner = False

    def required_files(self, image: Image, /) -> tuple[bytes, ...]:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        Execution.of(image)
        return files_for(image)

    def additions(self, image: Image, files: ImageFiles, /) -> Additions:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        execution, user = Execution.of(image), find_user(image, files)
        warnings = list(execution.warnings)
        annotations, left_out = _annotations(image)
        if left_out:
            warnings.append(
                f"labels that runtimes take for instructions or cannot read are left out: {listed(left_out)}"
            )
        volumes, covering = _volumes(execution)
        if covering:
            warnings.append(f"volumes that would cover the runtime's own mounts are left out: {listed(covering)}")
        rootless = self.caller.uid != 0
        if rootless and not self._can_be(user):
            warnings.append(
                f"the image's user {shown(image.config.user)} needs subordinate ids (/etc/subuid, /etc/subgid); "
                "the process will be root in its own user namespace"
            )
            user = ProcessUser(0, 0)
        if rootless and user.additional_gids:
            groups = ", ".join(map(str, user.additional_gids))
            warnings.append(
                f"the process will not be in the groups {groups}: runc sets no groups for an unprivileged user"
            )
            user = ProcessUser(user.uid, user.gid)
        config = _config(execution, user, self.caller if rootless else None)
        config["mounts"] += volumes
        config["annotations"] = annotations
        content = json.dumps(config, indent=2).encode() + b"\n"
        return Additions(
            (working_directory(execution),), sidecars=(("config.json", content),), warnings=tuple(warnings)
        )

    def _can_be(self, user: ProcessUser) -> bool:
        uids, gids = self.caller.subordinate_uids, self.caller.subordinate_gids
        if user == ProcessUser(0, 0):
            return True
        if uids is None or gids is None:
            return False
        return user.uid <= uids[1] and user.gid <= gids[1]


def _config(execution: Execution, user: ProcessUser, rootless: Caller | None) -> dict[str, Any]:
    env = [f"{name}={value}" for name, value in execution.env]
    if "PATH" not in dict(execution.env):
        env.append(_PATH)
    found: dict[str, Any] = {"uid": user.uid, "gid": user.gid}
    if user.additional_gids:
        found["additionalGids"] = list(user.additional_gids)
    sets = ("bounding", "permitted", "effective") if user.uid == 0 else ("bounding",)
    return {
        "ociVersion": _SPEC_VERSION,
        "process": {
            "terminal": False,
            "user": found,
            "args": list(execution.args),
            "env": env,
            "cwd": execution.working_dir,
            "capabilities": {kind: list(_CAPABILITIES) for kind in sets},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "fastpull",
        "mounts": _mounts(rootless is not None),
        "linux": _linux(rootless),
    }


def _annotations(image: Image) -> tuple[dict[str, str], list[str]]:
    """Return the annotations by the rules of the conversion, and the names of labels that are left out."""
    config, platform = image.config, image.platform
    implied = {
        "os": platform.os,
        "architecture": platform.architecture,
        "variant": platform.variant or "",
        "os.version": config.os_version,
        "os.features": ",".join(config.os_features),
        "author": config.author,
        "created": config.created or "",
        "stopSignal": config.stop_signal,
        "exposedPorts": ",".join(config.exposed_ports),
    }
    named = {f"org.opencontainers.image.{name}": value for name, value in implied.items() if value}
    found = {**named, **dict(config.labels)}
    left_out = [name for name, value in found.items() if not _is_annotation(name, value)]
    return {name: value for name, value in found.items() if _is_annotation(name, value)}, left_out


def _is_annotation(name: str, value: str) -> bool:
    """Return whether runtimes can read an annotation and do not act on it."""
    if not name or "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        return False
    return not name.lower().startswith(_INSTRUCTIONS)


def _mount(destination: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source or kind, "options": list(options)}


def _volumes(execution: Execution) -> tuple[list[dict[str, Any]], list[str]]:
    """Return mounts for the image's volumes, and the volumes that would cover a mount of the runtime."""
    own = {mount["destination"] for mount in _mounts(rootless=False)}
    kept: list[str] = []
    covering: list[str] = []
    for volume in execution.volumes:
        path = posixpath.normpath("/" + volume.lstrip("/"))
        is_covering = path.startswith(("/proc/", "/sys/")) or any(f"{place}/".startswith(f"{path}/") for place in own)
        (covering if is_covering else kept).append(volume)
    # runc and crun copy the image's content with tmpcopyup
    return [_mount(volume, "tmpfs", "nosuid", "nodev", "tmpcopyup") for volume in kept], covering


def _mounts(rootless: bool) -> list[dict[str, Any]]:
    secure = ("nosuid", "noexec", "nodev")
    terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    if not rootless:
        terminals.append("gid=5")
    mounts = [
        _mount("/proc", "proc"),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", *terminals),
        _mount("/dev/shm", "tmpfs", *secure, "mode=1777", "size=65536k", source="shm"),  # noqa: S108  # a path in the container
        _mount("/dev/mqueue", "mqueue", *secure),
    ]
    if rootless:  # sysfs cannot be mounted with the host's network namespace
        mounts.append(_mount("/sys", "none", "rbind", *secure, "ro", source="/sys"))
    else:
        mounts.append(_mount("/sys", "sysfs", *secure, "ro"))
        mounts.append(_mount("/sys/fs/cgroup", "cgroup", *secure, "relatime", "ro"))
    return mounts


def _linux(rootless: Caller | None) -> dict[str, Any]:
    kinds = ["pid", "ipc", "uts", "mount"]
    if rootless is None:
        return {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in (*kinds, "network")],
            "maskedPaths": [*(f"/proc/{name}" for name in _MASKED), "/sys/firmware"],
            "readonlyPaths": [f"/proc/{name}" for name in _READ_ONLY],
        }
    return {
        "uidMappings": _mappings(rootless.uid, rootless.subordinate_uids),
        "gidMappings": _mappings(rootless.gid, rootless.subordinate_gids),
        "namespaces": [{"type": kind} for kind in (*kinds, "user")],
        "maskedPaths": [*(f"/proc/{name}" for name in _MASKED), "/sys/firmware"],
        "readonlyPaths": [f"/proc/{name}" for name in _READ_ONLY],
    }


def _mappings(own: int, subordinate: tuple[int, int] | None) -> list[dict[str, int]]:
    found = [{"containerID": 0, "hostID": own, "size": 1}]
    if subordinate is not None:
        found.append({"containerID": 1, "hostID": subordinate[0], "size": subordinate[1]})
    return found
