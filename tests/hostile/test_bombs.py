"""Decompression bombs: each limit is reported soon after it is crossed, with little memory and no remains.

Each pull is a separate process that reports its processor time from the byte crossing the limit to its end. To process
the remaining bytes would take several times the permitted time.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

import fastpull
from fastpull.layers.archive import END, header_of, padded
from fastpull.layers.entry import Entry, EntryType
from tests.support.headers import block, pax
from tests.support.layers import StoredLayer, file, publish, stored, with_window
from tests.support.registry import FaultyRegistry

GIB = 1 << 30
MIB = 1 << 20
_MAX_SECONDS = 2.0  # of processor time, after the limit is crossed
_TAIL = 4 * GIB  # bytes after it; to inflate, hash and scan them takes some 4 s

_PROGRAM = """
import re, sys, time
from fastpull.cli import main
from fastpull.native.layer_scanner import LayerScanner

crossing, fed, crossed, feed = int(sys.argv.pop(1)), 0, 0.0, LayerScanner.feed

def feeding(scanner, chunk):
    global fed, crossed
    crossed = time.process_time() if fed <= crossing else crossed
    fed += len(chunk)
    return feed(scanner, chunk)

LayerScanner.feed = feeding
code = main()
memory = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]  # ru_maxrss includes the parent
print(f"\\n{time.process_time() - crossed} {int(memory) >> 10}", file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class MeasuredPull:
    """The result of a measured pull.

    Attributes:
        code: exit code.
        message: error output.
        seconds: processor time after the chunk with the crossing byte was inflated.
        mebibytes: peak memory.
    """

    code: int | None
    message: str
    seconds: float
    mebibytes: int


async def measured_pull(tmp_path: Path, *arguments: str | Path, crossing: int = 0) -> MeasuredPull:
    """Pull in a separate process.

    Args:
        tmp_path: folder of the cache.
        arguments: arguments of ``fastpull pull``.
        crossing: offset of the byte in the tar that crosses the limit.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, str(crossing), "pull", "-q", *map(str, arguments)),
        env={**os.environ, "FASTPULL_CACHE": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
    )
    _, said = await process.communicate()
    message, _, numbers = said.decode().rstrip().rpartition("\n")
    seconds, mebibytes = numbers.split()
    return MeasuredPull(process.returncode, message, float(seconds), int(mebibytes))


def as_gzip(head: bytes, tail: int) -> bytes:
    """Return a gzip layer with a head and a tail of zeros, which repeat one gzip member."""
    zeros = gzip.compress(bytes(MIB), 9, mtime=0)
    return gzip.compress(head, 1, mtime=0) + zeros * (tail // MIB)


def as_zstd(head: bytes, tail: int) -> bytes:
    """Return a zstd layer with a head and a tail of zeros, which repeat one frame."""
    zeros = zstandard.compress(bytes(64 * MIB), 1)
    return zstandard.compress(head, 1) + zeros * (tail // (64 * MIB))


HEAD = b"".join(header_of(entry) + padded(content) for entry, content in (file(f"f{n}", b"x") for n in range(3000)))
"""Files of 1 KiB each in the tar, staged before a limit is crossed."""

ZEROS = header_of(Entry(b"zeros", EntryType.FILE, size=_TAIL))


@dataclass(frozen=True)
class Bomb:
    """A layer that crosses one limit.

    Attributes:
        says: part of the message.
        crosses: bytes of the tar after `HEAD` and before the zeros.
        setting: setting that raises the limit; empty for none.
        given: value of the setting for the pull; None for the default.
        default: documented default of the setting.
        crossing: offset of the byte in the tar that crosses the limit.
        compress: function from a head and a number of zeros to the blob.
    """

    says: str
    crosses: bytes = ZEROS
    setting: str = ""
    given: int | None = None
    default: int | None = None
    crossing: int = len(HEAD)
    compress: Callable[[bytes, int], bytes] = as_gzip

    def pull_options(self) -> Iterator[str]:
        """Yield the options of the command."""
        if self.setting != "max_ratio":  # the zeros alone must not cross this limit
            yield from ("--max-ratio", "1000000")
        if self.given is not None:
            yield from ("--" + self.setting.replace("_", "-"), str(self.given))


def with_a_large_window(head: bytes, tail: int) -> bytes:
    """Return a frame with files, a frame with a window of 256 MiB, and frames of zeros."""
    return with_window(27)(head) + with_window(28)(bytes(512)) + as_zstd(b"", tail)


BOMBS = {
    "layer": Bomb("files larger than the layer may be at 'zeros'", ZEROS, "max_layer_size", 8 * MIB, 256 * GIB),
    "padding": Bomb("than a layer may be (8388608)", END, "max_layer_size", 8 * MIB, crossing=8 * MIB),
    "holes": Bomb(
        "files larger than the layer may be at 'hole'",
        pax((b"GNU.sparse.size", b"%d" % (1 << 50)), (b"GNU.sparse.map", b"0,0")) + block(b"hole"),
        "max_layer_size",
    ),
    "image": Bomb("than all layers together may be (8388608)", END, "max_image_size", 8 * MIB, 512 * GIB, 8 * MIB),
    "entries": Bomb("together may have (2000)", ZEROS, "max_entries", 2000, 4_000_000, 2000 << 10),
    "ratio": Bomb("than there may be (200)", ZEROS, "max_ratio", None, 200, GIB),
    "ratio-zstd": Bomb("than there may be (200)", ZEROS, "max_ratio", None, 200, GIB, as_zstd),
    "window": Bomb("zstd window", ZEROS, "max_zstd_window", None, 128 * MIB, compress=with_a_large_window),
    "header": Bomb("extended header over 1 MiB", block(b"x", b"x", 2 * MIB) + bytes(2 * MIB)),
    "long-name": Bomb("extended header over 1 MiB", block(b"x", b"L", 2 * MIB) + b"n" * (2 * MIB)),
    "depth": Bomb("more than 255 components", header_of(file("d/" * 255 + "f")[0])),
    "attributes": Bomb("over 64 KiB", header_of(file("f", xattrs=((b"user.a", b"v" * 65_537),))[0])),
    "sparse-map": Bomb(
        "extended header over 1 MiB",
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
        + block(b"f", size=8 * MIB)
        + padded(b"1000000\n" + b"0\n" * (4 * MIB)),
    ),
}


@pytest.mark.parametrize("output", ["out/", "out.sqsh"])
@pytest.mark.parametrize("name", BOMBS)
async def test_limit_is_reported_soon_and_leaves_nothing(
    registry: FaultyRegistry, tmp_path: Path, name: str, output: str
) -> None:
    bomb = BOMBS[name]
    if bomb.setting == "max_ratio" and shutil.disk_usage(tmp_path).free < 10 * GIB:
        pytest.skip("too little free space; the limit of a tenth of it would apply first")
    layer = StoredLayer(bomb.compress(HEAD + bomb.crosses, _TAIL), "sha256:" + "0" * 64)
    reference = publish(registry, layer)
    ended = await measured_pull(
        tmp_path, *bomb.pull_options(), reference, "-o", tmp_path / output, crossing=bomb.crossing
    )
    assert ended.code == 25, ended.message
    assert bomb.says in ended.message
    if bomb.setting:
        flag = bomb.setting.replace("_", "-")
        assert f"--{flag} or FASTPULL_{bomb.setting.upper()}" in ended.message
    else:
        assert "No setting raises this limit" in ended.message
    assert ended.seconds < _MAX_SECONDS
    assert ended.mebibytes < 256
    assert os.listdir(tmp_path) == ["cache"], "no output and no staging remain"


def test_limits_match_the_documentation() -> None:
    expected = {bomb.setting: bomb.default for bomb in BOMBS.values() if bomb.default is not None}
    limits = fastpull.config.Limits()
    assert {setting: getattr(limits, setting) for setting in limits.__dataclass_fields__} == expected
    text = Path(__file__).parents[2].joinpath("docs/threat-model.md").read_text(encoding="utf-8")
    units = {"GiB": GIB, "MiB": MIB}
    found = {}
    for number, unit, flag in re.findall(r"\| ([\d,]+)(?: (GiB|MiB))? \| `--([-a-z]+)`", text):
        found[flag.replace("-", "_")] = int(number.replace(",", "")) * units.get(unit, 1)
    assert found == expected


async def test_large_windows_are_used_one_at_a_time(registry: FaultyRegistry, tmp_path: Path) -> None:
    layers = [stored([file(f"zeros-{n}", bytes(130 << 20))], with_window(27)) for n in range(4)]
    reference = publish(registry, *layers)
    options = ("--memory", "64M", "--workers", "4", "-o", tmp_path / "out.sqsh")
    ended = await measured_pull(tmp_path, *options, reference)
    assert ended.code == 0, ended.message
    assert ended.mebibytes < 320, "four windows of 128 MiB are used one at a time"
