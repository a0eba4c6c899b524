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
from fastpull.registry.http.retry import Backoff, Retrying, retry_after_seconds, with_retries
from fastpull.registry.http.urls import foreign_url, host_of, shown

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.registry.http.response import Response
    from fastpull.registry.http.transport import Transport

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_EXPIRED = frozenset({400, 401, 403, 404, 410})  # how storage says that a signed URL is no longer good
_NO_HEAD = frozenset({400, 404, 405, 406, 501})  # of those who do not know the method, or only pretend to
_MAX_REDIRECTS = 10
_MAX_CHALLENGES = 2


@dataclass(frozen=True, slots=True)
class ManifestResponse:
    """A manifest as it came.

    Attributes:
        body: its bytes.
        media_type: what the registry says it is, or None.
    """

    body: bytes
    media_type: str | None


@dataclass(frozen=True, slots=True)
class BlobBody:
    """A part of a blob that is coming.

    Attributes:
        start, stop: what it is of the blob; perhaps less than was asked for.
        is_whole: the host knows no ranges, and sends the blob from its start to its end.
    """

    start: int
    stop: int
    is_whole: bool
    _answer: Response

    @property
    def host(self) -> str:
        """Where it comes from, for messages."""
        return self._answer.host

    async def pieces(self) -> list[bytes]:
        """The next bytes, all that are there; nothing at the end. Raises TransportError."""
        return await self._answer.pieces()


