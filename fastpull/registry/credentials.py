"""Credentials that the user has already: Docker's ``config.json``."""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass, field

from fastpull.errors import InvalidSetting, MalformedDocument
from fastpull.oci.json import Document
from fastpull.oci.reference import DOCKER_HUB

_DOCKER_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and password for one registry.

    Attributes:
        origin: where they were found, for messages; never the secret itself.
    """

    username: str
    password: str = field(repr=False)
    origin: str = ""

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header. Spec: RFC 7617."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def find_credentials(registry: str) -> Credentials | None:
    """Looks a registry up in ``auths`` of Docker's ``config.json``.

    The file is ``$DOCKER_CONFIG/config.json``, by default ``~/.docker/config.json``.

    Args:
        registry: as in a reference; Docker Hub is ``docker.io``.

    Raises:
        InvalidSetting: the file is there, but cannot be read or understood.
    """
    path = os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "config.json")
    try:
        with open(path, "rb") as file:
            auths = Document.parse(file.read(), path).child("auths")
        keys = _keys(registry) if auths else ()
        entry, key = next(((entry, key) for key in keys if auths and (entry := auths.child(key))), (None, ""))
        return _credentials(entry, f"{path}, entry {key!r}") if entry else None
    except (FileNotFoundError, PermissionError):
        return None  # as a user who never logged in; another user's home is no reason to refuse a public image
    except OSError as error:
        raise InvalidSetting(path, f"cannot read Docker's config ({error.strerror})") from error
    except MalformedDocument as error:
        raise InvalidSetting(path, f"not a Docker config ({error.reason})") from error


def _keys(registry: str) -> tuple[str, ...]:
    if registry == DOCKER_HUB:
        return (_DOCKER_HUB_KEY, "index.docker.io", DOCKER_HUB, "registry-1.docker.io")
    return (
        registry,
        f"https://{registry}",
        f"http://{registry}",
        f"https://{registry}/",
        f"https://{registry}/v2/",
    )


def _credentials(entry: Document, origin: str) -> Credentials | None:
    encoded = entry.text_or("auth", "")
    if encoded:
        try:
            pair = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidSetting(origin, "'auth' is not the base64 of a name and a password") from error
        username, colon, password = pair.partition(":")
        if not colon:
            raise InvalidSetting(origin, "'auth' holds no colon between name and password")
        return Credentials(username, password.rstrip("\0"), origin)
    if "username" in entry and "password" in entry:
        return Credentials(entry.text("username"), entry.text("password"), origin)
    return None
