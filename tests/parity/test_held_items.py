"""A chat whose images were sent in earlier turns: they are not sent again, and nothing changes."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Duo
from tests.parity.answers import ask, differences
from tests.pictures import data_url, png

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

TURNS = 4


def chat(turns: int) -> dict[str, Any]:
    """One with as many images as turns; each turn begins with all that was said before."""
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        url = data_url(png(7000 + turn, 64 + 16 * turn, 80))
        image = {"type": "image_url", "image_url": {"url": url}}
        text = {"type": "text", "text": f"Turn {turn}: what is this?"}
        messages += [{"role": "assistant", "content": "A fox."}] if turn else []
        messages.append({"role": "user", "content": [image, text]})
    return {
        "messages": messages,
        "max_tokens": 8,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
    }


async def references(client: httpx.AsyncClient, generate: str) -> dict[str, float]:
    text = (await client.get(f"{generate}/metrics")).text
    return {
        sample.labels["held"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tandem_generate_item_references_total"
    }


async def test_a_chat_that_grows(duo: Duo) -> None:
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        before = await references(client, duo.generate)
        for turns in range(1, TURNS + 1):
            ours, theirs = [await ask(client, url, chat(turns)) for url in (duo.pair, duo.monolith)]
            assert ours.status == 200, ours.error
            assert not differences(ours, theirs)
        after = await references(client, duo.generate)
    assert after["yes"] - before["yes"] == sum(range(TURNS))
    assert after["no"] == before["no"]
