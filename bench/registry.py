"""A registry to pull from: Debian's docker-registry, on loopback, for as long as it is needed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.errors import BenchError, ProgramFailed
from bench.programs import require, run

if TYPE_CHECKING:
    from bench.layouts import Layout

_START_SECONDS = 20
_STOP_SECONDS = 10


@contextlib.contextmanager
def serving(layout: Layout, folder: str) -> Iterator[str]:
    """Serves one image, and stops the registry at the end.

    Args:
        layout: the image.
        folder: for the registry's storage and log; exists.

    Yields:
        The image's reference, without a scheme.

    Raises:
        BenchError: the registry does not start, or does not take the image.
    """
    require(("docker-registry", "skopeo"))
    with running(folder) as address:
        reference = f"{address}/bench/image:{layout.tag}"
        copy = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false"]
        run([*copy, str(layout), f"docker://{reference}"])
        yield reference


@contextlib.contextmanager
def running(folder: str) -> Iterator[str]:
    """Runs an empty registry, and stops it at the end.

    Args:
        folder: for its storage and log; exists.

    Yields:
        Its address.

    Raises:
        BenchError: it does not start.
    """
    address = f"127.0.0.1:{_free_port()}"
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": os.path.join(folder, "registry")}},
        "http": {"addr": address},
        "log": {"level": "error", "accesslog": {"disabled": True}},
    }
    settings_path, log_path = os.path.join(folder, "registry.yml"), os.path.join(folder, "registry.log")
    with open(settings_path, "w", encoding="utf-8") as file:
        json.dump(settings, file)  # which is YAML, too
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", settings_path], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_for(process, address, log_path)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], address: str, log_path: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            with open(log_path, encoding="utf-8", errors="backslashreplace") as log:
                raise ProgramFailed("docker-registry", process.returncode, log.read())
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            opener.open(f"http://{address}/v2/", timeout=1).close()
            return
        time.sleep(0.05)
    raise BenchError(f"docker-registry did not answer at {address} within {_START_SECONDS} s")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
