"""The importer as pyxis calls it: importers/README.md of pyxis."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from fastpull.cache.store import Store
from fastpull.client import Client
from fastpull.config.settings import Settings
from fastpull.sinks.squashfs.sink import Squashfs
from tests.support.layers import file, publish
from tests.support.peers import unsquash
from tests.support.processes import run
from tests.support.pyxis import call, start, step
from tests.support.registry import FaultyRegistry, slow

CONTENT = os.urandom(2 << 20)
LAYERS = ([file("a", CONTENT), file("b", b"b" * 5000)], [file("etc/c", b"c" * 100)])


def pins(settings: Settings) -> list[str]:
    return sorted(os.listdir(f"{settings.cache}/v1/pins"))


def images(settings: Settings) -> list[Path]:
    return sorted(Path(settings.cache, "v1/images").rglob("*.sqsh"))


def requests(registry: FaultyRegistry) -> list[str]:
    return [f"{asked.method} {asked.path.rpartition('/')[0].rpartition('/')[2]}" for asked in registry.requests]


async def fresh(reference: str, tmp_path: Path) -> bytes:
    """The output of a pull without a cached image."""
    output = tmp_path / "fresh.sqsh"
    async with Client(Settings(cache=str(tmp_path / "other"), workers=1)) as client:
        await client.pull(reference, Squashfs(output, force=True), runtimes=["enroot"])
    return output.read_bytes()


async def test_get_prints_only_a_path_and_release_unpins_it(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    environment = step(settings.cache)
    got = await call("get", f"docker://{reference}", environment=environment)
    assert got.code == 0, got.err
    path = Path(got.out.removesuffix("\n"))
    assert images(settings) == [path]
    assert path.is_absolute()
    assert stat.S_IMODE(path.stat().st_mode) == 0o400, "the cache is private, and nobody writes to its images"
    assert path.read_bytes() == await fresh(reference, tmp_path)
    assert reference in got.err
    assert len(pins(settings)) == 1
    for _ in range(2):
        released = await call("release", environment=environment)
        assert (released.code, released.out, released.err) == (0, "", "")
        assert pins(settings) == []
    assert images(settings) == [path], "the next job needs it, too"


@pytest.mark.root
@pytest.mark.peer("unsquashfs")
async def test_the_file_contains_a_root_that_enroot_starts(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    config = {"Entrypoint": ["/bin/app"], "Env": ["A=b"], "WorkingDir": "/srv"}
    reference = publish(
        registry, [file("bin/app", uid=7, mode=0o755), file("dev/x"), file("etc/rc", b"no")], config=config
    )
    got = await call("get", f"docker://{reference}", environment=step(settings.cache))
    assert got.code == 0, got.err
    tree = unsquash(Path(got.out.strip()), tmp_path / "tree")
    rc = (tree / "etc/rc").read_text()
    assert f"# enroot-provenance: docker://{reference.replace('/', '#', 1)}\n" in rc
    assert "exec '/bin/app' \"$@\"" in rc
    assert (tree / "etc/environment").read_text() == "A=b\n"
    assert (tree / "etc/rc.local").is_file()
    assert (tree / "srv").is_dir()
    assert os.listdir(tree / "dev") == []
    assert (tree / "bin/app").stat().st_uid == 0


async def test_of_concurrent_gets_one_builds_and_all_return_the_image(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    calls = [
        call("get", f"docker://{reference}", environment=step(settings.cache, number=number)) for number in range(32)
    ]
    got = await asyncio.gather(*calls)
    assert [one.code for one in got] == [0] * 32, [one.err for one in got if one.code]
    assert {one.out for one in got} == {f"{images(settings)[0]}\n"}
    assert sum("finishing the output" in one.err for one in got) == 1, "one build"
    layers = {digest: size for digest, size in registry.sent.items() if size > 0}
    assert layers == {digest: len(registry.blobs[digest]) for digest in layers}, "one download"
    assert images(settings)[0].read_bytes() == await fresh(reference, tmp_path)
    assert len(pins(settings)) == 32
    left = {path.name for path in Path(settings.cache, "v1/images").rglob("*") if path.is_file()}
    assert left == {images(settings)[0].name, images(settings)[0].name + ".seal"}
    assert os.listdir(f"{settings.cache}/v1/locks") == []


async def test_a_finished_image_costs_one_head_request(registry: FaultyRegistry, settings: Settings) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    environment = step(settings.cache)
    first = await call("get", uri, environment=environment)
    registry.requests.clear()
    other_node = await call("get", uri, environment=environment)
    assert (other_node.code, other_node.out) == (0, first.out)
    assert requests(registry) == [], "all of a step get what the first was told"
    again = await call("get", uri, environment=step(settings.cache, number=2))
    assert (again.code, again.out) == (0, first.out)
    assert requests(registry) == ["HEAD manifests"]


async def test_a_tag_that_moved_gets_the_new_image(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    first = await call("get", uri, environment=step(settings.cache))
    reference = publish(registry, LAYERS[0], [file("new")])
    again = await call("get", uri, environment={**step(settings.cache), "FASTPULL_JOB": "later"})
    assert again.code == 0, again.err
    assert again.out != first.out
    assert Path(again.out.strip()).read_bytes() == await fresh(reference, tmp_path)
    assert len(images(settings)) == len(pins(settings)) == 2, "the step holds both until it ends"
    await call("release", environment=step(settings.cache))
    assert pins(settings) == []


async def test_without_head_the_manifest_is_requested(
    registry: FaultyRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    first = await call("get", uri, environment=step(settings.cache))
    registry.requests.clear()
    serve = registry.serve_manifest

    async def serve_manifest(request: web.Request, name: str, version: str) -> web.StreamResponse:
        return registry.refusal(405, "NO") if request.method == "HEAD" else await serve(request, name, version)

    monkeypatch.setattr(registry, "serve_manifest", serve_manifest)
    again = await call("get", uri, environment=step(settings.cache, number=2))
    assert (again.code, again.out) == (0, first.out)
    assert requests(registry) == ["HEAD manifests", "GET manifests"]


async def test_a_digest_needs_no_request(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, *LAYERS)
    digest = next(version for _, version in registry.manifests if version.startswith("sha256:"))
    uri = f"docker://{reference.removesuffix(':v1')}@{digest}"
    first = await call("get", uri, environment=step(settings.cache))
    registry.requests.clear()
    again = await call("get", uri, environment=step(settings.cache))
    assert (again.code, again.out) == (0, first.out)
    assert registry.requests == []


@pytest.mark.parametrize("user", ["", "somebody@", "$oauthtoken@"])
async def test_the_enroot_form_of_a_reference_is_accepted(
    registry: FaultyRegistry, settings: Settings, user: str
) -> None:
    uri = f"docker://{user}{publish(registry, *LAYERS).replace('/', '#', 1)}"
    got = await call("get", uri, environment=step(settings.cache))
    assert got.code == 0, got.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
async def test_another_process_takes_over_from_a_dead_builder(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, number: int
) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    registry.faults = [slow(100_000)]
    builder = await start("get", uri, environment=step(settings.cache, number=0))
    while not registry.blob_requests()[1:]:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    waiting = await start("get", uri, environment=step(settings.cache, number=1))
    assert waiting.stderr is not None
    await asyncio.wait_for(waiting.stderr.readuntil(b"waiting for another process to make it"), 30)
    registry.faults = []  # the builder's requests stay slow, later requests are fast
    builder.send_signal(number)
    out, _ = await builder.communicate()
    assert (builder.returncode, out) == (-9 if number == signal.SIGKILL else 130, b"")
    out, err = await asyncio.wait_for(waiting.communicate(), 60)
    assert waiting.returncode == 0, err
    assert Path(out.decode().strip()).read_bytes() == await fresh(uri, tmp_path)
    assert [path.name for path in Path(settings.cache, "v1/images/sha256").iterdir() if path.name.startswith(".")] == []
    # a killed process could not release its pin; a terminated one did
    assert len(pins(settings)) == (2 if number == signal.SIGKILL else 1)
    released = await call("release", environment=step(settings.cache, number=0))
    assert released.code == 0
    assert len(pins(settings)) == 1


async def test_gc_removes_no_image_between_get_and_release(registry: FaultyRegistry, settings: Settings) -> None:
    environment = step(settings.cache)
    got = await call("get", f"docker://{publish(registry, *LAYERS)}", environment=environment)
    path = Path(got.out.strip())
    manifest = f"sha256:{path.name.partition('.')[0]}"
    for arguments in (("rm", manifest), ("gc", "--max-size", "0"), ("gc", "--max-age", "0s")):
        ended = await run("cache", *arguments, cache=settings.cache)
        assert ended.code == 0, ended.err
        assert f"in use, so it stays: {path}" in ended.err
        assert path.exists()
    listed = await run("cache", "ls", "--finished", cache=settings.cache)
    assert f"step 7.0 on {os.uname().nodename}" in listed.out
    assert (await call("release", environment=environment)).code == 0
    ended = await run("cache", "gc", "--max-size", "0", cache=settings.cache)
    assert str(path) in ended.out
    assert list(Path(settings.cache, "v1/images").rglob("*.*")) == []


async def test_pins_of_dead_jobs_expire(registry: FaultyRegistry, settings: Settings) -> None:
    got = await call("get", f"docker://{publish(registry, *LAYERS)}", environment=step(settings.cache))
    await run("cache", "gc", "--max-size", "0", "--pin-age", "1h", cache=settings.cache)
    assert Path(got.out.strip()).exists()
    await run("cache", "gc", "--max-size", "0", "--pin-age", "0s", cache=settings.cache)
    assert images(settings) == []
    assert pins(settings) == []


async def test_a_failed_get_keeps_earlier_pins_of_the_step(registry: FaultyRegistry, settings: Settings) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    environment = step(settings.cache)
    assert (await call("get", uri, environment=environment)).code == 0
    held = pins(settings)
    [image] = images(settings)
    image.unlink()
    await run("cache", "gc", "--max-size", "0", cache=settings.cache)
    registry.blobs = {digest: blob for digest, blob in registry.blobs.items() if len(blob) < 1000}
    again = await call("get", uri, environment=environment)
    assert again.code == 11, again.err
    assert pins(settings) == held


async def test_release_keeps_pins_of_other_steps(registry: FaultyRegistry, settings: Settings) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    for job, number in ((7, 1), (7, 11), (71, 1)):
        await call("get", uri, environment=step(settings.cache, job, number))
    await call("release", environment=step(settings.cache, 7, 1))
    assert [name.rsplit(".", 3)[1:3] for name in pins(settings)] == [["7", "11"], ["71", "1"]]


# --- errors


@pytest.mark.parametrize(
    ("uri", "environment", "code", "words"),
    [
        ("docker://{}", {"SLURM_JOB_ID": ""}, 3, "Slurm job"),
        ("docker://{}", {"SLURM_STEP_ID": ""}, 3, "SLURM_STEP_ID"),
        ("docker://{}", {"SLURM_JOB_ID": "../../x"}, 3, "not the id of a job"),
        ("docker://{}", {"SLURM_STEP_ID": "0\n"}, 3, "not the id of a step"),
        ("docker://{}", {"FASTPULL_CACHE": "relative"}, 3, "absolute path"),
        ("docker://{}", {"FASTPULL_COMPRESSION": "lha"}, 3, "compression"),
        ("docker://{}", {"FASTPULL_BLOCK_SIZE": "5K"}, 3, "power of two"),
        ("docker://UPPER", {}, 3, "UPPER"),
        ("dockerd://image", {}, 3, "dockerd://"),
        ("docker://{}-not", {}, 11, "v1-not"),
        ("docker://127.0.0.1:1/a/b", {}, 10, "127.0.0.1:1"),
    ],
)
async def test_an_error_goes_to_stderr_and_leaves_no_pin(
    registry: FaultyRegistry, settings: Settings, uri: str, environment: dict[str, str], code: int, words: str
) -> None:
    Store(settings.cache)
    reference = publish(registry, *LAYERS)
    got = await call("get", uri.format(reference), environment={**step(settings.cache), **environment})
    assert (got.code, got.out) == (code, ""), got.err
    assert words in got.err
    assert pins(settings) == []
    assert not images(settings)


async def test_an_empty_environment_gets_an_error_and_releases_nothing(tmp_path: Path) -> None:
    for arguments, code in ((("get", "docker://debian"), 3), (("release",), 0)):
        ended = await call(*arguments, environment={})
        assert (ended.code, ended.out) == (code, ""), ended.err
        assert ("SLURM_JOB_ID" in ended.err) == (code == 3)
    assert (await call("release", environment=step(str(tmp_path / "no cache")))).code == 0
    assert list(tmp_path.iterdir()) == [], "a release makes no cache"


@pytest.mark.parametrize("arguments", [(), ("get",), ("release", "x"), ("put", "x"), ("get", "a", "b")])
async def test_other_arguments_are_refused(arguments: tuple[str, ...], settings: Settings) -> None:
    assert (await call(*arguments, environment=step(settings.cache))).code == 3


# --- damage


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(content))


def _truncate(path: Path) -> None:
    path.chmod(0o600)
    os.truncate(path, 5000)


def _flip_seal(path: Path) -> None:
    _flip(path.with_name(path.name + ".seal"))


def _remove_seal(path: Path) -> None:
    path.with_name(path.name + ".seal").unlink()


@pytest.mark.parametrize("damage", [_flip, _truncate, _flip_seal, _remove_seal, Path.unlink])
async def test_a_damaged_finished_image_is_rebuilt(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    reference = publish(registry, *LAYERS)
    environment = step(settings.cache)
    first = await call("get", f"docker://{reference}", environment=environment)
    damage(images(settings)[0])
    again = await call("get", f"docker://{reference}", environment=environment)
    assert (again.code, again.out) == (0, first.out), again.err
    assert "finishing the output" in again.err
    assert images(settings)[0].read_bytes() == await fresh(reference, tmp_path)


async def test_a_touched_file_is_still_valid(registry: FaultyRegistry, settings: Settings) -> None:
    uri = f"docker://{publish(registry, *LAYERS)}"
    await call("get", uri, environment=step(settings.cache))
    os.utime(images(settings)[0])
    again = await call("get", uri, environment=step(settings.cache))
    assert "finishing" not in again.err


# --- start-up


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("fastpull.importer", {"aiohttp", "fastpull.client", "zstandard"}),
        ("fastpull.client", {"fastpull.pipeline.pull", "fastpull.pipeline.layer", "fastpull.layers", "isal"}),
    ],
)
def test_modules_are_loaded_only_when_needed(module: str, absent: set[str]) -> None:
    """A step waits for the importer, and modules that a finished image does not need take a third of the time."""
    code = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert not absent & set(loaded)
