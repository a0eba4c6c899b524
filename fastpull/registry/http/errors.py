"""The translation of aiohttp's exceptions into errors of fastpull."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp

from fastpull.errors import ErrorMapping, TransportError
from fastpull.registry.http.urls import host_of

if TYPE_CHECKING:
    from yarl import URL


def http_errors(url: URL, timeout_seconds: float) -> ErrorMapping:
    """Return the mapping of aiohttp's exceptions for one request.

    Args:
        url: the requested URL.
        timeout_seconds: the longest time without data.
    """
    host = host_of(url)

    def certificate(error: BaseException) -> TransportError:
        advice = (
            f"Put its CA into ~/.config/containers/certs.d/{host}/ca.crt, or use --insecure if you trust the network"
        )
        reason = f"its certificate is not trusted ({_innermost(error)})"
        return TransportError(host, reason, advice, is_transient=False, is_certificate=True)

    def handshake(error: BaseException) -> TransportError:
        advice = "If it speaks plain http, use --insecure"
        return TransportError(host, f"TLS failed ({_innermost(error)})", advice, is_transient=False)

    def proxy(error: BaseException) -> TransportError:
        status = getattr(error, "status", None)
        reason = f"the proxy refuses (HTTP {status})" if status else f"cannot reach the proxy ({_innermost(error)})"
        # the proxy's URL is not shown: it may hold a password
        return TransportError(host, reason, "Check https_proxy, http_proxy and no_proxy", is_transient=not status)

    def name(error: BaseException) -> TransportError:
        transient = getattr(getattr(error, "os_error", None), "errno", None) == socket.EAI_AGAIN
        return TransportError(host, f"cannot resolve its name ({_innermost(error)})", is_transient=transient)

    def broken(error: BaseException) -> TransportError:
        return TransportError(host, _innermost(error))

    def stalled(_: BaseException) -> TransportError:
        return TransportError(host, f"received no data for {timeout_seconds:g} s")

    def malformed(error: BaseException) -> TransportError:
        return TransportError(host, f"not a usable URL ({error})", is_transient=False)

    return {
        aiohttp.ClientHttpProxyError: proxy,
        aiohttp.ClientProxyConnectionError: proxy,
        aiohttp.ClientConnectorCertificateError: certificate,
        aiohttp.ClientConnectorSSLError: handshake,
        aiohttp.ClientConnectorDNSError: name,
        TimeoutError: stalled,
        aiohttp.InvalidURL: malformed,
        aiohttp.ClientError: broken,
        OSError: broken,
    }


def _innermost(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    reason = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return " ".join(str(reason).split())
