"""What the official clients make of a replica that refuses requests, or breaks with them."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from shared_protocol.serving_info import ServingInfo
from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.pair import RenderService
from tests.render_service.fake_generate import (
    FIRST,
    INFO,
    LAST,
    Behaviour,
    Exchange,
    FakeGenerate,
    answer,
    refuse,
    reset_after,
)

# The render service takes as long to start as an engine.
pytestmark = pytest.mark.slow

KEY = "secret"
MESSAGES: list[Any] = [{"role": "user", "content": "the quick brown fox"}]
LOST = "The generate service was lost while it had this request"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeGenerate]:
    with FakeGenerate() as fake:
        fake.info = info_of_checkpoint()
        yield fake


def info_of_checkpoint() -> ServingInfo:
    model = checkpoint("gemma3")
    config = json.loads((model / "config.json").read_text())
    return msgspec.structs.replace(
        INFO,
        model=str(model),
        served_model_names=[SERVED_NAME],
        architecture=config["architectures"][0],
        vocab_size=config["text_config"]["vocab_size"],
        hidden_size=config["text_config"]["hidden_size"],
        enable_prompt_embeds=False,
    )


@pytest.fixture(scope="module")
def url(fake: FakeGenerate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = (
        *(f"--served-model-name={SERVED_NAME}", f"--api-key={KEY}"),
        *("--max-body-bytes=100000", "--probe-interval-s=0.2"),
    )
    log = tmp_path_factory.mktemp("logs") / "render.log"
    with RenderService(checkpoint("gemma3"), [fake.url], *flags, log=log) as render:
        yield render.url


@contextmanager
def openai_client(url: str, **options: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", **{"api_key": KEY, "max_retries": 0, **options}) as client:
        yield client


@contextmanager
def anthropic_client(url: str, **options: Any) -> Iterator[Anthropic]:
    # As a bearer token, which is how vLLM wants its key.
    with Anthropic(base_url=url, **{"auth_token": KEY, "max_retries": 0, **options}) as client:
        yield client


def chat(client: OpenAI, stream: bool) -> Any:
    answer = client.chat.completions.create(model=SERVED_NAME, messages=MESSAGES, stream=stream)
    return list(answer) if stream else answer


def completion(client: OpenAI, stream: bool) -> Any:
    answer = client.completions.create(model=SERVED_NAME, prompt="a", stream=stream)
    return list(answer) if stream else answer


def response(client: OpenAI, stream: bool) -> Any:
    answer = client.responses.create(model=SERVED_NAME, input="a", stream=stream)
    return list(answer) if stream else answer


def message(client: Anthropic, stream: bool) -> Any:
    answer = client.messages.create(
        model=SERVED_NAME, messages=MESSAGES, max_tokens=8, stream=stream
    )
    return list(answer) if stream else answer


Call = tuple[Callable[..., Any], Callable[[Any, bool], Any]]

CALLS: dict[str, Call] = {
    "chat": (openai_client, chat),
    "completion": (openai_client, completion),
    "response": (openai_client, response),
    "message": (anthropic_client, message),
}

every_call = pytest.mark.parametrize(("client", "call"), CALLS.values(), ids=CALLS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@every_call
@streamed_or_not
def test_a_refusal_is_a_503_that_says_when_to_try_again(
    fake: FakeGenerate, url: str, client: Callable[..., Any], call: Callable[..., Any], stream: bool
) -> None:
    fake.behaviour = refuse(503, "busy", retry_after="3")
    wait_until_ready(url)
    with client(url) as made, pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as e:
        call(made, stream)
    assert isinstance(e.value, openai.InternalServerError | anthropic.InternalServerError)
    assert e.value.status_code == 503
    assert e.value.response.headers["retry-after"] == "3"


@every_call
@streamed_or_not
def test_the_client_tries_again_when_it_is_told_to(
    fake: FakeGenerate, url: str, client: Callable[..., Any], call: Callable[..., Any], stream: bool
) -> None:
    fake.behaviour = refusing_first(refuse(503, "busy", retry_after="1"), answer(FIRST, LAST))
    wait_until_ready(url)
    start = time.monotonic()
    with client(url, max_retries=2) as made:
        assert call(made, stream)
    assert time.monotonic() - start > 1.0


def refusing_first(refusal: Behaviour, then: Behaviour) -> Behaviour:
    ways = iter([refusal])

    async def behave(exchange: Exchange) -> None:
        await next(ways, then)(exchange)

    return behave


def wait_until_ready(url: str) -> None:
    """A replica that has failed a request is out of rotation until its next probe."""

    deadline = time.monotonic() + 10.0
    while httpx.get(f"{url}/ready", trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_chat_that_breaks(fake: FakeGenerate, url: str) -> None:
    fake.behaviour = reset_after(FIRST)
    wait_until_ready(url)
    with openai_client(url) as client, pytest.raises(openai.APIError, match=LOST):
        chat(client, stream=True)


def test_a_response_that_breaks_ends_with_an_event(fake: FakeGenerate, url: str) -> None:
    fake.behaviour = reset_after(FIRST)
    wait_until_ready(url)
    with openai_client(url) as client:
        events = response(client, stream=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert (events[-1].type, events[-1].message) == ("error", LOST)


def test_a_message_that_breaks_says_why(fake: FakeGenerate, url: str) -> None:
    fake.behaviour = reset_after(FIRST)
    wait_until_ready(url)
    with anthropic_client(url) as client, pytest.raises(anthropic.APIStatusError) as e:
        message(client, stream=True)
    assert e.value.body == {"type": "error", "error": {"type": "internal_error", "message": LOST}}


@pytest.mark.parametrize("client", [openai_client, anthropic_client])
def test_a_wrong_key(url: str, client: Callable[..., Any]) -> None:
    wrong = {"api_key": "wrong"} if client is openai_client else {"auth_token": "wrong"}
    call = chat if client is openai_client else message
    expected = (openai.AuthenticationError, anthropic.AuthenticationError)
    with client(url, **wrong) as made, pytest.raises(expected):
        call(made, False)


def test_a_body_that_is_too_large(url: str) -> None:
    large: list[Any] = [{"role": "user", "content": "a" * 200_000}]
    with openai_client(url) as client, pytest.raises(openai.APIStatusError) as e:
        client.chat.completions.create(model=SERVED_NAME, messages=large)
    assert e.value.status_code == 413
    with anthropic_client(url) as client, pytest.raises(anthropic.APIStatusError) as e:
        client.messages.create(model=SERVED_NAME, messages=large, max_tokens=8)
    assert e.value.status_code == 413
