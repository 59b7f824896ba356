"""The outermost thing that an application of either service does with a fault of its own."""

import logging

from shared_protocol.error_answer import Application, Message, Receive, Send, answer_error
from shared_protocol.errors import InternalError

logger = logging.getLogger(__name__)


class FaultBoundary:
    """ASGI middleware: answers an unhandled exception with a 500 that tells nothing of it.

    What frameworks do is not enough: they raise again, whereupon the server closes the connection
    without having said so, and the next request on it, of somebody else perhaps, is lost.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            if started or scope["type"] != "http":
                raise
            logger.exception("a request failed")
            await answer_error(send, InternalError("Internal server error"))
