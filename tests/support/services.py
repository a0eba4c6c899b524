"""Services that tests start on ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.docker_registry import Certificate, running
from tests.support.logins import Authority


@contextlib.contextmanager
def docker_registry(folder: Path, authority: Authority, username: str, password: str) -> Iterator[str]:
    """Run Debian's docker-registry with htpasswd and TLS, and yield its address."""
    folder.mkdir()
    hashed = subprocess.run(["htpasswd", "-niB", username], input=password.encode(), check=True, capture_output=True)
    (folder / "htpasswd").write_bytes(hashed.stdout)
    certificate = Certificate(str(authority.folder / "server.cert"), str(authority.folder / "server.key"))
    with running(str(folder), certificate, htpasswd=str(folder / "htpasswd")) as address:
        yield address


@contextlib.contextmanager
def nginx(folder: Path, address: str, servers: str) -> Iterator[Path]:
    """Run Debian's nginx, and wait until it listens.

    Args:
        folder: folder to create for its files.
        address: address of one of its servers.
        servers: ``server`` blocks of its configuration.

    Yields:
        The path of its log, with a line for each request: ``REQUEST|AUTHORIZATION|COOKIE|RANGE|STATUS``.
    """
    folder.mkdir()
    log = folder / "requests"
    form = "$request|$http_authorization|$http_cookie|$http_range|$status"
    kept = " ".join(f"{one}_temp_path {folder}/{one};" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"""{"user root;" if os.geteuid() == 0 else ""}
        daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1;
        events {{}}
        http {{ log_format all '{form}'; access_log {log} all; {kept} {servers} }}"""
    )
    with open(folder / "log", "wb") as output:
        command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        host, _, port = address.partition(":")
        for _ in range(1000):
            assert process.poll() is None, (folder / "errors").read_text()
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                break
            time.sleep(0.01)
        else:
            raise AssertionError("nginx does not respond")
        yield log
    finally:
        process.terminate()
        process.wait(10)
