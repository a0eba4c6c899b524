"""Reads of a cache on a shared filesystem by many nodes: large and sequential."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fastpull.config.settings import Settings
from fastpull.oci.digest import Digest
from tests.support.layers import file, publish, stored
from tests.support.processes import run
from tests.support.registry import FaultyRegistry

CONTENT = os.urandom(9_000_000)

pytestmark = pytest.mark.peer("strace")


def reads(folder: Path) -> list[tuple[int, int]]:
    """Return the reads in strace's logs as (offset, size), without those at the end of the file."""
    found, at = [], 0
    for log in folder.glob("log.*"):
        for line in log.read_text().splitlines():
            if match := re.match(r"(p?read)\w*\((.*?)(, 0)?\) += (\d+)$", line):  # preadv2 has flags, too
                offset, size = match[2].rpartition(", ")[2], int(match[4])
                start = int(offset) if match[1] == "pread" else at
                if size:
                    found.append((start, size))
                at = start + size
    return found


@pytest.mark.parametrize("kind", ["finished", "blob"])
async def test_a_cached_image_is_copied_sequentially_in_large_reads(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str
) -> None:
    layer = stored([file("f", CONTENT)], bytes)
    reference = publish(registry, layer)
    prepared = await run("pull", reference, "-o", tmp_path / "first.sqsh", "--keep-images", cache=settings.cache)
    assert prepared.code == 0, prepared.err
    cache = Path(settings.cache, "v1")
    if kind == "finished":
        (path,) = cache.glob("images/sha256/*.sqsh")
        output, least = tmp_path / "local.sqsh", 1 << 20
    else:
        path, output, least = cache / "blobs/sha256" / Digest.of(layer.blob).encoded, tmp_path / "local", 128 << 10
    # a clone would read nothing
    calls = ("-e", "trace=/^(p?read(v|64|v2)?|ioctl)$", "--inject=ioctl:error=EOPNOTSUPP")
    ended = await run(
        "pull", reference, "-o", output, cache=settings.cache,
        under=("strace", "-ff", "-qq", "-s", "0", "-o", f"{tmp_path}/log", "-P", str(path), *calls),
    )  # fmt: skip
    assert ended.code == 0, ended.err
    found = reads(tmp_path)
    assert sum(size for _, size in found) == path.stat().st_size, "each byte once"
    assert [at for at, _ in found] == [sum(size for _, size in found[:n]) for n in range(len(found))], "in order"
    large = found[1:-1] if kind == "blob" else found[:-1]  # the first read of a blob detects its compression
    assert len(large) > 5
    assert {size for _, size in large} == {least}
