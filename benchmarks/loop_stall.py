"""``python -m benchmarks.loop_stall``: how long large bodies keep the generate service from others.

Bodies of 10 MB come eight at a time to a service around a fake engine. Meanwhile the service's own
event loop is asked every millisecond; the longest silence counts.
"""

import asyncio
import http.client
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from generate_service.service import make_server
from generate_service.settings import GenerateSettings
from shared_protocol.answer import FRAMES_CONTENT_TYPE
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, encode_binary
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.json_codec import JSON_CONTENT_TYPE, encode_json
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.generate_service.fake_engine import FakeEngine, three_tokens
from tests.generate_service.fake_service import PATH
from tests.processes import free_port

AT_ONCE: Final = 8
ROUNDS: Final = 5
BODIES: Final = {
    "binary": (encode_binary, BINARY_CONTENT_TYPE),
    "JSON": (encode_json, JSON_CONTENT_TYPE),
}


def main() -> None:
    print("| bodies | at once | longest silence, ms | requests a second |\n|---|---|---|---|")
    with service() as (port, silence):
        for name, (encode, content_type) in BODIES.items():
            body = encode(request())
            # The first of all loads what those after it find.
            send(port, body, content_type, 1)
            for at_once in (0, 1, AT_ONCE):
                silence.send(None)
                silence.recv()
                began = time.perf_counter()
                send(port, body, content_type, at_once)
                rate = ROUNDS * at_once / (time.perf_counter() - began)
                silence.send(None)
                print(f"| {name} | {at_once} | {silence.recv() * 1000:.0f} | {rate:.1f} |")


def request() -> GenerateRequest:
    pixels = np.random.default_rng(0).random((1, 3, 912, 912), np.float32)
    tensor = TensorRef("float32", pixels.shape, pixels.tobytes())
    item = MultiModalItem({"pixel_values": ItemElement(tensor, BatchedField())})
    return GenerateRequest(
        request_id="r",
        token_ids=[1, 2],
        sampling_params={},
        features=Features({"image": ["h"]}, {"image": [PlaceholderRange(0, 2)]}, {"image": [item]}),
    )


def send(port: int, body: bytes, content_type: str, at_once: int) -> None:
    def one(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"Content-Type": content_type, "Accept": FRAMES_CONTENT_TYPE}
        connection.request("POST", PATH, body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        connection.close()

    if not at_once:
        time.sleep(2.0)
        return
    with ThreadPoolExecutor(at_once) as pool:
        for _ in range(ROUNDS):
            list(pool.map(one, range(at_once)))


@contextmanager
def service() -> Iterator[tuple[int, Connection]]:
    """A service, and a connection that answers anything with its longest silence in seconds."""
    port = free_port()
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, its))
    process.start()
    ours.recv()
    yield port, ours
    process.kill()
    process.join()


def serve(port: int, silence: Connection) -> None:
    import uvloop

    uvloop.run(serve_and_listen(port, silence))


async def serve_and_listen(port: int, silence: Connection) -> None:
    async def start() -> FakeEngine:
        return FakeEngine(three_tokens)

    settings = GenerateSettings(host="127.0.0.1", port=port)
    server, engine = make_server(start, settings, log_level="critical")
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    silence.send(engine.get().info().model)
    longest, last = 0.0, time.perf_counter()
    while not serving.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if silence.poll():
            silence.recv()
            silence.send(longest)
            longest = 0.0


if __name__ == "__main__":
    main()
