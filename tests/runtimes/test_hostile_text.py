"""Hostile texts in every place of a config, for every profile: they inject nothing into any file."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import MalformedDocument
from fastpull.oci.image import Image
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions
from fastpull.runtimes.bundle import Bundle, Caller
from fastpull.runtimes.choose import RUNTIMES, profiles_for
from fastpull.runtimes.text import as_one_line, is_one_line, is_plain_path
from fastpull.runtimes.users import GROUP, PASSWD, ProcessUser, find_user
from fastpull.telemetry.events import Warned
from tests.runtimes.configs import image_of
from tests.runtimes.hostile_text import FSTAB, HOSTILE, PLACES
from tests.support.layers import Member, file, folder, publish, symlink
from tests.support.registry import FaultyRegistry

PASSWORDS = b"root:x:0:0::/root:/bin/sh\n"
OWN_MOUNTS = {"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys", "/sys/fs/cgroup"}
BINDING = ["none", "x-create=dir,bind,rw,nosuid,nodev"]


def additions_of(name: str, image: Image) -> Additions | None:
    """Return the additions of a profile; None if it refuses the image."""
    (profile,) = (Bundle(Caller(0, 0)),) if name == "bundle" else profiles_for([name])
    try:
        profile.required_files(image)
        return profile.additions(image, {PASSWD: PASSWORDS, GROUP: b"root:x:0:\n"})
    except MalformedDocument:
        return None


def files_of(additions: Additions) -> dict[str, bytes]:
    inside = {one.path.decode(): one.content for one in additions.inside if isinstance(one, AddedFile)}
    return {**inside, **dict(additions.sidecars)}


def is_volume(path: str) -> bool:
    """Return whether a path is plain, by an independent definition."""
    return bool(re.fullmatch(r"(/[^/\s\\$`\"'#]+)+", path)) and path.isprintable() and ".." not in path.split("/")


def lines_of(content: bytes) -> list[str]:
    """Return the lines for a reader that knows all line breaks."""
    assert not content or content.endswith(b"\n")
    lines = content.decode().splitlines()
    assert len(lines) == content.count(b"\n")
    return lines


def check_enroot(image: Image, files: dict[str, bytes]) -> None:
    for line in lines_of(files["etc/fstab"]):
        source, target, *rest = line.split()
        assert rest == BINDING
        assert source == "${ENROOT_ROOTFS}" + target
        assert target in image.config.volumes
        assert is_volume(target)
    assert set(lines_of(files["etc/environment"])) <= set(image.config.env)
    comments, _, program = files["etc/rc"].decode().partition("\n\n")
    assert len(comments.splitlines()) == 1 + len(image.config.labels)
    assert all(line.startswith("# ") for line in comments.splitlines())
    assert program.startswith("mkdir -p ")


def check_charliecloud(image: Image, files: dict[str, bytes]) -> None:
    known = {text if "=" in text else f"{text}=" for text in image.config.env}
    assert set(lines_of(files["ch/environment"])) <= known | {re.sub("=(.*)", r"='\1'", text) for text in known}
    metadata = json.loads(files["ch/metadata.json"])
    assert metadata.keys() == {"arch", "cwd", "env", "history", "labels", "shell", "volumes"}
    assert all(map(is_volume, metadata["volumes"]))
    assert metadata["labels"] == dict(image.config.labels)


def check_shifter(image: Image, files: dict[str, bytes]) -> None:
    lines = lines_of(files[".meta"])
    assert lines[0] == "FORMAT: squashfs"
    allowed = {"ENTRY", "CMD", "WORKDIR", "USER", "ENV"}
    assert {line.partition(": ")[0] for line in lines[1:]} <= allowed
    assert sum(line.startswith("ENV: ") for line in lines) <= len(image.config.env)
    assert sum(not line.startswith("ENV: ") for line in lines) <= 5


def check_bundle(image: Image, files: dict[str, bytes]) -> None:
    config = json.loads(files["config.json"])
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    volumes = mounts.keys() - OWN_MOUNTS
    assert volumes <= set(image.config.volumes)
    assert all(map(is_volume, volumes))
    assert {mounts[volume]["type"] for volume in volumes} <= {"tmpfs"}
    assert len(mounts) == len(config["mounts"])
    assert config["process"]["args"] == ([*image.config.entrypoint, *image.config.cmd] or ["/bin/sh"])
    assert config["process"]["cwd"] == (image.config.working_dir or "/")
    assert config.keys() == {
        "ociVersion",
        "process",
        "root",
        "hostname",
        "mounts",
        "annotations",
        "linux",
    }
    for name in config["annotations"].keys() - dict(image.config.labels).keys():
        assert name.startswith("org.opencontainers.image.")


def check_plain(_image: Image, files: dict[str, bytes]) -> None:
    assert files == {}


CHECKS: dict[str, Callable[[Image, dict[str, bytes]], None]] = {
    "bundle": check_bundle,
    "charliecloud": check_charliecloud,
    "enroot": check_enroot,
    "plain": check_plain,
    "shifter": check_shifter,
}


def test_every_profile_has_check() -> None:
    assert CHECKS.keys() == set(RUNTIMES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", HOSTILE)
def test_added_files_contain_no_injected_lines(place: str, text: str) -> None:
    image = image_of(**PLACES[place](HOSTILE[text]))
    for name, check in CHECKS.items():
        additions = additions_of(name, image)
        if additions is None:
            assert (place in ("the user", "the group")) == (name == "bundle")
            continue
        check(image, files_of(additions))
        folders = [
            one.path.decode()
            for one in additions.inside
            if isinstance(one, AddedDirectory) and one.purpose == "a volume"
        ]
        assert all(map(is_volume, folders))
        for warning in additions.warnings:
            assert warning.isprintable(), warning
            assert len(warning) < 1000


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", HOSTILE)
def test_warning_names_what_is_left_out(place: str, text: str) -> None:
    """Variables of several lines, and volumes that are no plain paths, are left out with a warning."""
    image = image_of(**PLACES[place](HOSTILE[text]))
    for name in RUNTIMES:
        additions = additions_of(name, image)
        if additions is not None:
            check_warnings(name, image, additions)


def check_warnings(name: str, image: Image, additions: Additions) -> None:
    files, said = files_of(additions), " ".join(additions.warnings)
    if name in ("charliecloud", "enroot", "shifter") and not all(map(is_one_line, image.config.env)):
        assert "of several lines" in said
    if name in ("bundle", "charliecloud", "enroot") and not all(map(is_volume, image.config.volumes)):
        assert "no plain absolute paths" in said
    if name == "shifter" and not (is_one_line(image.config.user) and is_one_line(image.config.working_dir)):
        assert "has several lines" in said
    if name == "enroot" and "Z=last" in image.config.env:
        assert b"Z=last\n" in files["etc/environment"]
    if name == "enroot" and "/data" in image.config.volumes:
        assert b"${ENROOT_ROOTFS}/data /data " in files["etc/fstab"]


@pytest.mark.parametrize("place", ["a label", "the name of a label", "the source", "the entrypoint", "the command"])
@pytest.mark.parametrize("text", HOSTILE)
def test_rc_text_is_never_run_by_shell(place: str, text: str, tmp_path: Path) -> None:
    fields = {"Entrypoint": ["/bin/true"], **PLACES[place](HOSTILE[text])}
    run_rc(image_of(**fields), tmp_path)


@pytest.mark.parametrize("text", [text for text in HOSTILE if len(HOSTILE[text]) < 200])
def test_working_directory_is_never_run_by_shell(text: str, tmp_path: Path) -> None:
    inner = HOSTILE[text].replace("..", "up")
    run_rc(image_of(WorkingDir=f"{tmp_path}/work/{inner}", Cmd=["/bin/true"]), tmp_path)
    assert Path(f"{tmp_path}/work/{inner}").is_dir()


def run_rc(image: Image, folder: Path) -> None:
    """Run ``/etc/rc`` as ``enroot start`` does, in a directory that must stay empty."""
    additions = additions_of("enroot", image)
    assert additions is not None
    cwd = folder / "cwd"
    cwd.mkdir()
    script = files_of(additions)["etc/rc"].replace(b"/etc/rc.local", b"/no/rc.local")
    (folder / "rc").write_bytes(script.replace(b'\ncd "/" &&', f'\ncd "{cwd}" &&'.encode()))
    ended = subprocess.run(["sh", folder / "rc"], cwd=cwd, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert os.listdir(cwd) == []
    assert not list(folder.rglob("evil"))


# --- what stands in tables of users


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_lines_of_users_end_at_line_feeds_only(separator: str) -> None:
    """``getpwnam`` reads one line: text after another separator is not a user of the image."""
    passwd = f"app:x:1000:1000:An app{separator}root2:x:0:0::/:/bin/sh\nann:x:7:8::/:\n".encode()
    group = f"app:x:1000:x{separator}wheel:x:10:ann\nusers:x:100:ann\n".encode()
    with pytest.raises(MalformedDocument):
        find_user(image_of(User="root2"), {PASSWD: passwd, GROUP: group})
    with pytest.raises(MalformedDocument):
        find_user(image_of(User="0:wheel"), {PASSWD: passwd, GROUP: group})
    assert find_user(image_of(User="ann"), {PASSWD: passwd, GROUP: group}) == ProcessUser(7, 8, (100,))


# --- annotations


def test_labels_never_instruct_runtimes() -> None:
    labels = {
        "run.oci.hooks.stdout": "/root/x",
        "Run.OCI.handler": "krun",
        "org.systemd.property.DeviceAllow": "['x']",
        "org.criu.config": "/tmp/x",
        "": "nameless",
        "maintainer": "ann",
        "two": "li\nnes",
    }
    additions = Bundle(Caller(0, 0)).additions(image_of(Labels=labels, top={"author": "\ud800"}), {})
    annotations = json.loads(files_of(additions)["config.json"])["annotations"]
    ours = {"org.opencontainers.image.os": "linux", "org.opencontainers.image.architecture": "amd64"}
    assert annotations == {**ours, "maintainer": "ann", "two": "li\nnes"}
    (warning,) = additions.warnings
    assert "instructions" in warning
    assert "and 3 more" in warning


def test_volumes_never_cover_mounts_of_runtime() -> None:
    volumes = ["/proc", "/sys/kernel", "/dev/./", "//sys", "/dev/shm/x", "/processes"]
    additions = Bundle(Caller(0, 0)).additions(image_of(Volumes={volume: {} for volume in volumes}), {})
    destinations = [mount["destination"] for mount in json.loads(files_of(additions)["config.json"])["mounts"]]
    assert set(destinations) - OWN_MOUNTS == {"/dev/shm/x", "/processes"}
    assert len(destinations) == len(OWN_MOUNTS) + 2
    assert "the runtime's own mounts" in additions.warnings[0]


# --- volumes behind links

LINKS: dict[str, tuple[list[Member], str, str | None]] = {
    "no link": ([folder("data")], "/data", "/data"),
    "nothing there": ([], "/data/deep", "/data/deep"),
    "a link to the host": ([symlink("data", "/etc")], "/data", "/etc"),
    "a link out": ([symlink("data", "../../../../etc")], "/data", "/etc"),
    "a link on the way": ([symlink("var/run", "/run"), folder("run")], "/var/run/app", "/run/app"),
    "a link to the root": ([symlink("data", "/")], "/data", None),
    "a circle": ([symlink("data", "data")], "/data", None),
    "a file": ([file("data")], "/data", None),
    "below a file": ([file("etc/x"), symlink("data", "/etc/x/..")], "/data", None),
    "a link to a line of an fstab": ([symlink("data", FSTAB)], "/data", None),
    "a link to no text": ([symlink("data", b"\xff\xfe")], "/data", None),
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("runtime", ["enroot", "charliecloud", "bundle"])
async def test_volumes_are_resolved_inside_image(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str, runtime: str
) -> None:
    """enroot binds ``${ENROOT_ROOTFS}/VOLUME`` outside the image, where links would lead to the host."""
    members, volume, expected = LINKS[name]
    events: list[object] = []
    reference = publish(registry, members, config={"Volumes": {volume: {}}, "Cmd": ["x"]})
    async with fastpull.Client(settings, on_event=events.append) as client:
        await client.pull(reference, tmp_path / "out", "linux/amd64", runtimes=[runtime])
    if runtime == "enroot":
        found = [line.split()[1] for line in (tmp_path / "out/etc/fstab").read_text().splitlines()]
    elif runtime == "charliecloud":
        found = json.loads((tmp_path / "out/ch/metadata.json").read_text())["volumes"]
    else:
        mounts = json.loads((tmp_path / "out/config.json").read_text())["mounts"]
        found = [mount["destination"] for mount in mounts if mount["destination"] not in OWN_MOUNTS]
    assert found == ([expected] if expected else [])
    warnings = [event.message for event in events if isinstance(event, Warned)]
    assert any("left out" in warning for warning in warnings) == (expected is None)


# --- the rules


@pytest.mark.parametrize("text", HOSTILE)
def test_one_line_texts_are_recognised(text: str) -> None:
    assert is_one_line(as_one_line(HOSTILE[text]))
    assert as_one_line(HOSTILE[text]).isprintable()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a", True),
        ("/a/b:ro", True),
        ("/é/.hidden/a..b", True),
        ("//a/./b/", True),
        ("/" + "x" * 255, True),
        ("", False),
        ("a", False),
        ("/", False),
        ("/./", False),
        ("/a/..", False),
        ("/" + "x" * 256, False),
        ("/" + "é" * 128, False),
        ("/x" * 2048, False),
        ("/a\0", False),
        ("/\ud800", False),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_plain_paths_are_recognised(path: str, expected: bool) -> None:
    assert is_plain_path(path) == expected
