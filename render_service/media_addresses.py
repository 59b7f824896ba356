"""Which addresses media may be fetched from: by default those of the public internet only."""

import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

EVERYWHERE: Final = "all"
"""Stands for every network in a list of them."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

# What the registries that `is_global` follows call global, in this Python or another.
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure's metadata and DNS
            "192.0.0.0/24",  # IETF's own, in which Oracle's cloud has its metadata
            "192.88.99.0/24",  # relays of 6to4
            "2001::/23",  # Teredo and others that lead into other networks
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)


@dataclass(frozen=True)
class AddressRule:
    """
    Attributes:
        allowed: networks whose addresses are allowed although they are not public.
    """

    allowed: tuple[Network, ...] = ()

    def allows(self, host: str) -> bool:
        """Whether to connect to `host`, an address as a socket has it, with its scope or not."""
        address = effective(ipaddress.ip_address(host))
        return _is_public(address) or any(address in network for network in self.allowed)


def address_rule(allowed: tuple[str, ...]) -> AddressRule:
    """Make the rule of what the operator allows: networks, or `EVERYWHERE`."""
    if EVERYWHERE in allowed:
        allowed = ("0.0.0.0/0", "::/0")
    return AddressRule(tuple(map(ipaddress.ip_network, allowed)))


def effective(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    # Hosts without IPv4 reach all of it so: their DNS makes such addresses of public ones as well.
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address


def _is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
        and not any(address in network for network in _NOT_PUBLIC)
    )
