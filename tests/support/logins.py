"""Auth files, credential helpers and certificates of test users."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

SECRET = "hunter2-%s"


def encoded(username: str, password: str) -> str:
    """Return an ``auth`` value."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def login(username: str, password: str = "secret") -> dict[str, str]:
    """Return an entry of ``auths``."""
    return {"auth": encoded(username, password)}


def write(path: Path, content: object) -> Path:
    """Write a text or JSON file and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return path


def helper(folder: Path, name: str, script: str) -> Path:
    """Write the shell script ``docker-credential-NAME`` into a directory of PATH."""
    path = write(folder / f"docker-credential-{name}", f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def answering(**servers: tuple[str, str]) -> str:
    """Return the script of a helper that knows these servers, and records its calls in ``$0.calls``."""
    cases = "".join(
        f"""*{server}*) echo '{json.dumps({"ServerURL": server, "Username": user, "Secret": secret})}' ;;\n"""
        for server, (user, secret) in servers.items()
    )
    return f"""echo "$1" >> "$0.calls"
read -r server
case "$server" in
{cases}*) echo "credentials not found in native keychain"; exit 1 ;;
esac"""


class Authority:
    """A certificate authority for tests.

    Args:
        folder: the directory for ``ca.crt`` and all issued certificates.
    """

    def __init__(self, folder: Path, name: str = "test") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.crt", "-subj", f"/CN=CA {name}")

    def issue(self, name: str, *subjects: str) -> tuple[Path, Path]:
        """Issue ``NAME.cert`` and ``NAME.key`` for subjects such as ``IP:127.0.0.1``."""
        request = f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr"
        self._openssl(request, "-subj", f"/CN={name}")
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(subjects or ['DNS:client'])}\n")
        self._openssl(
            f"x509 -req -days 2 -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {name}.cert "
            f"-extfile {name}.ext"
        )
        return self.folder / f"{name}.cert", self.folder / f"{name}.key"

    def _openssl(self, command: str, *more: str) -> None:
        subprocess.run(["openssl", *command.split(), *more], cwd=self.folder, check=True, capture_output=True)


def files_below(folder: Path) -> dict[str, Any]:
    """Return the contents of all files below a directory, without following symbolic links."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found
