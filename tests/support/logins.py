"""What users have: files of logins, helper programs, certificates."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

SECRET = "hunter2-%s"


def encoded(username: str, password: str) -> str:
    """An ``auth`` value."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def login(username: str, password: str = "secret") -> dict[str, str]:
    """An entry of ``auths``."""
    return {"auth": encoded(username, password)}


def write(path: Path, content: object) -> Path:
    """Writes a file of text, or of JSON, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return path


def helper(folder: Path, name: str, script: str) -> Path:
    """Writes ``docker-credential-NAME``, a shell script; its folder goes into PATH."""
    path = write(folder / f"docker-credential-{name}", f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def answering(**servers: tuple[str, str]) -> str:
    """A helper's script that knows some servers, by name without dots; it counts its calls in ``$0.calls``."""
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
    """A CA of the test's own.

    Args:
        folder: gets ``ca.crt`` and all that is signed.
    """

    def __init__(self, folder: Path, name: str = "test") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.crt", "-subj", f"/CN=CA {name}")

    def issue(self, name: str, *subjects: str) -> tuple[Path, Path]:
        """A certificate and its key, as ``NAME.cert`` and ``NAME.key``; subjects such as ``IP:127.0.0.1``."""
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
    """The content of every file, links not followed."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found
