"""A wrong request gets an OpenAI error that names the field, and nothing else happens."""

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import torch

from tests.conftest import SERVED_NAME, Duo
from tests.embeddings import embeds_part
from tests.parity.answers import ask
from tests.pictures import data_url, png

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.parametrize("duo", ["gemma3"], indirect=True),
]

GOOD = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "the quick brown fox"}],
    "temperature": 0.0,
    "max_tokens": 8,
    "logprobs": True,
    "return_token_ids": True,
}
MAX_BODY_BYTES = 64 * 2**20


def chat(*parts: Any, **options: Any) -> dict[str, Any]:
    return GOOD | {"messages": [{"role": "user", "content": list(parts)}]} | options


def image_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def as_png(data: bytes) -> dict[str, Any]:
    return image_url("data:image/png;base64," + base64.b64encode(data).decode())


def embeds(data: bytes) -> dict[str, str]:
    return {"type": "prompt_embeds", "data": base64.b64encode(data).decode()}


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


BAD: dict[str, tuple[Any, int, str | None]] = {
    "unknown model": (GOOD | {"model": "another"}, 404, "model"),
    "empty messages": (GOOD | {"messages": []}, 400, "messages"),
    "messages of another type": (GOOD | {"messages": "hello"}, 400, "body.messages"),
    "temperature": (GOOD | {"temperature": -1.0}, 400, "temperature"),
    "max_tokens": (GOOD | {"max_tokens": 0}, 400, "max_tokens"),
    "unknown part": (chat({"type": "hologram"}), 400, "messages[0].content[0].type"),
    "image that is not base64": (chat(image_url("data:image/png;base64,%%%")), 400, "messages"),
    "image that is no image": (chat(as_png(b"not a picture")), 400, "messages"),
    "image cut short": (chat(as_png(png(1)[:60])), 400, "messages"),
    "embeddings that are not base64": (
        chat({"type": "prompt_embeds", "data": "%%%"}), 400, "prompt_embeds",
    ),
    "embeddings that are no file": (chat(embeds(b"not a tensor")), 400, "prompt_embeds"),
    "embeddings of another width": (chat(embeds_part(torch.zeros(3, 7))), 400, "prompt_embeds"),
    "embeddings of integers": (
        chat(embeds(saved(torch.zeros(3, 64, dtype=torch.int32)))), 400, "prompt_embeds",
    ),
    "embeddings of NaN": (chat(embeds_part(torch.full((3, 64), torch.nan))), 400, "prompt_embeds"),
    "infinite embeddings": (
        chat(embeds_part(torch.full((3, 64), torch.inf))), 400, "prompt_embeds",
    ),
    "embeddings that overflow": (
        chat(embeds_part(torch.full((3, 64), 1e300, dtype=torch.float64))), 400, "prompt_embeds",
    ),
    "embeddings without data": (
        chat({"type": "prompt_embeds"}), 400, "messages[0].content[0].data",
    ),
    "too long a prompt": (chat({"type": "text", "text": "fox " * 3000}), 400, "input_tokens"),
    "too many images": (chat(*[image_url(data_url(png(i))) for i in range(5)]), 400, "image"),
}  # fmt: skip


@pytest.fixture
async def client(duo: Duo) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=duo.pair, timeout=120.0, trust_env=False) as client:
        yield client


async def check_still_answered(duo: Duo, client: httpx.AsyncClient) -> None:
    answer = await ask(client, duo.pair, GOOD)
    assert answer.status == 200
    assert len(answer.token_ids) == 8


def check_error(response: httpx.Response, status: int, param: str | None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    assert error["message"]
    assert error["type"]
    assert "/" not in error["message"].replace("/v1", "").replace("image/png", "")
    assert error["param"] == param


@pytest.mark.parametrize(("request_body", "status", "param"), BAD.values(), ids=BAD)
async def test_refused_with_the_field(
    duo: Duo, client: httpx.AsyncClient, request_body: Any, status: int, param: str | None
) -> None:
    response = await client.post("/v1/chat/completions", json=request_body)
    check_error(response, status, param)
    await check_still_answered(duo, client)


async def test_malformed_json(duo: Duo, client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/chat/completions", content=b'{"model": ', headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("body")
    await check_still_answered(duo, client)


REQUEST_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: render\r\nContent-Type: application/json\r\n"
)


async def connect(duo: Duo) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = duo.pair.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def read_error(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout=5.0)
    assert head.startswith(b"HTTP/1.1 413 ")
    body = await asyncio.wait_for(reader.read(4096), timeout=5.0)
    error: dict[str, Any] = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["error"]
    return error


async def test_body_above_the_limit_by_its_announcement(
    duo: Duo, client: httpx.AsyncClient
) -> None:
    """Nothing of the body is sent: only its announcement can be what is refused."""
    reader, writer = await connect(duo)
    writer.write(REQUEST_HEAD + b"Content-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
    error = await read_error(reader)
    assert error["code"] == 413
    assert str(MAX_BODY_BYTES) in error["message"]
    writer.close()
    await check_still_answered(duo, client)


async def test_body_above_the_limit_before_it_is_read_whole(
    duo: Duo, client: httpx.AsyncClient
) -> None:
    reader, writer = await connect(duo)
    writer.write(REQUEST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    answer = asyncio.create_task(read_error(reader))
    sent = 0
    while not answer.done() and sent < 4 * MAX_BODY_BYTES:
        writer.write(chunk)
        sent += 2**20
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(0)
    assert (await answer)["code"] == 413
    assert sent < 2 * MAX_BODY_BYTES
    writer.close()
    await check_still_answered(duo, client)


async def test_out_of_vocabulary_ids_are_refused(duo: Duo) -> None:
    async with httpx.AsyncClient(base_url=duo.generate, timeout=60.0, trust_env=False) as generate:
        for token_id in (-1, 2**31 - 1, 100_000):
            wire = {"request_id": "r", "token_ids": [5, token_id], "sampling_params": {}}
            response = await generate.post("/inference/v1/generate", json=wire)
            check_error(response, 400, "token_ids[1]")


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True] * 7, "has 7 entries, it must have 8"),
        ([False] * 8, "no true entry"),
        ("yes", "is_embed"),
        ([1] * 8, "is_embed"),
    ],
)
async def test_wrong_masks_are_refused_by_generate(
    duo: Duo, client: httpx.AsyncClient, mask: Any, message: str
) -> None:
    response = await client.post(
        "/v1/chat/completions/render", json=chat(image_url(data_url(png(3))))
    )
    wire = response.json()
    (placeholder,) = wire["features"]["mm_placeholders"]["image"]
    assert placeholder["is_embed"] == [False] * 2 + [True] * 4 + [False] * 2
    placeholder["is_embed"] = mask
    async with httpx.AsyncClient(base_url=duo.generate, timeout=60.0, trust_env=False) as generate:
        refused = await generate.post("/inference/v1/generate", json=wire)
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]
    assert "is_embed" in refused.json()["error"]["param"]
    await check_still_answered(duo, client)
