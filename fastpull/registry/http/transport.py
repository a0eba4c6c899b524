"""HTTP, one request at a time: connections, TLS, proxies, ``Retry-After`` and restrictions on private addresses.

Redirects, authorization and retries are decided by the caller. Bodies are not decoded, because digests are of the
bytes on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp
from yarl import URL

from fastpull._version import __version__
from fastpull.config.access import DEFAULT_ACCESS, Access
from fastpull.errors import FastpullError, InvalidSetting, UnexpectedAnswer, translate_errors
from fastpull.registry.http.addresses import AddressScope, address_scope
from fastpull.registry.http.certificates import Certificates, find_certificates
from fastpull.registry.http.errors import http_errors
from fastpull.registry.http.proxies import Proxies
from fastpull.registry.http.response import ClosedConnections, Response
from fastpull.registry.http.retry import MAX_RETRY_AFTER_SECONDS
from fastpull.registry.http.urls import host_of, redacted, without_port

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from fastpull.registry.host_limiter import HostLimiter

CONNECT_SECONDS = 30.0
"""The longest time to establish a connection, unless the ``timeout`` setting is shorter."""

_log = logging.getLogger("fastpull.registry.http.transport")
_READ_BUFFER = 1 << 20  # per connection; with 64 KiB the event loop wakes four times as often
_DNS_CACHE_SECONDS = 60


class RetryAfterGate:
    """Holds back requests to hosts that asked for a pause with ``Retry-After``."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def close(self, host: str, seconds: float) -> None:
        """Hold back requests to ``host`` for this long."""
        self._until[host] = max(self._until.get(host, 0.0), time.monotonic() + seconds)

    def remaining_seconds(self, host: str) -> float:
        """Return the rest of the pause, 0 if there is none."""
        return max(0.0, self._until.get(host, 0.0) - time.monotonic())

    async def wait(self, host: str) -> None:
        """Wait until the pause is over."""
        while (seconds := self.remaining_seconds(host)) > 0:  # noqa: ASYNC110  # the pause may be extended meanwhile
            await asyncio.sleep(seconds)


class AddressPolicy:
    """The known address scopes of hosts.

    Host names are resolved before a request to a referred host, so that a public registry cannot cause a connection to
    a private network. The peer of each connection is checked as well, because a name may resolve differently by then.
    """

    def __init__(self) -> None:
        self._peers: dict[str, AddressScope] = {}
        self._names: dict[str, tuple[float, AddressScope]] = {}

    def record_peer(self, host: str, peer: AddressScope) -> None:
        """Record the peer address scope of a host that the user named."""
        self._peers[host] = min(peer, self._peers.get(host, peer))

    def scope_of_referrer(self, host: str) -> AddressScope:
        """Return the scope of a host that refers this client elsewhere; public if unknown."""
        try:
            return self._peers.get(host) or address_scope(host)
        except ValueError:
            return AddressScope.PUBLIC

    async def scope_of_target(self, host: str, *, resolve: bool = True) -> AddressScope:
        """Return the narrowest scope among the addresses of a host.

        Args:
            host: a name or a literal address.
            resolve: whether to resolve names. An unresolved name counts as public: only a proxy can connect to it.
        """
        try:
            return address_scope(host)
        except ValueError:
            pass
        known = self._names.get(host)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        if not resolve:
            return AddressScope.PUBLIC
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        scope = max((address_scope(str(one[4][0])) for one in found), default=AddressScope.PUBLIC)
        self._names[host] = (time.monotonic() + _DNS_CACHE_SECONDS, scope)
        return scope


@dataclass(frozen=True, slots=True)
class RedirectGuard:
    """The restriction on a request to a host that another host, not the user, chose.

    Attributes:
        referrer: the host that sent this client here, by a redirect or as the realm of a challenge.
        limit: the narrowest address scope allowed.
    """

    referrer: str
    limit: AddressScope


_redirect_guard: ContextVar[RedirectGuard | None] = ContextVar("_redirect_guard", default=None)


