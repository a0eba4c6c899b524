"""TLS certificates for single hosts: the ``certs.d`` directories of Docker, podman and skopeo.

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
    """The CA and client certificates for one host.

    Attributes:
        authorities: paths of CA certificates (``*.crt``), trusted in addition to the system's.
        clients: pairs of a client certificate (``*.cert``) and its key (``*.key``).
    """

    authorities: tuple[str, ...] = ()
    clients: tuple[tuple[str, str], ...] = ()

    @classmethod
    def in_directory(cls, path: str) -> Certificates | None:
        """List the certificates of a directory; None if the directory does not exist.

        Raises:
            InvalidSetting: the directory is unreadable, or a certificate or key lacks its counterpart.
        """
        if not os.path.isdir(path):  # also false below a home directory without access
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
                raise InvalidSetting(os.path.join(path, name), f"has no {base + other} beside it; both are needed")
            if suffix == ".cert":
                clients.append((os.path.join(path, name), os.path.join(path, base + other if other else "")))
        return cls(tuple(os.path.join(path, name) for name in names if name.endswith(".crt")), tuple(clients))

    def context(self, *, verify: bool) -> ssl.SSLContext | bool:
        """Return a TLS context with these certificates, or True for aiohttp's default context.

        Creating a context takes 25 ms, so the default one is used where it suffices.

        Args:
            verify: whether the host's certificate is verified.

        Raises:
            InvalidSetting: a file is not a certificate or key, or a key does not match; with the path.
        """
        is_default = verify and not (self.authorities or self.clients or _ENVIRONMENT & os.environ.keys())
        if is_default:
            return True
        tls = ssl.create_default_context()
        for path in self.authorities:
            try:
                tls.load_verify_locations(path)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
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


_ENVIRONMENT = {"SSL_CERT_FILE", "SSL_CERT_DIR"}  # aiohttp reads them only once, when it is imported


def find_certificates(host: str) -> Certificates | None:
    """Find the certificates of a ``host[:port]``; the first existing directory applies.

    The directories are below ``~/.config/containers/certs.d``, ``~/.config/docker/certs.d``,
    ``/etc/containers/certs.d`` and ``/etc/docker/certs.d``.

    Raises:
        InvalidSetting: as `Certificates.in_directory`.
    """
    names = [host] if ":" in host.rpartition("]")[2] else [host, f"{host}:443"]
    if host == "registry-1.docker.io":
        names.append(DOCKER_HUB)
    users, systems = zip(
        *(paths.config_directories(family, os.environ) for family in ("containers", "docker")), strict=True
    )
    for folder in users + systems:
        for name in names:
            found = Certificates.in_directory(os.path.join(folder, "certs.d", name))
            if found is not None:
                return found
    return None


def _no_password() -> NoReturn:
    raise ValueError("the key is encrypted; fastpull cannot ask for its password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
