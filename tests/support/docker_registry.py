"""Debian's docker-registry as a process on a loopback address."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.programs import require, run
from tests.support.setup_errors import ProgramFailed, SetupError

if TYPE_CHECKING:
    from tests.support.images.layouts import Layout

REPOSITORY = "bench/image"

_START_SECONDS = 20
_STOP_SECONDS = 10


@contextlib.contextmanager
def serving(layout: Layout, folder: str) -> Iterator[str]:
    """Serve one image, and stop the registry at the end.

    Args:
        layout: the image.
        folder: an existing folder for the registry's storage and log.

    Yields:
        The image's reference, without a scheme.

    Raises:
        SetupError: The registry does not start, or rejects the image.
    """
    with running(folder) as address:
        push(layout, address)
        yield reference_at(address, layout)


def push(layout: Layout, address: str) -> None:
    """Copy an image to a registry.

    Raises:
        SetupError: skopeo is missing, or the registry rejects the image.
    """
    require(("skopeo",))
    copy = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false"]
    run([*copy, str(layout), f"docker://{reference_at(address, layout)}"])


def reference_at(address: str, layout: Layout) -> str:
    """Return the reference of an image in the registry at an address."""
    return f"{address}/{REPOSITORY}:{layout.tag}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a registry with TLS.

    Attributes:
        path: the path of the certificate, self-signed for the loopback address.
        key_path: the path of its private key.
    """

    path: str
    key_path: str

    @classmethod
    def make(cls, folder: str) -> Certificate:
        """Create a certificate in a folder.

        Raises:
            ProgramFailed: openssl failed.
        """
        made = cls(os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem"))
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=bench -addext subjectAltName=IP:127.0.0.1"
        )
        run([*command.split(), "-keyout", made.key_path, "-out", made.path])
        return made


@contextlib.contextmanager
def running(
    folder: str, certificate: Certificate | None = None, *, upstream: str = "", htpasswd: str = ""
) -> Iterator[str]:
    """Run a registry on the storage in a folder, and stop it at the end.

    Args:
        folder: an existing folder for its storage and log. Several registries may share one.
        certificate: for TLS; without one the registry speaks http.
        upstream: URL of a running registry, to be its pull-through cache.
        htpasswd: a file of permitted users; without one all requests are permitted.

    Yields:
        Its address.

    Raises:
        SetupError: The registry does not start.
    """
    require(("docker-registry",))
    address = f"127.0.0.1:{free_port()}"
    tls = {"tls": {"certificate": certificate.path, "key": certificate.key_path}} if certificate else {}
    settings: dict[str, Any] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": os.path.join(folder, "registry")}},
        "http": {"addr": address, **tls},
        "log": {"level": "error", "accesslog": {"disabled": True}},
    }
    if upstream:
        settings["proxy"] = {"remoteurl": upstream}
    if htpasswd:
        settings["auth"] = {"htpasswd": {"realm": "test", "path": htpasswd}}
    name = os.path.join(folder, "registry-tls" if certificate else "registry")
    settings_path, log_path = f"{name}.yml", f"{name}.log"
    with open(settings_path, "w", encoding="utf-8") as file:
        json.dump(settings, file)  # JSON is YAML
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", settings_path], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    with _stopped(process):
        _wait_for(process, address, log_path)
        yield address


@contextlib.contextmanager
def slowed(address: str, delay: float, rate: float) -> Iterator[str]:
    """Run a proxy with a slow link in front of a registry, and stop it at the end.

    Args:
        address: address of the registry.
        delay: delay of its responses, in seconds.
        rate: bytes per second of each connection.

    Yields:
        The proxy's address.

    Raises:
        SetupError: The proxy does not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.slow_link", address, str(delay), str(rate)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with _stopped(process):
        assert process.stdout is not None
        with process.stdout:
            answer = process.stdout.readline().strip()
            if not answer:
                raise SetupError("the proxy for the slow link did not start")
            yield answer


@contextlib.contextmanager
def _stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], address: str, log_path: str) -> None:
    host, _, port = address.partition(":")
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            with open(log_path, encoding="utf-8", errors="backslashreplace") as log:
                raise ProgramFailed("docker-registry", process.returncode, log.read())
        with contextlib.suppress(ConnectionError, TimeoutError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        time.sleep(0.05)
    raise SetupError(f"docker-registry did not answer at {address} within {_START_SECONDS} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
