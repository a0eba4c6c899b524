"""Outputs that the command replaces, and those that it never replaces."""

from __future__ import annotations

import gzip
import io
import os
import socket
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import fastpull
from fastpull.config.settings import Settings
from tests.support.layers import file, folder, publish
from tests.support.processes import ProcessResult, run, start
from tests.support.registry import FaultyRegistry
from tests.support.trees import names

OTHER = 12345
ALL = ("--force", "--replace-foreign")


async def pull(reference: str, settings: Settings, *arguments: str | Path) -> ProcessResult:
    return await run("pull", reference, *arguments, cache=settings.cache)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
}
KINDS = ["fifo", "socket", pytest.param("device", marks=pytest.mark.root)]
SIDE_OUTPUTS = ["--digest-file", "--trace", "--metrics"]


# --- devices, files, directories


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["dir", "squashfs", "tar", "tar.zst"])
async def test_no_output_replaces_special_file(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str, form: str
) -> None:
    reference, path = publish(registry, [file("a")]), tmp_path / "out"
    SPECIAL[kind](path)
    before = os.lstat(path)
    for flags in ((), ("--force",), ALL if form == "dir" else ("--force",)):
        ended = await pull(reference, settings, "-o", path, "--format", form, *flags)
        assert ended.code == 31
        assert "--force" not in ended.err, "it would not help"
    assert os.path.samestat(before, os.lstat(path))
    assert registry.requests == []
    assert sorted(os.listdir(tmp_path)) == ["cache", "out"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", SIDE_OUTPUTS)
async def test_no_side_file_replaces_special_file(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str, flag: str
) -> None:
    reference, path = publish(registry, [file("a")]), tmp_path / "beside"
    SPECIAL[kind](path)
    before = os.lstat(path)
    ended = await pull(reference, settings, "-o", tmp_path / "out", flag, path, *ALL)
    assert (ended.code, "not a regular file" in ended.err) == (31, True)
    assert os.path.samestat(before, os.lstat(path))
    assert registry.requests == [], "it is said before the pull"
    assert not (tmp_path / "out").exists()


async def test_directory_and_file_never_replace_each_other(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")])
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for arguments in (("file", "--format", "dir", *ALL), ("folder", "--format", "squashfs", "--force")):
        ended = await pull(reference, settings, "-o", tmp_path / arguments[0], *arguments[1:])
        assert ended.code == 31
        assert "--force" not in ended.err
    assert (tmp_path / "file").read_text() == "mine"
    assert list((tmp_path / "folder").iterdir()) == []


# --- directories that fastpull has not made


async def test_foreign_directory_needs_two_options_and_error_names_entries(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, out = publish(registry, [file("new")]), tmp_path / "out"
    out.mkdir()
    for name in ("c", "a", "b", "d"):
        (out / name).touch()
    for flags in ((), ("--force",), ("--replace-foreign",)):
        ended = await pull(reference, settings, "-o", out, *flags)
        assert ended.code == 31
        assert "would remove 4 entries (a, b, c, …)" in ended.err
        assert "remove all of that with --force --replace-foreign" in ended.err
        assert names(out) == {"a", "b", "c", "d"}
    assert registry.requests == []
    assert (await pull(reference, settings, "-o", out, *ALL)).code == 0
    assert names(out) == {"new"}
    assert (await pull(reference, settings, "-o", out, "--force")).code == 0, "this one fastpull has made"


async def test_library_needs_same_options_to_replace_foreign_directory(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, out = publish(registry, [file("new")]), tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    async with fastpull.Client(settings) as client:
        with pytest.raises(fastpull.errors.OutputExists):
            await client.pull(reference, fastpull.Directory(out, force=True))
        await client.pull(reference, fastpull.Directory(out, force=True, replace_foreign=True))
    assert names(out) == {"new"}


async def test_home_is_not_replaced(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a")])
    (tmp_path / "homes/me").mkdir(parents=True)
    (tmp_path / "homes/me/thesis").touch()
    for output in ("homes/me/", "homes"):
        ended = await run(
            *("pull", reference, "-o", f"{tmp_path}/{output}", *ALL),
            cache=settings.cache,
            HOME=str(tmp_path / "homes/me"),
        )
        assert (ended.code, "the home directory of this user" in ended.err) == (31, True)
    assert (tmp_path / "homes/me/thesis").exists()


# --- the cache


@pytest.mark.parametrize(
    "output", ["cache/", "cache/out/", "cache/v1/blobs/", "link/", "link/new/", "cache/x.sqsh", "./", "around/"]
)
async def test_output_in_or_around_cache_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, output: str
) -> None:
    reference = publish(registry, [file("a")])
    cache = tmp_path / "around/cache"
    cache.parent.mkdir()
    (tmp_path / "link").symlink_to("around/cache")
    warm = await run("warm", reference, cache=str(cache))
    assert warm.code == 0
    before = names(cache)
    path = {"./": "around/.", "around/": "around/"}.get(output, output.replace("cache", "around/cache"))
    for flags in ((), ALL if output.endswith("/") else ("--force",)):
        ended = await run("pull", reference, "-o", f"{tmp_path}/{path}", *flags, cache=str(cache))
        assert ended.code == 31
        assert "the cache" in ended.err
        assert "--force" not in ended.err
    assert names(cache) - {"v1/stagings"} == before, "records of stagings may have been made, and nothing else"
    assert fastpull.cache.CacheManager(str(cache)).verify().is_sound
    assert sorted(os.listdir(tmp_path)) == ["around", "link"]


# --- links of others


@pytest.mark.root
@pytest.mark.parametrize("what", ["rootfs/", "rootfs/inside/", "image.sqsh"])
async def test_symlink_of_other_user_in_world_writable_directory_is_not_followed(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, what: str
) -> None:
    reference = publish(registry, [file("new")])
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    (victim / "inside").mkdir(parents=True)
    (victim / "keep").write_text("keep")
    (shared / "rootfs").symlink_to(victim)
    (shared / "image.sqsh").symlink_to(victim / "keep")
    for link in ("rootfs", "image.sqsh"):
        os.lchown(shared / link, OTHER, OTHER)
    flags = ("--force",) if what.endswith("sqsh") else ALL
    ended = await pull(reference, settings, "-o", f"{shared}/{what}", *flags)
    assert (ended.code, "a symbolic link of another user" in ended.err) == (31, True)
    for flag in ("--digest-file", "--trace"):
        ended = await pull(reference, settings, "-o", tmp_path / "out", flag, shared / "image.sqsh")
        assert (ended.code, "a symbolic link of another user" in ended.err) == (31, True)
    assert names(victim) == {"inside", "keep"}
    assert (victim / "keep").read_text() == "keep"
    assert registry.requests == []


# --- files beside the output are looked at before the pull


@pytest.mark.parametrize("flag", SIDE_OUTPUTS)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no/such/file", "no such directory, make it first"),
        ("file/x", "not a directory"),
        ("cache/x", "in the cache"),
    ],
)
async def test_invalid_side_file_fails_before_pull(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, flag: str, path: str, words: str
) -> None:
    reference = publish(registry, [file("a")])
    (tmp_path / "file").touch()
    (tmp_path / "cache").mkdir()
    ended = await pull(reference, settings, "-o", f"{tmp_path}/out/", flag, tmp_path / path)
    assert (ended.code, words in ended.err) == (31, True), ended.err
    assert registry.requests == []
    assert sorted(os.listdir(tmp_path)) == ["cache", "file"]


@pytest.mark.parametrize("flag", SIDE_OUTPUTS)
@pytest.mark.parametrize("path", ["out/x", "out"])
async def test_side_file_inside_output_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, flag: str, path: str
) -> None:
    reference = publish(registry, [file("a")])
    (tmp_path / "out").mkdir()
    ended = await pull(reference, settings, "-o", f"{tmp_path}/out/", flag, f"{tmp_path}/{path}")
    assert (ended.code, "this path is taken by the output" in ended.err) == (3, True), ended.err
    assert registry.requests == []


@pytest.mark.root
@pytest.mark.parametrize("flag", SIDE_OUTPUTS)
async def test_read_only_directory_of_side_file_fails_before_pull(
    registry: FaultyRegistry, shared_directory: Path, flag: str
) -> None:
    reference = publish(registry, [file("a")])
    shared_directory.chmod(0o777)
    (shared_directory / "roots").mkdir(mode=0o755)
    arguments = ("pull", reference, "-o", f"{shared_directory}/out/", flag, f"{shared_directory}/roots/x")
    ended = await run(*arguments, cache=f"{shared_directory}/cache", as_nobody=True)
    assert (ended.code, "permission denied" in ended.err) == (31, True)
    assert registry.requests == []
    assert not (shared_directory / "out").exists()


async def test_two_side_files_with_same_path_are_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    beside = tmp_path / "beside"
    ended = await pull(
        publish(registry, [file("a")]), settings, "-o", tmp_path / "out", "--trace", beside, "--digest-file", beside
    )
    assert (ended.code, "this path is taken by --trace" in ended.err) == (3, True)
    assert not beside.exists()


async def test_digest_file_is_written_after_output_and_replaces_only_regular_file(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, digest = publish(registry, [file("a")]), tmp_path / "digest"
    digest.write_text("old")
    failed = await pull(f"{reference}-not", settings, "-o", tmp_path / "out", "--digest-file", digest)
    assert (failed.code, digest.read_text()) == (11, "old")
    done = await pull(reference, settings, "-o", tmp_path / "out", "--digest-file", digest)
    assert (done.code, digest.read_text()) == (0, done.out.strip())
    assert sorted(os.listdir(tmp_path)) == ["cache", "digest", "out"]


# --- formats


@pytest.mark.parametrize(
    ("name", "flags"), [("image.tar.gz", ()), ("image.tar.zst", ()), ("x", ("--format", "tar.gz"))]
)
async def test_compressed_tar_contains_plain_tar(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str, flags: tuple[str, ...]
) -> None:
    reference = publish(registry, [file("big", b"abc" * 3_000_000), folder("d"), file("d/a", os.urandom(70_000))])
    assert (await pull(reference, settings, "-o", tmp_path / "plain.tar")).code == 0
    ended = await pull(reference, settings, "-o", tmp_path / name, *flags)
    assert ended.code == 0, ended.err
    content = (tmp_path / name).read_bytes()
    unpacked = (
        zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True).read()
        if name.endswith("zst")
        else gzip.decompress(content)
    )
    assert unpacked == (tmp_path / "plain.tar").read_bytes()
    assert len(content) < len(unpacked) / 10
    workers = await pull(reference, settings, "-o", tmp_path / name, *flags, "--force", "--workers", "5")
    assert (workers.code, (tmp_path / name).read_bytes() == content) == (0, True)


async def test_compressed_tar_can_go_to_standard_output(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a", b"x" * 5000)])
    process = await start("pull", "-q", reference, "-o", "-", "--format", "tar.gz", cache=settings.cache)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    with tarfile.open(fileobj=io.BytesIO(out), mode="r:gz") as opened:
        assert opened.getnames() == ["a"]


@pytest.mark.parametrize("name", ["foo.sqhs", "foo.sif", "foo.tar.xz"])
async def test_mistyped_ending_creates_no_directory(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str
) -> None:
    reference = publish(registry, [file("a")])
    ended = await pull(reference, settings, "-o", tmp_path / name)
    assert (ended.code, "--format" in ended.err) == (3, True)
    assert ("did you mean .sqsh?" in ended.err) == (name == "foo.sqhs")
    assert not (tmp_path / name).exists()
    assert (await pull(reference, settings, "-o", f"{tmp_path}/{name}/")).code == 0
    assert (tmp_path / name).is_dir()
