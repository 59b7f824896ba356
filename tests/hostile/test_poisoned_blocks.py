"""A request whose keys and values became NaN spoils no answer to those that get its blocks."""

from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from shared_protocol.binary_codec import BINARY_CONTENT_TYPE
from tests.checkpoints import checkpoint
from tests.conftest import FLAGS
from tests.hostile.fuzzing import PATH, true_answers, true_requests
from tests.hostile.mutations import Payload
from tests.hostile.test_fuzz import asked
from tests.models.families import text
from tests.models.media import image_part
from tests.pair import GenerateService, RenderService

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.slow]


def poisoned(body: bytes, seed: int) -> bytes:
    """`body` with one pixel of each image that is finite, but whose square is not."""
    payload = Payload.read(body)
    draw = np.random.default_rng(seed)
    for name, tensor in payload.tensors.items():
        if name.endswith("pixel_values"):
            pixels = np.frombuffer(tensor["data"], np.float32).copy()
            pixels[draw.integers(pixels.size)] = 1e30
            tensor["data"] = pixels.tobytes()
    return payload.body()


async def answers_before_and_after(
    folder: Path, *flags: str
) -> tuple[list[list[int]], list[list[int]]]:
    model = checkpoint("gemma3")
    generate = GenerateService(
        model,
        *FLAGS,
        *flags,
        log=folder / "generate.log",
        module="tests.hostile.unchecked_generate",
    )
    chats = [
        asked(text("The quick brown fox")),
        asked(text("Look:"), image_part(1, 64, 64), text("and"), image_part(2, 100, 60)),
    ]
    with ExitStack() as stack:
        stack.enter_context(generate)
        render = stack.enter_context(
            RenderService(model, [generate.url], *FLAGS, log=folder / "render.log")
        )
        bodies = await true_requests(render.url, chats)
        async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
            before = await true_answers(client, generate.url, bodies)
            headers = {"content-type": BINARY_CONTENT_TYPE, "accept": "application/json"}
            for seed in range(10):
                response = await client.post(
                    generate.url + PATH, content=poisoned(bodies[1], seed), headers=headers
                )
                assert response.status_code == httpx.codes.OK
                assert response.json()["choices"][0]["token_ids"] == [0, 0, 0, 0]
            return before, await true_answers(client, generate.url, bodies)


async def test_with_zeroed_blocks(tmp_path: Path) -> None:
    before, after = await answers_before_and_after(tmp_path)
    assert after == before


async def test_without_them_it_does(tmp_path: Path) -> None:
    before, after = await answers_before_and_after(tmp_path, "--zero-kv-blocks=off")
    assert after != before
