"""The clients of all registries, and the endpoints of images according to ``registries.conf``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastpull.oci.reference import is_loopback
from fastpull.registry.causes import FailureCauses
from fastpull.registry.client import RegistryClient
from fastpull.registry.endpoints import Endpoint, Endpoints
from fastpull.registry.http.retry import RETRY_TIMEOUTS
from fastpull.telemetry.events import Retrying, Warned

if TYPE_CHECKING:
    from fastpull.config.settings import Settings
    from fastpull.errors import FastpullError
    from fastpull.oci.reference import Reference
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.registry.conf.model import PullSource, RegistriesConf
    from fastpull.registry.http.transport import Transport
    from fastpull.telemetry.events import OnEvent

_Key = tuple[str, bool, bool]  # name, is_mirror, is_insecure


class RegistryPool:
    """Creates the clients of registries, one for each.

    Args:
        settings: the settings of the client.
        transport: the connections, shared by all clients.
        keyring: the credentials, shared by all clients.
        conf: the contents of ``registries.conf``.
        connection_permit: held by each connection that receives a blob.
        on_event: called with events.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        keyring: Keyring,
        conf: RegistriesConf,
        connection_permit: Callable[[], AbstractAsyncContextManager[None]],
        on_event: OnEvent,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._keyring = keyring
        self._conf = conf
        self._connection_permit = connection_permit
        self._on_event = on_event
        self._clients: dict[_Key, RegistryClient] = {}
        self._endpoints: dict[_Key, Endpoint] = {}
        self._causes = FailureCauses()

    def qualified(self, text: str) -> Reference:
        """Parse a reference as a user writes it, and replace aliases.

        Raises:
            InvalidReference: not a reference.
        """
        return self._conf.qualified(text)

    def endpoints(self, reference: Reference) -> Endpoints:
        """Return the endpoints of an image.

        Raises:
            Forbidden: all endpoints are blocked.
        """
        sources = self._conf.pull_sources(reference)
        return Endpoints(str(reference), tuple(map(self._endpoint, sources)), partial(self._warn, str(reference)))

    def client(self, reference: Reference, *, is_mirror: bool = False, is_insecure: bool = False) -> RegistryClient:
        """Return the client of the registry of an image.

        Args:
            reference: the reference of the image.
            is_mirror: whether the registry is a mirror: settings for the registry that the user named do not apply.
            is_insecure: whether plain http and unverified certificates are allowed.
        """
        key = (reference.registry, is_mirror, is_insecure)
        known = self._clients.get(key)
        if known is None:
            name, host = reference.registry, reference.host
            if not is_mirror:
                self._keyring.add_source_registry(name)
                self._transport.add_source_host(host, is_insecure=self._settings.insecure)
            if is_insecure:
                self._transport.allow_insecure(host)
            may_be_plain = self._transport.is_insecure(host) or is_loopback(host)
            known = self._clients[key] = RegistryClient(
                self._transport,
                name,
                host,
                schemes=("https", "http") if may_be_plain else ("https",),
                keyring=self._keyring,
                max_connections=self._settings.connections,
                on_retry=self._on_retry,
                on_warning=partial(self._warn, name),
                connection_permit=self._connection_permit,
            )
            # a mirror gets one attempt: the next endpoint follows
            access, attempts = self._settings.access, 1 if is_mirror else 1 + self._settings.access.retries
            known.backoff = replace(known.backoff, attempts=attempts, total_seconds=RETRY_TIMEOUTS * access.timeout)
        return known

    def _endpoint(self, source: PullSource) -> Endpoint:
        reference = source.reference
        key = (reference.name, source.is_mirror, source.is_insecure)
        known = self._endpoints.get(key)
        if known is None:
            client = self.client(reference, is_mirror=source.is_mirror, is_insecure=source.is_insecure)
            known = self._endpoints[key] = Endpoint(client, reference.repository, source.is_mirror)
        return known

    def _on_retry(self, host: str, error: FastpullError, pause: float) -> None:
        self._on_event(Retrying(host, str(error), pause, self._causes.is_repeated(host, error, pause)))

    def _warn(self, subject: str, message: str) -> None:
        self._on_event(Warned(subject, message))
