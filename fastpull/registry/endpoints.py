"""The places that an image is asked for: its mirrors, one after the other, and the registry itself.

What one place cannot give the next is asked for. A place that failed comes after the others for a minute, so that not
every layer waits for it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from fastpull.errors import AccessDenied, FastpullError, IntegrityError, RegistryError, TransportError

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.registry.client import ManifestResponse, RegistryClient

T = TypeVar("T")

Failed = Callable[[str], None]
"""Told, in a sentence, that a place failed and which is asked instead."""

REST_SECONDS = 60.0
DOCUMENT_SECONDS = 30.0
"""How long a mirror may take for a manifest or config before the next place is asked."""

_PASSED_ON = (TransportError, RegistryError, AccessDenied, IntegrityError)


@dataclass(eq=False)
class Endpoint:
    """A repository in a registry that may have the image.

    Attributes:
        client: of the registry.
        repository: within it.
        is_mirror: it stands in for the registry that the image's name leads to.
    """

    client: RegistryClient
    repository: str
    is_mirror: bool = False
    _rests_until: float = field(default=0.0, repr=False)

    @property
    def identity(self) -> str:
        """Who is asking it, for messages."""
        return self.client.identity(self.repository)

    @property
    def rests(self) -> bool:
        """Whether it failed a moment ago."""
        return time.monotonic() < self._rests_until

    def rest(self) -> None:
        """Takes note of a failure."""
        self._rests_until = time.monotonic() + REST_SECONDS

    async def manifest(self, version: str) -> ManifestResponse:
        """As `RegistryClient.manifest`."""
        async with self._in_time():
            return await self.client.manifest(self.repository, version)

    async def manifest_digest(self, version: str, *, retry: bool) -> Digest | None:
        """As `RegistryClient.manifest_digest`."""
        async with self._in_time():
            return await self.client.manifest_digest(self.repository, version, retry=retry)

    async def blob(self, descriptor: Descriptor) -> bytes:
        """As `RegistryClient.blob`."""
        async with self._in_time():
            return await self.client.blob(self.repository, descriptor)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS if self.is_mirror else None):
                yield
        except TimeoutError as error:
            raise TransportError(self.client.name, f"no answer within {DOCUMENT_SECONDS:.0f} s") from error

    def __str__(self) -> str:
        kind = "mirror " if self.is_mirror else ""
        return f"{kind}{self.client.name}/{self.repository}"


class Endpoints:
    """The endpoints of one image name.

    Args:
        name: of the image, for messages.
        endpoints: in the order in which they are to be asked; the last is the registry itself.
        on_failed: told of each that fails while there are others.
    """

    def __init__(self, name: str, endpoints: tuple[Endpoint, ...], on_failed: Failed = lambda _: None) -> None:
        self._name = name
        self._endpoints = endpoints
        self._on_failed = on_failed

    async def ask(self, request: Callable[[Endpoint], Awaitable[T]], without: Collection[Endpoint] = ()) -> T:
        """Makes a request of one endpoint after the other, until one fulfils it.

        Args:
            request: to be made; it raises what the endpoint's answer stands for.
            without: endpoints that are not to be asked.

        Raises:
            FastpullError: what the registry itself said, or the first who was asked instead. A failure of this machine
                is no reason to ask somebody else.
        """
        left = sorted((one for one in self._endpoints if one not in without), key=lambda one: one.rests)
        told: FastpullError | None = None
        teller = left[0]
        for endpoint, following in zip_longest(left, left[1:]):
            try:
                return await request(endpoint)
            except _PASSED_ON as error:
                if told is None or not endpoint.is_mirror:
                    told, teller = error, endpoint
                is_news = not endpoint.rests
                if len(left) > 1:
                    endpoint.rest()
                if following is not None and is_news:  # many layers may find out at once
                    self._on_failed(f"{endpoint} failed ({error.message}), now {following} is asked")
        assert told is not None, "nobody to ask"
        # wrong bytes are those of a host, whoever asks for them
        source = f"from {teller.client.name}" if isinstance(told, IntegrityError) else teller.identity
        told.asked = ", ".join(fact for fact in (self._name, source) if fact not in str(told))
        raise told

    def others(self, endpoints: Collection[Endpoint]) -> bool:
        """Whether there is one that is not among these."""
        return any(one not in endpoints for one in self._endpoints)

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))
