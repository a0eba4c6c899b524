"""URLs: those sent by other hosts are validated, and secrets are removed for messages."""

from __future__ import annotations

from yarl import URL

_SCHEMES = ("https", "http")


def host_of(url: URL) -> str:
    """Return ``host[:port]`` of a URL; the scheme's default port is left out."""
    host = f"[{url.host}]" if url.host and ":" in url.host else url.host or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def without_port(host: str) -> str:
    """Return the host of ``host[:port]``."""
    return host_of(URL(f"https://{host}").with_port(None))


def redacted(url: URL) -> str:
    """Return a URL for messages: without its query, which may hold a signature, its user and its fragment."""
    return str(url.with_query(None).with_fragment(None).with_user(None))


def parse_untrusted_url(text: str, base: URL | None = None) -> URL | None:
    """Parse and validate a URL that a host sent. The port is checked here, because yarl validates it lazily.

    Args:
        text: the URL as sent. With a base, it counts as percent-encoded already.
        base: the URL that relative URLs are resolved against.

    Returns:
        The URL without user and fragment; None if a connection to it is impossible.
    """
    try:
        url = URL(text) if base is None else base.join(URL(text, encoded=True))
        if url.scheme not in _SCHEMES or not url.host or not url.port or not url.host.isprintable() or " " in url.host:
            return None
        return url.with_user(None).with_fragment(None)
    except (ValueError, IndexError):  # yarl raises IndexError for http://[]@
        return None
