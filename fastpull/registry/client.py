"""The client of one registry: manifests and ranges of blobs.

Spec: distribution-spec, Pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from yarl import URL

from fastpull.errors import (
    AccessDenied,
    InvalidDigest,
    NotFound,
    RateLimited,
    RegistryError,
    SizeMismatch,
    TransportError,
    UnexpectedAnswer,
)
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.registry.auth.authorizer import Authorizer
from fastpull.registry.auth.challenges import parse_challenges
from fastpull.registry.download.ranges import ContentRange
from fastpull.registry.host_limiter import HostLimiter
from fastpull.registry.http.locations import Locations
from fastpull.registry.http.rate_limit import RateLimit
from fastpull.registry.http.retry import Backoff, OnRetry, retry_after_seconds, with_retries
from fastpull.registry.http.urls import host_of, parse_untrusted_url, redacted

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.registry.http.response import Response
    from fastpull.registry.http.transport import Transport

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_EXPIRED = frozenset({400, 401, 403, 404, 410})  # responses of storage services to an expired signed URL
_NO_HEAD = frozenset({400, 404, 405, 406, 501})  # responses of registries without a usable HEAD
_MAX_REDIRECTS = 10
_MAX_CHALLENGES = 2


@dataclass(frozen=True, slots=True)
class ManifestResponse:
    """A manifest as received.

    Attributes:
        body: the bytes of the manifest.
        media_type: the ``Content-Type`` of the response, or None.
    """

    body: bytes
    media_type: str | None


@dataclass(frozen=True, slots=True)
class BlobBody:
    """A range of a blob, still to be received.

    Attributes:
        start, stop: the range within the blob; it may be shorter than requested.
        is_whole: whether the host ignored the range and sends the blob from start to end.
    """

    start: int
    stop: int
    is_whole: bool
    _response: Response

    @property
    def host(self) -> str:
        """The host that sends the range, for messages."""
        return self._response.host

    async def pieces(self) -> list[bytes]:
        """Return all received bytes, or wait for the next; an empty list at the end. Raises TransportError."""
        return await self._response.pieces()


class RegistryClient:
    """The client of one registry, usable as long as its transport is open.

    Args:
        transport: the connections, shared with other registries.
        name: the registry's name in references.
        host: ``host[:port]`` of the registry's API.
        schemes: the schemes to try in order; the second is tried only after no response at all to the first.
        keyring: the credentials; None for an anonymous client.
        max_connections: the number of connections for blobs to each host that serves them.
        on_retry: called before every repeated request.
        on_warning: called with problems that the user should know about and that do not stop the pull.
        connection_permit: held while a blob is received: a limit shared with other processes.
    """

    backoff = Backoff()  # for documents

    def __init__(
        self,
        transport: Transport,
        name: str,
        host: str,
        *,
        schemes: tuple[str, ...] = ("https",),
        keyring: Keyring | None = None,
        max_connections: int = 16,
        on_retry: OnRetry = lambda *_: None,
        on_warning: Callable[[str], None] = lambda _: None,
        connection_permit: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self._transport = transport
        self._host = host
        self._schemes = schemes
        self._auth = Authorizer(transport, name, host, keyring, on_warning)
        self._max_connections = max_connections
        self.on_retry = on_retry
        self.connection_permit = connection_permit
        self._on_warning = on_warning
        self._has_warned_of_limit = False
        self._base: URL | None = None
        self._base_lock = asyncio.Lock()
        self._locations = Locations()

    async def manifest(self, repository: str, version: str) -> ManifestResponse:
        """Fetch a manifest or index by tag or digest.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError.
        """

        async def once() -> ManifestResponse:
            url = (await self._base_url()) / "v2" / repository / "manifests" / version
            headers = {"Accept": media_types.ACCEPT}
            async with self._request(url, repository, headers) as response:
                self._warn_of_rate_limit(response)
                if response.status != 200:
                    raise await self._error_for(response, repository, f"manifest {version!r} of {repository}")
                return ManifestResponse(await response.body(MAX_DOCUMENT_SIZE), response.headers.get("Content-Type"))

        return await with_retries(once, self._host, self.backoff, self.on_retry)

    async def manifest_digest(self, repository: str, tag: str, *, retry: bool = True) -> Digest | None:
        """Resolve a tag to a digest without fetching the manifest.

        Args:
            repository: the repository of the tag.
            tag: the tag to resolve.
            retry: whether to repeat the request after a transient failure.

        Returns:
            The digest; None if the registry does not send it, so that the manifest has to be fetched.

        Raises:
            AccessDenied, RateLimited, UnexpectedAnswer, TransportError.

        Spec: distribution-spec, Checking if content exists in the registry.
        """

        async def once() -> Digest | None:
            url = (await self._base_url()) / "v2" / repository / "manifests" / tag
            async with self._request(url, repository, {"Accept": media_types.ACCEPT}, method="HEAD") as response:
                self._warn_of_rate_limit(response)
                if response.status == 200:
                    return _digest_of(response)
                if response.status in _NO_HEAD:
                    return None
                raise await self._error_for(response, repository, f"manifest {tag!r} of {repository}")

        backoff = self.backoff if retry else replace(self.backoff, attempts=1)
        return await with_retries(once, self._host, backoff, self.on_retry)

    async def blob(self, repository: str, descriptor: Descriptor) -> bytes:
        """Fetch a small blob, such as a config, in one request. The caller verifies its digest.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError.
        """

        async def once() -> bytes:
            url = (await self._base_url()) / "v2" / repository / "blobs" / str(descriptor.digest)
            async with self._request(url, repository, {}) as response:
                if response.status != 200:
                    raise await self._error_for(response, repository, f"blob {descriptor.digest}")
                return await response.body(MAX_DOCUMENT_SIZE)

        return await with_retries(once, self._host, self.backoff, self.on_retry)

    @asynccontextmanager
    async def open_range(
        self, repository: str, descriptor: Descriptor, start: int, stop: int
    ) -> AsyncIterator[BlobBody]:
        """Request the bytes ``[start, stop)`` of a blob, without retries.

        The target of the registry's redirect is remembered and requested directly until it refuses.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError: the response of the host.
            SizeMismatch: the host has a blob of another size.
        """
        digest = descriptor.digest
        # always a closed range: some registries reject an open one
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        own = (await self._base_url()) / "v2" / repository / "blobs" / str(digest)
        location = self._locations.of(digest)
        while (known := location.url) is not None:
            async with self._request(known, repository, headers) as response:
                if response.status not in _EXPIRED:
                    yield await self._blob_body(response, repository, descriptor, start, stop)
                    return
            if location.url == known:
                location.url = None
            # one request renews an expired location for all others
            if location.renewal.locked():
                async with location.renewal:
                    continue
            break
        async with AsyncExitStack() as stack:
            async with location.renewal if known else nullcontext():
                response = await stack.enter_async_context(self._request(own, repository, headers))
                if response.status in (200, 206) and response.url.origin() != own.origin():
                    location.url = response.url
            yield await self._blob_body(response, repository, descriptor, start, stop)

    def forget_location(self, digest: Digest) -> None:
        """Request the blob's location from the registry again."""
        self._locations.of(digest).url = None

    def is_paused(self, digest: Digest) -> bool:
        """Whether the host that serves a blob asked for a pause that is not over."""
        return self._transport.gate.remaining_seconds(self._blob_host(digest)) > 0

    def identity(self, repository: str) -> str:
        """Return the credentials in use for a repository, for messages."""
        return self._auth.identity(f"repository:{repository}:pull")

    def host_limiter(self, digest: Digest) -> HostLimiter:
        """Return the connection limiter of the host that serves a blob, as far as that host is known."""
        host = self._blob_host(digest)
        limiter = self._transport.limiters.get(host)
        if limiter is None:  # until measured, a storage host is assumed as far away as the registry
            latency = self._transport.latencies.get(host, self._transport.latencies.get(self._host, 0.0))
            limiter = self._transport.limiters[host] = HostLimiter(self._max_connections, latency)
        return limiter

    def _blob_host(self, digest: Digest) -> str:
        location = self._locations.of(digest).url
        return host_of(location) if location else self._host

    async def _blob_body(
        self, response: Response, repository: str, descriptor: Descriptor, start: int, stop: int
    ) -> BlobBody:
        if response.status == 200:
            length = response.headers.get("Content-Length", "")
            if length.isascii() and length.isdigit() and int(length) != descriptor.size:
                raise SizeMismatch(f"blob {descriptor.digest} from {response.host}", descriptor.size, int(length))
            return BlobBody(0, descriptor.size, True, response)
        if response.status != 206:
            raise await self._error_for(response, repository, f"blob {descriptor.digest}")
        header = response.headers.get("Content-Range", "")
        part = ContentRange.parse(header)
        if part is None or part.start != start or part.stop > stop:
            reason = f"requested bytes {start}-{stop - 1}, got {header[:80]!r}"
            raise UnexpectedAnswer(redacted(response.url), reason, 206)
        if part.total is not None and part.total != descriptor.size:
            raise SizeMismatch(f"blob {descriptor.digest} from {response.host}", descriptor.size, part.total)
        return BlobBody(start, part.stop, False, response)

    async def _base_url(self) -> URL:
        async with self._base_lock:
            if self._base is None:
                self._base = await self._find_base()
            return self._base

    async def _find_base(self) -> URL:
        *before_last, last = (URL(f"{scheme}://{self._host}") for scheme in self._schemes)
        for candidate in before_last:
            try:
                async with self._transport.request("GET", candidate / "v2" / "", {}):
                    return candidate
            except TransportError as error:
                if error.is_certificate:
                    raise
        return last

    @asynccontextmanager
    async def _request(
        self, url: URL, repository: str, headers: Mapping[str, str], *, method: str = "GET"
    ) -> AsyncIterator[Response]:
        """Send a request, follow redirects and handle challenges. Only the registry's origin gets credentials."""
        scope = f"repository:{repository}:pull"
        registry = await self._base_url()
        redirects = challenges = 0
        while True:
            is_registry = url.origin() == registry.origin()
            authorization = await self._auth.header(scope, registry) if is_registry else None
            sent = {**headers, "Authorization": authorization} if authorization else headers
            referrer = "" if is_registry else self._host
            async with self._transport.request(method, url, sent, referrer=referrer) as response:
                if response.status in _REDIRECTS and redirects < _MAX_REDIRECTS:
                    redirects += 1
                    url = _redirect_target(response, may_be_plain=self._transport.is_insecure(self._host))
                    await response.error_detail()  # reads the body, so that the connection is reused
                    continue
                offered = parse_challenges(response.challenge) if is_registry and response.status in (401, 403) else []
                if response.status == 403 and not any(one.is_scope_error for one in offered):
                    offered = []
                if offered and challenges < _MAX_CHALLENGES:
                    challenges += 1
                    await response.error_detail()
                    await self._auth.handle_challenges(offered, scope, authorization, registry)
                    continue
                yield response
                return

    def _warn_of_rate_limit(self, response: Response) -> None:
        limit = RateLimit.parse(response.headers)
        if limit is not None and limit.is_low and not self._has_warned_of_limit:
            self._has_warned_of_limit = True
            self._on_warning(f"{self.name} limits the number of pulls: {limit}; logging in often raises the limit")

    async def _error_for(self, response: Response, repository: str, subject: str) -> RegistryError | AccessDenied:
        """Return the error that a response stands for."""
        if response.status in (401, 403):
            if response.host != self._host:
                return AccessDenied(f"{self.name}/{repository}", response.host, "the registry redirected to this host")
            return AccessDenied(repository, self.name, self.identity(repository))
        if response.status == 404:
            return NotFound(subject, self.name, "Check the name and tag, and that you have access")
        pause = retry_after_seconds(response.headers) if response.status in (429, 503) else None
        self._transport.apply_retry_after(response, pause)
        if response.status == 429:
            return RateLimited(response.host, pause)
        if response.status in _REDIRECTS:
            return UnexpectedAnswer(redacted(response.url), f"more than {_MAX_REDIRECTS} redirects", response.status)
        detail = await response.error_detail() or "no explanation"
        return UnexpectedAnswer(redacted(response.url), detail, response.status)


def _digest_of(response: Response) -> Digest | None:
    try:
        return Digest.parse(response.headers.get("Docker-Content-Digest", ""))
    except InvalidDigest:
        return None


def _redirect_target(response: Response, *, may_be_plain: bool = False) -> URL:
    url = parse_untrusted_url(response.headers.get("Location", ""), response.url)
    if url is None:
        raise UnexpectedAnswer(redacted(response.url), "a redirect without a valid URL", response.status)
    if response.url.scheme == "https" and url.scheme == "http" and not may_be_plain:
        advice = f"If you trust the network, use --insecure, or --insecure-registry {host_of(response.url)}"
        reason = f"a redirect to plain http at {host_of(url)}"
        raise UnexpectedAnswer(redacted(response.url), reason, response.status, advice)
    return url
