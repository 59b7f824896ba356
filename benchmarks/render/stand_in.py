"""A generate service that answers at once, ``python -m benchmarks.render.stand_in PORT INFO``.

INFO is a file with what a real one answered on its `INFO_PATH`.
"""

import itertools
import sys
from pathlib import Path
from typing import Any, Final

import uvicorn

from render_service.transport import GENERATE_PATH, MIN_SERVER_KEEP_ALIVE_S
from shared_protocol.answer import FRAMES_CONTENT_TYPE, TokenDelta
from shared_protocol.frames import encode_frame
from shared_protocol.held_items import HELD_ITEMS_HEADER
from shared_protocol.serving_info import INFO_PATH

ANSWER: Final = encode_frame(TokenDelta(token_ids=[30] * 16, finish_reason="length"))


class StandIn:
    def __init__(self, info: bytes) -> None:
        self._info = info
        self._names = itertools.count()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != GENERATE_PATH:
            body = self._info if scope["path"] == INFO_PATH else b"{}"
            await _answer(send, body, b"application/json")
            return
        while (await receive()).get("more_body", False):
            pass
        # Each body is said to have brought one item: the workloads' texts have none, their images
        # come one by one.
        name = str(next(self._names)).encode()
        await _answer(
            send, ANSWER, FRAMES_CONTENT_TYPE.encode(), (HELD_ITEMS_HEADER.encode(), name)
        )


async def _answer(
    send: Any, body: bytes, content_type: bytes, *headers: tuple[bytes, bytes]
) -> None:
    headers = ((b"content-type", content_type), *headers)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(port: int, info: Path) -> None:
    uvicorn.run(
        StandIn(info.read_bytes()),
        host="127.0.0.1",
        port=port,
        interface="asgi3",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=MIN_SERVER_KEEP_ALIVE_S,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
