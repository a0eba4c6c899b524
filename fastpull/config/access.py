"""How registries are reached: logins, certificates, hosts."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.config.schema import FILE, FOLDER, HOST, HOSTS, NAME, NUMBER, SECONDS, SECRET, SWITCH, _setting
from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting

_NO_PASSWORD = Secret()


@dataclass(frozen=True, slots=True)
class Access:
    """How registries are reached, and who asks them; each is a setting.

    Attributes:
        authfile: the one file of logins to read, in the format of podman's ``auth.json``; by default the usual places.
        username, password: shown to the registry that the sources name, and to no other.
        registry: the one registry that user name and password are for, whatever else is pulled.
        netrc: look into ``$NETRC`` or ``~/.netrc`` as the last of all files.
        credential_commands: passwords in enroot's ``.credentials`` that begin with ``$`` are given to a shell.
        cert_dir: a directory of certificates for the registries that the sources name, in place of ``certs.d``.
        insecure_registries: ``HOST[:PORT]``: these may speak plain http, or have certificates that nobody vouches for.
        private_hosts: hosts with addresses of private networks that a public registry may send this client to.
        retries: how often a request is repeated that fails for a reason that may pass, and brings nothing new.
        timeout: seconds for which a host may send nothing; five times as many without anything new end a request.
    """

    authfile: str | None = _setting(
        FILE,
        "the one file of logins to read, such as podman's auth.json",
        default=None,
        of="REGISTRY_AUTH_FILE, or where podman, skopeo, docker and enroot have them",
    )
    username: str = _setting(
        NAME, "who asks the registry that the sources name; `--creds`", default="", of="as logins say", flag=""
    )
    password: Secret = _setting(  # noqa: RUF009  # it makes a field
        SECRET, "of that user; `--password-stdin`, or `--creds`", default=_NO_PASSWORD, of="none", flag=""
    )
    registry: str = _setting(HOST, "the one that user name and password are for", default="", of="that of the sources")
    netrc: bool = _setting(SWITCH, "look for logins in $NETRC or ~/.netrc, too", default=False)
    credential_commands: bool = _setting(
        SWITCH,
        "let a shell expand passwords of enroot's .credentials that begin with $, as enroot does",
        default=False,
    )
    cert_dir: str | None = _setting(
        FOLDER, "certificates for the registries that the sources name", default=None, of="that of the host in certs.d"
    )
    insecure_registries: tuple[str, ...] = _setting(
        HOSTS, "as insecure, for single hosts", default=(), of="none", flag="--insecure-registry"
    )
    private_hosts: tuple[str, ...] = _setting(
        HOSTS,
        "hosts of private networks that a public registry may send fastpull to",
        default=(),
        of="none",
        flag="--private-host",
    )
    retries: int = _setting(NUMBER, "repetitions of a request that brings nothing new", default=5)
    timeout: float = _setting(SECONDS, "for which a host may send nothing", default=60.0)

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidSetting(str(self.retries), "retries has to be at least 0")
        if not 0 < self.timeout < float("inf"):
            raise InvalidSetting(str(self.timeout), "timeout has to be above 0")
        if bool(self.username) != bool(self.password):
            reason = "a user name and a password go together (--password-stdin or FASTPULL_PASSWORD gives the password)"
            raise InvalidSetting(self.username or "a password alone", reason)


DEFAULT_ACCESS = Access()
