"""HTTP proxies from the environment, and the hosts that are reached without one."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from yarl import URL

from fastpull.errors import InvalidSetting
from fastpull.oci.reference import is_loopback


@dataclass(frozen=True, slots=True)
class Proxies:
    """``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy``, in lower or upper case, with Go's rules.

    Attributes:
        by_scheme: the proxies, by the scheme of the requested URL.
        exceptions: the entries of ``no_proxy``: ``*``, an address, a network such as ``10.0.0.0/8``, or a domain with
            its subdomains. ``:PORT`` restricts an entry to that port.
    """

    by_scheme: Mapping[str, URL]
    exceptions: tuple[str, ...]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the variables; lower case takes precedence.

        Raises:
            InvalidSetting: a variable is not the URL of an http proxy.
        """

        def value(name: str) -> str:
            return environment.get(name) or environment.get(name.upper()) or ""

        found = {}
        for scheme in ("https", "http"):
            for name in (f"{scheme}_proxy", "all_proxy"):
                if value(name):
                    found[scheme] = _parse_proxy(value(name), name)
                    break
        names = (name.strip().lower() for name in value("no_proxy").split(","))
        return cls(found, tuple(name for name in names if name))

    def find(self, url: URL) -> URL | None:
        """Return the proxy for a URL, or None. A loopback address never uses a proxy."""
        proxy = self.by_scheme.get(url.scheme)
        host = (url.host or "").lower()
        if proxy is None or is_loopback(f"[{host}]" if ":" in host else host):
            return None
        return None if any(_matches(one, host, url.port) for one in self.exceptions) else proxy


def _parse_proxy(text: str, name: str) -> URL:
    try:
        url = URL(text if "://" in text else f"http://{text}")
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        # the value is not shown: it may hold a password
        raise InvalidSetting(name, "not the URL of an http proxy (SOCKS is not supported), such as http://proxy:3128")
    return url


def _matches(exception: str, host: str, port: int | None) -> bool:
    if exception == "*":
        return True
    try:
        network = ipaddress.ip_network(exception.strip("[]"), strict=False)
    except ValueError:
        name, colon, digits = exception.rpartition(":")
        if colon and digits.isdigit():
            return port == int(digits) and _matches(name, host, port)
        name = exception.removeprefix("*").removeprefix(".")
        return host == name or host.endswith(f".{name}")
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False
