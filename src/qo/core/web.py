"""Which addresses files may be fetched from: public ones, and those of networks that were allowed.

Who may emit events, deploy or redirect a request could otherwise have workers ask services that only they can reach.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_allowed(text: str, networks: Sequence[Network]) -> bool:
    """Whether files may be fetched from an IP address."""
    address = embedded_address(ipaddress.ip_address(text.partition("%")[0]))
    if any(address in network for network in networks if network.version == address.version):
        return True
    return address.is_global and not address.is_multicast


def embedded_address(address: Address) -> Address:
    """Return the address of IPv4 that one of IPv6 stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address
