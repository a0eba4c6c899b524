"""Sources beside registries: archives, docker's daemon, podman's storage; by real programs, and hostile ones."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiohttp import web

import fastpull
from fastpull.cache.files import CacheFiles
from fastpull.cli.pull_cmd import _default_output
from fastpull.config.limits import Limits
from fastpull.config.settings import Settings
from fastpull.errors import (
    CacheError,
    DigestMismatch,
    FastpullError,
    InvalidReference,
    InvalidSource,
    LimitExceeded,
    MalformedDocument,
    NotFound,
    SizeMismatch,
    TransportError,
    UnexpectedAnswer,
    UnsupportedMediaType,
)
from fastpull.layers.archive import archive
from fastpull.sources.docker_archive import DockerArchiveReference
from fastpull.sources.layout import LayoutReference
from fastpull.sources.open import SourceFactory
from tests.support.layers import file, folder, publish, whiteout
from tests.support.peers import skopeo
from tests.support.registry import FaultyRegistry

NOISE = hashlib.shake_128(b"fastpull").digest(300_000)
LAYERS = (
    [folder("etc"), file("etc/hello", b"hello\n"), file("big", NOISE), file("gone")],
    [whiteout("gone"), file("second", NOISE[::-1])],
    [file("third", b"3" * 70_000)],
)
NAMES = {"etc", "etc/hello", "big", "second", "third"}


def names(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*")}


async def pull(source: str, settings: Settings, output: Path) -> fastpull.PullReport:
    async with fastpull.Client(settings) as client:
        report = await client.pull(source, output)
    assert names(output) == NAMES
    assert (output / "big").read_bytes() == NOISE
    assert (output / "second").read_bytes() == NOISE[::-1]
    return report


async def refused(kind: type[FastpullError], source: str, settings: Settings, output: Path) -> FastpullError:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind) as caught:
        await pull(source, settings, output)
    assert type(caught.value) is kind
    assert not output.exists()
    assert len(os.listdir("/proc/self/fd")) == before, "a file stays open"
    return caught.value


# --- archives of real programs


@pytest.fixture
def reference(registry: FaultyRegistry) -> str:
    """Of an image of three layers."""
    return publish(registry, *LAYERS)


def program(*arguments: str | Path) -> None:
    """Runs a program that talks to nobody here."""
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)


async def copied(reference: str, target: str) -> None:
    # the registry runs on this loop
    await asyncio.to_thread(skopeo, "copy", "--quiet", "--src-tls-verify=false", f"docker://{reference}", target)


@pytest.mark.peer("skopeo")
@pytest.mark.parametrize("suffix", ["", ":v1", ":docker.io/library/app:v1"])
async def test_an_oci_archive_by_skopeo(reference: str, settings: Settings, tmp_path: Path, suffix: str) -> None:
    source = f"oci-archive:{tmp_path}/image.tar{suffix}"
    await copied(reference, source)
    report = await pull(source, settings, tmp_path / "out")
    async with fastpull.Client(settings) as client:
        again = await client.resolve(f"oci-archive:{tmp_path}/image.tar")
        pinned = await client.resolve(f"oci-archive:{tmp_path}/image.tar@{report.image.digest}")
        assert again.digest == pinned.digest == report.image.digest
        with pytest.raises(NotFound, match=suffix[1:] or "None of its images has a tag"):
            await client.resolve(f"oci-archive:{tmp_path}/image.tar:other")


@pytest.mark.peer("skopeo")
@pytest.mark.parametrize("suffix", ["", ":app:v1", ":registry.example.org:5000/ml/app:v1"])
async def test_a_docker_archive_by_skopeo(reference: str, settings: Settings, tmp_path: Path, suffix: str) -> None:
    source = f"docker-archive:{tmp_path}/image.tar{suffix}"
    await copied(reference, source)
    first = await pull(source, settings, tmp_path / "out")
    assert [layer.blob.digest for layer in first.image.layers] == [layer.diff_id for layer in first.image.layers]
    second = await pull(f"docker-archive:{tmp_path}/image.tar:@0", settings, tmp_path / "again")
    assert second.image.digest == first.image.digest, "the manifest is made the same each time"
    assert fastpull.cache.CacheManager(settings.cache).usage().blobs == 0, "an archive is not copied into the cache"
    async with fastpull.Client(settings) as client:
        with pytest.raises(NotFound, match=suffix[1:] or "None of its images has a name"):
            await client.resolve(f"docker-archive:{tmp_path}/image.tar:other:v1")
        with pytest.raises(NotFound, match="It has 1"):
            await client.resolve(f"docker-archive:{tmp_path}/image.tar:@1")


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Runs podman on a storage of the test's own."""
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))

    yield partial(program, "podman")
    subprocess.run(["podman", "rmi", "--all", "--force"], check=False, stdout=subprocess.DEVNULL)


