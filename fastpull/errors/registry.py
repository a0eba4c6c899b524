"""Errors of connections, registries and access."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.errors.base import FastpullError

# --- 10: transport


@dataclass(eq=False)
class TransportError(FastpullError, OSError):
    """A host gave no complete answer: name, connection, TLS, a stall, a reset.

    Attributes:
        is_transient: whether the same request may succeed a moment later.
        is_certificate: whether the host's certificate is not trusted.
    """

    exit_code = 10
    host: str
    reason: str
    advice: str = ""
    is_transient: bool = True
    is_certificate: bool = False

    def _message(self) -> str:
        return f"cannot reach {self.host}: {self.reason}"

    def _hint(self) -> str:
        return self.advice or "Check the name and the network, and try again; downloaded data is kept"


# --- 11: registry answers


class RegistryError(FastpullError):
    """A host's answer cannot be used."""

    exit_code = 11


@dataclass(eq=False)
class NotFound(RegistryError, LookupError):
    """The source has no such repository, tag, manifest or blob."""

    subject: str
    where: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.where} has no {self.subject}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class NoMatchingPlatform(RegistryError, LookupError):
    """An image index has no manifest for the wanted platform."""

    subject: str
    wanted: str
    available: tuple[str, ...]

    def _message(self) -> str:
        return f"no manifest for {self.wanted} in: {self.subject}"

    def _hint(self) -> str:
        if not self.available:
            return "The index lists no platform"
        return f"Choose another platform with --platform; the index has {', '.join(self.available)}"


@dataclass(eq=False)
class RateLimited(RegistryError):
    """The host asks for a longer pause than fastpull makes (HTTP 429)."""

    host: str
    retry_after_seconds: float | None

    def _message(self) -> str:
        return f"{self.host} limits the rate of requests (HTTP 429)"

    def _hint(self) -> str:
        again = f"Try again in {self.retry_after_seconds:.0f} s" if self.retry_after_seconds else "Try again later"
        return f"{again}; logging in often raises the limit"


@dataclass(eq=False)
class UnexpectedAnswer(RegistryError):
    """A status, header or body that the distribution specification does not allow here."""

    url: str
    reason: str
    status: int | None = None
    advice: str = ""

    def _message(self) -> str:
        status = f"HTTP {self.status}, " if self.status is not None else ""
        return f"unexpected answer ({status}{self.reason}) from: {self.url}"

    def _hint(self) -> str:
        return self.advice or "Try again later; if this persists, report it to the registry's operator"


@dataclass(eq=False)
class MalformedDocument(RegistryError):
    """A manifest, index, config or token answer breaks its specification."""

    subject: str
    reason: str

    def _message(self) -> str:
        return f"{self.reason} in: {self.subject}"

    def _hint(self) -> str:
        return "The image itself is invalid; report this to its publisher"


# --- 12: access


@dataclass(eq=False)
class AccessDenied(FastpullError, PermissionError):
    """The registry refused the credentials, or anonymous access (HTTP 401, 403).

    Attributes:
        advice: a further step.
    """

    exit_code = 12
    subject: str
    host: str
    credentials: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.host} denied access to {self.subject} ({self.credentials})"

    def _hint(self) -> str:
        login = (
            f"Check the name, or log in: docker login {self.host}; fastpull inspect --auth {self.host} shows the login"
        )
        return f"{login}. {self.advice}" if self.advice else login


# --- 13: policy


@dataclass(eq=False)
class Forbidden(FastpullError, PermissionError):
    """``policy.json`` or ``registries.conf`` of this machine forbids the image.

    Attributes:
        subject: the image.
        rule: the rule that forbids it, with its file.
        advice: the next step.
    """

    exit_code = 13
    subject: str
    rule: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.rule} forbids: {self.subject}"

    def _hint(self) -> str:
        return self.advice
