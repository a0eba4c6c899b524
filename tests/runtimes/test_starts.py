"""Every runtime starts a real image, whose process reports what it sees."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fastpull.sinks.output.destination import free_space
from tests.runtimes.image import CMD, DIRECTORY, ENTRYPOINT, ENV, GID, GROUPS, UID, USER, VOLUME, derive, layer
from tests.runtimes.starters import NOBODY, STARTS, Outputs, Start, refusal, run
from tests.support.images.store import find_image
from tests.support.processes import run as fastpull

PAGE = Path(__file__).parents[2] / "docs/runtimes.md"


@pytest.fixture(scope="module")
def outputs() -> Iterator[dict[str, Outputs]]:
    """Return the outputs that root and a user have pulled."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or shutil.which("buildah") is None:
        pytest.skip("needs root, buildah and debootstrap for the image")
    memory = "/dev/shm"  # removing the outputs from a busy disk takes a minute
    fast = memory if os.path.isdir(memory) and free_space(memory.encode()) > 4 << 30 else None
    folder = Path(tempfile.mkdtemp(prefix="fp-starts-", dir=fast))
    try:
        folder.chmod(0o755)
        yield {user: _pull(folder, user) for user in ("root", "user")}
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def _pull(folder: Path, user: str) -> Outputs:
    base = find_image("small")
    source = folder / "layout"
    home = folder / user
    home.mkdir()
    if not source.exists():
        derive(
            base,
            layer(),
            source,
            Env=ENV,
            User=USER,
            WorkingDir=DIRECTORY,
            Entrypoint=ENTRYPOINT,
            Cmd=CMD,
            Volumes={VOLUME: {}},
        )
    if user == "user":
        os.chown(home, NOBODY, NOBODY)
    wanted = {
        "bundle/": ["--for", "bundle"],
        "directory/": ["--for", "charliecloud", "--for", "plain"],
        "image.sqsh": ["--for", "charliecloud", "--for", "plain"],
    }
    for name, options in wanted.items():
        ended = asyncio.run(
            fastpull(
                "pull",
                "-q",
                f"oci:{source}:v1",
                "-o",
                f"{home}/{name}",
                *options,
                cache=str(home / "cache"),
                as_nobody=user == "user",
                HOME=str(home),
            )
        )
        assert ended.code == 0, ended.err
    return Outputs(home, home / "bundle", home / "directory", home / "image.sqsh")


@pytest.mark.root
@pytest.mark.timeout(1200)  # the image may have to be built first
@pytest.mark.parametrize(
    "start", [pytest.param(one, id=str(one), marks=pytest.mark.peer(*one.tools)) for one in STARTS]
)
def test_runtime_starts_real_image(start: Start, outputs: dict[str, Outputs]) -> None:
    ended = run(start, outputs[start.user])
    reason = refusal(ended.stderr) if ended.returncode else None
    if reason:
        pytest.skip(f"{start}: {reason}")
    assert ended.returncode == 0, ended.stderr
    found = dict(line.split(":", 1) for line in ended.stdout.splitlines() if ":" in line)
    path, greeting, quotes = (text.partition("=")[2] for text in ENV)
    assert found["arguments"] == " ".join([*ENTRYPOINT[1:], *CMD])
    assert found["directory"] == DIRECTORY
    assert (found["PATH"], found["GREETING"], found["QUOTES"]) == (path, greeting, quotes)
    assert found["user"] == start.ids
    assert found["volume"] == "of the image"
    assert found["system"] == "debian"
    if start.output == "bundle" and start.user == "root":
        assert found["groups"] == " ".join(map(str, GROUPS))


@pytest.mark.root
@pytest.mark.timeout(1200)
@pytest.mark.peer("newuidmap", "runc")
def test_subordinate_ids_start_bundle_as_user_of_image(outputs: dict[str, Outputs]) -> None:
    home = outputs["user"].folder
    (home / "ids").write_text(f"{NOBODY}:100000:65536\n")
    with_ids = f"mount --bind {home}/ids /etc/subuid && mount --bind {home}/ids /etc/subgid"
    under = ["unshare", "--mount", "sh", "-c", f'{with_ids} && exec "$@"', "sh"]
    source = f"oci:{home.parent}/layout:v1"
    arguments = ["pull", "-q", source, "-o", f"{home}/ids-bundle/", "--for", "bundle"]
    ended = asyncio.run(fastpull(*arguments, cache=str(home / "cache"), as_nobody=True, under=under, HOME=str(home)))
    assert (ended.code, ended.err) == (0, "")
    start = next(one for one in STARTS if (one.runtime, one.user) == ("runc", "user"))
    found = run(replace(start, before=with_ids), replace(outputs["user"], bundle=home / "ids-bundle"))
    reason = refusal(found.stderr) if found.returncode else None
    if reason:
        pytest.skip(reason)
    assert found.returncode == 0, found.stderr
    assert f"user:{UID}:{GID}\n" in found.stdout
    assert f"groups:{GID}\n" in found.stdout  # runc sets no other groups for an unprivileged user


@pytest.mark.root
@pytest.mark.timeout(1200)
def test_squashfs_for_runtimes_does_not_depend_on_user(outputs: dict[str, Outputs]) -> None:
    assert outputs["root"].squashfs.read_bytes() == outputs["user"].squashfs.read_bytes()


def test_documented_ticks_equal_started_runtimes() -> None:
    rows = re.findall(
        r"^\| `?([^|`]+?)`? \| (bundle|directory|squashfs) \| (.) \| (.) \|", PAGE.read_text(), re.MULTILINE
    )
    ticked = {
        (runtime, output, user)
        for runtime, output, *ticks in rows
        for user, tick in zip(("root", "user"), ticks, strict=True)
        if tick == "✓"
    }
    assert ticked == {(start.runtime, start.output, start.user) for start in STARTS}
