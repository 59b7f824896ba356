"""Speculative decoding: steps of several tokens, set on the engine alone, answered alike.

Greedy: vLLM's own answers with a seed differ from run to run when it speculates.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.answers import LOGPROB_TOLERANCE, ask, differences
from tests.parity.folding import folded, plain_as_folded, same

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio]

FLAGS = (f"--served-model-name={SERVED_NAME}",)
ENGINE_FLAGS = (
    '--speculative-config={"method": "ngram", "num_speculative_tokens": 4, '
    '"prompt_lookup_min": 1, "prompt_lookup_max": 3}',
    "--per-request-spec-decode-metrics=detailed",
)
RENDER_FLAGS = ("--enable-per-request-metrics",)

CHAT: dict[str, Any] = {
    "model": SERVED_NAME,
    # What repeats is what n-grams are looked up in.
    "messages": [{"role": "user", "content": "the quick brown fox " * 3}],
    "temperature": 0.0,
    "max_tokens": 40,
    "logprobs": True,
    "top_logprobs": 3,
    "return_token_ids": True,
}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    logs = tmp_path_factory.mktemp("speculative")
    model = checkpoint("gemma3")
    with ExitStack() as stack:
        pair = stack.enter_context(
            Pair(
                model,
                logs=logs,
                flags=FLAGS,
                generate_flags=ENGINE_FLAGS,
                render_flags=RENDER_FLAGS,
            )
        )
        monolith = stack.enter_context(
            Monolith(model, *FLAGS, *ENGINE_FLAGS, *RENDER_FLAGS, log=logs / "monolith.log")
        )
        yield pair.url, monolith.url


@pytest.fixture
async def client() -> Any:
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
        yield client


async def post(client: httpx.AsyncClient, url: str, **changes: Any) -> httpx.Response:
    return await client.post(f"{url}/v1/chat/completions", json=CHAT | changes)


@pytest.mark.parametrize("streaming", [False, True])
async def test_tokens_logprobs_and_usage(
    urls: tuple[str, str], client: httpx.AsyncClient, streaming: bool
) -> None:
    request = CHAT | (STREAMED if streaming else {})
    pair, monolith = [await ask(client, url, request) for url in urls]
    assert len(monolith.token_ids) == CHAT["max_tokens"]
    assert not differences(pair, monolith)


async def test_steps_of_several_tokens_are_counted_alike(
    urls: tuple[str, str], client: httpx.AsyncClient
) -> None:
    pair, monolith = [
        (await post(client, url)).json()["metrics"]["speculative_decoding"] for url in urls
    ]
    assert max(monolith["per_step_accepted"]) > 1
    assert pair == monolith


async def test_a_stop_string_ends_inside_a_step(
    urls: tuple[str, str], client: httpx.AsyncClient
) -> None:
    text = (await post(client, urls[1])).json()["choices"][0]["message"]["content"]
    # Each place in the text once: those inside a step are among them.
    stops = dict.fromkeys(text[start : start + 2] for start in range(len(text) - 1))
    found = []
    for stop in stops:
        changes = {"stop": [stop], "top_logprobs": 0}
        plain = [await post(client, url, **changes) for url in urls]
        pair, monolith = [plain_as_folded(answer.json()) for answer in plain]
        streamed = folded((await post(client, urls[0], **changes, **STREAMED)).text)
        assert monolith["choices"][0]["finish_reason"] == "stop"
        if not same(pair, monolith, LOGPROB_TOLERANCE):
            found.append(f"stop {stop!r}:\n  pair {pair}\n  monolith {monolith}")
        if streamed["choices"][0]["text"] != pair["choices"][0]["text"]:
            found.append(f"stop {stop!r}:\n  streamed {streamed}\n  plain {pair}")
    assert not found, f"{len(found)} of {len(stops)}\n" + "\n".join(found[:5])


@pytest.mark.parametrize(
    "parameter", [{"min_p": 0.1, "temperature": 1.0}, {"logit_bias": {"5": 1.0}}]
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_parameters_that_speculation_does_not_allow(
    urls: tuple[str, str], client: httpx.AsyncClient, parameter: dict[str, Any], streaming: bool
) -> None:
    changes = {**parameter, **(STREAMED if streaming else {})}
    pair, monolith = [await post(client, url, **changes) for url in urls]
    assert pair.status_code == monolith.status_code == (200 if streaming else 400)
    assert "speculative decoding" in monolith.text
    assert pair.text == monolith.text
