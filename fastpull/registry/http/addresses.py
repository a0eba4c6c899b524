"""How far the owner of an address can be from the public: what a registry may send this client to is judged by it."""

from __future__ import annotations

import ipaddress
from enum import IntEnum

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Reach(IntEnum):
    """From whom an address can be reached. A host may only send a client to addresses of its own reach or wider."""

    PUBLIC = 0
    """Everybody."""
    SITE = 1
    """A private network, such as 10.0.0.0/8 and fc00::/7, or a provider's."""
    MACHINE = 2
    """This machine alone."""
    LINK = 3
    """The same cable, where clouds answer questions about machines; and what is no host's address at all."""

    @property
    def words(self) -> str:
        """For messages."""
        return ("a public address", "a private network", "this machine itself", "a link-local address")[self]


def reach_of(address: str) -> Reach:
    """The reach of a literal address; those that carry an IPv4 address have its reach.

    Raises:
        ValueError: it is a name, or nothing.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            found = inner
    if found.is_loopback or found.is_unspecified:
        return Reach.MACHINE
    if found.is_link_local or found.is_multicast or found.is_reserved:
        return Reach.LINK
    return Reach.PUBLIC if found.is_global else Reach.SITE
