"""Each tier works with the other half of stock vLLM's own split, as far as that goes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared_protocol.items import MultiModalItem
from shared_protocol.json_codec import decode_item
from tests.conftest import FLAGS, SERVED_NAME, Duo
from tests.engine_settings import ENGINE_ENVIRONMENT
from tests.parity.answers import ask
from tests.pictures import data_url, png
from tests.processes import Server, free_port

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # Stock vLLM loses sparse masks: a dense model is what both can carry.
    pytest.mark.parametrize("duo", ["qwen2_vl"], indirect=True),
]

TEXT: list[dict[str, Any]] = [{"type": "text", "text": "the quick brown fox"}]
IMAGE: list[dict[str, Any]] = [
    *TEXT,
    {"type": "image_url", "image_url": {"url": data_url(png(7, 100, 60))}},
]


def chat(content: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0.0,
        "max_tokens": 17,
        "logprobs": True,
        "return_token_ids": True,
        **options,
    }


@pytest.fixture
def stock_render(duo: Duo, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "tests.vllm_cli", "launch", "render", str(duo.checkpoint)),
        *("--host=127.0.0.1", f"--port={port}", "--dtype=float32", "--max-model-len=1024"),
        *FLAGS,
    ]
    with Server(command, ENGINE_ENVIRONMENT, url, "/health", tmp_path / "render.log"):
        yield url


async def post(url: str, request: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
        response = await client.post(url, json=request)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body


async def monolith_tokens(duo: Duo, request: dict[str, Any]) -> list[int]:
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
        answer = await ask(client, duo.monolith, request)
    assert len(answer.token_ids) > 1
    return answer.token_ids


async def test_our_generate_answers_what_stock_render_emits(duo: Duo, stock_render: str) -> None:
    for content in (TEXT, IMAGE):
        request = chat(content)
        wire = await post(f"{stock_render}/v1/chat/completions/render", request)
        answer = await post(f"{duo.generate}/inference/v1/generate", wire)
        assert answer["choices"][0]["token_ids"] == await monolith_tokens(duo, request)


async def test_our_generate_streams_to_a_stock_client(duo: Duo, stock_render: str) -> None:
    request = chat(IMAGE)
    wire = await post(f"{stock_render}/v1/chat/completions/render", request)
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
        response = await client.post(
            f"{duo.generate}/inference/v1/generate", json=wire | {"stream": True}
        )
    # The very models that vLLM reads its own stream with.
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateTokensStreamResponse

    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [GenerateTokensStreamResponse.model_validate_json(event) for event in events[:-1]]
    tokens = [token for chunk in chunks for c in chunk.choices for token in c.token_ids or []]
    assert tokens == await monolith_tokens(duo, request)


async def test_stock_serve_answers_what_our_render_emits(duo: Duo) -> None:
    for content in (TEXT, IMAGE):
        request = chat(content)
        wire = await post(f"{duo.pair}/v1/chat/completions/render", request)
        answer = await post(f"{duo.monolith}/inference/v1/generate", wire)
        assert answer["choices"][0]["token_ids"] == await monolith_tokens(duo, request)


async def test_both_renders_emit_the_same_dense_image(duo: Duo, stock_render: str) -> None:
    request = chat(IMAGE)
    ours = await post(f"{duo.pair}/v1/chat/completions/render", request)
    stock = await post(f"{stock_render}/v1/chat/completions/render", request)
    assert ours["token_ids"] == stock["token_ids"]
    for member in ("mm_hashes", "mm_placeholders"):
        assert ours["features"][member] == stock["features"][member]
    assert items_of(ours) == items_of(stock)


def items_of(wire: dict[str, Any]) -> list[MultiModalItem]:
    """The items, whose elements may come in another order."""
    return [decode_item(item, param="") for item in wire["features"]["kwargs_data"]["image"]]
