"""Processor time of each stage of a job: ``python -m bench.stages``, a separate process with one thread.

The layers pass through the libraries that fastpull uses, chunk by chunk as in a pull, so that processor caches are as
warm and pages as cold as in a pull. Nothing waits and nothing is coordinated. A plain socket receives the blobs.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import sys
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from zstandard import ZstdCompressor

from bench.clock import Clock
from bench.limits import LimitStage, LimitWork
from fastpull.layers.decompress import inflate
from fastpull.native import FileWriter, Spans
from fastpull.native.layer_scanner import LayerScanner
from fastpull.pipeline.layer import CHUNK
from fastpull.sinks.directory.ownership import Ownership
from tests.support.images.layouts import Layout
from tests.support.programs import run
from tests.support.setup_errors import SetupError

_BLOCK = 128 << 10
_RECEIVED = 256 << 10
_BATCH = 1 << 20  # bytes of an image written with one system call
_NEED_TAR = {
    LimitStage.INFLATE,
    LimitStage.HASH_TAR,
    LimitStage.SCAN,
    LimitStage.FILES,
    LimitStage.COMPRESS,
    LimitStage.BLOCKS,
}


class _StageBlob(io.RawIOBase):
    """A blob that is read, and hashed and stored where these stages are wanted."""

    def __init__(self, path: str, copy: str | None, wanted: set[LimitStage], clock: Clock) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  # `close` closes it
        self._copy = open(copy, "xb", buffering=0) if copy is not None else None  # noqa: SIM115  # `close` closes it
        self._hash = hashlib.sha256() if LimitStage.HASH_BLOB in wanted else None
        self._clock = clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what every caller passes
        with self._clock.running(LimitStage.READ):
            size = self._file.readinto(buffer)
        if self._hash is not None:
            with self._clock.running(LimitStage.HASH_BLOB):
                self._hash.update(buffer[:size])
        if self._copy is not None:
            with self._clock.running(LimitStage.STORE):
                self._copy.write(buffer[:size])
        return size

    def close(self) -> None:
        self._file.close()
        if self._copy is not None:
            self._copy.close()
        super().close()


class _Image:
    """A file of image blocks, compressed where that stage is wanted."""

    def __init__(self, path: str, wanted: set[LimitStage], clock: Clock) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._compressor = ZstdCompressor(level=1) if LimitStage.COMPRESS in wanted else None
        self._clock = clock
        self._payload = bytearray()
        self._blocks: list[bytes] = []

    def add(self, chunk: bytes, spans: Spans) -> None:
        view = memoryview(chunk)
        for _, start, length, _, _ in (spans[number] for number in range(len(spans))):
            self._payload += view[start : start + length]
        while len(self._payload) >= _BLOCK:
            self._take(_BLOCK)

    def finish(self) -> None:
        if self._payload:
            self._take(len(self._payload))
        self._write()
        os.close(self._fd)

    def _take(self, size: int) -> None:
        block = bytes(self._payload[:size])
        del self._payload[:size]
        if self._compressor is not None:
            with self._clock.running(LimitStage.COMPRESS):
                block = self._compressor.compress(block)
        self._blocks.append(block)
        if sum(map(len, self._blocks)) >= _BATCH:
            self._write()

    def _write(self) -> None:
        content = b"".join(self._blocks)
        self._blocks.clear()
        with self._clock.running(LimitStage.BLOCKS):
            os.write(self._fd, content)


class _Files:
    """The files of all layers in one tree, written like those of the directory sink during streaming."""

    def __init__(self, folder: str) -> None:
        for name in ("root", "spool"):
            os.mkdir(os.path.join(folder, name))
        self._root, self._spool = (os.open(os.path.join(folder, name), os.O_RDONLY) for name in ("root", "spool"))

    def writer(self, scanner: LayerScanner, layer: int) -> FileWriter:
        policy = Ownership.named("keep" if os.geteuid() == 0 else "me")
        return FileWriter(
            scanner.entries, self._root, self._spool, layer, policy.keep, policy.file_mode_and, policy.file_mode_or
        )


class _Pass:
    """One pass of an image's layers through the stages.

    Args:
        folder: an empty folder for all files.
        wanted: stages to measure.
    """

    def __init__(self, folder: str, wanted: set[LimitStage]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._clock = Clock()
        self._files = _Files(folder) if LimitStage.FILES in wanted else None
        image = os.path.join(folder, "image")
        self._image = _Image(image, wanted, self._clock) if LimitStage.BLOCKS in wanted else None
        self.tar_bytes = 0
        self.entries = 0

    def layer(self, number: int, path: str, url: str) -> dict[LimitStage, float]:
        """Process a layer, and return the seconds of each stage."""
        self._clock.seconds.clear()
        if LimitStage.RECEIVE in self._wanted:
            _receive(url, self._clock)
        copy = os.path.join(self._folder, f"blob-{number}") if LimitStage.STORE in self._wanted else None
        with _StageBlob(path, copy, self._wanted, self._clock) as blob:
            if self._wanted & _NEED_TAR:
                self._unpack(blob, number)
            else:
                buffer = memoryview(bytearray(_BLOCK))
                while blob.readinto(buffer):
                    pass
        return dict(self._clock.seconds)

    def finish(self) -> float:
        """Write the rest of the image, and return the seconds it took."""
        self._clock.seconds.clear()
        if self._image is not None:
            self._image.finish()
        return sum(self._clock.seconds.values())

    def _unpack(self, blob: _StageBlob, number: int) -> None:
        hasher, scanner, clock = hashlib.sha256(), LayerScanner("layer"), self._clock
        writer = self._files.writer(scanner, number) if self._files is not None else None
        stream = inflate(blob, "layer")
        while True:
            with clock.running(LimitStage.INFLATE):
                chunk = stream.read(CHUNK)
            if not chunk:
                break
            self.tar_bytes += len(chunk)
            with clock.running(LimitStage.HASH_TAR):
                hasher.update(chunk)
            with clock.running(LimitStage.SCAN):
                spans = scanner.feed(chunk)
            if writer is not None:
                with clock.running(LimitStage.FILES):
                    code = writer.write(chunk, spans)
                if code:
                    raise SetupError(f"cannot write files to {self._folder} (error {code})")
            if self._image is not None:
                self._image.add(chunk, spans)
        self.entries += len(scanner.entries)
        if writer is not None:
            with clock.running(LimitStage.FILES):
                writer.close()


def measure_stages(layout: Layout, repository: str, folder: str, wanted: Collection[LimitStage]) -> LimitWork:
    """Measure the stages of an image in a separate process.

    Args:
        layout: layout of the image.
        repository: URL of a repository with the same blobs, ``http://HOST:PORT/v2/NAME``; for `LimitStage.RECEIVE`
            only.
        folder: an empty folder for all files.
        wanted: stages to measure.

    Raises:
        ProgramFailed: The process failed.
    """
    command = [sys.executable, "-m", "bench.stages", layout.path, layout.tag, repository, folder, ",".join(wanted)]
    result: dict[str, Any] = json.loads(run(command))
    seconds = {LimitStage(name): tuple(values) for name, values in result.pop("seconds").items()}
    return LimitWork(seconds, **result)


def main() -> int:
    """Measure, and print the result as JSON; the arguments are those of `measure_stages`."""
    path, tag, repository, folder, names = sys.argv[1:]
    wanted = set(map(LimitStage, names.split(",")))
    layout = Layout("", path, tag)
    layers = layout.facts()["layers"]
    passing = _Pass(folder, wanted)
    taken = []
    for number, (blob, layer) in enumerate(zip(layout.blobs(), layers, strict=True)):
        taken.append(passing.layer(number, blob, f"{repository}/blobs/{layer['digest']}"))
    rest = passing.finish()
    seconds = {stage: [layer.get(stage, 0.0) for layer in taken] for stage in wanted}
    if rest and LimitStage.BLOCKS in wanted:
        seconds[LimitStage.BLOCKS][-1] += rest
    work = LimitWork(seconds, sum(layer["size"] for layer in layers), passing.tar_bytes, passing.entries)
    json.dump(asdict(work), sys.stdout)
    return 0


def _receive(url: str, clock: Clock) -> None:
    """Receive a blob and discard it."""
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address)
    buffer = bytearray(_RECEIVED)
    with clock.running(LimitStage.RECEIVE):
        connection.request("GET", f"/{path}")
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                raise SetupError(f"got status {response.status}, expected 200 for: {url}")
            while response.readinto(buffer):
                pass
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
