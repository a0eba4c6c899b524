"""``policy.json``: which images may be pulled.

fastpull accepts or rejects images. It does not verify signatures, so a policy that requires one rejects the image.

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
    """The identity of an image for a policy.

    Attributes:
        transport: ``docker`` for registries, ``oci`` for layouts.
        name: the name of the image, for messages.
        scopes: the scopes that match the image, most specific first.
    """

    transport: str
    name: str
    scopes: tuple[str, ...] = ()

    @classmethod
    def of_reference(cls, reference: Reference) -> Self:
        """Return the identity of an image in a registry: its scopes are names, namespaces and domains."""
        version = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
        scopes = [reference.name + version, *_with_parents(reference.name)]
        domain = reference.registry.partition(":")[0]
        while "." in domain:
            domain = domain.partition(".")[2]
            scopes.append(f"*.{domain}")
        return cls("docker", str(reference), tuple(scopes))

    @classmethod
    def of_path(cls, transport: str, name: str, path: str) -> Self:
        """Return the identity of an image in a file or directory: its scopes are its real path and all parents.

        A tag is not a scope, as for skopeo, because the image is accessible without it.
        """
        return cls(transport, name, tuple(filter(None, _with_parents(os.path.realpath(path)))))


@dataclass(frozen=True, slots=True)
class _Requirement:
    kind: str
    key: str = ""


_Requirements = tuple[_Requirement, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The contents of a policy file; without a file, all images are accepted.

    Attributes:
        default: the requirements for images without a matching scope.
        transports: the requirements by transport and scope.
        path: the path of the file.
    """

    default: _Requirements = (_Requirement(_ACCEPT),)
    transports: Mapping[str, Mapping[str, _Requirements]] | None = None
    path: str = ""

    @classmethod
    def parse(cls, body: bytes, path: str) -> Policy:
        """Parse the file.

        Raises:
            InvalidSetting: the file violates the specification. Unknown names are errors, because a misspelt one must
                not accept all images.
        """
        try:
            document = JsonDocument.parse(body, path)
            _reject_unknown(document, "default", "transports")
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
        """Check that an image is accepted.

        Raises:
            Forbidden: the image is rejected.
        """
        scope, requirements = self._find(identity)
        for requirement in requirements:
            if requirement.kind == _REJECT:
                raise Forbidden(identity.name, f"{self.path}, {scope}: reject,", "Ask the administrator of that file")
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
    """Read the given file, the user's, or the system's; without any, all images are accepted.

    Raises:
        InvalidSetting: the file is unreadable or invalid.
    """
    found = path or paths.find_file("policy.json", environment)
    return Policy.parse(paths.read_file(found), found) if found else Policy()


def _how_to_verify(identity: Identity, requirement: _Requirement) -> str:
    if identity.transport != "docker":
        return "Verify it with skopeo copy, which applies the same policy, or use another policy with --policy"
    verify = f"skopeo copy docker://{identity.name} oci:DIR:TAG"
    also = ""
    if requirement.kind == "sigstoreSigned":
        key = f" --key {requirement.key}" if requirement.key else ""
        also = f" (or verify it with cosign verify{key} {identity.name})"
    return f"{verify} verifies it{also}, then pull oci:DIR:TAG; --policy FILE uses another policy"


def _with_parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _reject_unknown(document: JsonDocument, *names: str) -> None:
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
    _reject_unknown(document, "type", *_KEYS[kind])
    keys = document.texts("keyPaths") or tuple(filter(None, [document.text_or("keyPath", "")]))
    return _Requirement(kind, " or ".join(keys))
