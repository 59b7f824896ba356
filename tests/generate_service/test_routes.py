"""The generate service around an engine: statuses, forms of the answer, clients that leave."""

import asyncio
import base64
import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from generate_service.vllm_request import EngineRequest
from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, encode_binary
from shared_protocol.errors import InternalError, InvalidRequest
from shared_protocol.frames import FrameReader
from shared_protocol.request import GenerateRequest
from tests.generate_service import fake_service
from tests.generate_service.fake_engine import FakeEngine, Script, forever, silent, three_tokens
from tests.generate_service.fake_service import PATH, REQUEST, until

pytestmark = pytest.mark.anyio

MAX_BODY_BYTES = 10_000


def serving(script: Script) -> AbstractAsyncContextManager[tuple[httpx.AsyncClient, FakeEngine]]:
    return fake_service.serving(script, max_body_bytes=MAX_BODY_BYTES)


def frames_of(content: bytes) -> list[TokenDelta | Failure]:
    return list(FrameReader().feed(content))


async def post_binary(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    wire = GenerateRequest(request_id="r", token_ids=[1, 2], sampling_params={}, **changes)
    headers = {"Content-Type": BINARY_CONTENT_TYPE, "Accept": FRAMES_CONTENT_TYPE}
    return await client.post(PATH, content=encode_binary(wire), headers=headers)


@pytest.mark.parametrize(("stream", "steps"), [(False, [[7, 8], [9]]), (True, [[7], [8], [9]])])
async def test_frames(stream: bool, steps: list[list[int]]) -> None:
    async with serving(three_tokens) as (client, _):
        response = await post_binary(client, stream=stream)
        assert response.headers["content-type"] == FRAMES_CONTENT_TYPE
        deltas = frames_of(response.content)
        assert [d.token_ids for d in deltas if isinstance(d, TokenDelta)] == steps


async def test_json() -> None:
    async with serving(three_tokens) as (client, _):
        body = (await client.post(PATH, json=REQUEST)).json()
        (choice,) = body["choices"]
        assert choice["token_ids"] == [7, 8, 9]
        assert choice["finish_reason"] == "length"
        assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


async def test_events() -> None:
    request = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}
    async with serving(three_tokens) as (client, _):
        text = (await client.post(PATH, json=request)).text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["usage"]["completion_tokens"] == 3
        assert [json.loads(event)["choices"][0]["token_ids"] for event in events[:3]] == [
            [7],
            [8],
            [9],
        ]


