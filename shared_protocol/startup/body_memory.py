"""How much the bodies of all requests may take together, where each is allowed to be large."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared_protocol.errors import Unavailable


def body_memory_error(*, max_body_bytes: int, max_bodies_bytes: int) -> str | None:
    """Say why the two settings make no sense together."""
    if max_bodies_bytes >= max_body_bytes:
        return None
    return (
        f"--max-bodies-bytes ({max_bodies_bytes}) must be at least --max-body-bytes "
        f"({max_body_bytes}): the largest body could never be taken"
    )


class BodyMemory:
    """What is taken by bodies, from their first byte to the end of their requests."""

    def __init__(self, *, most: int, retry_after_s: int) -> None:
        """
        Args:
            most: bytes, at least those of the largest body that is allowed.
        """
        self._most = most
        self._retry_after_s = retry_after_s
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes that are taken now."""
        return self._taken

    @contextmanager
    def one(self) -> Iterator["BodyShare"]:
        """What one body takes is given back at the end of the block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self._taken -= share.size

    def check(self, size: int) -> None:
        """
        Raises:
            Unavailable: if `size` bytes more would be too many.
        """
        if self._taken + size > self._most:
            message = f"The requests that are being answered take the {self._most} bytes there are"
            raise Unavailable(message, retry_after_s=self._retry_after_s)

    def take(self, size: int) -> None:
        self.check(size)
        self._taken += size


class BodyShare:
    """
    Attributes:
        size: how many bytes the body has taken.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.size = 0

    def announce(self, size: int) -> None:
        """Nothing is taken by it: whoever announces may never send.

        Raises:
            Unavailable: if there is no place for so many bytes now.
        """
        self._memory.check(size)

    def take(self, size: int) -> None:
        """
        Raises:
            Unavailable: if there is no place for these bytes now.
        """
        self._memory.take(size)
        self.size += size
