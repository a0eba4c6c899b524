"""Access to registries: logins, certificates, hosts."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.config.schema import DIRECTORY, FILE, HOST, HOSTS, NAME, NUMBER, SECONDS, SECRET, SWITCH, setting_field
from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting

_NO_PASSWORD = Secret()


@dataclass(frozen=True, slots=True)
class Access:
    """The access to registries; each attribute is a setting.

    Attributes:
        authfile: the only file of logins to read, in the format of podman's ``auth.json``; by default the usual files.
        username, password: the login for the registry that the sources name, and for no other.
        registry: the only registry that user name and password are for, whatever the sources name.
        netrc: whether to read ``$NETRC`` or ``~/.netrc`` after all other files.
        credential_commands: whether a shell expands passwords in enroot's ``.credentials`` that begin with ``$``.
        cert_dir: a directory of certificates for the registries that the sources name, in place of ``certs.d``.
        insecure_registries: ``HOST[:PORT]`` of registries that may use plain http or unverified certificates.
        private_hosts: hosts in private networks to which a public registry may redirect this client.
        retries: the number of repetitions of a request that fails for a transient reason and makes no progress.
        timeout: the seconds that a host may send nothing; a request without progress ends after five times as many.
    """

    authfile: str | None = setting_field(
        FILE,
        "the only file of logins to read, such as podman's auth.json",
        default=None,
        of="REGISTRY_AUTH_FILE, or the files of podman, skopeo, docker and enroot",
    )
    username: str = setting_field(
        NAME, "user name for the registry that the sources name; `--creds`", default="", of="that of the login", flag=""
    )
    password: Secret = setting_field(  # noqa: RUF009  # it makes a field
        SECRET, "password of that user; `--password-stdin`, or `--creds`", default=_NO_PASSWORD, of="none", flag=""
    )
    registry: str = setting_field(
        HOST, "the only registry for user name and password", default="", of="the registry of the sources"
    )
    netrc: bool = setting_field(SWITCH, "read logins from $NETRC or ~/.netrc as well", default=False)
    credential_commands: bool = setting_field(
        SWITCH,
        "let a shell expand passwords in enroot's .credentials that begin with $, as enroot does",
        default=False,
    )
    cert_dir: str | None = setting_field(
        DIRECTORY,
        "directory of certificates for the registries that the sources name",
        default=None,
        of="the host's in certs.d",
    )
    insecure_registries: tuple[str, ...] = setting_field(
        HOSTS,
        "registries that may use plain http or unverified certificates",
        default=(),
        of="none",
        flag="--insecure-registry",
    )
    private_hosts: tuple[str, ...] = setting_field(
        HOSTS,
        "hosts in private networks to which a public registry may redirect fastpull",
        default=(),
        of="none",
        flag="--private-host",
    )
    retries: int = setting_field(NUMBER, "repetitions of a request that makes no progress", default=5)
    timeout: float = setting_field(SECONDS, "time that a host may send nothing", default=60.0)

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidSetting(str(self.retries), "retries must be at least 0")
        if not 0 < self.timeout < float("inf"):
            raise InvalidSetting(str(self.timeout), "timeout must be above 0")
        if bool(self.username) != bool(self.password):
            reason = "a user name and a password go together (--password-stdin or FASTPULL_PASSWORD gives the password)"
            raise InvalidSetting(self.username or "a password alone", reason)


DEFAULT_ACCESS = Access()