async def into_storage(reference: str, tmp_path: Path, *tags: str) -> None:
    """Puts an image into podman's storage, from an archive."""
    await copied(reference, f"oci-archive:{tmp_path}/stored.tar")
    for tag in tags:
        skopeo("copy", "--quiet", f"oci-archive:{tmp_path}/stored.tar", f"containers-storage:{tag}")


@pytest.mark.root
@pytest.mark.peer("skopeo", "podman")
async def test_what_podman_saves(
    reference: str, settings: Settings, tmp_path: Path, podman: Callable[..., None]
) -> None:
    await into_storage(reference, tmp_path, "localhost/app:v1", "localhost/other:v2")
    for form in ("docker-archive", "oci-archive"):
        podman("save", "--quiet", "--format", form, "--output", tmp_path / f"{form}.tar", "localhost/app:v1")
        for number, suffix in enumerate(("", ":localhost/app:v1")):
            await pull(f"{form}:{tmp_path}/{form}.tar{suffix}", settings, tmp_path / f"{form}{number}")
    podman("save", "-m", "--quiet", "--output", tmp_path / "both.tar", "localhost/app:v1", "localhost/other:v2")
    await pull(f"docker-archive:{tmp_path}/both.tar:localhost/other:v2", settings, tmp_path / "both")


