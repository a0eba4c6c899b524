"""Beside the real programs: what they serve is pulled, and what they unpack is what fastpull unpacks."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.demo import check_tree, make_image
from tests.support.docker_registry import running
from tests.support.layers import (
    Member,
    StoredLayer,
    device,
    fifo,
    file,
    folder,
    hardlink,
    opaque,
    publish,
    stored,
    symlink,
    whiteout,
)
from tests.support.peers import skopeo, umoci_unpack
from tests.support.registry import FaultyRegistry
from tests.support.trees import look, names

IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(str(tmp_path_factory.mktemp("registry"))) as address:
        yield address


async def in_layout(registry: FaultyRegistry, reference: str, layout: Path) -> None:
    """Lets skopeo copy from the test's registry to a layout, under the tag v1."""
    source = f"docker://{reference}"
    await asyncio.to_thread(skopeo, "copy", "--src-tls-verify=false", source, f"oci:{layout}:v1")


@pytest.mark.peer("docker-registry", "skopeo")
async def test_images_pushed_by_skopeo_to_debian_registry_are_pulled(
    registry: FaultyRegistry, real_registry: str, settings: Settings, tmp_path: Path
) -> None:
    image = make_image(16)
    registry.add_image("demo", "v1", image.layers, image.diff_ids)
    await in_layout(registry, f"{registry.address}/demo:v1", tmp_path / "layout")
    for tag, options in (
        ("oci", ["--format=oci"]),
        ("docker", ["--format=v2s2"]),
        ("zstd", ["--dest-compress-format=zstd"]),
    ):
        target = f"docker://{real_registry}/demo:{tag}"
        await asyncio.to_thread(
            skopeo, "copy", "--dest-tls-verify=false", *options, f"oci:{tmp_path}/layout:v1", target
        )
        async with fastpull.Client(settings) as client:
            await client.pull(target, tmp_path / tag)
        assert check_tree(str(tmp_path / tag), image, owners_kept=IS_ROOT) == []


