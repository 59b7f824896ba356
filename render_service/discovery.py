"""The replicas behind one name: containers and headless services share a name among addresses."""

import asyncio
import ipaddress
import socket

import httpx


def is_address(url: str) -> bool:
    """Whether the URL's host is an address already, which stands for itself only."""
    try:
        ipaddress.ip_address(httpx.URL(url).host)
    except ValueError:
        return False
    return True


async def urls_behind(url: str) -> frozenset[str]:
    """The URL with each address of its host, or the URL itself where there is only one.

    A host that has addresses of both families is asked for by IPv4: by both it would look like
    two. The URL itself also stands for https, since certificates are made out to names, and for a
    name that cannot be resolved at the moment.
    """
    parsed = httpx.URL(url)
    if parsed.scheme == "https":
        return frozenset({url})
    for family in (socket.AF_INET, socket.AF_INET6):
        hosts = await _addresses(parsed.host, family)
        if len(hosts) > 1:
            return frozenset(str(parsed.copy_with(host=host)) for host in hosts)
        if hosts:
            break
    return frozenset({url})


async def _addresses(host: str, family: socket.AddressFamily) -> set[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return set()
    return {str(address[0]) for *_, address in found}
