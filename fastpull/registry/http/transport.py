"""HTTP, one exchange at a time: connections, TLS, proxies, and pauses that hosts ask for.

Redirects, authorization and retries are decided above. Nothing is decoded: the digests are of the bytes on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from fastpull.errors import InvalidSetting, UnexpectedAnswer
from fastpull.registry.http.addresses import Reach, reach_of
from fastpull.registry.http.certificates import Certificates, find_certificates
from fastpull.registry.http.errors import http_errors
from fastpull.registry.http.proxies import Proxies
from fastpull.registry.http.response import ClosedConnections, Response
from fastpull.registry.http.retry import MAX_RETRY_AFTER_SECONDS
from fastpull.registry.http.urls import host_of, shown, without_port

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from fastpull.registry.host_limiter import HostLimiter

CONNECT_SECONDS = 30.0
"""How long a connection may take to come about, unless less time is allowed anyway."""

_READ_BUFFER = 1 << 20  # per connection; at 64 KiB the loop is woken four times as often for the same bytes
_NAMES_SECONDS = 60


class RetryAfterGate:
    """Hosts that have asked for a pause, and until when."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def close(self, host: str, seconds: float) -> None:
        """Lets no request out to ``host`` for so long."""
        self._until[host] = max(self._until.get(host, 0.0), time.monotonic() + seconds)

    def remaining_seconds(self, host: str) -> float:
        """How long the pause still lasts."""
        return max(0.0, self._until.get(host, 0.0) - time.monotonic())

    async def passed(self, host: str) -> None:
        """Waits until the host may be asked again."""
        while (seconds := self.remaining_seconds(host)) > 0:  # noqa: ASYNC110  # it may have been closed again
            await asyncio.sleep(seconds)


