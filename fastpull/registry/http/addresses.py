"""The scope of IP addresses: public, private network, this machine, link-local.

A registry may refer this client only to addresses of its own scope or a wider one.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressScope(IntEnum):
    """The scope of an address, from the widest to the narrowest."""

    PUBLIC = 0
    """Globally reachable."""
    SITE = 1
    """A private network, such as 10.0.0.0/8 and fc00::/7, or a provider's shared address space."""
    MACHINE = 2
    """A loopback address."""
    LINK = 3
    """Link-local, where clouds serve their metadata; also multicast and reserved addresses."""

    @property
    def description(self) -> str:
        """The scope in words, for messages."""
        return ("a public address", "a private network", "this machine itself", "a link-local address")[self]


def address_scope(address: str) -> AddressScope:
    """Return the scope of a literal address. An IPv6 address that embeds an IPv4 address has the scope of that one.

    Raises:
        ValueError: not a literal address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            found = inner
    if found.is_loopback or found.is_unspecified:
        return AddressScope.MACHINE
    if found.is_link_local or found.is_multicast or found.is_reserved:
        return AddressScope.LINK
    return AddressScope.PUBLIC if found.is_global else AddressScope.SITE
