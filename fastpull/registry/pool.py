"""The registries that one client talks to, and the places of ``registries.conf`` where their images are."""

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
from fastpull.registry.http.retry import PATIENCE
from fastpull.telemetry.events import Retrying, Warned

if TYPE_CHECKING:
    from fastpull.config.settings import Settings
    from fastpull.errors import FastpullError
    from fastpull.oci.reference import Reference
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.registry.conf.model import PullSource, RegistriesConf
    from fastpull.registry.http.transport import Transport
    from fastpull.telemetry.events import OnEvent

_Key = tuple[str, bool, bool]  # its name, whether it is a mirror, whether it is insecure


class RegistryPool:
    """Makes the clients of registries, one for each.

    Args:
        settings: of the client.
        transport: that all share.
        keyring: likewise.
        conf: where the images of which names are.
        place: taken for each connection that fetches a blob.
        on_event: told what happens.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        keyring: Keyring,
        conf: RegistriesConf,
        place: Callable[[], AbstractAsyncContextManager[None]],
        on_event: OnEvent,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._keyring = keyring
        self._conf = conf
        self._place = place
        self._on_event = on_event
        self._clients: dict[_Key, RegistryClient] = {}
        self._endpoints: dict[_Key, Endpoint] = {}
        self._causes = FailureCauses()

    def qualified(self, text: str) -> Reference:
        """The reference that a user has written, aliases replaced.

        Raises:
            InvalidReference: it is none.
        """
        return self._conf.qualified(text)

    def endpoints(self, reference: Reference) -> Endpoints:
        """Where an image is to be asked for.

        Raises:
            Forbidden: nowhere.
        """
        places = self._conf.pull_sources(reference)
        return Endpoints(str(reference), tuple(map(self._endpoint, places)), partial(self._warn, str(reference)))

    def client(self, reference: Reference, *, is_mirror: bool = False, is_insecure: bool = False) -> RegistryClient:
        """The client of the registry that an image is in.

        Args:
            reference: of the image.
            is_mirror: it stands in for the registry that the user has named: nothing that is said of that counts here.
            is_insecure: it may speak plain http, or have a certificate that nobody vouches for.
        """
        key = (reference.registry, is_mirror, is_insecure)
        known = self._clients.get(key)
        if known is None:
            name, host = reference.registry, reference.host
            if not is_mirror:
                self._keyring.name_registry(name)
                self._transport.name_host(host, is_insecure=self._settings.insecure)
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
                place=self._place,
            )
            # there are others to ask than a mirror
            access, attempts = self._settings.access, 1 if is_mirror else 1 + self._settings.access.retries
            known.backoff = replace(known.backoff, attempts=attempts, total_seconds=PATIENCE * access.timeout)
        return known

    def _endpoint(self, place: PullSource) -> Endpoint:
        reference = place.reference
        key = (reference.name, place.is_mirror, place.is_insecure)
        known = self._endpoints.get(key)
        if known is None:
            client = self.client(reference, is_mirror=place.is_mirror, is_insecure=place.is_insecure)
            known = self._endpoints[key] = Endpoint(client, reference.repository, place.is_mirror)
        return known

    def _on_retry(self, host: str, error: FastpullError, pause: float) -> None:
        self._on_event(Retrying(host, str(error), pause, self._causes.is_repeated(host, error, pause)))

    def _warn(self, subject: str, message: str) -> None:
        self._on_event(Warned(subject, message))
