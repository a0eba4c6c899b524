"""Filesystems that are full, read-only, or without permission."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import CacheError, OutputError
from fastpull.sinks.output import protected
from tests.support.layers import device, file, publish, stored
from tests.support.peers import unsquash
from tests.support.processes import end, kill, run, start
from tests.support.registry import FaultyRegistry, slow
from tests.support.trees import look, names

CONTENT = os.urandom(6 << 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 4 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


@pytest.mark.root
async def test_a_full_disk_under_the_output(registry: FaultyRegistry, settings: Settings, small_disk: Path) -> None:
    reference = publish(registry, [file("small", b"x"), file("d/large", CONTENT)])
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match="no space left on device.*d/large") as caught:
            await client.pull(reference, small_disk / "out")
        assert caught.value.exit_code == 31
        assert os.listdir(small_disk) == []
        await client.pull(reference, small_disk.parent / "out")
    assert names(small_disk.parent / "out") == {"small", "d", "d/large"}


@pytest.mark.root
@pytest.mark.parametrize("size", [6 << 20, 3 << 20], ids=["while layers stream", "in the commit"])
async def test_a_full_disk_under_a_tar(
    registry: FaultyRegistry, settings: Settings, small_disk: Path, size: int
) -> None:
    reference = publish(registry, [file("small", b"x"), file("large", CONTENT[:size])])
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match=f"no space left on device: {small_disk}.*Free some space") as caught:
            await client.pull(reference, small_disk / "image.tar")
        assert caught.value.exit_code == 31
        assert os.listdir(small_disk) == []
        assert os.statvfs(small_disk).f_bfree == os.statvfs(small_disk).f_blocks
        await client.pull(reference, small_disk.parent / "image.tar")
    with tarfile.open(small_disk.parent / "image.tar") as opened:
        assert opened.getnames() == ["large", "small"]


@pytest.mark.root
async def test_a_full_disk_under_standard_output(
    registry: FaultyRegistry, settings: Settings, small_disk: Path
) -> None:
    reference = publish(registry, [file("large", CONTENT)])
    ended = await run("pull", reference, "-o", "-", cache=settings.cache, TMPDIR=str(small_disk))
    assert (ended.code, ended.out) == (31, "")
    assert f"no space left on device: {small_disk}" in ended.err


@pytest.mark.root
async def test_a_full_disk_under_the_cache(
    registry: FaultyRegistry, settings: Settings, small_disk: Path, tmp_path: Path
) -> None:
    reference = publish(registry, [file("large", CONTENT)])
    async with fastpull.Client(cache=small_disk / "cache") as client:
        with pytest.raises(CacheError, match="no space left on device") as caught:
            await client.pull(reference, tmp_path / "out")
    assert caught.value.exit_code == 30
    assert not (tmp_path / "out").exists()
    assert not fastpull.cache.CacheManager(small_disk / "cache").verify().corrupt


@pytest.mark.root
async def test_a_cache_that_fills_up_during_a_pull(registry: FaultyRegistry, small_disk: Path, tmp_path: Path) -> None:
    """Each blob fits alone, but not all together."""
    layers = [[file(f"f{n}", os.urandom(1 << 20))] for n in range(6)]
    async with fastpull.Client(cache=small_disk / "cache") as client:
        with pytest.raises(CacheError, match="no space left on device"):
            await client.pull(publish(registry, *layers), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not fastpull.cache.CacheManager(small_disk / "cache").verify().corrupt


@pytest.mark.root
async def test_a_full_disk_under_a_squashfs_image(
    registry: FaultyRegistry, settings: Settings, small_disk: Path
) -> None:
    """The disk is full during the layers, or during the assembly of the image."""
    names = [file(hashlib.sha256(b"%d" % number).hexdigest()) for number in range(5000)]
    async with fastpull.Client(settings) as client:
        for layer in ([file("a", CONTENT[: 6 << 20])], [file("a", CONTENT[:4_100_000]), *names]):
            with pytest.raises(OutputError, match="no space left on device.*image.sqsh"):
                await client.pull(publish(registry, layer), small_disk / "image.sqsh")
            assert os.listdir(small_disk) == []
        await client.pull(publish(registry, [file("a", CONTENT[: 1 << 20])]), small_disk / "image.sqsh")
    assert os.listdir(small_disk) == ["image.sqsh"]


@pytest.mark.root
async def test_a_read_only_filesystem(registry: FaultyRegistry, settings: Settings, small_disk: Path) -> None:
    await asyncio.to_thread(subprocess.check_call, ["mount", "-o", "remount,ro", small_disk])
    reference = publish(registry, [file("a")])
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match="read-only file system.*choose another path"):
            await client.pull(reference, small_disk / "out")
    with pytest.raises(CacheError, match="read-only file system"):
        async with fastpull.Client(cache=small_disk / "cache"):
            pass


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter, with a directory of user nobody in it."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        where.chmod(0o755)
        (where / "theirs").mkdir()
        os.chown(where / "theirs", 65534, 65534)
        yield where


@pytest.mark.root
async def test_an_error_without_permission_names_the_path(registry: FaultyRegistry, open_folder: Path) -> None:
    reference, theirs = publish(registry, [file("a")]), open_folder / "theirs"
    output = await run("pull", reference, "-o", open_folder / "out", cache=f"{theirs}/cache", as_nobody=True)
    assert (output.code, "permission denied" in output.err) == (31, True), output.err
    cache = await run("pull", reference, "-o", theirs / "out", cache=f"{open_folder}/cache", as_nobody=True)
    assert (cache.code, f"{open_folder}/cache" in cache.err) == (30, True), cache.err


@pytest.mark.root
async def test_a_plain_user_gets_a_tree_of_their_own(registry: FaultyRegistry, open_folder: Path) -> None:
    reference, theirs = (
        publish(registry, [file("secret", b"x", mode=0), file("su", mode=0o4755)]),
        open_folder / "theirs",
    )
    ended = await run("pull", reference, "-o", theirs / "out", cache=f"{theirs}/cache", as_nobody=True)
    assert ended.code == 0, ended.err
    assert "1 setuid bits left out" in ended.err
    states = [os.stat(theirs / "out" / name) for name in ("secret", "su")]
    assert [(oct(state.st_mode & 0o7777), state.st_uid) for state in states] == [("0o400", 65534), ("0o755", 65534)]


@pytest.mark.root
@pytest.mark.peer("unsquashfs")
async def test_a_plain_user_s_squashfs_image_has_the_image_s_owners_and_devices(
    registry: FaultyRegistry, open_folder: Path
) -> None:
    members = [file("su", b"x", mode=0o4755, uid=7, gid=8), file("secret", mode=0), device("null", 1, 3, mode=0o666)]
    reference, output = publish(registry, members), open_folder / "theirs/image.sqsh"
    ended = await run("pull", reference, "-o", output, cache=f"{open_folder}/theirs/cache", as_nobody=True)
    assert ended.code == 0, ended.err
    assert output.stat().st_uid == 65534
    found = look(await asyncio.to_thread(unsquash, output, open_folder / "tree"))
    assert (found[b"su"].mode, found[b"su"].uid, found[b"su"].gid) == (0o4755, 7, 8)
    assert found[b"secret"].mode == 0
    assert (found[b"null"].kind, found[b"null"].device) == ("c", os.makedev(1, 3))


@pytest.mark.root
async def test_a_plain_user_can_run_the_demonstration(open_folder: Path) -> None:
    ended = await run("demo", "--size", "4", cache="", as_nobody=True, TMPDIR=f"{open_folder}/theirs")
    assert ended.code == 0, ended.err
    assert "all correct" in ended.err
    assert os.listdir(open_folder / "theirs") == []


@pytest.mark.root
async def test_users_of_one_group_share_a_cache(registry: FaultyRegistry, open_folder: Path) -> None:
    """As described in docs/cache.md, with any umask, including a blob that one user starts and another completes."""
    cache, theirs = open_folder / "cache", open_folder / "theirs"
    cache.mkdir()
    os.chown(cache, 0, 65534)
    cache.chmod(0o2770)
    content = os.urandom(20 << 20)
    first = publish(registry, [file("a", content[:1000])], tag="first")
    second = publish(registry, stored([file("b", content)], bytes), tag="second")
    mine = await run("pull", first, "-o", open_folder / "mine", cache=str(cache))
    assert mine.code == 0, mine.err
    registry.faults.append(slow(1 << 20))
    process = await start("warm", second, cache=str(cache))
    while registry.sent.total() < 6 << 20:  # noqa: ASYNC110  # the registry has no event
        await asyncio.sleep(0.01)
    other = await start("pull", second, "-o", theirs / "out", cache=str(cache), as_nobody=True)
    assert other.stderr is not None
    async with asyncio.timeout(30):
        await other.stderr.readuntil(b"waiting for")
    await kill(process)
    registry.faults.clear()
    ended = await end(other)
    assert ended.code == 0, ended.err
    assert (theirs / "out/b").read_bytes() == content
    assert registry.sent.total() < 30 << 20
    for name in ("first", "second"):
        again = await run(
            "pull", f"{registry.address}/test/image:{name}", "-o", theirs / name, cache=str(cache), as_nobody=True
        )
        assert (again.code, "were cached" in again.err) == (0, True), again.err
    collected = await run("cache", "gc", "--max-age", "0s", cache=str(cache), as_nobody=True)
    assert collected.code == 0, collected.err


@pytest.mark.root
async def test_a_blob_of_another_user_is_verified_again(registry: FaultyRegistry, open_folder: Path) -> None:
    """Warming trusts only metadata of its own user: other users of a shared cache could forge it."""
    cache = open_folder / "cache"
    cache.mkdir()
    os.chown(cache, 0, 65534)
    cache.chmod(0o2770)
    layer = stored([file("a", CONTENT)], bytes)
    reference = publish(registry, layer)
    assert (await run("warm", reference, cache=str(cache))).code == 0
    path = cache / "v1/blobs" / str(fastpull.Digest.of(layer.blob)).replace(":", "/")
    path.write_bytes(layer.blob[:5000] + b"!" + layer.blob[5001:])  # its metadata is still fresh
    believed = await run("warm", reference, cache=str(cache))
    assert (believed.code, registry.sent[str(fastpull.Digest.of(layer.blob))]) == (0, len(layer.blob))
    ended = await run("warm", reference, cache=str(cache), as_nobody=True)
    assert (ended.code, "a damaged blob was thrown away" in ended.err) == (0, True), ended.err
    assert path.read_bytes() == layer.blob
    assert path.stat().st_uid == 65534


@pytest.mark.peer("strace")
@pytest.mark.parametrize(
    ("how", "reason"),
    [("error=ENOLCK", "this filesystem has no locks"), ("retval=0", "this filesystem grants the same lock twice")],
    ids=["none", "useless"],
)
async def test_with_flock_a_cache_without_working_locks_is_refused_before_the_download(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, how: str, reason: str
) -> None:
    layer = stored([file("a", CONTENT)], bytes)
    under = ("strace", "-f", "-qq", "-o", str(tmp_path / "log"), "-e", "trace=flock", f"--inject=flock:{how}")
    arguments = ("pull", publish(registry, layer), "-o", tmp_path / "out")
    ended = await run(*arguments, "--locks", "flock", cache=settings.cache, under=under)
    assert ended.code == 30
    assert reason in ended.err
    assert "Choose another filesystem (--cache)" in ended.err
    assert registry.sent[str(fastpull.Digest.of(layer.blob))] == 0
    assert not (tmp_path / "out").exists()
    without = await run(*arguments, cache=settings.cache, under=under)
    assert without.code == 0, without.err
    assert os.listdir(f"{settings.cache}/v1/locks") == []


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A directory of another user, mounted in an old output at ``out/mnt``."""
    where = tmp_path / "precious"
    where.mkdir()
    (where / "file").write_text("precious")
    (tmp_path / "out/mnt").mkdir(parents=True)
    subprocess.run(["mount", "--bind", where, tmp_path / "out/mnt"], check=True)
    yield where
    for point in protected.mount_points():
        if point.startswith(os.fsencode(tmp_path)):
            subprocess.run(["umount", point], check=True)


@pytest.mark.root
async def test_filesystems_mounted_in_an_old_output_are_never_removed(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = publish(registry, [file("new")])
    output = fastpull.Directory(tmp_path / "out", force=True, replace_foreign=True)
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match="out/mnt is mounted in it"):
            await client.pull(reference, output)
        assert names(tmp_path / "out") == {"mnt", "mnt/file"}
        with monkeypatch.context() as patched:
            patched.setattr(protected, "mount_points", list)  # as if mounted during the pull
            report = await client.pull(reference, output)
    assert names(tmp_path / "out") == {"new"}
    assert "could not be removed" in report.output.warnings[0]
    assert (precious / "file").read_text() == "precious"
