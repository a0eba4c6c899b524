"""Forged cache files: indexes, blob metadata, journals and others with hostile content."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

import fastpull
from fastpull.cache.images.pins import Holder
from fastpull.cache.locking import file_lock as locks
from fastpull.cache.partial.journal import RECORD_SIZE, Record, parse_records
from fastpull.cli.main import main
from fastpull.config.settings import Settings
from fastpull.sinks.squashfs.recipe import Recipe
from tests.campaigns.campaign import Campaign
from tests.support.layers import file, hardlink, publish, symlink
from tests.support.layers import folder as made
from tests.support.registry import FaultyRegistry, halves
from tests.support.trees import FoundEntry, look

_KINDS = ("index", "seal", "ref", "journal", "lock", "pin", "image seal")
_PULL_SECONDS = 30.0
_LISTINGS = (["cache", "ls"], ["cache", "ls", "--finished"], ["cache", "ls", "--blobs", "--json"], ["cache", "du"])
_DEAD = "import sys; from fastpull.cache.locking.owner import Owner; "
_DEAD += "sys.stdout.buffer.write(Owner.me(has_flock=True, is_suspect=False).to_bytes())"
_TOO_DEEP = object()
_VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, 0, -1, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**400, 0.5, 1e308),
    *(float("nan"), float("inf"), "\ud800", "\x1b[31m\n", "../../x", "/dev/zero", "sha256:zz", "sha256:" + "a" * 64),
    *("x" * 100_000, [[]], {"a": None}, ["a"], {"": {}}, _TOO_DEEP),
)


class Forgery(Campaign):
    """Assert that a pull gives the right tree or a typed error in time, and that listings and maintenance continue.

    A canary beside the cache shows that nothing outside of it changes.
    """

    name = "forgery"
    trials = 10_000

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        layers = (
            [made("usr"), made("usr/lib"), file("usr/lib/a", b"a" * 5000), symlink("lib", "usr/lib")],
            [file("etc/b", b"b" * 3000), hardlink("etc/c", "etc/b"), file("usr/lib/.wh.a")],
            [file("etc/.wh..wh..opq"), file("etc/d", os.urandom(200_000)), file("usr/e", b"")],
        )
        self._reference = publish(self._registry, *layers)
        self._full, self._torn, self._canary = folder / "cache", folder / "torn", folder / "canary"
        settings = Settings(cache=str(self._full), workers=2, keep_images=True)
        async with fastpull.Client(settings) as client:
            image = await client.resolve(self._reference)
            await client.pull(image, folder / "out")
            recipe = Recipe.of(settings.compression, settings.block_size)
            await client.ensure_squashfs(image, recipe, holder=Holder.here("1", "0"))
            await client.pull(image, folder / "out.sqsh")
        self._tree, self._squashfs = look(folder / "out"), (folder / "out.sqsh").read_bytes()
        self._registry.faults = [halves()]
        with pytest.raises(fastpull.errors.NotFound):
            async with fastpull.Client(Settings(cache=str(self._torn), workers=2)) as client:
                await client.pull(self._reference, folder / "none")
        self._registry.faults.clear()
        self._owner = subprocess.run(  # noqa: ASYNC221  # no other task runs yet
            [sys.executable, "-c", _DEAD], check=True, stdout=subprocess.PIPE
        ).stdout
        self._canary.mkdir()
        (self._canary / "file").write_bytes(b"canary")
        os.utime(self._canary / "file", (0, 0))
        self._untouched = look(self._canary)
        self._lease, locks.LEASE_SECONDS = locks.LEASE_SECONDS, 0.3

    async def close(self) -> None:
        locks.LEASE_SECONDS = self._lease
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        kind, cache = choose.choice(_KINDS), folder / "cache"
        is_torn = kind in ("journal", "lock")
        ignored = None if kind in ("image seal", "pin") else shutil.ignore_patterns("*.sqsh", "*.sqsh.seal")
        shutil.copytree(self._torn if is_torn else self._full, cache, ignore=ignored)
        path = self._pick_file(choose, kind, cache / "v1")
        how = self._forge(choose, kind, path)
        what = f"{kind}, {how}: {path.relative_to(cache)}"
        self.report.counts[f"{kind}, {how}"] += 1
        output = folder / ("out.sqsh" if kind == "image seal" else "out")
        try:
            await self._use(choose, cache, output)
        except Exception as error:
            error.add_note(what)
            raise
        found = look(self._canary)
        assert found == self._untouched, f"a file outside the cache changed: {what}"

    async def _use(self, choose: random.Random, cache: Path, output: Path) -> None:
        before = choose.random() < 0.5
        if before:
            self._maintain(cache)
        settings = Settings(cache=str(cache), workers=2, pull=choose.choice(["always", "missing"]))
        try:
            async with asyncio.timeout(_PULL_SECONDS), fastpull.Client(settings) as client:
                await client.pull(self._reference, output)
        except fastpull.errors.CacheError:
            self.report.counts["typed errors"] += 1
        else:
            self._check(output)
        if not before:
            self._maintain(cache)

    def _check(self, output: Path) -> None:
        if output.is_dir():
            found: dict[bytes, FoundEntry] = look(output)
            wrong = [path for path in {**found, **self._tree} if found.get(path) != self._tree.get(path)]
            assert not wrong, f"{len(wrong)} paths differ, such as {wrong[0]!r}"
        else:
            assert output.read_bytes() == self._squashfs, "the squashfs image differs"

    def _maintain(self, cache: Path) -> None:
        for arguments in (*_LISTINGS, ["cache", "verify"], ["cache", "gc", "--max-age", "365d"]):
            with contextlib.ExitStack() as stack:
                stack.enter_context(pytest.MonkeyPatch.context()).setenv("FASTPULL_CACHE", str(cache))
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
                main(arguments)

    def _pick_file(self, choose: random.Random, kind: str, store: Path) -> Path:
        if kind == "lock":
            partial = choose.choice(sorted(store.glob("partial/*/*/journal")))
            path = store / "locks" / f"sha256-{partial.parent.name}"
            path.write_bytes(self._owner)
            return path
        patterns = {
            "index": "index/*/*",
            "seal": "blobs/*/*.seal",
            "ref": "refs/*",
            "journal": "partial/*/*/journal",
            "pin": "pins/*",
            "image seal": "images/*/*.seal",
        }
        return choose.choice(sorted(path for path in store.glob(patterns[kind]) if path.is_file()))

    # --- forging

    def _forge(self, choose: random.Random, kind: str, path: Path) -> str:
        """Change a file, and return how."""
        make = {"index": _forged_index, "journal": _forged_journal}.get(kind, _forged_line)
        ways: dict[str, Callable[[], None]] = {
            "forged": lambda: _replace(path, make(choose, path.read_bytes())),
            "flipped": lambda: _replace(path, _flipped(choose, path.read_bytes())),
            "cut": lambda: _replace(path, path.read_bytes()[: choose.randrange(path.stat().st_size)]),
            "grown": lambda: _replace(path, path.read_bytes() + choose.randbytes(choose.choice([1, 31, 32, 5000]))),
            "not a file": lambda: self._replace_by_special(choose, path),
        }
        way = choose.choices(sorted(ways), [1, 1, 10, 1, 3])[0]
        ways[way]()
        return way

    def _replace_by_special(self, choose: random.Random, path: Path) -> None:
        path.unlink()

        def bind() -> None:
            with (
                socket.socket(socket.AF_UNIX) as made,
                contextlib.suppress(OSError),
            ):  # the path may be too long for a socket
                made.bind(str(path))

        def endless() -> None:
            path.write_bytes(b"")
            os.truncate(path, 1 << 40)

        specials: list[Callable[[], object]] = [
            lambda: os.mkfifo(path),
            path.mkdir,
            bind,
            endless,
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to(path.name),
            lambda: path.symlink_to(self._canary / "file"),
            lambda: path.symlink_to(self._canary),
            lambda: os.link(self._canary / "file", path),
        ]
        if os.geteuid() == 0:
            specials.append(lambda: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)))
        choose.choice(specials)()


def _replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def _flipped(choose: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def _forged_line(choose: random.Random, content: bytes) -> bytes:
    """Return a line of JSON with a hostile value and a correct fingerprint."""
    value = json.loads(content.partition(b"\n")[0])
    for _ in range(choose.choice([1, 1, 2])):
        value = _with_hostile_value(choose, value)
    text = json.dumps(value, default=lambda _: "TOO DEEP").replace('"TOO DEEP"', "[" * 100_000 + "]" * 100_000)
    first = text.encode() + b"\n"
    return first + xxhash.xxh3_64_hexdigest(first).encode() + b"\n"


def _with_hostile_value(choose: random.Random, value: Any) -> Any:
    """Return a copy of a JSON value with one part replaced."""
    if not isinstance(value, dict | list) or not value or choose.random() < 0.1:
        return choose.choice(_VALUES)
    key = choose.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
    changed = dict(value) if isinstance(value, dict) else list(value)
    if isinstance(changed, dict) and choose.random() < 0.15:
        del changed[key]
    elif isinstance(changed, dict) and choose.random() < 0.15:
        changed[choose.choice(["", "x", "path", "origin", "dialects"])] = choose.choice(_VALUES)
    else:
        changed[key] = _with_hostile_value(choose, value[key])
    return changed


def _forged_index(choose: random.Random, content: bytes) -> bytes:
    """Return an index with hostile columns or a hostile header and a correct fingerprint."""
    magic, head_line, body = content[:-8].split(b"\n", 2)
    head, at = json.loads(head_line), 0
    columns = list[bytearray]()
    for length in head["columns"]:
        columns.append(bytearray(body[at : at + length]))
        at += length
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        _corrupt(choose, head, columns)
    if choose.random() < 0.8:
        head["columns"] = list(map(len, columns))
    elif choose.random() < 0.5:
        head = _with_hostile_value(choose, head)
    text = json.dumps(head, default=lambda _: "TOO DEEP").replace('"TOO DEEP"', "[" * 100_000 + "]" * 100_000)
    made = b"\n".join((magic, text.encode(), b"".join(columns)))
    return made + xxhash.xxh3_64_digest(made)


def _corrupt(choose: random.Random, head: dict[str, Any], columns: list[bytearray]) -> None:
    filled = [column for column in columns if column]
    column = choose.choice(filled)
    match choose.randrange(6):
        case 0:
            column[choose.randrange(len(column))] ^= 1 << choose.randrange(8)
        case 1:  # an extreme number
            size = choose.choice([1, 2, 4, 8])
            at = choose.randrange(len(column) // size) * size if len(column) >= size else 0
            column[at : at + size] = choose.choice([b"\0", b"\xff", b"\x7f"]) * size
        case 2:  # a shorter column
            del column[choose.randrange(len(column)) :]
        case 3:
            column += choose.randbytes(choose.choice([1, 4, 8, 1000]))
        case 4:  # hostile names of the same length
            paths = columns[choose.choice([8, 10])]
            name = choose.choice([b"../", b"/", b"//", b"..", b"\0", b".wh.", b".wh..wh..opq", b"./", b"\xff\n"])
            at = choose.randrange(max(1, len(paths)))
            paths[at : at + len(name)] = name[: max(0, len(paths) - at)]
        case 5:
            records = choose.choice([(0, 1, 1), (1 << 31, 1, 1), (0, 1 << 31, 0), (0, 0, 1 << 32 - 1), (0, 0, 0)])
            columns[11] += struct.pack("=III", *(number & 0xFFFFFFFF for number in records)) + b"ab"


def _forged_journal(choose: random.Random, content: bytes) -> bytes:
    """Return a journal with hostile records and correct fingerprints."""
    records = parse_records(content, 1 << 62)
    hostile = (0, 1, RECORD_SIZE, 1 << 20, 1 << 31, 1 << 63, (1 << 64) - 1)
    for _ in range(choose.choice([1, 2, 5])):
        old = choose.choice(records)
        offset, length = choose.choice([old.offset, *hostile]), choose.choice([old.length, old.length ^ 1, *hostile])
        records.insert(
            choose.randrange(len(records) + 1),
            Record(offset, length, choose.choice([old.fingerprint, choose.getrandbits(64)])),
        )
    if choose.random() < 0.05:
        records *= 10_000
    return b"".join(record.to_bytes() for record in records)
