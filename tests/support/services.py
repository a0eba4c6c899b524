"""Real services that tests start, each on a port of 127.0.0.1 and with a certificate of the test's own CA."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.logins import Authority


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: list[str], port: int, log: Path, **environment: str) -> Iterator[None]:
    """Runs a service until the context ends; it is there once its port answers."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        for _ in range(1000):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def docker_registry(folder: Path, authority: Authority, username: str, password: str) -> Iterator[str]:
    """Debian's docker-registry with htpasswd and TLS; gives its address."""
    folder.mkdir()
    port = free_port()
    hashed = subprocess.run(
        ["htpasswd", "-niB", username], input=password.encode(), check=True, stdout=subprocess.PIPE
    ).stdout
    (folder / "htpasswd").write_bytes(hashed)
    tls = {"certificate": str(authority.folder / "server.cert"), "key": str(authority.folder / "server.key")}
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "tls": tls},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    with started(command, port, folder / "log", OTEL_TRACES_EXPORTER="none"):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def nginx(folder: Path, authority: Authority, root: Path) -> Iterator[str]:
    """Debian's nginx as a store of blobs over TLS: files below ``root``, with ranges; every request is logged whole."""
    folder.mkdir()
    port = free_port()
    form = "$request|$http_authorization|$http_cookie|$http_range|$status"
    (folder / "nginx.conf").write_text(
        f"""daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1;
        events {{}}
        http {{
            log_format all '{form}'; access_log {folder}/requests all;
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            server {{
                listen 127.0.0.1:{port} ssl;
                ssl_certificate {authority.folder}/server.cert; ssl_certificate_key {authority.folder}/server.key;
                root {root};
            }}
        }}"""
    )
    if os.geteuid() == 0:
        for path in (root, *root.parents):
            if path.stat().st_uid == 0 and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o011)  # its workers are nobody's
    with started(["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")], port, folder / "log"):
        yield f"127.0.0.1:{port}"
