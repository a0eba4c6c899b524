"""The endpoints of an image: its mirrors in order, then the registry itself.

A request that one endpoint fails goes to the next. An endpoint that failed is tried last for a minute, so that not
every layer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from fastpull.errors import AccessDenied, FastpullError, IntegrityError, RegistryError, TransportError

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.registry.client import ManifestResponse, RegistryClient

OnFailover = Callable[[str], None]
"""Called with a sentence that names the failed endpoint, its error and the next endpoint."""

COOLDOWN_SECONDS = 60.0
"""How long a failed endpoint is tried after the others."""

DOCUMENT_SECONDS = 30.0
"""The longest time for a manifest or config from a mirror before the next endpoint is tried."""

_log = logging.getLogger("fastpull.registry.endpoints")
_FAILOVER_ERRORS = (TransportError, RegistryError, AccessDenied, IntegrityError)


@dataclass(eq=False)
class Endpoint:
    """A repository in a registry that may have the image.

    Attributes:
        client: the client of the registry.
        repository: the repository in the registry.
        is_mirror: whether the registry is a mirror of the one that the image's name leads to.
    """

    client: RegistryClient
    repository: str
    is_mirror: bool = False
    _cooldown_end: float = field(default=0.0, repr=False)

    @property
    def identity(self) -> str:
        """The credentials in use, for messages."""
        return self.client.identity(self.repository)

    @property
    def cooling_down(self) -> bool:
        """Whether the endpoint failed recently."""
        return time.monotonic() < self._cooldown_end

    def start_cooldown(self) -> None:
        """Try this endpoint last for a while."""
        self._cooldown_end = time.monotonic() + COOLDOWN_SECONDS

    async def manifest(self, version: str) -> ManifestResponse:
        """See `RegistryClient.manifest`."""
        async with self._time_limit():
            return await self.client.manifest(self.repository, version)

    async def manifest_digest(self, version: str, *, retry: bool) -> Digest | None:
        """See `RegistryClient.manifest_digest`."""
        async with self._time_limit():
            return await self.client.manifest_digest(self.repository, version, retry=retry)

    async def blob(self, descriptor: Descriptor) -> bytes:
        """See `RegistryClient.blob`."""
        async with self._time_limit():
            return await self.client.blob(self.repository, descriptor)

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS if self.is_mirror else None):
                yield
        except TimeoutError as error:
            raise TransportError(self.client.name, f"no response within {DOCUMENT_SECONDS:.0f} s") from error

    def __str__(self) -> str:
        kind = "mirror " if self.is_mirror else ""
        return f"{kind}{self.client.name}/{self.repository}"


class Candidates:
    """The endpoints to try for one request, as an iterator.

    ::

        candidates = endpoints.candidates()
        for endpoint in candidates:
            with candidates.failover():
                return await endpoint.manifest(version)
        raise candidates.error

    Args:
        name: the name of the image, for messages.
        endpoints: the endpoints in order; at least one.
        on_failover: called after each failure that has a next endpoint.
    """

    def __init__(self, name: str, endpoints: list[Endpoint], on_failover: OnFailover) -> None:
        assert endpoints, "no endpoint left to try"
        self._name = name
        self._endpoints = endpoints
        self._on_failover = on_failover
        self._tried = 0
        self._failure: tuple[FastpullError, Endpoint] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Endpoint:
        if self._tried == len(self._endpoints):
            raise StopIteration
        self._tried += 1
        return self._endpoints[self._tried - 1]

    @contextmanager
    def failover(self) -> Iterator[None]:
        """Suppress a failure of the current endpoint, so that the next one is tried.

        Errors of this machine pass: another endpoint would not help.
        """
        try:
            yield
        except _FAILOVER_ERRORS as error:
            self._failed(error)

    @property
    def error(self) -> FastpullError:
        """The error of the registry itself if it was tried, otherwise of the first endpoint."""
        assert self._failure is not None, "no endpoint failed"
        error, endpoint = self._failure
        # wrong bytes depend on the host, not on the credentials
        source = f"from {endpoint.client.name}" if isinstance(error, IntegrityError) else endpoint.identity
        error.asked = ", ".join(fact for fact in (self._name, source) if fact not in str(error))
        return error

    def _failed(self, error: FastpullError) -> None:
        endpoint = self._endpoints[self._tried - 1]
        if self._failure is None or not endpoint.is_mirror:
            self._failure = error, endpoint
        is_news = not endpoint.cooling_down
        if len(self._endpoints) > 1:
            endpoint.start_cooldown()
        if self._tried == len(self._endpoints):
            return
        following = self._endpoints[self._tried]
        _log.debug("%s failed, trying %s: %s", endpoint, following, error.message)
        if is_news:  # several layers may fail at once
            self._on_failover(f"{endpoint} failed ({error.message}), trying {following}")


class Endpoints:
    """The endpoints of one image name.

    Args:
        name: the name of the image, for messages.
        endpoints: the endpoints in order; the last is the registry itself.
        on_failover: called after each failure that has a next endpoint.
    """

    def __init__(self, name: str, endpoints: tuple[Endpoint, ...], on_failover: OnFailover = lambda _: None) -> None:
        self._name = name
        self._endpoints = endpoints
        self._on_failover = on_failover

    def candidates(self, without: Collection[Endpoint] = ()) -> Candidates:
        """Return the endpoints to try for one request; those that failed recently come last.

        Args:
            without: endpoints to leave out.
        """
        left = sorted((one for one in self._endpoints if one not in without), key=lambda one: one.cooling_down)
        return Candidates(self._name, left, self._on_failover)

    def has_others(self, endpoints: Collection[Endpoint]) -> bool:
        """Whether there is an endpoint besides these."""
        return any(one not in endpoints for one in self._endpoints)

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))
