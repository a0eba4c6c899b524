"""The sources of credentials, in their order. They are only read.

::

    --creds, FASTPULL_USERNAME and FASTPULL_PASSWORD          for the registry that the sources name
    --authfile, REGISTRY_AUTH_FILE                            instead of the files that follow
    $XDG_RUNTIME_DIR/containers/auth.json                     podman login, skopeo login
    $XDG_CONFIG_HOME/containers/auth.json
    $DOCKER_CONFIG/config.json                                docker login
    $ENROOT_CONFIG_PATH/.credentials                          enroot
    $NETRC, ~/.netrc                                          only with --netrc

In an auth file, the credential helper of the registry comes first, then the credential store, then the entries.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fastpull.config import paths
from fastpull.config.access import DEFAULT_ACCESS, Access
from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting
from fastpull.oci.reference import DOCKER_HUB
from fastpull.registry.auth.auth_file import AuthFile
from fastpull.registry.auth.credential_helpers import HelperMissing, ask_helper, run_program
from fastpull.registry.auth.credentials import Credentials
from fastpull.registry.auth.netrc import NetrcEntry, find_machine, parse_netrc

_MAX_FILE = 4 << 20
_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"
_DOCKER_HUB_MACHINES = ("auth.docker.io", "registry-1.docker.io", "index.docker.io", "docker.io")


@dataclass(frozen=True, slots=True)
class CredentialLocation:
    """One searched location.

    Attributes:
        name: a file, or another source of credentials.
        outcome: the result of the search there, without the secret.
    """

    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class CredentialSearch:
    """The result of a search for credentials.

    Attributes:
        subject: the registry, with the repository if there is one.
        found: the credentials in use; None for an anonymous client.
        locations: the searched locations in order; the last one holds the credentials found.
    """

    subject: str
    found: Credentials | None
    locations: tuple[CredentialLocation, ...]


@dataclass(slots=True)
class _Search:
    """A search in progress."""

    registry: str
    repository: str
    locations: list[CredentialLocation] = field(default_factory=list)


_Lookup = Callable[[_Search], Awaitable[Credentials | None]]


class Keyring:
    """The credentials of one client.

    Args:
        access: the settings for credentials.
        environment: the environment variables that name the files.
        on_warning: called with registry and problem if a credential store is missing.
    """

    def __init__(
        self,
        access: Access = DEFAULT_ACCESS,
        environment: Mapping[str, str] = os.environ,
        on_warning: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._access = access
        self._environment = environment
        self._on_warning = on_warning
        self._source_registry = access.registry
        self._known: dict[tuple[str, str], Credentials | None] = {}
        self._helper_results: dict[tuple[str, str], Credentials | None] = {}
        self._lock = asyncio.Lock()

    def add_source_registry(self, registry: str) -> None:
        """Register a registry that a source names: the user name and password of the settings are for this one.

        Raises:
            InvalidSetting: there are two such registries, and the settings do not name one.
        """
        if not self._access.username or self._access.registry:
            return
        if self._source_registry not in ("", registry):
            reason = "which of them are user name and password for? Set --registry or FASTPULL_REGISTRY"
            raise InvalidSetting(f"{self._source_registry}, {registry}", reason)
        self._source_registry = registry

    async def find(self, registry: str, repository: str = "", *, renew: bool = False) -> Credentials | None:
        """Return the credentials for a repository, or None.

        Args:
            registry: the registry's name in references; Docker Hub is ``docker.io``.
            repository: the repository: podman's files may have entries for parts of a registry.
            renew: whether to run credential helpers again, because their credentials were refused.

        Raises:
            InvalidSetting: a file or helper in the order of the search is invalid.
        """
        key = (registry, repository)
        async with self._lock:
            if renew:
                self._known.pop(key, None)
                self._helper_results.clear()
            if key not in self._known:
                self._known[key] = (await self._search(registry, repository)).found
            return self._known[key]

    async def search(self, registry: str, repository: str = "") -> CredentialSearch:
        """Return the credentials that `find` returns, with the searched locations. Raises InvalidSetting."""
        async with self._lock:
            return await self._search(registry, repository)

    async def find_machine(self, host: str) -> Credentials | None:
        """Return the credentials of netrc files for the host of a token server, as enroot. Raises InvalidSetting."""
        if self._explicit_file():
            return None
        async with self._lock:
            for look_up in self._netrc_lookups():
                found = await look_up(_Search(host.lower(), ""))
                if found is not None:
                    return found
            return None

    async def _search(self, registry: str, repository: str) -> CredentialSearch:
        search = _Search(registry, repository)
        subject = f"{registry}/{repository}" if repository else registry
        for look_up in self._lookups():
            found = await look_up(search)
            if found is not None:
                outcome = f"used: {found.kind} of {found.username or 'its bearer'!r}"
                search.locations.append(CredentialLocation(found.origin, outcome))
                return CredentialSearch(subject, found, tuple(search.locations))
        return CredentialSearch(subject, None, tuple(search.locations))

    def _lookups(self) -> list[_Lookup]:
        explicit = self._explicit_file()
        if explicit:
            return [self._from_settings, partial(self._from_auth_file, path=explicit, required=True)]
        environment = self._environment
        runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
        docker = environment.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
        files = (
            os.path.join(runtime, "containers/auth.json"),
            os.path.join(self._user_folder("containers"), "auth.json"),
            os.path.join(docker, "config.json"),
        )
        auth_files = (partial(self._from_auth_file, path=path) for path in files)
        return [self._from_settings, *auth_files, *self._netrc_lookups()]

    def _netrc_lookups(self) -> list[_Lookup]:
        enroot = self._environment.get("ENROOT_CONFIG_PATH") or self._user_folder("enroot")
        found: list[_Lookup] = [partial(self._from_netrc, path=os.path.join(enroot, ".credentials"), is_enroot=True)]
        if self._access.netrc:
            path = self._environment.get("NETRC") or os.path.expanduser("~/.netrc")
            found.append(partial(self._from_netrc, path=path))
        return found

    def _explicit_file(self) -> str:
        return self._access.authfile or self._environment.get("REGISTRY_AUTH_FILE", "")

    def _user_folder(self, family: str) -> str:
        return paths.config_directories(family, self._environment)[0]

    async def _from_settings(self, search: _Search) -> Credentials | None:
        if not self._access.username:
            return None
        origin = "--creds or FASTPULL_USERNAME"
        if self._source_registry != search.registry:
            outcome = f"only for {self._source_registry or 'no registry'}"
            search.locations.append(CredentialLocation(origin, outcome))
            return None
        return Credentials(self._access.username, self._access.password, origin)

    async def _from_auth_file(self, search: _Search, path: str, *, required: bool = False) -> Credentials | None:
        body = _read(path, required=required)
        if body is None:
            search.locations.append(CredentialLocation(path, "does not exist"))
            return None
        file = AuthFile(body, path)
        server = _DOCKER_HUB_SERVER if search.registry == DOCKER_HUB else search.registry
        helper = file.helper(search.registry)
        if helper is not None:
            found = await self._from_helper(helper, server, f"{path}, credHelpers")
            if found is not None:
                return found
            search.locations.append(CredentialLocation(f"{path}, credHelpers", f"docker-credential-{helper} has none"))
        if file.store:
            found = await self._from_store(search, file, server)
            if found is not None:
                return found
        found = file.entry(search.registry, search.repository)
        if found is None:
            search.locations.append(CredentialLocation(path, "no entry"))
        return found

    async def _from_store(self, search: _Search, file: AuthFile, server: str) -> Credentials | None:
        origin = f"{file.path}, credsStore"
        try:
            found = await self._from_helper(file.store, server, origin)
        except HelperMissing as error:
            if file.lists(search.registry):
                raise
            search.locations.append(CredentialLocation(origin, error.reason))
            self._on_warning(search.registry, f"{error}; continuing without it")
            return None
        if found is None:
            search.locations.append(CredentialLocation(origin, f"docker-credential-{file.store} has none"))
        return found

    async def _from_helper(self, name: str, server: str, origin: str) -> Credentials | None:
        key = (name, server)
        if key not in self._helper_results:
            self._helper_results[key] = await ask_helper(name, server, origin)
        return self._helper_results[key]

    async def _from_netrc(self, search: _Search, path: str, *, is_enroot: bool = False) -> Credentials | None:
        body = _read(path, required=False)
        if body is None:
            search.locations.append(CredentialLocation(path, "does not exist"))
            return None
        machines = parse_netrc(body.decode("utf-8", "replace"), path, expressions=is_enroot)
        host = search.registry
        names = _DOCKER_HUB_MACHINES if host == DOCKER_HUB else (host, host.rpartition(":")[0] or host)
        machine = find_machine(machines, *names)
        if machine is None:
            search.locations.append(CredentialLocation(path, "no entry"))
            return None
        origin = f"{path}, line {machine.line}, machine {machine.name!r}"
        if is_enroot and machine.is_expression:
            return await self._expanded(machine, origin)
        return Credentials(machine.login, machine.password, origin)

    async def _expanded(self, machine: NetrcEntry, origin: str) -> Credentials:
        """Expand a password with a shell. Spec: enroot's ``common::evalnetrc``."""
        if not self._access.credential_commands:
            reason = "the password is a shell expression; allow it with --credential-commands, or write the password"
            raise InvalidSetting(origin, reason)
        # passed by standard input: arguments are visible to all users
        output = await run_program(("sh", "-s"), b"echo " + machine.password.reveal().encode() + b"\n", origin)
        password = output.text.rstrip("\n")
        if output.status != 0 or not password:
            raise InvalidSetting(origin, f"the password's shell expression failed with status {output.status}")
        return Credentials(machine.login, Secret(password), origin, is_renewable=True)


def _read(path: str, *, required: bool) -> bytes | None:
    """Return the contents of a file; None if an optional file does not exist or is not readable."""
    try:
        with open(path, "rb") as file:
            body = file.read(_MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if required:
            raise InvalidSetting(path, f"cannot read the auth file ({error.strerror})") from None
        return None
    except OSError as error:
        raise InvalidSetting(path, f"cannot read the auth file ({error.strerror})") from None
    if len(body) > _MAX_FILE:
        raise InvalidSetting(path, f"larger than {_MAX_FILE} bytes, the limit for auth files")
    return body
