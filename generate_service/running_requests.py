"""The requests that the service has: how many there may be at once, and the end of them all."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from shared_protocol.errors import Unavailable


class RunningRequests:
    """
    Attributes:
        over: whether requests are no longer taken, since the service ends.
    """

    def __init__(self, *, most: int, retry_after_s: int) -> None:
        """
        Args:
            most: from the first byte of a request's body to the last one of its answer.
        """
        self._most = most
        self._retry_after_s = retry_after_s
        self._tasks: set[asyncio.Task[object]] = set()
        self.over = False

    @property
    def running(self) -> int:
        """How many there are now."""
        return len(self._tasks)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the running task as a request; it is cancelled when the service ends.

        Raises:
            Unavailable: if there are as many as there may be, or if the service ends: before the
                block is run, or in place of its cancelling.
        """
        if self.over:
            raise self.shut_down()
        if len(self._tasks) >= self._most:
            message = f"This replica has the {self._most} requests that it may have at once"
            raise Unavailable(message, retry_after_s=self._retry_after_s)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.over or task.uncancel():
                raise
            raise self.shut_down() from None
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        self.over = True
        for task in self._tasks:
            task.cancel()

    def shut_down(self) -> Unavailable:
        return Unavailable("This replica was shut down", retry_after_s=self._retry_after_s)