class RegistryClient:
    """One registry, for as long as its transport is open.

    Args:
        transport: shared with other registries.
        name: of the registry, as in references.
        host: ``host[:port]`` that it is reached at.
        schemes: to be tried in this order; a second is tried only if the first gives no answer at all.
        keyring: None for an anonymous client.
        max_connections: for blobs, to each host that they come from.
        on_retry: told of every request that is repeated.
        on_warning: told what the user should know, and does not stop the work.
        place: held for as long as a blob comes: a limit that others share.
    """

    backoff = Backoff()  # of documents

    def __init__(
        self,
        transport: Transport,
        name: str,
        host: str,
        *,
        schemes: tuple[str, ...] = ("https",),
        keyring: Keyring | None = None,
        max_connections: int = 16,
        on_retry: Retrying = lambda *_: None,
        on_warning: Callable[[str], None] = lambda _: None,
        place: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self._transport = transport
        self._host = host
        self._schemes = schemes
        self._auth = Authorizer(transport, name, host, keyring, on_warning)
        self._max_connections = max_connections
        self.on_retry = on_retry
        self.place = place
        self._on_warning = on_warning
        self._told_limit = False
        self._base: URL | None = None
        self._base_lock = asyncio.Lock()
        self._locations = Locations()

    async def manifest(self, repository: str, version: str) -> ManifestResponse:
        """Fetches a manifest or index by tag or digest.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError.
        """

        async def once() -> ManifestResponse:
            url = (await self._base_url()) / "v2" / repository / "manifests" / version
            headers = {"Accept": media_types.ACCEPT}
            async with self._exchange(url, repository, headers) as answer:
                self._tell_limit(answer)
                if answer.status != 200:
                    raise await self._refusal(answer, repository, f"manifest {version!r} of {repository}")
                return ManifestResponse(await answer.body(MAX_DOCUMENT_SIZE), answer.headers.get("Content-Type"))

        return await with_retries(once, self._host, self.backoff, self.on_retry)

    async def manifest_digest(self, repository: str, tag: str, *, retry: bool = True) -> Digest | None:
        """Asks what a tag names now, without fetching it.

        Args:
            repository: of the tag.
            tag: that is asked for.
            retry: whether to ask again after a failure that may pass.

        Returns:
            Its digest; None where the registry does not tell, and has to be asked for the manifest.

        Raises:
            AccessDenied, RateLimited, UnexpectedAnswer, TransportError.

        Spec: distribution-spec, Checking if content exists in the registry.
        """

        async def once() -> Digest | None:
            url = (await self._base_url()) / "v2" / repository / "manifests" / tag
            async with self._exchange(url, repository, {"Accept": media_types.ACCEPT}, method="HEAD") as answer:
                self._tell_limit(answer)
                if answer.status == 200:
                    return _digest_of(answer)
                if answer.status in _NO_HEAD:
                    return None
                raise await self._refusal(answer, repository, f"manifest {tag!r} of {repository}")

        backoff = self.backoff if retry else replace(self.backoff, attempts=1)
        return await with_retries(once, self._host, backoff, self.on_retry)

    async def blob(self, repository: str, descriptor: Descriptor) -> bytes:
        """Fetches a small blob, such as a config, in one piece; its digest is for the caller to verify.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError.
        """

        async def once() -> bytes:
            url = (await self._base_url()) / "v2" / repository / "blobs" / str(descriptor.digest)
            async with self._exchange(url, repository, {}) as answer:
                if answer.status != 200:
                    raise await self._refusal(answer, repository, f"blob {descriptor.digest}")
                return await answer.body(MAX_DOCUMENT_SIZE)

        return await with_retries(once, self._host, self.backoff, self.on_retry)

    @asynccontextmanager
    async def open_range(
        self, repository: str, descriptor: Descriptor, start: int, stop: int
    ) -> AsyncIterator[BlobBody]:
        """Asks for the bytes ``[start, stop)`` of a blob, once.

        Where the registry redirects to is remembered, and asked directly from then on, until it refuses.

        Raises:
            NotFound, AccessDenied, RateLimited, UnexpectedAnswer, TransportError: as the host answers.
            SizeMismatch: the host has a blob of another size.
        """
        digest = descriptor.digest
        # always closed: some registries refuse an open range, and all stop at the end of a closed one
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        own = (await self._base_url()) / "v2" / repository / "blobs" / str(digest)
        location = self._locations.of(digest)
        while (known := location.url) is not None:
            async with self._exchange(known, repository, headers) as answer:
                if answer.status not in _EXPIRED:
                    yield await self._blob_body(answer, repository, descriptor, start, stop)
                    return
            if location.url == known:
                location.url = None
            # of all whose location has expired one asks for the new one, the others use it
            if location.renewal.locked():
                async with location.renewal:
                    continue
            break
        async with AsyncExitStack() as stack:
            async with location.renewal if known else nullcontext():
                answer = await stack.enter_async_context(self._exchange(own, repository, headers))
                if answer.status in (200, 206) and answer.url.origin() != own.origin():
                    location.url = answer.url
            yield await self._blob_body(answer, repository, descriptor, start, stop)

    def forget_location(self, digest: Digest) -> None:
        """Have the registry say anew where a blob is."""
        self._locations.of(digest).url = None

    def is_paused(self, digest: Digest) -> bool:
        """Whether the host that a blob comes from has asked for a pause that still lasts."""
        return self._transport.gates.remaining_seconds(self._blob_host(digest)) > 0

    def identity(self, repository: str) -> str:
        """Who is asking for a repository, for messages."""
        return self._auth.identity(f"repository:{repository}:pull")

    def lanes(self, digest: Digest) -> HostLimiter:
        """The lanes to the host that a blob comes from, as far as it is known yet."""
        host = self._blob_host(digest)
        lanes = self._transport.lanes.get(host)
        if lanes is None:  # where a registry sends its clients is about as far away as it is itself
            latency = self._transport.latencies.get(host, self._transport.latencies.get(self._host, 0.0))
            lanes = self._transport.lanes[host] = HostLimiter(self._max_connections, latency)
        return lanes

    def _blob_host(self, digest: Digest) -> str:
        location = self._locations.of(digest).url
        return host_of(location) if location else self._host

    async def _blob_body(
        self, answer: Response, repository: str, descriptor: Descriptor, start: int, stop: int
    ) -> BlobBody:
        if answer.status == 200:
            length = answer.headers.get("Content-Length", "")
            if length.isascii() and length.isdigit() and int(length) != descriptor.size:
                raise SizeMismatch(f"blob {descriptor.digest} from {answer.host}", descriptor.size, int(length))
            return BlobBody(0, descriptor.size, True, answer)
        if answer.status != 206:
            raise await self._refusal(answer, repository, f"blob {descriptor.digest}")
        said = answer.headers.get("Content-Range", "")
        part = ContentRange.parse(said)
        if part is None or part.start != start or part.stop > stop:
            raise UnexpectedAnswer(shown(answer.url), f"asked for bytes {start}-{stop - 1}, got {said[:80]!r}", 206)
        if part.total is not None and part.total != descriptor.size:
            raise SizeMismatch(f"blob {descriptor.digest} from {answer.host}", descriptor.size, part.total)
        return BlobBody(start, part.stop, False, answer)

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
    async def _exchange(
        self, url: URL, repository: str, headers: Mapping[str, str], *, method: str = "GET"
    ) -> AsyncIterator[Response]:
        """Sends a request, and follows redirects and challenges. Authorization goes to the registry's origin alone."""
        scope = f"repository:{repository}:pull"
        registry = await self._base_url()
        redirects = challenges = 0
        while True:
            is_registry = url.origin() == registry.origin()
            authorization = await self._auth.header(scope, registry) if is_registry else None
            sent = {**headers, "Authorization": authorization} if authorization else headers
            sender = "" if is_registry else self._host
            async with self._transport.request(method, url, sent, sender=sender) as answer:
                if answer.status in _REDIRECTS and redirects < _MAX_REDIRECTS:
                    redirects += 1
                    url = _redirected(answer, may_be_plain=self._transport.is_insecure(self._host))
                    await answer.complaint()
                    continue
                offered = parse_challenges(answer.challenge) if is_registry and answer.status in (401, 403) else []
                if answer.status == 403 and not any(one.is_scope_error for one in offered):
                    offered = []
                if offered and challenges < _MAX_CHALLENGES:
                    challenges += 1
                    await answer.complaint()
                    await self._auth.answer(offered, scope, authorization, registry)
                    continue
                yield answer
                return

    def _tell_limit(self, answer: Response) -> None:
        limit = RateLimit.parse(answer.headers)
        if limit is not None and limit.is_low and not self._told_limit:
            self._told_limit = True
            self._on_warning(f"{self.name} limits how much may be pulled: {limit}; logging in often raises the limit")

    async def _refusal(self, answer: Response, repository: str, subject: str) -> RegistryError | AccessDenied:
        """The error that an answer stands for."""
        if answer.status in (401, 403):
            if answer.host != self._host:
                return AccessDenied(f"{self.name}/{repository}", answer.host, "where the registry sends its clients")
            return AccessDenied(repository, self.name, self.identity(repository))
        if answer.status == 404:
            return NotFound(subject, self.name, "Check name and tag, and that you may see it")
        pause = retry_after_seconds(answer.headers) if answer.status in (429, 503) else None
        self._transport.obey(answer, pause)
        if answer.status == 429:
            return RateLimited(answer.host, pause)
        if answer.status in _REDIRECTS:
            return UnexpectedAnswer(shown(answer.url), f"more than {_MAX_REDIRECTS} redirects", answer.status)
        return UnexpectedAnswer(shown(answer.url), await answer.complaint() or "no explanation", answer.status)


def _digest_of(answer: Response) -> Digest | None:
    try:
        return Digest.parse(answer.headers.get("Docker-Content-Digest", ""))
    except InvalidDigest:
        return None


def _redirected(answer: Response, *, may_be_plain: bool = False) -> URL:
    url = foreign_url(answer.headers.get("Location", ""), answer.url)
    if url is None:
        raise UnexpectedAnswer(shown(answer.url), "a redirect to no URL", answer.status)
    if answer.url.scheme == "https" and url.scheme == "http" and not may_be_plain:
        advice = f"If you trust the way to it, use --insecure, or --insecure-registry {host_of(answer.url)}"
        raise UnexpectedAnswer(shown(answer.url), f"a redirect to plain http at {host_of(url)}", answer.status, advice)
    return url