@pytest.mark.root
@pytest.mark.peer("skopeo", "podman")
async def test_podman_s_storage(
    reference: str, settings: Settings, tmp_path: Path, podman: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await into_storage(reference, tmp_path, "localhost/app:v1")
    await pull("containers-storage:localhost/app:v1", settings, tmp_path / "out")
    assert not [name for _, _, found in os.walk(settings.cache) for name in found if "scratch" in name]
    await refused(NotFound, "containers-storage:localhost/app:v2", settings, tmp_path / "none")
    await refused(InvalidReference, "containers-storage:--all", settings, tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    error = await refused(TransportError, "containers-storage:localhost/app:v1", settings, tmp_path / "none")
    assert "podman cannot be started" in str(error)
    (tmp_path / "podman").write_text(
        '#!/bin/sh\n[ $1 = image ] && exit 0\necho half a tar; echo "out of luck" >&2; exit 9\n'
    )
    (tmp_path / "podman").chmod(0o755)
    error = await refused(TransportError, "containers-storage:localhost/app:v1", settings, tmp_path / "none")
    assert "out of luck" in str(error)


@pytest.mark.root
@pytest.mark.peer("skopeo", "buildah")
async def test_what_buildah_pushes(
    reference: str, settings: Settings, tmp_path: Path, podman: Callable[..., None]
) -> None:
    await into_storage(reference, tmp_path, "localhost/app:v1")
    for target in (
        f"oci:{tmp_path}/layout:v1",
        f"oci-archive:{tmp_path}/o.tar:app:v1",
        f"docker-archive:{tmp_path}/d.tar:app:v1",
    ):
        program("buildah", "push", "--quiet", "localhost/app:v1", target)
        await pull(target, settings, tmp_path / target.partition(":")[0])


@pytest.mark.peer("skopeo", "umoci")
async def test_a_layout_by_umoci(reference: str, settings: Settings, tmp_path: Path) -> None:
    await copied(reference, f"oci:{tmp_path}/layout:v1")
    program("umoci", "tag", "--image", f"{tmp_path}/layout:v1", "v2")
    program("umoci", "gc", "--layout", f"{tmp_path}/layout")
    await pull(f"oci:{tmp_path}/layout:v2", settings, tmp_path / "out")
    program("tar", "-C", tmp_path / "layout", "-cf", tmp_path / "layout.tar", ".")
    await pull(f"oci-archive:{tmp_path}/layout.tar:v2", settings, tmp_path / "archived")
    await refused(InvalidSource, f"oci-archive:{tmp_path}/layout.tar", settings, tmp_path / "none")


# --- compressed


def xz(content: bytes) -> bytes:
    half = len(content) // 2
    return lzma.compress(content[:half]) + lzma.compress(content[half:])


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda content: gzip.compress(content, 1),
    "zstd": zstandard.compress,
    "xz": xz,
    "bzip2": lambda content: bz2.compress(content[:1000]) + bz2.compress(content[1000:]),
}


@pytest.mark.parametrize("packer", PACKERS)
async def test_a_compressed_archive_is_decompressed_once(
    settings: Settings, tmp_path: Path, packer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_scratch = [], CacheFiles.open_scratch

    def counted(files: CacheFiles) -> int:
        opened.append(files)
        return open_scratch(files)

    monkeypatch.setattr(CacheFiles, "open_scratch", counted)
    path = tmp_path / "image.tar"
    path.write_bytes(PACKERS[packer](docker_archive()))
    await pull(f"docker-archive:{path}", settings, tmp_path / "out")
    assert len(opened) == 1
    assert not [name for _, _, found in os.walk(settings.cache) for name in found if "scratch" in name]
    path.write_bytes(path.read_bytes()[:-50])
    await refused(MalformedDocument, f"docker-archive:{path}", settings, tmp_path / "cut")


async def test_a_plain_archive_is_read_in_place(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CacheFiles, "open_scratch", lambda _: pytest.fail("a copy"))
    (tmp_path / "image.tar").write_bytes(docker_archive())
    await pull(f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")


async def test_a_decompressed_archive_has_limits(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(gzip.compress(docker_archive()))
    small = replace(settings, limits=Limits(max_image_size=100_000))
    error = await refused(LimitExceeded, f"docker-archive:{path}", small, tmp_path / "out")
    assert "FASTPULL_MAX_IMAGE_SIZE" in str(error)
    monkeypatch.setattr("fastpull.sources.spool._RATIO_GRACE", 1 << 20)
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    error = await refused(LimitExceeded, f"docker-archive:{path}", settings, tmp_path / "out")
    assert "FASTPULL_MAX_RATIO" in str(error)
    path.write_bytes(lzma.compress(docker_archive(), preset=9))
    tight = replace(settings, limits=Limits(max_zstd_window=1 << 20))
    await refused(MalformedDocument, f"docker-archive:{path}", tight, tmp_path / "out")


async def test_no_space_for_a_copy_is_a_cache_error(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image.tar").write_bytes(gzip.compress(docker_archive()))
    full = os.open("/dev/full", os.O_RDWR)
    monkeypatch.setattr(CacheFiles, "open_scratch", lambda _: full)
    with pytest.raises(CacheError, match="Free some space"):
        await pull(f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")


# --- docker archives of every form, and hostile ones

Members = list[tuple[tarfile.TarInfo, bytes]]


def member(name: str, content: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def tar_of(members: Members) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def parts(layout: str = "old") -> tuple[Members, dict[str, Any]]:
    """The members of a docker archive without its manifest.json, and the one entry of that."""
    tars = [archive(layer) for layer in LAYERS]
    hexes = [hashlib.sha256(tar).hexdigest() for tar in tars]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{one}" for one in hexes]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode()
    image = hashlib.sha256(config).hexdigest()
    if layout == "new":  # docker 25 and later
        folder_ = "blobs/sha256/"
        return [member(folder_ + one, tar) for one, tar in zip([*hexes, image], [*tars, config], strict=True)], {
            "Config": folder_ + image,
            "RepoTags": ["app:v1"],
            "Layers": [folder_ + one for one in hexes],
        }
    ids = [hashlib.sha256(one.encode()).hexdigest() for one in hexes]
    members = [member(f"{image}.json", config)]
    for one, tar in zip(ids, tars, strict=True):
        members += [
            member(f"{one}/", type=tarfile.DIRTYPE),
            member(f"{one}/VERSION", b"1.0"),
            member(f"{one}/layer.tar", tar),
        ]
    entry = {"Config": f"{image}.json", "RepoTags": ["app:v1"], "Layers": [f"{one}/layer.tar" for one in ids]}
    return members, entry


def with_manifest(members: Members, *entries: dict[str, Any]) -> bytes:
    return tar_of([*members, member("manifest.json", json.dumps(entries).encode())])


def docker_archive(layout: str = "old") -> bytes:
    members, entry = parts(layout)
    return with_manifest(members, entry)


def old_with_links() -> bytes:
    """As docker wrote layers that were there already: a link to the first."""
    members, entry = parts()
    entry["Layers"] = [path.replace("layer.tar", "again.tar") for path in entry["Layers"]]
    made = [link(path, f"../{path.replace('again', 'layer')}") for path in entry["Layers"]]
    made[1] = link(entry["Layers"][1], entry["Layers"][1].replace("again", "layer"), tarfile.LNKTYPE)
    return with_manifest([*made[:1], *members, *made[1:]], entry)


def packed_layers() -> bytes:
    """As go-containerregistry and Bazel write layers: compressed."""
    members, entry = parts()
    entry["Layers"] = [f"{number}.tar.gz" for number in range(3)]
    packers = (PACKERS["gzip"], PACKERS["zstd"], bytes)
    made = [member(f"{n}.tar.gz", pack(archive(LAYERS[n]))) for n, pack in enumerate(packers)]
    return with_manifest([*members, *made], entry)


def with_dots() -> bytes:
    members, entry = parts()
    for info, _ in members:
        info.name = f"./{info.name}"
    return tar_of(
        [member("./", type=tarfile.DIRTYPE), *members, member("./manifest.json", json.dumps([entry]).encode())]
    )


@pytest.mark.parametrize(
    "make", [docker_archive, lambda: docker_archive("new"), old_with_links, packed_layers, with_dots],
    ids=["old", "new", "links", "compressed-layers", "dots"],
)  # fmt: skip
async def test_every_form_of_docker_archive_is_read(
    make: Callable[[], bytes], settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "image.tar").write_bytes(make())
    for number, suffix in enumerate(("", ":app:v1", ":docker.io/library/app:v1", ":@0")):
        await pull(f"docker-archive:{tmp_path}/image.tar{suffix}", settings, tmp_path / str(number))


def changed(change: Callable[[Members, dict[str, Any]], object]) -> Callable[[], bytes]:
    def make() -> bytes:
        members, entry = parts()
        change(members, entry)
        return with_manifest(members, entry)

    return make


def manifest_json(body: bytes) -> Callable[[], bytes]:
    return lambda: tar_of([*parts()[0], member("manifest.json", body)])


def replace_layer(number: int, new: tuple[tarfile.TarInfo, bytes]) -> Callable[[Members, dict[str, Any]], str]:
    def change(members: Members, entry: dict[str, Any]) -> str:
        at = next(n for n, (info, _) in enumerate(members) if info.name == entry["Layers"][number])
        new[0].name = members[at][0].name
        members[at] = new
        return new[0].name

    return change


def other_config(members: Members, entry: dict[str, Any]) -> None:
    config = json.dumps({**json.loads(members[0][1]), "author": "somebody else"}).encode()
    members[0] = member(entry["Config"], config)


def lying_size() -> bytes:
    made = bytearray(docker_archive())
    at = made.index(b"ustar", made.index(b"layer.tar")) - 257
    made[at + 124 : at + 136] = b"00777777777\0"
    made[at + 148 : at + 156] = b" " * 8
    made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
    return bytes(made)


HOSTILE: dict[str, tuple[Callable[[], bytes], type[FastpullError]]] = {
    "link-out": (changed(replace_layer(1, link("", "../../../../etc/passwd"))), MalformedDocument),
    "absolute-link": (changed(replace_layer(1, link("", "/etc/passwd"))), MalformedDocument),
    "link-to-link": (
        changed(lambda m, e: m.extend([link("a", "b"), link("b", replace_layer(1, link("", "../a"))(m, e))])),
        MalformedDocument,
    ),
    "link-to-itself": (changed(replace_layer(1, link("", "layer.tar"))), MalformedDocument),
    "dangling-link": (changed(replace_layer(1, link("", "nowhere"))), NotFound),
    "fifo": (changed(replace_layer(1, member("", type=tarfile.FIFOTYPE))), MalformedDocument),
    "device": (changed(replace_layer(1, member("", type=tarfile.CHRTYPE))), MalformedDocument),
    "folder": (changed(replace_layer(1, member("", type=tarfile.DIRTYPE))), MalformedDocument),
    "member-outside": (changed(lambda m, _: m.append(member("../evil", b"x"))), MalformedDocument),
    "name-outside": (changed(lambda _, e: e["Layers"].__setitem__(0, "../../etc/passwd")), NotFound),
    "absolute-name": (changed(lambda _, e: e["Layers"].__setitem__(0, "/etc/passwd")), NotFound),
    "surrogate-name": (changed(lambda _, e: e["Layers"].__setitem__(0, "\ud800")), NotFound),
    "layer-twice-in-tar": (changed(lambda m, e: m.append(member(e["Layers"][0], b"other"))), MalformedDocument),
    "config-twice-in-tar": (changed(lambda m, e: m.append(member(e["Config"], b"{}"))), MalformedDocument),
    "manifest-twice": (lambda: tar_of([*parts()[0], *[member("manifest.json", b"[]")] * 2]), MalformedDocument),
    "other-config": (changed(other_config), DigestMismatch),
    "other-layer": (changed(replace_layer(0, member("", archive([file("big", NOISE)])))), DigestMismatch),
    "empty-layer": (changed(replace_layer(0, member(""))), DigestMismatch),
    "one-layer-less": (changed(lambda _, e: e["Layers"].pop()), MalformedDocument),
    "one-layer-more": (changed(lambda _, e: e["Layers"].append(e["Layers"][0])), MalformedDocument),
    "layers-swapped": (changed(lambda _, e: e["Layers"].reverse()), DigestMismatch),
    "layer-missing": (changed(lambda _, e: e["Layers"].__setitem__(0, "x")), NotFound),
    "config-missing": (changed(lambda _, e: e.__setitem__("Config", "x")), NotFound),
    "config-is-a-layer": (changed(lambda _, e: e.__setitem__("Config", e["Layers"][0])), MalformedDocument),
    "layers-are-no-list": (changed(lambda _, e: e.__setitem__("Layers", "x")), MalformedDocument),
    "layers-are-numbers": (changed(lambda _, e: e.__setitem__("Layers", [1, 2, 3])), MalformedDocument),
    "no-config": (changed(lambda _, e: e.pop("Config")), MalformedDocument),
    "no-manifest": (lambda: tar_of(parts()[0]), NotFound),
    "manifest-object": (manifest_json(b"{}"), MalformedDocument),
    "manifest-of-numbers": (manifest_json(b"[1]"), MalformedDocument),
    "manifest-empty": (manifest_json(b""), MalformedDocument),
    "manifest-name-twice": (manifest_json(b'[{"Config": "a", "Config": "b"}]'), MalformedDocument),
    "manifest-deep": (manifest_json(b"[" * 100_000), MalformedDocument),
    "manifest-large": (manifest_json(b" " * (5 << 20) + b"[]"), MalformedDocument),
    "no-image": (manifest_json(b"[]"), NotFound),
    "truncated": (lambda: docker_archive()[:200_000], MalformedDocument),
    "truncated-header": (lambda: docker_archive()[:700], MalformedDocument),
    "size-beyond-end": (lying_size, MalformedDocument),
    "trailing": (lambda: docker_archive() + b"x" * 1024, MalformedDocument),
    "noise": (lambda: NOISE, MalformedDocument),
    "empty": (lambda: b"", NotFound),
    "lz4": (lambda: b"\x04\x22\x4d\x18" + NOISE, UnsupportedMediaType),
    "bad-checksum": (lambda: docker_archive().replace(b"VERSION", b"VERSI0N"), MalformedDocument),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_docker_archive_is_refused(case: str, settings: Settings, tmp_path: Path) -> None:
    make, kind = HOSTILE[case]
    (tmp_path / "image.tar").write_bytes(make())
    error = await refused(kind, f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")
    assert "image.tar" in str(error)


async def test_an_archive_of_the_other_kind_is_named_in_the_error(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "docker.tar").write_bytes(docker_archive())
    error = await refused(NotFound, f"oci-archive:{tmp_path}/docker.tar", settings, tmp_path / "out")
    assert "docker-archive:" in str(error)
    (tmp_path / "oci.tar").write_bytes(tar_of([member("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')]))
    error = await refused(NotFound, f"docker-archive:{tmp_path}/oci.tar", settings, tmp_path / "out")
    assert "oci-archive:" in str(error)


async def test_a_sparse_member_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "holes").write_bytes(b"x")
    os.truncate(tmp_path / "holes", 10 << 20)
    program("tar", "-C", tmp_path, "-Scf", tmp_path / "image.tar", "holes")
    error = await refused(MalformedDocument, f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")
    assert "a sparse member" in str(error)


async def test_the_number_of_archive_members_is_limited(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image.tar").write_bytes(docker_archive())
    monkeypatch.setattr("fastpull.sources.archive.MAX_MEMBERS", 8)
    error = await refused(MalformedDocument, f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")
    assert "more than 8 members" in str(error)


async def test_an_archive_that_is_not_a_regular_file_is_refused(settings: Settings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in (
        (tmp_path, MalformedDocument),
        (tmp_path / "fifo", MalformedDocument),
        (tmp_path / "x", NotFound),
    ):
        for scheme in ("docker-archive", "oci-archive"):
            await refused(kind, f"{scheme}:{path}", settings, tmp_path / "out")


async def test_several_images_without_a_choice_are_an_error(settings: Settings, tmp_path: Path) -> None:
    members, entry = parts()
    (tmp_path / "image.tar").write_bytes(with_manifest(members, entry, {**entry, "RepoTags": ["other:v2", "!"]}))
    error = await refused(InvalidSource, f"docker-archive:{tmp_path}/image.tar", settings, tmp_path / "out")
    assert "app:v1, other:v2" in str(error)
    await pull(f"docker-archive:{tmp_path}/image.tar:other:v2", settings, tmp_path / "other")
    await pull(f"docker-archive:{tmp_path}/image.tar:@1", settings, tmp_path / "number")


@pytest.mark.parametrize("case", ["link", "size", "content", "missing", "twice", "fifo", "version", "nested-link"])
async def test_a_hostile_oci_archive_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, case: str
) -> None:
    publish(registry, *LAYERS)
    media_type, body = registry.manifests["test/image", "v1"]
    layer = json.loads(body)["layers"][0]["digest"]
    index = json.dumps({"schemaVersion": 2, "manifests": [registry.add_blob(body, media_type)]}).encode()
    version = b'{"imageLayoutVersion": "2.0.0"}' if case == "version" else b'{"imageLayoutVersion": "1.0.0"}'
    members = [member("oci-layout", version), member("index.json", index)]
    for digest, content in registry.blobs.items():
        path = f"blobs/sha256/{digest.removeprefix('sha256:')}"
        if digest != layer or case == "version":
            members.append(member(path, content))
            continue
        members += {
            "link": [link(path, "/etc/passwd")],
            "nested-link": [link(path, "../../a"), link("a", "index.json")],
            "size": [member(path, content + b"x")],
            "content": [member(path, content[:-1] + b"x")],
            "missing": [],
            "twice": [member(path, content), member(path, content)],
            "fifo": [member(path, type=tarfile.FIFOTYPE)],
        }[case]
    (tmp_path / "image.tar").write_bytes(tar_of(members))
    kinds = {"size": SizeMismatch, "content": DigestMismatch, "missing": NotFound}
    await refused(kinds.get(case, MalformedDocument), f"oci-archive:{tmp_path}/image.tar", settings, tmp_path / "out")


# --- the client's open archives


async def test_a_replaced_archive_is_opened_again(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(docker_archive())
    async with fastpull.Client(settings) as client:
        first = await client.resolve(f"docker-archive:{path}")
        os.replace(shutil.copy(path, tmp_path / "new.tar"), path)
        await client.pull(first, tmp_path / "out")  # the same image, so that its layers are still there
        members, entry = parts()
        (tmp_path / "new.tar").write_bytes(with_manifest(members[:1], {**entry, "Layers": entry["Layers"][:1]}))
        os.replace(tmp_path / "new.tar", path)
        with pytest.raises(FastpullError):
            await client.pull(first, tmp_path / "again")


async def test_many_archives_at_once_leave_nothing_open(settings: Settings, tmp_path: Path) -> None:
    packed = gzip.compress(docker_archive(), 1)
    for number in range(12):
        (tmp_path / f"{number}.tar").write_bytes(packed)
    before = len(os.listdir("/proc/self/fd"))
    async with fastpull.Client(settings) as client:
        reports = await client.warm([f"docker-archive:{tmp_path}/{number}.tar" for number in range(12)], jobs=6)
        assert [report.error for report in reports] == [None] * 12
        assert len(client._session.source_factory.archives._held) <= 4
    assert len(os.listdir("/proc/self/fd")) == before


# --- docker's daemon


class Docker:
    """A daemon that has one image, and writes down what it was asked.

    Attributes:
        asked: paths with their queries.
        body: the archive that it gives.
        status: of its answers.
        cut: closes the connection after so many bytes.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.body = b""
        self.status = 200
        self.cut: int | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.raw_path}")
        if request.path != "/images/registry.example.org:5000/ml/app:v1/get":
            return web.json_response({"message": "No such image"}, status=404)
        if self.status != 200:
            return web.json_response({"message": "the daemon is unwell"}, status=self.status)
        return await self.answer(request)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/x-tar"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(self.body[: self.cut])
        if self.cut is not None and request.transport is not None:
            request.transport.abort()
        return answer


@pytest.fixture
async def docker(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Docker]:
    daemon, app = Docker(), web.Application()
    app.router.add_route("*", "/{path:.*}", daemon.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    socket = tmp_path_factory.mktemp("run") / "docker.sock"
    await web.UnixSite(runner, str(socket)).start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    yield daemon
    await runner.cleanup()


@pytest.mark.peer("skopeo")
async def test_the_docker_daemon_exports_an_image_once(
    docker: Docker, reference: str, settings: Settings, tmp_path: Path
) -> None:
    await copied(reference, f"docker-archive:{tmp_path}/image.tar:registry.example.org:5000/ml/app:v1")
    docker.body = (tmp_path / "image.tar").read_bytes()
    await pull("docker-daemon:registry.example.org:5000/ml/app:v1", settings, tmp_path / "out")
    assert docker.requests == ["GET /images/registry.example.org:5000/ml/app:v1/get"]


async def test_a_refusal_of_the_docker_daemon_is_reported(
    docker: Docker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.body = docker_archive()
    source = "docker-daemon:registry.example.org:5000/ml/app:v1"
    error = await refused(NotFound, "docker-daemon:nothing", settings, tmp_path / "out")
    assert "docker.sock" in str(error)
    docker.cut = 100_000
    await refused(TransportError, source, settings, tmp_path / "out")
    docker.cut, docker.body = None, docker.body[:100_000]
    await refused(MalformedDocument, source, settings, tmp_path / "out")
    docker.status = 500
    error = await refused(UnexpectedAnswer, source, settings, tmp_path / "out")
    assert "the daemon is unwell" in str(error)
    for image in ("", "--help", "a b", "a\nb"):
        await refused(InvalidReference, f"docker-daemon:{image}", settings, tmp_path / "out")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")
    error = await refused(TransportError, source, settings, tmp_path / "out")
    assert "nowhere.sock" in str(error)
    assert "DOCKER_HOST" in str(error)
    monkeypatch.setenv("DOCKER_HOST", "tcp://user:secret@example.org:2375")
    error = await refused(TransportError, source, settings, tmp_path / "out")
    assert "secret" not in str(error)


async def test_a_name_cannot_change_the_path_of_a_daemon_request(
    docker: Docker, settings: Settings, tmp_path: Path
) -> None:
    for image in ("../../containers/json?", "a?b=c", "a%2e"):
        await refused(InvalidReference, f"docker-daemon:{image}", settings, tmp_path / "out")
    for image in ("sha256:../x", "sha256:"):
        await refused(InvalidSource, f"docker-daemon:{image}", settings, tmp_path / "out")
    assert not docker.requests
    await refused(NotFound, f"docker-daemon:sha256:{'0' * 64}", settings, tmp_path / "out")
    assert docker.requests == [f"GET /images/sha256:{'0' * 64}/get"]


# --- references


@pytest.mark.parametrize(
    ("text", "path", "tag"),
    [("d", "d", None), ("d:t", "d", "t"), ("/a/b:c/d:e", "/a/b", "c/d:e"), ("a:1.0@x", "a", "1.0@x")],
)
def test_layout_references(text: str, path: str, tag: str | None) -> None:
    found = LayoutReference.parse("oci-archive", text)
    assert (found.path, found.tag) == (path, tag)
    assert str(found) == f"oci-archive:{text}"


@pytest.mark.parametrize("text", ["", ":", "a:", ":a", "a:b@sha256:" + "0" * 64, "a@sha256:0"])
def test_wrong_layout_references(text: str) -> None:
    with pytest.raises((InvalidReference, fastpull.errors.InvalidDigest)):
        LayoutReference.parse("oci", text)


@pytest.mark.parametrize("text", ["", ":", "a:", "a:UPPER", "a:@", "a:@-1", "a:@x"])
def test_wrong_docker_archive_references(text: str) -> None:
    with pytest.raises(InvalidReference):
        DockerArchiveReference.parse(text)


# --- giving up


async def cancelled(source: str, settings: Settings, output: Path, when: Callable[[], bool]) -> None:
    """Cancels a pull when it has come so far, and looks for what is left."""
    before = len(os.listdir("/proc/self/fd"))
    async with fastpull.Client(settings) as client:
        task = asyncio.create_task(client.pull(source, output))
        while not when():
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await task
    assert len(os.listdir("/proc/self/fd")) == before
    assert not output.exists()
    assert not [name for _, _, found in os.walk(settings.cache) for name in found]


async def test_a_pull_from_a_stalled_daemon_can_be_cancelled(
    docker: Docker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(docker_archive()[:50_000])
        docker.requests.append("half")
        await asyncio.sleep(30)
        return answer

    monkeypatch.setattr(docker, "answer", stall)
    source = "docker-daemon:registry.example.org:5000/ml/app:v1"
    await cancelled(source, settings, tmp_path / "out", lambda: "half" in docker.requests)


async def test_a_hanging_podman_is_terminated(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        f"#!/bin/sh\n[ $1 = image ] && exit 0\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\n"
    )
    (tmp_path / "podman").write_text(f"{script}exec sleep 60\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await cancelled("containers-storage:app", settings, tmp_path / "out", (tmp_path / "pid").exists)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize("name", ["oci", "docker-archive", "containers-storage", "docker"])
def test_a_scheme_without_a_colon_is_an_image_name(name: str) -> None:
    source = object()
    opener = SourceFactory(lambda text: {name: source}[text], None)  # type: ignore[arg-type,return-value]
    assert opener.open(name) is source


# --- paths without a scheme


@pytest.fixture
async def stored_images(reference: str, tmp_path: Path) -> Path:
    """A folder with the same image as a layout, an OCI archive and docker's archives."""
    where = tmp_path / "stored"
    where.mkdir()
    for target in ("oci:layout:v1", "oci-archive:oci.tar:v1", "docker-archive:saved.tar:app:v1"):
        scheme, _, path = target.partition(":")
        await copied(reference, f"{scheme}:{where}/{path}")
    (where / "saved.tar.gz").write_bytes(gzip.compress((where / "saved.tar").read_bytes()))
    (where / "plain").write_bytes((where / "saved.tar").read_bytes())
    return where


@pytest.mark.peer("skopeo")
@pytest.mark.parametrize(
    ("source", "scheme"),
    [
        ("layout/", "oci"),
        ("./layout", "oci"),
        ("./layout:v1", "oci"),
        ("oci.tar", "oci-archive"),
        ("./oci.tar:v1", "oci-archive"),
        ("saved.tar", "docker-archive"),
        ("saved.tar.gz", "docker-archive"),
        ("../stored/saved.tar:app:v1", "docker-archive"),
        ("./saved.tar:@0", "docker-archive"),
        ("./plain", "docker-archive"),
        ("{}/layout", "oci"),
        ("{}/plain", "docker-archive"),
    ],
)
async def test_the_scheme_of_a_path_follows_from_its_content(
    stored_images: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, scheme: str
) -> None:
    monkeypatch.chdir(stored_images)
    source = source.format(stored_images)
    report = await pull(source, settings, tmp_path / "out")
    assert report.image.source == f"{scheme}:{source}"
    async with fastpull.Client(settings) as client:
        [warmed] = await client.warm([source])
        assert (warmed.error, (await client.resolve(source)).digest) == (None, report.image.digest)


@pytest.mark.parametrize(
    "source", ["debian", "library/layout", "saved.tar:v1", "saved", "host/saved.tar@sha256:" + "0" * 64]
)
async def test_a_planted_file_never_takes_the_place_of_a_reference(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Whether a source is a path is decided by its form."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / source
    path.mkdir(parents=True)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    assert fastpull.Client.local_path(source) is None
    async with fastpull.Client(replace(settings, pull="never")) as client:
        with pytest.raises(NotFound) as caught:
            await client.resolve(source)
    assert f"For the local path of that name, use ./{source}" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["docker://host/name/", "oci:layout/", "oci-archive:x.tar", "docker-archive:x.tar", "dir:x/", "host:5000/x/"],
)
def test_a_scheme_is_not_part_of_a_path(source: str) -> None:
    assert fastpull.Client.local_path(source) is None


@pytest.mark.parametrize("source", ["Layout", "saved image", "UPPER"])
async def test_an_invalid_reference_that_is_a_file_gets_advice(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    async with fastpull.Client(settings) as client:
        for is_there in (False, True):
            with pytest.raises(InvalidReference) as caught:
                await client.resolve(source)
            assert (f"use ./{source}" in str(caught.value)) == is_there
            (tmp_path / source).touch()


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("no/", InvalidSource, "no such file or directory; for an image in a registry, use docker://no/"),
        ("./no", InvalidSource, "there is no such file or directory: './no'"),
        ("no.tar", InvalidSource, "for an image in a registry, use docker://no.tar"),
        ("folder/", InvalidSource, "not an OCI layout: it has no file oci-layout"),
        ("./empty", MalformedDocument, "not a well-formed tar"),
        ("./other.tar", InvalidSource, "neither manifest.json nor oci-layout"),
        ("./fifo", MalformedDocument, "not a regular file"),
        ("./", InvalidSource, "not an OCI layout"),
        ("./folder:", InvalidSource, "an empty part"),
    ],
)
async def test_a_path_without_an_image_is_an_error(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    kind: type[FastpullError],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"x" * 700)
    (tmp_path / "other.tar").write_bytes(archive([file("a", b"x")]))
    os.mkfifo(tmp_path / "fifo")
    error = await refused(kind, source, settings, tmp_path / "out")
    assert words in str(error)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("./saved.tar", "saved.sqsh"),
        ("saved.tar.gz", "saved.sqsh"),
        ("/data/layout/", "layout.sqsh"),
        ("../layout:v1", "layout+v1.sqsh"),
        ("./saved.tar:@0", "saved+0.sqsh"),
        ("./layout@sha256:" + "0" * 64, "layout.sqsh"),
    ],
)
def test_an_output_is_named_after_the_path(source: str, name: str) -> None:
    assert _default_output(source) == name