class _GuardedConnector(aiohttp.TCPConnector):
    """Checks the peer address and the gate once connected: the gate may have closed while the request was queued."""

    def __init__(self, gate: RetryAfterGate, addresses: AddressPolicy) -> None:
        super().__init__(limit=0, keepalive_timeout=30.0, ttl_dns_cache=_DNS_CACHE_SECONDS)
        self._gate = gate
        self._addresses = addresses

    async def connect(  # signature of aiohttp
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # signature of aiohttp
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        try:
            if req.proxy is None:
                self._check_peer(connection, req.url)
            await self._gate.wait(host_of(req.url))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_peer(self, connection: Connection, url: URL) -> None:
        peer = connection.transport.get_extra_info("peername") if connection.transport else None
        if not peer:
            return
        scope, guard = address_scope(peer[0]), _redirect_guard.get()
        if guard is None:
            self._addresses.record_peer(url.host or "", scope)
        elif scope > guard.limit:
            raise _scope_error(url, guard.referrer, scope)


class Transport:
    """The HTTP connections of one client.

    Certificates and the permission to be insecure belong to single hosts. They do not extend to the hosts that such a
    host refers this client to.

    Args:
        access: the settings for hosts.

    Attributes:
        gate: holds back requests to hosts that asked for a pause.
        limiters: the connection limiter of each host that serves blobs.
        latencies: the shortest time to a response from each host, in seconds.
    """

    def __init__(self, access: Access = DEFAULT_ACCESS) -> None:
        self.gate = RetryAfterGate()
        self.limiters: dict[str, HostLimiter] = {}
        self.latencies: dict[str, float] = {}
        self._access = access
        self._addresses = AddressPolicy()
        self._insecure = set(access.insecure_registries)
        self._source_hosts: set[str] = set()
        self._contexts: dict[tuple[str, bool, bool], ssl.SSLContext | bool] = {}
        self._proxies = Proxies.from_environment()
        self._session: aiohttp.ClientSession | None = None
        self._closed = ClosedConnections()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=_GuardedConnector(self.gate, self._addresses),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(CONNECT_SECONDS, self._access.timeout), sock_read=self._access.timeout
            ),
            auto_decompress=False,
            trust_env=False,  # True would also read ~/.netrc
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
            headers={"User-Agent": f"fastpull/{__version__}", "Accept-Encoding": "identity"},
            requote_redirect_url=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def add_source_host(self, host: str, *, is_insecure: bool = False) -> None:
        """Register a ``host[:port]`` that a source names: the user's certificate directory applies to it.

        Args:
            host: the registry's host, not that of a mirror from ``registries.conf``.
            is_insecure: whether the host may be insecure, on all ports: its token server may use another one.
        """
        self._source_hosts.add(host)
        if is_insecure:
            self.allow_insecure(without_port(host))

    def allow_insecure(self, host: str) -> None:
        """Allow plain http and unverified certificates for a ``host[:port]``; without a port, on all ports."""
        self._insecure.add(host)

    def is_insecure(self, host: str) -> bool:
        """Whether a ``host[:port]`` may use plain http and an unverified certificate."""
        return not self._insecure.isdisjoint((host, without_port(host)))

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        *,
        form: Mapping[str, str] | None = None,
        referrer: str = "",
    ) -> AsyncIterator[Response]:
        """Send one request and receive the headers of its response, whatever the status.

        Args:
            method: the HTTP method.
            url: the URL to request.
            headers: the headers in addition to those of every request.
            form: the fields to send as a form.
            referrer: the host that referred this client to ``url``; empty if the user named the host.

        Raises:
            TransportError: no response was received.
            InvalidSetting: the certificates for the host are unusable.
            UnexpectedAnswer: the referrer may not refer this client to this address.
        """
        assert self._session is not None, "used outside its context"
        host = host_of(url)
        await self.gate.wait(host)
        proxy = self._proxies.find(url)
        guard = await self._guard(url, referrer, is_proxied=proxy is not None)
        tls = self._context(host) if url.scheme == "https" else True
        token = _redirect_guard.set(guard)
        started, errors = time.monotonic(), http_errors(url, self._access.timeout)
        try:
            with translate_errors(errors):
                response = await self._session.request(
                    method, url, headers=headers, data=form, allow_redirects=False, proxy=proxy, ssl=tls
                )
        except FastpullError as error:
            _log.debug("%s %s%s: %s", method, host, url.path, error.message)
            raise
        finally:
            _redirect_guard.reset(token)
        elapsed = time.monotonic() - started
        _log.debug("%s %s%s: %d in %.3f s", method, host, url.path, response.status, elapsed)
        self.latencies[host] = min(elapsed, self.latencies.get(host, elapsed))
        self._closed.watch(response)
        try:
            yield Response(response, errors, self._access.timeout)
        finally:
            # only a fully read response leaves its connection usable
            response.release() if response.content.at_eof() else response.close()

    async def _guard(self, url: URL, referrer: str, *, is_proxied: bool) -> RedirectGuard | None:
        host, referring = url.host or "", URL(f"https://{referrer}").host if referrer else None
        if referring is None or host == referring or {host, host_of(url)} & set(self._access.private_hosts):
            return None
        scope = await self._addresses.scope_of_target(host, resolve=not is_proxied)  # the proxy resolves names
        if scope is AddressScope.PUBLIC and is_proxied:
            return None
        limit = self._addresses.scope_of_referrer(referring)
        if scope > limit:
            raise _scope_error(url, referrer, scope)
        return RedirectGuard(referrer, limit)

    def _context(self, host: str) -> ssl.SSLContext | bool:
        is_named, is_insecure = host in self._source_hosts, self.is_insecure(host)
        key = (host, is_named, is_insecure)  # both may change later
        context = self._contexts.get(key)
        if context is None:
            found = None
            if self._access.cert_dir and is_named:
                found = Certificates.in_directory(self._access.cert_dir)
                if found is None:
                    raise InvalidSetting(self._access.cert_dir, "no such directory of certificates")
            found = found or find_certificates(host) or Certificates()
            context = self._contexts[key] = found.context(verify=not is_insecure)
        return context

    def apply_retry_after(self, response: Response, seconds: float | None) -> float | None:
        """Hold back further requests to a host that asked for a pause, unless the pause exceeds the maximum.

        Returns:
            ``seconds``, unchanged.
        """
        if seconds is not None and seconds <= MAX_RETRY_AFTER_SECONDS:
            _log.debug("%s asks for a pause of %.1f s", response.host, seconds)
            self.gate.close(response.host, seconds)
        return seconds


def _scope_error(url: URL, referrer: str, scope: AddressScope) -> UnexpectedAnswer:
    advice = f"If you trust {referrer}, allow this address with --private-host {host_of(url)}"
    return UnexpectedAnswer(redacted(url), f"{referrer} sends this client to {scope.description}", None, advice)