async def fail_at_once(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    raise InternalError("The engine failed")
    yield


async def fail_later(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    yield [TokenDelta(token_ids=[7])]
    raise InternalError("The engine failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_step_is_a_status(stream: bool) -> None:
    async with serving(fail_at_once) as (client, _):
        assert (await post_binary(client, stream=stream)).status_code == 500
        response = await client.post(PATH, json=REQUEST | {"stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "The engine failed"


async def test_a_failure_after_the_first_step_ends_the_stream() -> None:
    async with serving(fail_later) as (client, _):
        frames = frames_of((await post_binary(client, stream=True)).content)
        assert frames == [TokenDelta(token_ids=[7]), Failure("The engine failed")]
        text = (await client.post(PATH, json=REQUEST | {"stream": True})).text
        assert text.count('"error"') == 1
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("script", [forever, silent])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(script: Script, stream: bool) -> None:
    async with serving(script) as (client, engine):
        task = asyncio.create_task(client.post(PATH, json=REQUEST | {"stream": stream}))
        await until(lambda: engine.requests)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.aborted == 1, within_s=1.0)


BAD_PARAMS: dict[str, tuple[dict[str, Any], str]] = {
    "n": ({"n": 0}, "sampling_params"),
    "temperature": ({"temperature": -1}, "sampling_params.temperature"),
    "temperature of text": ({"temperature": "0.5"}, "sampling_params.temperature"),
    "logprobs of text": ({"logprobs": "1"}, "sampling_params.logprobs"),
    "top_p": ({"top_p": 2}, "sampling_params.top_p"),
    "max_tokens": ({"max_tokens": 0}, "sampling_params.max_tokens"),
    "prompt_logprobs": ({"prompt_logprobs": -5}, "sampling_params.prompt_logprobs"),
    "bad_words": ({"bad_words": [""]}, "sampling_params"),
    "structured_outputs": ({"structured_outputs": {}}, "sampling_params"),
    "extra_args number": ({"extra_args": 5}, "sampling_params.extra_args"),
    "extra_args list": ({"extra_args": ["ab"]}, "sampling_params.extra_args"),
    "seed": ({"seed": 2**70}, "sampling_params.seed"),
    "seed of the last choice": ({"seed": 2**63 - 1, "n": 2}, "sampling_params.seed"),
    "stop": ({"stop": ["a"]}, "sampling_params.stop"),
    "unknown": ({"temprature": 1}, "sampling_params.temprature"),
    "private": ({"_eos_token_id": 1}, "sampling_params._eos_token_id"),
}


@pytest.mark.parametrize(("params", "param"), BAD_PARAMS.values(), ids=BAD_PARAMS)
async def test_bad_sampling_parameters(params: dict[str, Any], param: str) -> None:
    async with serving(three_tokens) as (client, engine):
        response = await client.post(PATH, json=REQUEST | {"sampling_params": params})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)
        assert not engine.requests


BAD_REQUESTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "priority": ({"priority": 2**70}, 400, "priority"),
    "model": ({"model": "other"}, 404, "model"),
    "too long": ({"token_ids": [1] * 32}, 400, "token_ids"),
    "outside the vocabulary": ({"token_ids": [1, 100]}, 400, "token_ids[1]"),
    "pooling": ({"pooling_params": {}}, 400, "pooling_params"),
    "encoder": (
        {
            "encoder_token_ids": [0],
            "features": {
                "mm_hashes": {"image": ["h"]},
                "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
            },
        },
        400,
        "encoder_token_ids",
    ),
    "adapter": ({"lora": {"name": "a", "int_id": 1, "path": "/a"}}, 404, "lora"),
    "version": ({"protocol_version": "2.0"}, 400, "protocol_version"),
    "text": ({"output_mode": "text"}, 400, "output_mode"),
    "unknown member": ({"sampling": {}}, 400, "sampling"),
}


@pytest.mark.parametrize(("changes", "status", "param"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_bad_requests(changes: dict[str, Any], status: int, param: str) -> None:
    async with serving(three_tokens) as (client, engine):
        response = await client.post(PATH, json=REQUEST | changes)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["code"] == status
        assert param in (error["param"] or error["message"])
        assert not engine.requests


def embeds(values: float) -> dict[str, Any]:
    data = base64.b64encode(struct.pack("<8f", *[values] * 8)).decode()
    return {
        "spans": [{"offset": 0, "length": 2}],
        "tensors": [{"dtype": "float32", "shape": [2, 4], "data": data}],
    }


async def test_media_that_the_model_cannot_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: EngineRequest) -> None:
        raise InvalidRequest("features: nowhere", param="features")

    async with serving(three_tokens) as (client, engine):
        monkeypatch.setattr(engine, "check_positions", refuse)
        response = await post_binary(client)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "features"
        assert not engine.requests


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_embeddings_that_would_spoil_the_cache(value: float) -> None:
    async with serving(three_tokens) as (client, engine):
        response = await client.post(PATH, json=REQUEST | {"prompt_embeds": embeds(value)})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt_embeds.tensors[0]"
        assert not engine.requests
        fine = await client.post(PATH, json=REQUEST | {"prompt_embeds": embeds(0.5)})
        assert fine.status_code == 200


async def fault(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    raise ZeroDivisionError
    yield


async def test_a_connection_survives_a_fault() -> None:
    async with serving(fault) as (client, _):
        first, second = [await client.post(PATH, json=REQUEST) for _ in range(2)]
        assert first.status_code == second.status_code == 500
        assert first.json()["error"]["message"] == "Internal server error"
        assert (await client.get("/ready")).status_code == 200


async def test_other_bodies() -> None:
    async with serving(three_tokens) as (client, engine):
        response = await client.post(PATH, content=b"x", headers={"Content-Type": "text/plain"})
        assert response.status_code == 400
        response = await client.post(PATH, json=REQUEST | {"cache_salt": "x" * MAX_BODY_BYTES})
        assert response.status_code == 413
        assert not engine.requests
