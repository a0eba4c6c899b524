"""URLs: those of other hosts checked as a whole, and the parts of one that messages show."""

from __future__ import annotations

from yarl import URL

_SCHEMES = ("https", "http")


def host_of(url: URL) -> str:
    """``host[:port]`` of a URL, the port only where it is not the scheme's own."""
    host = f"[{url.host}]" if url.host and ":" in url.host else url.host or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def without_port(host: str) -> str:
    """The host of ``host[:port]``."""
    return host_of(URL(f"https://{host}").with_port(None))


def shown(url: URL) -> str:
    """A URL without its query, which may hold a signature, for messages."""
    return str(url.with_query(None).with_fragment(None).with_user(None))


def foreign_url(text: str, base: URL | None = None) -> URL | None:
    """Parse a URL that a host has sent, as a whole: yarl looks at a port no earlier than it is asked for.

    Args:
        text: as it was sent. With a base it is taken as encoded already.
        base: resolves relative URLs.

    Returns:
        The URL without user and fragment; None where it is not one that can be connected to.
    """
    try:
        url = URL(text) if base is None else base.join(URL(text, encoded=True))
        if url.scheme not in _SCHEMES or not url.host or not url.port or not url.host.isprintable() or " " in url.host:
            return None
        return url.with_user(None).with_fragment(None)
    except (ValueError, IndexError):  # yarl's own slip: http://[]@
        return None