class AddressPolicy:
    """What is known of the addresses of hosts.

    Names are asked for here before a host is sent to: a connection to a private network is never even begun for a
    public registry. What a connection then really leads to is checked again: a name may mean another address by then.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Reach] = {}
        self._names: dict[str, tuple[float, Reach]] = {}

    def note(self, host: str, peer: Reach) -> None:
        """Takes note of where a connection to a host that the user named leads to."""
        self._peers[host] = min(peer, self._peers.get(host, peer))

    def of_sender(self, host: str) -> Reach:
        """The reach of a host that sends this client elsewhere; it counts as public where nothing is known."""
        try:
            return self._peers.get(host) or reach_of(host)
        except ValueError:
            return Reach.PUBLIC

    async def of_target(self, host: str, *, ask: bool = True) -> Reach:
        """The narrowest reach of all addresses of a host.

        Args:
            host: a name or a literal address.
            ask: whether names are looked up. One that is not, or is not known, counts as public: nothing can be
                connected to by it, unless by a proxy.
        """
        try:
            return reach_of(host)
        except ValueError:
            pass
        known = self._names.get(host)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        if not ask:
            return Reach.PUBLIC
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        reach = max((reach_of(str(one[4][0])) for one in found), default=Reach.PUBLIC)
        self._names[host] = (time.monotonic() + _NAMES_SECONDS, reach)
        return reach


@dataclass(frozen=True, slots=True)
class RedirectGuard:
    """A request that somebody else than the user chose the host of."""

    sender: str
    limit: Reach


_hop: ContextVar[RedirectGuard | None] = ContextVar("_hop", default=None)


class _GuardedConnector(aiohttp.TCPConnector):
    """Checks gate and peer when the connection is there: the gate may have closed while that was waited for."""

    def __init__(self, gates: RetryAfterGate, reaches: AddressPolicy) -> None:
        super().__init__(limit=0, keepalive_timeout=30.0, ttl_dns_cache=_NAMES_SECONDS)
        self._gates = gates
        self._reaches = reaches

    async def connect(  # aiohttp's
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        try:
            if req.proxy is None:
                self._check_peer(connection, req.url)
            await self._gates.passed(host_of(req.url))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_peer(self, connection: Connection, url: URL) -> None:
        peer = connection.transport.get_extra_info("peername") if connection.transport else None
        if not peer:
            return
        reach, hop = reach_of(peer[0]), _hop.get()
        if hop is None:
            self._reaches.note(url.host or "", reach)
        elif reach > hop.limit:
            raise _too_private(url, hop.sender, reach)


class Transport:
    """The connections of one client.

    Each host has its own certificates, and its own word on whether it has to be believed: what is said of one never
    counts for a host that it sends this client to.

    Args:
        access: what the user says of hosts.

    Attributes:
        lanes: to each host that blobs come from.
        latencies: the shortest time in which each host has answered, in seconds.
    """

    def __init__(self, access: Access = DEFAULT_ACCESS) -> None:
        self.gates = RetryAfterGate()
        self.lanes: dict[str, HostLimiter] = {}
        self.latencies: dict[str, float] = {}
        self._access = access
        self._reaches = AddressPolicy()
        self._insecure = set(access.insecure_registries)
        self._named: set[str] = set()
        self._contexts: dict[tuple[str, bool, bool], ssl.SSLContext | bool] = {}
        self._proxies = Proxies.from_environment()
        self._session: aiohttp.ClientSession | None = None
        self._closed = ClosedConnections()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=_GuardedConnector(self.gates, self._reaches),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(CONNECT_SECONDS, self._access.timeout), sock_read=self._access.timeout
            ),
            auto_decompress=False,
            trust_env=False,  # it would read ~/.netrc as well
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
            headers={"User-Agent": f"fastpull/{__version__}", "Accept-Encoding": "identity"},
            requote_redirect_url=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def name_host(self, host: str, *, is_insecure: bool = False) -> None:
        """Takes note of a ``host[:port]`` that a source names: the user's directory of certificates is for it.

        Args:
            host: of the registry; its mirrors are named by nobody but ``registries.conf``.
            is_insecure: the user lets it be insecure, on all its ports: its token server may be on another.
        """
        self._named.add(host)
        if is_insecure:
            self.allow_insecure(without_port(host))

    def allow_insecure(self, host: str) -> None:
        """Lets a ``host[:port]`` be insecure; without a port on all ports."""
        self._insecure.add(host)

    def is_insecure(self, host: str) -> bool:
        """Whether a ``host[:port]`` may speak plain http, and have any certificate."""
        return not self._insecure.isdisjoint((host, without_port(host)))

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        *,
        form: Mapping[str, str] | None = None,
        sender: str = "",
    ) -> AsyncIterator[Response]:
        """Sends one request and waits for the headers of its answer, whatever its status.

        Args:
            method: HTTP's.
            url: to ask.
            headers: besides those that every request has.
            form: to send as a form.
            sender: the host that sent this client to ``url``; empty if the user named the host.

        Raises:
            TransportError: there is no answer.
            InvalidSetting: the host's certificates cannot be used.
            UnexpectedAnswer: the sender may not send anybody to where this is.
        """
        assert self._session is not None, "used outside its context"
        await self.gates.passed(host_of(url))
        proxy = self._proxies.find(url)
        hop = await self._hop(url, sender, is_proxied=proxy is not None)
        tls = self._context(host_of(url)) if url.scheme == "https" else True
        token = _hop.set(hop)
        asked, border = time.monotonic(), http_errors(url, self._access.timeout)
        try:
            with border:
                response = await self._session.request(
                    method, url, headers=headers, data=form, allow_redirects=False, proxy=proxy, ssl=tls
                )
        finally:
            _hop.reset(token)
        taken, host = time.monotonic() - asked, host_of(url)
        self.latencies[host] = min(taken, self.latencies.get(host, taken))
        self._closed.watch(response)
        try:
            yield Response(response, border, self._access.timeout)
        finally:
            # read to its end a response frees its connection for the next; otherwise the connection is closed
            response.release() if response.content.at_eof() else response.close()

    async def _hop(self, url: URL, sender: str, *, is_proxied: bool) -> RedirectGuard | None:
        host, sent_by = url.host or "", URL(f"https://{sender}").host if sender else None
        if sent_by is None or host == sent_by or {host, host_of(url)} & set(self._access.private_hosts):
            return None
        reach = await self._reaches.of_target(host, ask=not is_proxied)  # a proxy has its own rules
        if reach is Reach.PUBLIC and is_proxied:
            return None
        limit = self._reaches.of_sender(sent_by)
        if reach > limit:
            raise _too_private(url, sender, reach)
        return RedirectGuard(sender, limit)

    def _context(self, host: str) -> ssl.SSLContext | bool:
        is_named, is_insecure = host in self._named, self.is_insecure(host)
        key = (host, is_named, is_insecure)  # more may be said of it later
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

    def obey(self, answer: Response, seconds: float | None) -> float | None:
        """Closes the gate of a host that asked for a pause, unless the pause is too long to be made."""
        if seconds is not None and seconds <= MAX_RETRY_AFTER_SECONDS:
            self.gates.close(answer.host, seconds)
        return seconds


def _too_private(url: URL, sender: str, reach: Reach) -> UnexpectedAnswer:
    host = host_of(url)
    advice = f"If {sender} is to be trusted with it, say so: --private-host {host}"
    return UnexpectedAnswer(shown(url), f"{sender} sends this client to {reach.words}", None, advice)
