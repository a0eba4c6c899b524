"""Auth files: ``auth.json`` of podman and skopeo, and ``config.json`` of Docker. One format, read only.

Spec: containers-auth.json(5); Docker's CLI reference, "Credential stores" and "Credential helpers".
"""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn

from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting, MalformedDocument
from fastpull.oci.json import JsonDocument
from fastpull.oci.reference import DOCKER_HUB
from fastpull.registry.auth.credentials import Credentials

_DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
_LEGACY_PATHS = ("", "v1", "v2")


class AuthFile:
    """A parsed auth file. Single entries are validated only when they are used.

    Args:
        body: the contents of the file.
        path: the path of the file, for messages.

    Attributes:
        path: as given.
        store: the name of the credential store (``credsStore``); empty if there is none.

    Raises:
        InvalidSetting: not a JSON object; with the line.
    """

    def __init__(self, body: bytes, path: str) -> None:
        self.path = path
        self._text = body.decode("utf-8", "replace")
        try:
            document = JsonDocument.parse(body or b"{}", path)
            self._auths = document.child("auths")
            self._keys = self._auths.names if self._auths else ()
            self._helpers = document.mapping("credHelpers")
            self.store = document.text_or("credsStore", "")
        except MalformedDocument as error:
            raise InvalidSetting(path, f"not a valid auth file ({error.reason})") from None

    def helper(self, registry: str) -> str | None:
        """Return the name of the credential helper for a registry, or None."""
        for key in (registry, *(_DOCKER_HUB_KEYS if registry == DOCKER_HUB else ())):
            if key in self._helpers:
                return self._helpers[key]
        return None

    def lists(self, registry: str) -> bool:
        """Whether the file has an entry for a registry. Docker writes an empty entry if a store has the secret."""
        return any(_hostname(key) == registry for key in self._keys)

    def entry(self, registry: str, repository: str = "") -> Credentials | None:
        """Return the credentials of the longest key that matches a repository.

        Args:
            registry: the registry's name in references; Docker Hub is ``docker.io``.
            repository: the repository; without one, only keys for the whole registry match.

        Raises:
            InvalidSetting: the matching entry is invalid; with its line.
        """
        for key in self._matching(registry, repository):
            found = self._credentials(key)
            if found is not None:
                return found
        return None

    def _matching(self, registry: str, repository: str) -> list[str]:
        """Return the keys from the most to the least specific: ``HOST/NAMESPACE/NAME`` to ``https://HOST/v1/``."""
        parts = repository.split("/") if repository else []
        names = ["/".join([registry, *parts[:count]]) for count in range(len(parts), -1, -1)]
        exact = [name for name in names if name in self._keys]
        if registry == DOCKER_HUB:
            exact += [key for key in _DOCKER_HUB_KEYS if key in self._keys]
        return exact + [key for key in self._keys if key not in exact and _hostname(key) == registry]

    def _credentials(self, key: str) -> Credentials | None:
        line = self._text[: max(0, self._text.find(f'"{key}"'))].count("\n") + 1
        origin = f"{self.path}, line {line}, entry {key!r}"

        def fail(reason: str) -> NoReturn:
            raise InvalidSetting(origin, reason)

        try:
            entry = self._auths.child(key) if self._auths else None
            if entry is None:
                return None
            encoded, identity = entry.text_or("auth", ""), entry.text_or("identitytoken", "")
            token = entry.text_or("registrytoken", "")
            username, password = entry.text_or("username", ""), entry.text_or("password", "")
        except MalformedDocument as error:
            raise InvalidSetting(origin, f"not a valid entry ({error.reason})") from None
        if encoded:
            try:
                pair = base64.b64decode(encoded, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                fail("'auth' is not the base64 of NAME:PASSWORD")
            username, colon, password = pair.partition(":")
            if not colon:
                fail("'auth' has no colon between name and password")
            password = password.rstrip("\0")
        if not (password or identity or token):
            return None
        for text in (identity, token):
            if not (text.isascii() and text.isprintable()):
                fail("the token is not printable ASCII")
        return Credentials(username, Secret(password), origin, Secret(identity), Secret(token))


def _hostname(key: str) -> str:
    """Return the registry of a key for a whole registry; empty for the key of a namespace."""
    rest = key.partition("://")[2] or key
    host, _, path = rest.partition("/")
    if path.strip("/") not in _LEGACY_PATHS:
        return ""
    return DOCKER_HUB if host in ("index.docker.io", "registry-1.docker.io") else host
