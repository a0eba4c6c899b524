"""Certificates for single hosts: the ``certs.d`` directories of Docker and of podman, skopeo and their kin.

Spec: containers-certs.d(5); Docker's manual, "Verify repository client with certificates".
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import NoReturn

from fastpull.config import paths
from fastpull.errors import InvalidSetting
from fastpull.oci.reference import DOCKER_HUB


@dataclass(frozen=True, slots=True)
class Certificates:
    """What one host is to be believed by, and what it is to believe this client by.

    Attributes:
        authorities: files of CA certificates (``*.crt``), believed besides the system's.
        clients: pairs of a certificate (``*.cert``) and its key (``*.key``).
    """

    authorities: tuple[str, ...] = ()
    clients: tuple[tuple[str, str], ...] = ()

    @classmethod
    def in_directory(cls, path: str) -> Certificates | None:
        """Reads the names in a directory; None if it is not there.

        Raises:
            InvalidSetting: it cannot be read, or a certificate or key stands alone.
        """
        if not os.path.isdir(path):  # nor is it in a home that one may not enter
            return None
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise InvalidSetting(path, f"cannot read the certificates ({error.strerror})") from None
        clients = []
        for name in names:
            base, suffix = os.path.splitext(name)
            other = {".cert": ".key", ".key": ".cert"}.get(suffix)
            if other is not None and base + other not in names:
                raise InvalidSetting(os.path.join(path, name), f"has no {base + other} beside it; they go together")
            if suffix == ".cert":
                clients.append((os.path.join(path, name), os.path.join(path, base + other if other else "")))
        return cls(tuple(os.path.join(path, name) for name in names if name.endswith(".crt")), tuple(clients))

    def context(self, *, verify: bool) -> ssl.SSLContext | bool:
        """A TLS context with them, or that which aiohttp has anyway: making one takes 25 ms.

        Args:
            verify: whether the host's certificate has to be vouched for.

        Raises:
            InvalidSetting: a file holds no certificate or key, or they do not fit, with its path.
        """
        is_usual = verify and not (self.authorities or self.clients or _ENVIRONMENT & os.environ.keys())
        if is_usual:
            return True
        tls = ssl.create_default_context()
        for path in self.authorities:
            try:
                tls.load_verify_locations(path)
            except (OSError, ValueError) as error:  # ssl's are OSErrors
                raise InvalidSetting(path, f"not a CA certificate in PEM ({_reason(error)})") from None
        for certificate, key in self.clients:
            try:
                tls.load_cert_chain(certificate, key, password=_no_password)
            except (OSError, ValueError) as error:
                reason = f"not a client certificate with its key {key!r} ({_reason(error)})"
                raise InvalidSetting(certificate, reason) from None
        if not verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        return tls


_ENVIRONMENT = {"SSL_CERT_FILE", "SSL_CERT_DIR"}  # aiohttp has read them when it was loaded, which may be long ago


def find_certificates(host: str) -> Certificates | None:
    """Looks a ``host[:port]`` up in the usual places; the first directory that is there is the one.

    They are ``~/.config/containers/certs.d``, ``~/.config/docker/certs.d``, ``/etc/containers/certs.d`` and
    ``/etc/docker/certs.d``.

    Raises:
        InvalidSetting: as `Certificates.in_directory`.
    """
    names = [host] if ":" in host.rpartition("]")[2] else [host, f"{host}:443"]
    if host == "registry-1.docker.io":
        names.append(DOCKER_HUB)
    users, systems = zip(*(paths.folders(family, os.environ) for family in ("containers", "docker")), strict=True)
    for folder in users + systems:
        for name in names:
            found = Certificates.in_directory(os.path.join(folder, "certs.d", name))
            if found is not None:
                return found
    return None


def _no_password() -> NoReturn:
    raise ValueError("the key has a password, which nobody can be asked for")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
