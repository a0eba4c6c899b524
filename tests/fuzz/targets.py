"""The fuzz targets: how each runs an input, and its properties."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastpull.errors import FastpullError
from fastpull.oci.digest import Digest
from fastpull.oci.manifest import Manifest, parse_manifest
from fastpull.oci.reference import Reference
from fastpull.registry.download.ranges import ContentRange
from tests.support.engines import NATIVE, REFERENCE, Engine

_BLOCK = 4096
_MAX_CONTENT = 1 << 20
_PIECES = 24  # limit of chunks for an input, at most doubled; thousands of chunks would dominate the time


@dataclass(frozen=True)
class FuzzTarget:
    """A fuzz target.

    Attributes:
        name: name on the command line.
        check: function that runs an input, and raises AssertionError if a property fails.
        probe: faster function without a comparison, for inputs that reach no new code.
        traced: files of fastpull with line coverage; empty for coverage of the native extension.
    """

    name: str
    check: Callable[[bytes], None]
    probe: Callable[[bytes], None]
    traced: tuple[str, ...] = ()


# --- the native extension, with the Python reference as oracle


def check_archive(data: bytes) -> None:
    """Scan and store an archive with both engines in chunks of any size, and compare the results."""
    choose = random.Random(zlib.crc32(data))
    wanted = choose.choice((None, bytearray(choose.choice((0, 1)) for _ in range(4))))
    apart = choose.random() < 0.5
    ours = _store(NATIVE, _pieces(data, choose), wanted, apart)
    theirs = _store(REFERENCE, [data] if data else [], wanted, apart)
    assert ours == theirs, f"native: {ours}\nreference: {theirs}"


def probe_archive(data: bytes) -> None:
    """Scan and cut an archive with the native engine, only for the sanitizers."""
    choose, buffer = random.Random(zlib.crc32(data)), bytearray(2 * _BLOCK)
    scanner = NATIVE.scanner(_MAX_CONTENT)
    cutter = NATIVE.cutter(scanner.entries, _BLOCK, choose.random() < 0.5, buffer)
    for piece in _pieces(data, choose):
        if scanner.feed(piece):
            break
        while cutter.cut(piece, scanner.spans):
            cutter.take(bytearray(2 * _BLOCK))
        cutter.take_tails()
    if scanner.finish() == 0:
        scanner.entries.columns()
        cutter.firsts_bytes()


def _pieces(data: bytes, choose: random.Random) -> list[Any]:
    """Cut the input into chunks, each in its own allocation, so that a sanitizer detects reads past its end."""
    largest, at, found = max(choose.choice((7, 100, 512, 513, 2000, 1 << 16)), len(data) // _PIECES), 0, []
    while at < len(data):
        size = 1 + int(choose.random() * largest)
        found.append(array("B", data[at : at + size]))
        at += size
    return found


def _store(engine: Engine, pieces: Sequence[Any], wanted: bytearray | None, apart: bool) -> tuple[Any, ...]:
    folder = tempfile.mkdtemp(prefix="fastpull-fuzz-", dir="/dev/shm")
    spool = os.memfd_create("spool")
    root, aside = _directory(folder, "root"), _directory(folder, "aside")
    scanner, buffer = engine.scanner(_MAX_CONTENT), bytearray(2 * _BLOCK)
    payload = engine.payload(scanner.entries, spool, wanted)
    cutter = engine.cutter(scanner.entries, _BLOCK, apart, buffer, wanted)
    files = engine.writer(scanner.entries, root, aside, 0, False, 0o777, 0o600, wanted)
    blocks, tails, fault = list[bytes](), (bytearray(), bytearray(), bytearray()), 0

    def take() -> None:
        nonlocal buffer
        full, buffer = buffer, bytearray(2 * _BLOCK)
        at = 0
        for length in array("I", cutter.take(buffer)):
            blocks.append(bytes(full[at : at + length]))
            at += length

    try:
        for piece in pieces:
            fault = scanner.feed(piece)
            if fault:
                break
            assert payload.write(piece, scanner.spans) == 0
            assert files.write(piece, scanner.spans) == 0
            while code := cutter.cut(piece, scanner.spans):
                assert code == 1
                take()
            for whole, part in zip(tails, cutter.take_tails(), strict=True):
                whole.extend(part)
        fault = fault or scanner.finish()
        take()
        if fault:
            return (fault, scanner.culprit)
        columns, size = scanner.entries.columns(), os.fstat(spool).st_size
        return (
            columns,
            scanner.content,
            (os.pread(spool, size, 0), payload.starts_bytes(), payload.holes_bytes()),
            (blocks, cutter.firsts_bytes(), tails),
            files.places(),
        )
    finally:
        files.close()
        for descriptor in (root, aside, spool):
            os.close(descriptor)
        shutil.rmtree(folder)


def _directory(folder: str, name: str) -> int:
    os.mkdir(os.path.join(folder, name))
    return os.open(os.path.join(folder, name), os.O_RDONLY | os.O_DIRECTORY)


# --- parsers of input from users and registries


def check_reference(data: bytes) -> None:
    """Check that a reference round-trips through its text, or gives a typed error."""
    with contextlib.suppress(FastpullError):
        found = Reference.parse(data.decode(errors="surrogateescape"))
        assert Reference.parse(str(found)) == found
        asked = found.host + found.repository + found.version
        assert asked.isascii(), "the request is ASCII"
        assert not set(asked) & set(" \r\n\t\\?#%"), "the request has no URL metacharacters"


def check_manifest(data: bytes) -> None:
    """Check that a manifest is unambiguous JSON with valid sizes and digests, or gives a typed error."""
    body, _, content_type = data.partition(b"\0")
    try:
        found = parse_manifest(body, content_type.decode(errors="replace") or None, "input")
    except FastpullError:
        return

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs), "a duplicate key is accepted"
        return dict(pairs)

    document = json.loads(body, object_pairs_hook=once)
    assert document["schemaVersion"] == 2
    assert not ("layers" in document and "manifests" in document)
    if isinstance(found, Manifest):
        described = [found.config, *found.layers]
        assert len(found.layers) == len(document["layers"])
    else:
        described = list(found.manifests)
        assert len(found.manifests) == len(document["manifests"])
    assert all(one.size >= 0 and one.digest == Digest.parse(str(one.digest)) for one in described)


def check_content_range(data: bytes) -> None:
    """Check that a range lies within its total and matches its header, or is None."""
    text = data.decode("latin-1")
    found = ContentRange.parse(text)
    if found is not None:
        assert 0 <= found.start < found.stop
        assert found.total is None or found.stop <= found.total
        total = "*" if found.total is None else str(found.total)
        plain = text.strip().removeprefix("bytes ").replace("-", "/").split("/")
        assert [part if part == "*" else str(int(part)) for part in plain] == [
            str(found.start),
            str(found.stop - 1),
            total,
        ]


TARGETS = {
    target.name: target
    for target in (
        FuzzTarget("archive", check_archive, probe_archive),
        FuzzTarget("reference", check_reference, check_reference, ("oci/reference.py", "oci/digest.py")),
        FuzzTarget(
            "manifest",
            check_manifest,
            check_manifest,
            ("oci/manifest.py", "oci/json.py", "oci/descriptor.py", "oci/digest.py", "oci/platform.py"),
        ),
        FuzzTarget("content-range", check_content_range, check_content_range, ("registry/download/ranges.py",)),
    )
}
