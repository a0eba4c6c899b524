"""Where credentials are looked for, and in which order. Nothing is ever written.

::

    --creds, FASTPULL_USERNAME and FASTPULL_PASSWORD          for the registry that the sources name
    --authfile, REGISTRY_AUTH_FILE                            instead of the files that follow
    $XDG_RUNTIME_DIR/containers/auth.json                     podman login, skopeo login
    $XDG_CONFIG_HOME/containers/auth.json
    $DOCKER_CONFIG/config.json                                docker login
    $ENROOT_CONFIG_PATH/.credentials                          enroot's
    $NETRC, ~/.netrc                                          only with --netrc

In a file of logins the helper of the registry goes first, then the store of secrets, then what is written there.
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
from fastpull.registry.auth.credential_helpers import HelperMissing, ask_helper, output_of
from fastpull.registry.auth.credentials import Credentials
from fastpull.registry.auth.netrc import NetrcEntry, find_machine, parse_netrc

_MAX_FILE = 4 << 20
_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"
_DOCKER_HUB_MACHINES = ("auth.docker.io", "registry-1.docker.io", "index.docker.io", "docker.io")


@dataclass(frozen=True, slots=True)
class CredentialLocation:
    """One place that was looked at.

    Attributes:
        name: a file, or where else credentials can come from.
        outcome: what was found there, without the secret.
    """

    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class CredentialSearch:
    """How credentials were looked for.

    Attributes:
        subject: the registry, with the repository if there is one.
        found: what would be used; None for an anonymous client.
        places: that were looked at, in order; the last one gave what was found.
    """

    subject: str
    found: Credentials | None
    places: tuple[CredentialLocation, ...]


@dataclass(slots=True)
class _Asking:
    registry: str
    repository: str
    places: list[CredentialLocation] = field(default_factory=list)


_Look = Callable[[_Asking], Awaitable[Credentials | None]]


class Keyring:
    """The credentials of one client.

    Args:
        access: what the user said.
        environment: names the files.
        on_warning: told (registry, what is wrong) of a store of secrets that cannot be asked.
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
        self._named = access.registry
        self._known: dict[tuple[str, str], Credentials | None] = {}
        self._asked: dict[tuple[str, str], Credentials | None] = {}
        self._lock = asyncio.Lock()

    def add_source_registry(self, registry: str) -> None:
        """Takes note of a registry that a source names: user name and password of the settings are for this one.

        Raises:
            InvalidSetting: there are two, and nobody says which of them is meant.
        """
        if not self._access.username or self._access.registry:
            return
        if self._named not in ("", registry):
            reason = "which of them are user name and password for? Say so with --registry or FASTPULL_REGISTRY"
            raise InvalidSetting(f"{self._named}, {registry}", reason)
        self._named = registry

    async def find(self, registry: str, repository: str = "", *, renew: bool = False) -> Credentials | None:
        """The credentials for a repository, or None.

        Args:
            registry: as in a reference; Docker Hub is ``docker.io``.
            repository: within it: files of podman may hold entries for a part of a registry.
            renew: ask helpers again: what they gave is no longer accepted.

        Raises:
            InvalidSetting: a file or helper on the way to them cannot be understood.
        """
        key = (registry, repository)
        async with self._lock:
            if renew:
                self._known.pop(key, None)
                self._asked.clear()
            if key not in self._known:
                self._known[key] = (await self._search(registry, repository)).found
            return self._known[key]

    async def search(self, registry: str, repository: str = "") -> CredentialSearch:
        """How `find` comes to its answer. Raises InvalidSetting."""
        async with self._lock:
            return await self._search(registry, repository)

    async def find_machine(self, host: str) -> Credentials | None:
        """What netrc files hold for a token server by its own name, as enroot looks there. Raises InvalidSetting."""
        if self._explicit_file():
            return None
        async with self._lock:
            for look in self._netrcs():
                found = await look(_Asking(host.lower(), ""))
                if found is not None:
                    return found
            return None

    async def _search(self, registry: str, repository: str) -> CredentialSearch:
        asking = _Asking(registry, repository)
        subject = f"{registry}/{repository}" if repository else registry
        for look in self._places():
            found = await look(asking)
            if found is not None:
                asking.places.append(
                    CredentialLocation(found.origin, f"used: {found.kind} of {found.username or 'its bearer'!r}")
                )
                return CredentialSearch(subject, found, tuple(asking.places))
        return CredentialSearch(subject, None, tuple(asking.places))

    def _places(self) -> list[_Look]:
        explicit = self._explicit_file()
        if explicit:
            return [self._given, partial(self._auth_file, path=explicit, required=True)]
        environment = self._environment
        runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
        docker = environment.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
        files = (
            os.path.join(runtime, "containers/auth.json"),
            os.path.join(self._user_folder("containers"), "auth.json"),
            os.path.join(docker, "config.json"),
        )
        return [self._given, *(partial(self._auth_file, path=path) for path in files), *self._netrcs()]

    def _netrcs(self) -> list[_Look]:
        enroot = self._environment.get("ENROOT_CONFIG_PATH") or self._user_folder("enroot")
        found: list[_Look] = [partial(self._netrc, path=os.path.join(enroot, ".credentials"), is_enroot_s=True)]
        if self._access.netrc:
            found.append(partial(self._netrc, path=self._environment.get("NETRC") or os.path.expanduser("~/.netrc")))
        return found

    def _explicit_file(self) -> str:
        return self._access.authfile or self._environment.get("REGISTRY_AUTH_FILE", "")

    def _user_folder(self, family: str) -> str:
        return paths.folders(family, self._environment)[0]

    async def _given(self, asking: _Asking) -> Credentials | None:
        if not self._access.username:
            return None
        origin = "--creds or FASTPULL_USERNAME"
        if self._named != asking.registry:
            asking.places.append(CredentialLocation(origin, f"for {self._named or 'no registry'} only"))
            return None
        return Credentials(self._access.username, self._access.password, origin)

    async def _auth_file(self, asking: _Asking, path: str, *, required: bool = False) -> Credentials | None:
        body = _read(path, required=required)
        if body is None:
            asking.places.append(CredentialLocation(path, "not there"))
            return None
        file = AuthFile(body, path)
        server = _DOCKER_HUB_SERVER if asking.registry == DOCKER_HUB else asking.registry
        helper = file.helper(asking.registry)
        if helper is not None:
            found = await self._helper(helper, server, f"{path}, credHelpers")
            if found is not None:
                return found
            asking.places.append(CredentialLocation(f"{path}, credHelpers", f"docker-credential-{helper} has none"))
        if file.store:
            found = await self._store(asking, file, server)
            if found is not None:
                return found
        found = file.entry(asking.registry, asking.repository)
        if found is None:
            asking.places.append(CredentialLocation(path, "no entry"))
        return found

    async def _store(self, asking: _Asking, file: AuthFile, server: str) -> Credentials | None:
        origin = f"{file.path}, credsStore"
        try:
            found = await self._helper(file.store, server, origin)
        except HelperMissing as error:
            if file.lists(asking.registry):
                raise
            asking.places.append(CredentialLocation(origin, error.reason))
            self._on_warning(asking.registry, f"{error}; going on without it")
            return None
        if found is None:
            asking.places.append(CredentialLocation(origin, f"docker-credential-{file.store} has none"))
        return found

    async def _helper(self, name: str, server: str, origin: str) -> Credentials | None:
        key = (name, server)
        if key not in self._asked:
            self._asked[key] = await ask_helper(name, server, origin)
        return self._asked[key]

    async def _netrc(self, asking: _Asking, path: str, *, is_enroot_s: bool = False) -> Credentials | None:
        body = _read(path, required=False)
        if body is None:
            asking.places.append(CredentialLocation(path, "not there"))
            return None
        machines = parse_netrc(body.decode("utf-8", "replace"), path, expressions=is_enroot_s)
        host = asking.registry
        names = _DOCKER_HUB_MACHINES if host == DOCKER_HUB else (host, host.rpartition(":")[0] or host)
        machine = find_machine(machines, *names)
        if machine is None:
            asking.places.append(CredentialLocation(path, "no entry"))
            return None
        origin = f"{path}, line {machine.line}, machine {machine.name!r}"
        if is_enroot_s and machine.is_expression:
            return await self._expanded(machine, origin)
        return Credentials(machine.login, machine.password, origin)

    async def _expanded(self, machine: NetrcEntry, origin: str) -> Credentials:
        """A password that enroot gives to a shell. Spec: enroot's ``common::evalnetrc``."""
        if not self._access.credential_commands:
            reason = "the password is a shell expression; allow it with --credential-commands, or write the password"
            raise InvalidSetting(origin, reason)
        # by standard input: arguments can be seen by everybody
        output = await output_of(("sh", "-s"), b"echo " + machine.password.reveal().encode() + b"\n", origin)
        password = output.text.rstrip("\n")
        if output.status != 0 or not password:
            raise InvalidSetting(origin, f"the password's shell expression failed with status {output.status}")
        return Credentials(machine.login, Secret(password), origin, is_renewable=True)


def _read(path: str, *, required: bool) -> bytes | None:
    """A file's content; None if it is not there, or another user's that is nobody else's business."""
    try:
        with open(path, "rb") as file:
            body = file.read(_MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if required:
            raise InvalidSetting(path, f"cannot read the file of logins ({error.strerror})") from None
        return None
    except OSError as error:
        raise InvalidSetting(path, f"cannot read the file of logins ({error.strerror})") from None
    if len(body) > _MAX_FILE:
        raise InvalidSetting(path, f"more than {_MAX_FILE} bytes, which no file of logins has")
    return body
