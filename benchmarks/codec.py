"""What the wire costs: bytes sent over bytes carried, and CPU time to encode and to decode.

`python -m benchmarks.codec`; the time is the median of many runs in this process.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared_protocol.binary_codec import decode_binary, encode_binary
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.json_codec import decode_json, encode_json
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef

RUNS: Final = 30
PIXELS: Final = (3, 896, 896)
PIXEL_BYTES: Final = 3 * 896 * 896 * 4
PROMPT_LENGTH: Final = 100_000


def image_request() -> GenerateRequest:
    pixels = TensorRef("float32", PIXELS, random.Random(0).randbytes(PIXEL_BYTES))
    item = MultiModalItem({"pixel_values": ItemElement(pixels, BatchedField())})
    return GenerateRequest(
        request_id="image",
        token_ids=list(range(300)),
        sampling_params={"max_tokens": 64},
        features=Features(
            {"image": ["0" * 64]}, {"image": [PlaceholderRange(4, 256)]}, {"image": [item]}
        ),
    )


def held_image_request() -> GenerateRequest:
    """The same one for a replica that holds the image."""
    whole = image_request()
    assert whole.features is not None
    features = msgspec.structs.replace(
        whole.features, kwargs_data={"image": [None]}, held_items={"image": ["0" * 64]}
    )
    return msgspec.structs.replace(whole, features=features)


def long_request() -> GenerateRequest:
    choose = random.Random(0)
    return GenerateRequest(
        request_id="long",
        token_ids=[choose.randrange(150_000) for _ in range(PROMPT_LENGTH)],
        sampling_params={"max_tokens": 64},
    )


def cpu_ms(call: Callable[[Any], object], argument: object) -> float:
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        call(argument)
        times.append(time.process_time() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    payloads = [
        ("896x896x3 float32 image", image_request(), PIXEL_BYTES),
        ("the same image, held", held_image_request(), PIXEL_BYTES),
        ("100,000 token ids", long_request(), 4 * PROMPT_LENGTH),
    ]
    codecs = [("JSON", encode_json, decode_json), ("binary", encode_binary, decode_binary)]
    print("| payload | encoding | bytes / raw | encode, ms | decode, ms |")
    print("|---|---|---|---|---|")
    for payload, request, raw in payloads:
        for name, encode, decode in codecs:
            body = encode(request)
            encoding, decoding = cpu_ms(encode, request), cpu_ms(decode, body)
            ratio = len(body) / raw
            print(f"| {payload} | {name} | {ratio:.4f} | {encoding:.2f} | {decoding:.2f} |")


if __name__ == "__main__":
    main()
