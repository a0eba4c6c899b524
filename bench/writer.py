"""The squashfs writer alone: ``python -m bench.writer IMAGE TAR...``, as a separate process.

The layers are plain tars, from the base to the top. They are scanned, merged and written as in a pull, with one thread
for each layer and one core for each thread. Nothing is fetched, hashed or inflated.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastpull.config.cpu import available_cores
from fastpull.layers.merge import merge
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.pipeline.layer import CHUNK
from fastpull.sinks.base import Resources
from fastpull.sinks.squashfs.sink import Squashfs

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex

_UNKNOWN = Digest("sha256", hashlib.sha256(b"unused").hexdigest())


def write_image(image: str, tars: list[str]) -> None:
    """Write the image, with the largest layers first."""
    sink, cores = Squashfs(image), available_cores()
    by_size = sorted(range(len(tars)), key=lambda number: -os.path.getsize(tars[number]))
    sink.begin(Resources(cores, min(cores, len(tars))))
    with ThreadPoolExecutor(cores) as threads:
        futures = {
            number: threads.submit(_write_layer, sink, number, rank, tars[number])
            for rank, number in enumerate(by_size)
        }
    sink.commit(merge([futures[number].result() for number in range(len(tars))]))


def _write_layer(sink: Squashfs, number: int, rank: int, path: str) -> LayerIndex:
    scanner, size = LayerScanner(path), 0
    writer = sink.layer(number, rank, scanner.entries, None)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            writer.write(chunk, scanner.feed(chunk))
            size += len(chunk)
    scanner.finish()
    writer.finish()
    writer.close()
    return scanner.index(_UNKNOWN, _UNKNOWN, size)


if __name__ == "__main__":
    write_image(sys.argv[1], sys.argv[2:])
