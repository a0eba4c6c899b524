"""Real services that tests start, each on a port of 127.0.0.1 and with a certificate of the test's own CA."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.registry import Certificate, running
from tests.support.logins import Authority


@contextlib.contextmanager
def docker_registry(folder: Path, authority: Authority, username: str, password: str) -> Iterator[str]:
    """Debian's docker-registry with htpasswd and TLS; gives its address."""
    folder.mkdir()
    hashed = subprocess.run(["htpasswd", "-niB", username], input=password.encode(), check=True, capture_output=True)
    (folder / "htpasswd").write_bytes(hashed.stdout)
    certificate = Certificate(str(authority.folder / "server.cert"), str(authority.folder / "server.key"))
    with running(str(folder), certificate, str(folder / "htpasswd")) as address:
        yield address


@contextlib.contextmanager
def nginx(folder: Path, authority: Authority, root: Path) -> Iterator[str]:
    """Debian's nginx as a store of blobs over TLS: files below ``root``, with ranges; every request is logged whole."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
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
    with open(folder / "log", "wb") as log:
        command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(1000):
            assert process.poll() is None, (folder / "errors").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
