"""501, with the reason, for the endpoints of vLLM's server that are not offered.

vLLM's own routes would answer some of them as if they had done something: they ask an engine
client, and behind the one of this tier there is no single engine.
"""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response, WebSocket
from fastapi.responses import JSONResponse

from render_service.api_endpoints import NOT_OFFERED
from shared_protocol.errors import TandemError


class NotOffered(TandemError):
    status = 501
    error_type = "NotImplementedError"


def not_offered_router() -> APIRouter:
    """Make the router, which has to come in front of vLLM's."""
    router = APIRouter()
    for endpoint, reason in NOT_OFFERED.items():
        error = NotOffered(f"{endpoint} is not offered: {reason}.")
        method, path = endpoint.split()
        if method == "WEBSOCKET":
            router.add_api_websocket_route(path, _denying(error))
        else:
            router.add_api_route(path, _refusing(error), methods=[method], include_in_schema=False)
    return router


def _refusing(error: NotOffered) -> Callable[[], Awaitable[Response]]:
    async def refuse() -> Response:
        return _answer(error)

    return refuse


def _denying(error: NotOffered) -> Callable[[WebSocket], Awaitable[None]]:
    async def deny(websocket: WebSocket) -> None:
        await websocket.send_denial_response(_answer(error))

    return deny


def _answer(error: NotOffered) -> Response:
    return JSONResponse(error.body(), status_code=error.status)
