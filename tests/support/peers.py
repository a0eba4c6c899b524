"""Real programs: Debian's registry, skopeo and umoci."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def docker_registry(root: Path) -> Iterator[str]:
    """Runs Debian's docker-registry on loopback with its storage below ``root``; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = root / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {root}/registry}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    with (root / "registry.log").open("wb") as log:
        server = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log, env=environment)
    try:
        wait_for(address)
        yield address
    finally:
        server.terminate()
        server.wait(10)


def wait_for(address: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(address)


def skopeo(*arguments: str | Path) -> None:
    subprocess.run(["skopeo", "--insecure-policy", *arguments], check=True, stdout=subprocess.DEVNULL)


def umoci_unpack(layout: Path, tag: str, bundle: Path) -> Path:
    """Unpacks with umoci, and returns the root filesystem."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle], check=True, stdout=subprocess.DEVNULL)
    return bundle / "rootfs"
