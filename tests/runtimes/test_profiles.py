"""Runtime profiles for hostile and unusual images: additions stay inside the tree, and conflicts are errors."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import InvalidSetting, LayerError, LimitExceeded, MalformedDocument, OutputError, OutputExists
from fastpull.layers.merge import merge
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, ImageFiles, OutputShape
from fastpull.runtimes.bundle import Bundle, Caller
from fastpull.runtimes.charliecloud import Charliecloud
from fastpull.runtimes.choose import RUNTIMES, profiles_for
from fastpull.runtimes.shifter import Shifter
from fastpull.runtimes.users import GROUP, PASSWD, ProcessUser, find_user
from fastpull.telemetry.events import Warned
from tests.runtimes.configs import image_of
from tests.support.layers import Member, file, folder, hardlink, index, opaque, publish, symlink, whiteout
from tests.support.peers import unsquash
from tests.support.registry import FaultyRegistry
from tests.support.trees import look, names

ROOT = Caller(0, 0)


async def pulled(
    registry: FaultyRegistry,
    settings: Settings,
    output: Path | fastpull.Sink,
    runtimes: list[Any],
    *layers: list[Member],
    **config: Any,
) -> list[str]:
    """Pull an image of these layers, and return the warnings."""
    warnings: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    reference = publish(registry, *layers, config=config)
    async with fastpull.Client(settings, on_event=listen) as client:
        await client.pull(reference, output, "linux/amd64", runtimes=runtimes)
    return warnings


# --- where paths lead

PLACES: dict[str, tuple[list[Member], str, str, bytes | None]] = {
    "a link": ([folder("usr/etc"), symlink("etc", "usr/etc")], "/etc/rc", "usr/etc/rc", None),
    "an absolute link": ([symlink("etc", "/usr/etc")], "/etc/rc", "usr/etc/rc", None),
    "a link that climbs": ([symlink("etc", "../../../../tmp")], "/etc/rc", "tmp/rc", None),
    "a path that climbs": ([], "/../../etc/../x", "x", None),
    "the root": ([], "/", "", None),
    "nothing there": ([], "a/b/c", "a/b/c", None),
    "links to links": ([symlink("a", "b"), symlink("b", "c/d"), folder("c")], "a/x", "c/d/x", None),
    "a link in a circle": ([symlink("a", "b"), symlink("b", "a")], "a/x", "a/x", b"a/x"),
    "below a file": ([file("a")], "a/x", "a", b"a"),
}


@pytest.mark.parametrize("name", PLACES)
def test_paths_are_resolved_inside_tree(name: str) -> None:
    members, path, expected, blocked = PLACES[name]
    place = merge([index(*members)]).locate(path.encode())
    assert (place.path, place.blocked) == (expected.encode(), blocked or b"")


@pytest.mark.parametrize("kind", ["directory", "image.tar", "image.sqsh"])
@pytest.mark.parametrize("target", ["/canary", "../canary", "../../../../canary", "canary/deep"])
async def test_symlinks_never_lead_added_files_out_of_root(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str, target: str
) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    members = [symlink("etc", target), symlink("ch", str(canary)), symlink("srv", f"..{canary}")]
    await pulled(
        registry, settings, tmp_path / kind, ["enroot", "charliecloud"], members, WorkingDir="/srv/work", Env=["A=b"]
    )
    assert os.listdir(canary) == []
    if kind == "directory":
        inside = names(tmp_path / kind)
        assert {f"{target.replace('../', '').strip('/')}/rc", f"{str(canary)[1:]}/environment"} <= inside
        assert f"{str(canary)[1:]}/work" in inside
        assert (tmp_path / kind / "etc").is_symlink()


@pytest.mark.parametrize(
    ("members", "config", "error"),
    [
        ([file("srv")], {"WorkingDir": "/srv/x"}, LayerError),
        ([file("srv")], {"WorkingDir": "/srv"}, LayerError),
        ([symlink("etc", "etc")], {}, LayerError),
        ([file("etc")], {}, LayerError),
        ([], {"WorkingDir": "/.wh.etc"}, LayerError),
        ([], {"WorkingDir": "/.wh..wh..opq/x"}, LayerError),
        ([], {"WorkingDir": "/" + "x" * 300}, LayerError),
        ([], {"WorkingDir": "/x" * 5000}, LimitExceeded),
        ([], {"WorkingDir": "work"}, MalformedDocument),
        ([], {"WorkingDir": "/a\0b"}, MalformedDocument),
        ([], {"Env": ["A=\0"]}, MalformedDocument),
        ([], {"Env": ["=A"]}, MalformedDocument),
        ([], {"Entrypoint": ["\ud800"]}, MalformedDocument),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_impossible_addition_is_refused_and_leaves_nothing(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    members: list[Member],
    config: dict[str, Any],
    error: type[Exception],
) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    for name in ("tree", "image.sqsh"):
        with pytest.raises(error):
            await pulled(registry, settings, outputs / name, ["enroot"], members, **config)
    assert os.listdir(outputs) == []


async def test_existing_files_stay_if_profile_does_not_replace(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    members = [
        file("etc/hosts", b"mine", mode=0o600),
        symlink("etc/resolv.conf", "../run/resolv.conf"),
        symlink("tmp", "/var/tmp"),
        folder("proc", 0o500),
        file("ch/environment", b"old"),
    ]
    await pulled(registry, settings, tmp_path / "out", ["charliecloud", "plain"], members, Env=["A=b"])
    out = tmp_path / "out"
    assert (out / "etc/hosts").read_text() == "mine"
    assert os.readlink(out / "etc/resolv.conf") == "../run/resolv.conf"
    assert os.readlink(out / "tmp") == "/var/tmp"
    assert (out / "ch/environment").read_text() == "A=b\n"


@pytest.mark.parametrize("name", ["out", "out.tar", "out.sqsh"])
async def test_same_image_gives_same_output_for_runtimes(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str
) -> None:
    layers = [[file("a", b"1"), hardlink("b", "a"), folder("etc")], [whiteout("a"), opaque("etc"), file("etc/c", b"2")]]
    found = []
    for number, workers in enumerate((1, 4, 4)):  # the last one with indexes from the cache
        mine = Settings(cache=str(tmp_path / f"cache{min(number, 1)}"), workers=workers)
        output = tmp_path / f"{number}-{name}"
        await pulled(
            registry, mine, output, ["enroot", "charliecloud", "plain"], *layers, WorkingDir="/w/d", Env=["A=b"]
        )
        found.append(look(output, directory_times=True) if output.is_dir() else output.read_bytes())
    assert found[0] == found[1] == found[2]


class Writes:
    """A profile with the additions that a test chooses."""

    output_shape = OutputShape.ROOTFS
    sidecar_names = ()
    has_one_owner = False

    def __init__(self, name: str, *inside: AddedFile | AddedDirectory) -> None:
        self.name = name
        self._inside = inside

    def required_files(self, _image: fastpull.Image, /) -> tuple[bytes, ...]:
        return ()

    def additions(self, _image: fastpull.Image, _files: ImageFiles, /) -> Additions:
        return Additions(self._inside)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        (AddedFile(b"a/x", b"1"), AddedFile(b"a/x", b"1"), False),
        (AddedFile(b"a/x", b"1"), AddedFile(b"a/x", b"2"), True),
        (AddedFile(b"a/x", b"1"), AddedFile(b"link/x", b"2"), True),
        (AddedFile(b"a/x", b"1"), AddedFile(b"a/y", b"2"), False),
        (AddedDirectory(b"a/x", "it"), AddedDirectory(b"a/x", "it", 0o700), False),
        (AddedFile(b"a/x", b"1"), AddedDirectory(b"a/x", "it"), True),
    ],
)
async def test_profiles_with_conflicting_additions_are_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, one: Any, other: Any, collide: bool
) -> None:
    members = [folder("a"), symlink("link", "a")]
    profiles = [Writes("first", one), Writes("second", other)]
    if not collide:
        await pulled(registry, settings, tmp_path / "out", profiles, members)
        return
    with pytest.raises(InvalidSetting, match=r"first, second"):
        await pulled(registry, settings, tmp_path / "out", profiles, members)
    assert not (tmp_path / "out").exists()


def test_profiles_are_selected_by_name() -> None:
    assert [one.name for one in profiles_for(["plain", "enroot", "plain"])] == ["plain", "enroot"]
    assert {one.name for name in RUNTIMES for one in profiles_for([name])} == set(RUNTIMES)
    for names_ in (["docker"], ["bundle", "shifter"]):
        with pytest.raises(InvalidSetting):
            profiles_for(names_)


# --- bundles

PASSWORDS = (
    b"root:x:0:0::/root:/bin/sh\nann:x:1000:100:Ann:/home/ann:/bin/sh\nbroken:x:one:1::/:\nshort\n#no:x:5:5::/:\n"
)
GROUPS = b"root:x:0:\nusers:x:100:ann\nwheel:x:10:root,ann\ndisk:x:6:bob\nodd:x:y:ann\n"
USERS: dict[str, ProcessUser | None] = {
    "": ProcessUser(0, 0),
    "root": ProcessUser(0, 0, (10,)),
    "ann": ProcessUser(1000, 100, (10,)),
    "ann:disk": ProcessUser(1000, 6),
    "ann:7": ProcessUser(1000, 7),
    "ann:": ProcessUser(1000, 100, (10,)),
    "1000": ProcessUser(1000, 100),
    "1000:disk": ProcessUser(1000, 6),
    "1234": ProcessUser(1234, 0),
    "1234:5": ProcessUser(1234, 5),
    "nobody": None,
    "ann:nothing": None,
    "broken": None,
    "short": None,
    "#no": None,
    "4294967295": None,
    "99999999999999999999": None,
    "ann:4294967295": None,
    "-1": None,
    ":users": None,
    "ann\nroot": None,
}


@pytest.mark.parametrize("user", USERS)
def test_users_are_looked_up_in_image(user: str) -> None:
    image, expected = image_of(User=user), USERS[user]
    if expected is None:
        with pytest.raises(MalformedDocument):
            find_user(image, {PASSWD: PASSWORDS, GROUP: GROUPS})
    else:
        assert find_user(image, {PASSWD: PASSWORDS, GROUP: GROUPS}) == expected


def config_of(profile: Bundle, files: dict[bytes, bytes | None] | None = None, **config: Any) -> Any:
    ((name, content),) = profile.additions(image_of(**config), files or {}).sidecars
    assert name == "config.json"
    return json.loads(content)


def test_bundle_config_follows_conversion_rules() -> None:
    top = {
        "architecture": "arm64",
        "variant": "v8",
        "os.version": "1",
        "os.features": ["a", "b"],
        "author": "me",
        "created": "2026-01-01T00:00:00Z",
    }
    image = image_of(
        top=top,
        Env=["A=1", "B=x=y", "A=2"],
        Entrypoint=["e", "f"],
        Cmd=["c"],
        WorkingDir="/w",
        User="7:8",
        Labels={"a": "b", "org.opencontainers.image.author": "label"},
        StopSignal="SIGINT",
        ExposedPorts={"80/tcp": {}, "443": {}},
        Volumes={"/data": {}},
    )
    config = json.loads(Bundle(ROOT).additions(image, {}).sidecars[0][1])
    process = config["process"]
    assert process["args"] == ["e", "f", "c"]
    assert process["cwd"] == "/w"
    assert process["env"][:2] == ["A=2", "B=x=y"]
    assert process["user"] == {"uid": 7, "gid": 8}
    assert config["annotations"] == {
        "a": "b",
        "org.opencontainers.image.os": "linux",
        "org.opencontainers.image.architecture": "arm64",
        "org.opencontainers.image.variant": "v8",
        "org.opencontainers.image.os.version": "1",
        "org.opencontainers.image.os.features": "a,b",
        "org.opencontainers.image.author": "label",
        "org.opencontainers.image.created": "2026-01-01T00:00:00Z",
        "org.opencontainers.image.stopSignal": "SIGINT",
        "org.opencontainers.image.exposedPorts": "443,80/tcp",
    }
    assert "/data" in [mount["destination"] for mount in config["mounts"]]
    assert "uidMappings" not in config["linux"]


def test_bundle_of_unprivileged_user_has_user_namespace() -> None:
    config = config_of(Bundle(Caller(1000, 100)))
    assert config["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 1000, "size": 1}]
    assert config["linux"]["gidMappings"] == [{"containerID": 0, "hostID": 100, "size": 1}]
    kinds = {namespace["type"] for namespace in config["linux"]["namespaces"]}
    assert ("user" in kinds, "network" in kinds) == (True, False)


def test_subordinate_ids_allow_user_of_image() -> None:
    caller = Caller(1000, 100, (100000, 65536), (200000, 65536))
    image = image_of(User="ann")
    additions = Bundle(caller).additions(image, {PASSWD: PASSWORDS, GROUP: GROUPS})
    assert json.loads(additions.sidecars[0][1])["process"]["user"] == {"uid": 1000, "gid": 100}
    assert "groups 10" in additions.warnings[0]
    config = config_of(Bundle(caller), User="33:34")
    assert config["process"]["user"] == {"uid": 33, "gid": 34}
    assert config["linux"]["uidMappings"][1] == {"containerID": 1, "hostID": 100000, "size": 65536}
    assert config["linux"]["gidMappings"][1] == {"containerID": 1, "hostID": 200000, "size": 65536}
    for poor in (Caller(1000, 100), Caller(1000, 100, (100000, 10), (200000, 10))):
        additions = Bundle(poor).additions(image_of(User="33:34"), {})
        assert "subordinate ids" in additions.warnings[0]
        assert json.loads(additions.sidecars[0][1])["process"]["user"] == {"uid": 0, "gid": 0}


@pytest.mark.parametrize(
    "members",
    [
        [file("etc/passwd", PASSWORDS), file("etc/group", GROUPS)],
        [symlink("etc/passwd", "/usr/lib/passwd"), file("usr/lib/passwd", PASSWORDS), file("etc/group", GROUPS)],
        [file("pad", bytes(3 << 20)), hardlink("p", "pad"), file("etc/passwd", PASSWORDS), file("etc/group", GROUPS)],
    ],
    ids=["files", "links", "behind large files"],
)
async def test_bundle_user_is_looked_up_in_merged_tree(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, members: list[Member]
) -> None:
    below = [file("etc/passwd", b"ann:x:1:1::/:\n"), file("etc/group", b"")]
    for _ in range(2):  # the second time with indexes from the cache
        output = fastpull.Directory(tmp_path / "out", force=True)
        await pulled(registry, settings, output, ["bundle"], below, members, User="ann", WorkingDir="/w")
        config = json.loads((tmp_path / "out/config.json").read_text())
        assert config["root"]["path"] == "rootfs"
        if os.geteuid() == 0:
            assert config["process"]["user"] == {"uid": 1000, "gid": 100, "additionalGids": [10]}
        assert set(os.listdir(tmp_path / "out")) == {"config.json", "rootfs"}
        assert (tmp_path / "out/rootfs/w").is_dir()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([symlink("etc/passwd", "/canary")], MalformedDocument),
        ([symlink("etc", "..")], MalformedDocument),
        ([folder("etc/passwd")], MalformedDocument),
        ([symlink("etc/passwd", "passwd")], MalformedDocument),
        ([file("etc/passwd", bytes(5 << 20))], LimitExceeded),
        ([file("etc/passwd", b"\xff\xfe:::\nann:x:\n")], MalformedDocument),
    ],
    ids=["a link out", "a link up", "a directory", "a circle", "5 MiB", "no text"],
)
async def test_bundle_with_unknown_user_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, members: list[Member], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await pulled(registry, settings, tmp_path / "out", ["bundle"], members, User="ann")
    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


async def test_bundle_needs_directory_and_replaces_nothing(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("")
    with pytest.raises(OutputExists):
        await pulled(registry, settings, tmp_path / "there", ["bundle"], [file("a")])
    for name in ("image.sqsh", "image.tar"):
        with pytest.raises(InvalidSetting):
            await pulled(registry, settings, tmp_path / name, ["bundle"], [file("a")])
    assert sorted(os.listdir(tmp_path)) == ["cache", "there"] or sorted(os.listdir(tmp_path)) == ["there"]


async def test_thousands_of_variables_are_kept(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    env = [f"VARIABLE_{number}=value {number}" for number in range(20_000)]
    await pulled(registry, settings, tmp_path / "out", ["bundle", "enroot", "charliecloud"], [file("a")], Env=env)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["process"]["env"][:-1] == env
    assert (tmp_path / "out/rootfs/etc/environment").read_text().splitlines() == env
    assert sorted((tmp_path / "out/rootfs/ch/environment").read_text().splitlines()) == sorted(env)


# --- Charliecloud


def test_files_of_charliecloud() -> None:
    image = image_of(
        Env=["Z=1", "A='quoted'", "B=it's", "N=two\nlines"],
        WorkingDir="/w",
        Labels={"k": "v"},
        Volumes={"/data": {}},
        top={"history": [{"created_by": "sh"}]},
    )
    additions = Charliecloud().additions(image, {})
    files = {one.path: one.content for one in additions.inside if isinstance(one, AddedFile)}
    assert files[b"ch/environment"] == b"A=''quoted''\nB=it's\nZ=1\n"
    assert "'N'" in additions.warnings[0]
    metadata = json.loads(files[b"ch/metadata.json"])
    assert metadata == {
        "arch": "amd64",
        "cwd": "/w",
        "env": {"Z": "1", "A": "'quoted'", "B": "it's", "N": "two\nlines"},
        "history": [{"created_by": "sh"}],
        "labels": {"k": "v"},
        "shell": ["/bin/sh", "-c"],
        "volumes": ["/data"],
    }
    folders = {one.path for one in additions.inside if isinstance(one, AddedDirectory)}
    assert {b"dev", b"proc", b"sys", b"mnt/0", b"mnt/9", b"/data", b"/w"} <= folders


# --- Shifter


def test_text_of_shifter() -> None:
    image = image_of(Env=["A=b c", "N=1\n2"], Entrypoint=["/e", "x y"], Cmd=["c"], WorkingDir="/w", User="ann")
    additions = Shifter().additions(image, {})
    assert additions.sidecars == (
        (
            ".meta",
            b"FORMAT: squashfs\nENTRY: ['/e', 'x y']\nCMD: ['c']\nWORKDIR: /w\nUSER: ann\nENV: A=b c\n",
        ),
    )
    assert "'N'" in additions.warnings[0]


@pytest.mark.peer("unsquashfs")
async def test_shifter_output_has_sidecar(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    await pulled(registry, settings, out / "0123abc.squashfs", ["shifter"], [file("a", uid=5)], Env=["A=b"])
    assert sorted(os.listdir(out)) == ["0123abc.meta", "0123abc.squashfs"]
    assert (out / "0123abc.meta").read_text() == "FORMAT: squashfs\nENV: A=b\n"
    (out / "other.meta").write_text("mine")
    with pytest.raises(OutputExists, match=r"other\.meta"):
        await pulled(registry, settings, out / "other.squashfs", ["shifter"], [file("a")])
    assert (out / "other.meta").read_text() == "mine"
    assert sorted(os.listdir(out)) == ["0123abc.meta", "0123abc.squashfs", "other.meta"]
    tree = await asyncio.to_thread(unsquash, out / "0123abc.squashfs", tmp_path / "tree")
    assert (tree / "a").stat().st_uid == os.geteuid()
    for wrong in ("dir/", "image.tar"):
        with pytest.raises((InvalidSetting, OutputError)):
            await pulled(registry, settings, out / wrong, ["shifter"], [file("a")])


async def test_image_for_other_architecture_gets_same_additions(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")], architecture="arm64", config={})
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "out", "linux/arm64", runtimes=["bundle", "charliecloud"])
    annotations = json.loads((tmp_path / "out/config.json").read_text())["annotations"]
    assert annotations["org.opencontainers.image.architecture"] == "arm64"
    assert json.loads((tmp_path / "out/rootfs/ch/metadata.json").read_text())["arch"] == "arm64"
