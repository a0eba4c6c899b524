"""HTTP, one exchange at a time: connections, TLS, proxies, pauses that hosts ask for, and aiohttp's errors as ours.

Redirects, authorization and retries are decided above. Nothing is decoded: the digests are of the bytes on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Self

import aiohttp
from yarl import URL

import fastpull
from fastpull.errors import TransportError, UnexpectedAnswer, map_exceptions
from fastpull.registry.retry import MAX_RETRY_AFTER_SECONDS

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

CONNECT_SECONDS = 30.0
STALL_SECONDS = 60.0
"""How long a host may send nothing at all. There is no limit on a whole transfer."""

_READ_BUFFER = 1 << 20  # per connection; at 64 KiB the loop is woken four times as often for the same bytes
_MAX_ERROR_BODY = 64 << 10


class Gates:
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


class _GatedConnector(aiohttp.TCPConnector):
    """Checks the gate when the connection is there: it may have closed while that was waited for."""

    def __init__(self, gates: Gates, tls: ssl.SSLContext) -> None:
        super().__init__(limit=0, ssl=tls, keepalive_timeout=30.0, ttl_dns_cache=60)
        self._gates = gates

    async def connect(  # aiohttp's
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        try:
            await self._gates.passed(host_of(req.url))
        except BaseException:
            connection.close()
            raise
        return connection


class Answer:
    """A response whose headers have come.

    Attributes:
        url: that answered.
        status: HTTP's.
        headers: case-insensitive.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.url = response.url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response

    @property
    def host(self) -> str:
        """``host[:port]`` of the URL, for messages."""
        return host_of(self.url)

    async def piece(self) -> bytes:
        """The next bytes of the body, as many as are there; nothing at its end.

        Raises:
            TransportError: it breaks off, or stalls.
        """
        with _foreign_errors(self.url):
            # aiohttp's own read timeout does not fire on a malformed chunked body
            async with asyncio.timeout(STALL_SECONDS):
                return await self._response.content.readany()

    async def body(self, max_size: int) -> bytes:
        """The whole of a small body.

        Raises:
            UnexpectedAnswer: it is larger than ``max_size`` bytes.
            TransportError: as `piece`.
        """
        found = bytearray()
        while piece := await self.piece():
            found += piece
            if len(found) > max_size:
                raise UnexpectedAnswer(shown(self.url), f"a body of more than {max_size} bytes", self.status)
        return bytes(found)

    async def complaint(self) -> str:
        """What an error answer says, cut to one short line."""
        with contextlib.suppress(TransportError, UnexpectedAnswer):
            return " ".join((await self.body(_MAX_ERROR_BODY)).decode("utf-8", "replace").split())[:300]
        return ""


class Transport:
    """The connections of one client.

    Args:
        insecure: do not verify certificates.
    """

    def __init__(self, *, insecure: bool = False) -> None:
        self.gates = Gates()
        self._insecure = insecure
        self._insecure_hosts: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context()  # honours SSL_CERT_FILE and SSL_CERT_DIR
        if self._insecure:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            connector=_GatedConnector(self.gates, tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS),
            auto_decompress=False,
            trust_env=False,  # it would read ~/.netrc as well
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
            headers={"User-Agent": f"fastpull/{fastpull.__version__}", "Accept-Encoding": "identity"},
            requote_redirect_url=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def allow_insecure(self, host: str) -> None:
        """Lets a ``host[:port]`` have any certificate."""
        self._insecure_hosts.add(host)

    @contextlib.asynccontextmanager
    async def request(self, method: str, url: URL, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """Sends one request and waits for the headers of its answer, whatever its status.

        Raises:
            TransportError: there is no answer.
        """
        assert self._session is not None, "used outside its context"
        await self.gates.passed(host_of(url))
        with _foreign_errors(url):
            response = await self._session.request(
                method,
                url,
                headers=headers,
                allow_redirects=False,
                proxy=proxy_of(url),
                ssl=host_of(url) not in self._insecure_hosts,
            )
        try:
            yield Answer(response)
        finally:
            # read to its end a response frees its connection for the next; otherwise the connection is closed
            response.release() if response.content.at_eof() else response.close()

    def obey(self, answer: Answer, seconds: float | None) -> float | None:
        """Closes the gate of a host that asked for a pause, unless the pause is too long to be made."""
        if seconds is not None and seconds <= MAX_RETRY_AFTER_SECONDS:
            self.gates.close(answer.host, seconds)
        return seconds


def host_of(url: URL) -> str:
    """``host[:port]`` of a URL, the port only where it is not the scheme's own."""
    host = f"[{url.host}]" if url.host and ":" in url.host else url.host or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def shown(url: URL) -> str:
    """A URL without its query, which may hold a signature, for messages."""
    return str(url.with_query(None).with_fragment(None).with_user(None))


def proxy_of(url: URL) -> URL | None:
    """The proxy that the environment names for a URL (``https_proxy``, ``http_proxy``, ``all_proxy``, ``no_proxy``)."""
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(host_of(url)) or urllib.request.proxy_bypass(url.host or ""):
        return None
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return URL(proxy if "://" in proxy else f"http://{proxy}") if proxy else None


@contextlib.contextmanager
def _foreign_errors(url: URL) -> Iterator[None]:
    host = host_of(url)

    def certificate(error: BaseException) -> TransportError:
        advice = "Add its CA with SSL_CERT_FILE, or use --insecure if you trust the way to it"
        reason = f"its certificate is not trusted ({_innermost(error)})"
        return TransportError(host, reason, advice, is_transient=False, is_certificate=True)

    def handshake(error: BaseException) -> TransportError:
        advice = "If it speaks plain http, use --insecure"
        return TransportError(host, f"TLS failed ({_innermost(error)})", advice, is_transient=False)

    def name(error: BaseException) -> TransportError:
        transient = getattr(getattr(error, "os_error", None), "errno", None) == socket.EAI_AGAIN
        return TransportError(host, f"its name cannot be resolved ({_innermost(error)})", is_transient=transient)

    def broken(error: BaseException) -> TransportError:
        return TransportError(host, _innermost(error))

    def stalled(_: BaseException) -> TransportError:
        return TransportError(host, f"nothing came for {STALL_SECONDS:.0f} s")

    def malformed(error: BaseException) -> TransportError:
        return TransportError(host, f"not a usable URL ({error})", is_transient=False)

    with map_exceptions(
        {
            aiohttp.ClientConnectorCertificateError: certificate,
            aiohttp.ClientConnectorSSLError: handshake,
            aiohttp.ClientConnectorDNSError: name,
            TimeoutError: stalled,
            aiohttp.InvalidURL: malformed,
            aiohttp.ClientError: broken,
            OSError: broken,
        }
    ):
        yield


def _innermost(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    reason = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return " ".join(str(reason).split())
