"""The replicas behind one name: containers and headless services share a name among addresses."""

import asyncio
import ipaddress
import socket

import httpx


def stands_for_itself(url: str) -> bool:
    """Whether there is one replica at the URL: its host is an address, or it is https.

    Certificates are made out to names, not to the addresses behind them.
    """
    parsed = httpx.URL(url)
    if parsed.scheme == "https":
        return True
    try:
        ipaddress.ip_address(parsed.host)
    except ValueError:
        return False
    return True


async def urls_behind(url: str) -> frozenset[str]:
    """The URL with each address of its host.

    A host that has addresses of both families is asked for by IPv4: by both it would look like
    two.

    Raises:
        OSError: if the name cannot be resolved.
    """
    parsed = httpx.URL(url)
    try:
        hosts = await _addresses(parsed.host, socket.AF_INET)
    except socket.gaierror:
        hosts = await _addresses(parsed.host, socket.AF_INET6)
    return frozenset(str(parsed.copy_with(host=host)) for host in hosts)


async def _addresses(host: str, family: socket.AddressFamily) -> set[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}
