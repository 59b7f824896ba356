"""What can be seen to be wrong before anything is loaded for it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared_protocol.startup.declared_settings import variable


def start_error(*, model: str, host: str, port: int) -> str | None:
    """Say why a service with these settings could not start."""
    return model_error(model) or address_error(host, port)


def model_error(model: str) -> str | None:
    """Say what is wrong with ``--model``, as far as it can be told without a network.

    What is not spelled as a path may be a name on the Hub.
    """
    if not model.startswith(("/", "./", "../")) or Path(model).exists():
        return None
    return f"--model ({variable('model')}): {model!r} is no folder and no name on the Hub"


def address_error(host: str, port: int) -> str | None:
    """Say why nobody can listen there, which the server itself finds out after the long imports.

    Another process may still come first between this and the server.
    """
    try:
        # Each address, as the server takes them.
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with _made(family, kind, protocol) as listener:
                if listener is not None:
                    listener.bind(address)
    except OSError as error:
        return (
            f"--host {host} --port {port} ({variable('port')}): nobody can listen there: "
            f"{error.strerror or error}"
        )
    return None


@contextmanager
def _made(family: int, kind: int, protocol: int) -> Iterator[socket.socket | None]:
    """A socket as servers make it; None for a family that this host does not speak."""
    try:
        made = socket.socket(family, kind, protocol)
    except OSError:
        yield None
        return
    with made:
        # What an earlier server's connections leave behind does not keep the port from the next.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        yield made
