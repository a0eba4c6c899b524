"""``policy.json``: which images may come in at all.

fastpull does what needs no key: it lets in, or it refuses. A policy that demands a signature refuses as well, since
nothing here verifies one.

Spec: containers-policy.json(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fastpull.config import paths
from fastpull.errors import Forbidden, InvalidSetting, MalformedDocument
from fastpull.oci.json import JsonDocument

if TYPE_CHECKING:
    from fastpull.oci.reference import Reference

_ACCEPT = "insecureAcceptAnything"
_REJECT = "reject"
_SIGNED = {
    "signedBy": ("keyType", "keyPath", "keyPaths", "keyData", "signedIdentity"),
    "sigstoreSigned": (
        *("keyPath", "keyPaths", "keyData", "keyDatas", "fulcio", "pki", "signedIdentity"),
        *("rekorPublicKeyPath", "rekorPublicKeyPaths", "rekorPublicKeyData", "rekorPublicKeyDatas"),
    ),
}
_KEYS = {_ACCEPT: (), _REJECT: (), **_SIGNED}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a policy knows an image by.

    Attributes:
        transport: ``docker`` for registries, ``oci`` for layouts.
        name: of the image, for messages.
        scopes: that speak for it, the most specific first.
    """

    transport: str
    name: str
    scopes: tuple[str, ...] = ()

    @classmethod
    def of_reference(cls, reference: Reference) -> Self:
        """Of an image in a registry: itself, its repository and what is above it, its host's domains."""
        version = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
        scopes = [reference.name + version, *_and_above(reference.name)]
        domain = reference.registry.partition(":")[0]
        while "." in domain:
            domain = domain.partition(".")[2]
            scopes.append(f"*.{domain}")
        return cls("docker", str(reference), tuple(scopes))

    @classmethod
    def of_path(cls, transport: str, name: str, path: str) -> Self:
        """Of an image in a file or directory: its path, without links, and the directories above it.

        As for skopeo, a tag has no scope: the same image may be had without it.
        """
        return cls(transport, name, tuple(filter(None, _and_above(os.path.realpath(path)))))


@dataclass(frozen=True, slots=True)
class _Requirement:
    kind: str
    key: str = ""


_Requirements = tuple[_Requirement, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """What a file says; without a file everything may come in.

    Attributes:
        default: what is required where nothing else is said.
        transports: by name, what is required for their scopes.
        path: of the file.
    """

    default: _Requirements = (_Requirement(_ACCEPT),)
    transports: Mapping[str, Mapping[str, _Requirements]] | None = None
    path: str = ""

    @classmethod
    def parse(cls, body: bytes, path: str) -> Policy:
        """Reads the file.

        Raises:
            InvalidSetting: it breaks the specification, which allows nothing that it does not know: a word that is
                misspelt must not let everything in.
        """
        try:
            document = JsonDocument.parse(body, path)
            _only(document, "default", "transports")
            default = _requirements(document, "default")
            transports: dict[str, dict[str, _Requirements]] = {}
            of_all = document.child("transports")
            for transport in of_all.names if of_all else ():
                scopes = of_all.child(transport) if of_all else None
                names = scopes.names if scopes else ()
                transports[transport] = {name: _requirements(scopes, name) for name in names if scopes}
        except MalformedDocument as error:
            raise InvalidSetting(path, f"not a policy.json ({error.reason})") from error
        return cls(default, transports, path)

    def check(self, identity: Identity) -> None:
        """Lets an image in.

        Raises:
            Forbidden: or not.
        """
        scope, requirements = self._find(identity)
        for requirement in requirements:
            if requirement.kind == _REJECT:
                raise Forbidden(identity.name, f"{self.path}, {scope}: reject,", "Ask whoever looks after that file")
            if requirement.kind in _SIGNED:
                key = f" by {requirement.key}" if requirement.key else ""
                rule = f"{self.path}, {scope}: {requirement.kind}{key}, which fastpull does not verify,"
                raise Forbidden(identity.name, rule, _how_to_verify(identity, requirement))

    def _find(self, identity: Identity) -> tuple[str, _Requirements]:
        scopes = (self.transports or {}).get(identity.transport, {})
        for scope in (*identity.scopes, ""):
            if scope in scopes:
                return f"{identity.transport} {scope!r}", scopes[scope]
        return "default", self.default


def load_policy(path: str | None = None, environment: Mapping[str, str] = os.environ) -> Policy:
    """Reads the file that is given, or the user's, or else the system's; without any, everything may come in.

    Raises:
        InvalidSetting: it cannot be read or understood.
    """
    found = path or paths.find_file("policy.json", environment)
    return Policy.parse(paths.read_file(found), found) if found else Policy()


def _how_to_verify(identity: Identity, requirement: _Requirement) -> str:
    if identity.transport != "docker":
        return "Verify it with skopeo copy, which keeps to the same policy, or name another with --policy"
    verify = f"skopeo copy docker://{identity.name} oci:DIR:TAG"
    also = ""
    if requirement.kind == "sigstoreSigned":
        key = f" --key {requirement.key}" if requirement.key else ""
        also = f" (or verify it with cosign verify{key} {identity.name})"
    return f"{verify} verifies it{also}, then pull oci:DIR:TAG; --policy FILE names another policy"


def _and_above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _only(document: JsonDocument, *names: str) -> None:
    for name in document.names:
        if name not in names:
            document.fail(f"an unknown name {name!r}")


def _requirements(document: JsonDocument, name: str) -> _Requirements:
    found = tuple(_requirement(one) for one in document.children(name))
    if not found:
        document.fail(f"no requirement for {name!r}")
    return found


def _requirement(document: JsonDocument) -> _Requirement:
    kind = document.text("type")
    if kind not in _KEYS:
        document.fail(f"an unknown requirement {kind!r}")
    _only(document, "type", *_KEYS[kind])
    keys = document.texts("keyPaths") or tuple(filter(None, [document.text_or("keyPath", "")]))
    return _Requirement(kind, " or ".join(keys))