@pytest.mark.peer("skopeo")
async def test_layouts_of_skopeo_are_pulled(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    image = make_image(4)
    registry.add_image("demo", "v1", image.layers, image.diff_ids)
    await in_layout(registry, f"{registry.address}/demo:v1", tmp_path / "layout")
    async with fastpull.Client(settings) as client:
        await client.pull(f"oci:{tmp_path}/layout:v1", tmp_path / "out")
    assert check_tree(str(tmp_path / "out"), image, owners_kept=IS_ROOT) == []


@pytest.mark.peer("umoci")
async def test_layouts_of_umoci_are_pulled(settings: Settings, tmp_path: Path) -> None:
    layout, bundle = tmp_path / "layout", tmp_path / "bundle"
    await asyncio.to_thread(three_repacks, layout, bundle)
    async with fastpull.Client(settings) as client:
        await client.pull(f"oci:{layout}:v1", tmp_path / "out")
    assert names(tmp_path / "out") == {"file1", "file2"}


def three_repacks(layout: Path, bundle: Path) -> None:
    """An image of three layers that umoci has made."""

    def umoci(*arguments: str | Path) -> None:
        subprocess.run(["umoci", *arguments], check=True, stdout=subprocess.DEVNULL)

    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:v1")
    rootless = [] if IS_ROOT else ["--rootless"]
    for number in range(3):
        umoci("unpack", *rootless, "--image", f"{layout}:v1", bundle)
        (bundle / "rootfs" / f"file{number}").write_text(f"{number}")
        if number == 2:
            (bundle / "rootfs/file0").unlink()
        umoci("repack", "--image", f"{layout}:v1", bundle)
        shutil.rmtree(bundle)


# --- the same tree as umoci's


CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw+ep
STACKS: dict[str, list[list[Member]]] = {
    "types": [
        [
            folder("", 0o711),
            folder("d", 0o2750, uid=3, gid=4),
            file("d/f", b"x" * 3000, mode=0o4711, uid=1000, gid=100, mtime=7),
        ],
        [
            symlink("d/s", "f", uid=5, gid=6, mtime=8),
            device("null", 1, 3, mode=0o666, gid=5, mtime=9),
            fifo("p", mode=0o620, mtime=10),
        ],
        [
            hardlink("h", "d/f"),
            hardlink("d/t", "d/s"),
            file("x", xattrs=((b"user.k", b"\0v"), (b"security.capability", CAPABILITY)), mtime=1),
        ],
    ],
    "whiteouts": [
        [
            file("a/b/c", b"1", mtime=1),
            file("a/d", b"2", mtime=1),
            file("e", b"3", mtime=1),
            file("f/g", b"4", mtime=1),
        ],
        [whiteout("a/b"), whiteout("e"), opaque("f"), file("f/h", b"5", mtime=1), whiteout("no/such")],
        [file("e", b"6", mtime=1), whiteout("a/d"), file("a/b/new", b"7", mtime=1)],
    ],
    "changes of type": [
        [file("dir/x", b"1", mtime=1), file("file", b"2", mtime=1), folder("real"), symlink("link", "real", mtime=1)],
        [
            file("dir", b"3", mtime=1),
            folder("file"),
            file("file/in", b"4", mtime=1),
            folder("link"),
            file("link/in", b"5", mtime=1),
        ],
        [symlink("dir", "file", mtime=1), file("link", b"6", mtime=1)],
    ],
    "links across layers": [
        [file("a", b"1", mtime=1), hardlink("b", "a"), file("t/x", b"2", mtime=1)],
        [hardlink("c", "b"), whiteout("a"), hardlink("t/y", "t/x")],
        [file("b", b"3", mtime=1), hardlink("d", "c")],
    ],
    "parents that are links": [
        [
            folder("usr/lib"),
            symlink("lib", "usr/lib", mtime=1),
            symlink("abs", "/usr", mtime=1),
            file("usr/lib/gone", mtime=1),
        ],
        [file("lib/in", b"1", mtime=1), file("abs/lib/too", b"2", mtime=1), whiteout("lib/gone")],
    ],
    "markers in what replaces a link": [
        [
            file("run/keep", b"1", mtime=1),
            file("run/other", b"2", mtime=1),
            symlink("var/run", "/run", mtime=1),
            symlink("var/lock", "../run", mtime=1),
        ],
        [folder("var/run"), opaque("var/run"), folder("var/lock"), whiteout("var/lock/keep")],
    ],
    "links of the own layer": [
        [symlink("lib", "usr/lib", mtime=1), file("lib/in", b"1", mtime=1), file("usr/lib/gone", b"2", mtime=1)],
        [symlink("up", "../../usr", mtime=1), file("up/lib/too", b"3", mtime=1), whiteout("up/lib/gone")],
    ],
    "names": [
        [
            file(b"caf\xe9/\xff", b"1", mtime=1),
            file("n" * 255, b"2", mtime=1),
            file("/".join(["deep"] * 40), b"3", mtime=1),
        ],
        [symlink(b"s\xff", b"\xfe/target", mtime=1), file("with space\nand newline", b"4", mtime=1)],
    ],
}


@pytest.mark.root
@pytest.mark.peer("umoci", "skopeo")
@pytest.mark.parametrize("name", STACKS)
async def test_tree_equals_umoci(registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str) -> None:
    reference = publish(registry, *[stored(members) for members in STACKS[name]])
    await in_layout(registry, reference, tmp_path / "layout")
    theirs = await asyncio.to_thread(umoci_unpack, tmp_path / "layout", "v1", tmp_path / "bundle")
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "out")
    assert look(tmp_path / "out") == look(theirs)


@pytest.mark.root
@pytest.mark.peer("umoci", "skopeo")
async def test_tree_of_demonstration_image_equals_umoci(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    image = make_image(16)
    layers = [StoredLayer(blob, diff_id) for blob, diff_id in zip(image.layers, image.diff_ids, strict=True)]
    reference = publish(registry, *layers)
    await in_layout(registry, reference, tmp_path / "layout")
    theirs = await asyncio.to_thread(umoci_unpack, tmp_path / "layout", "v1", tmp_path / "bundle")
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "out")
    assert look(tmp_path / "out") == look(theirs)
