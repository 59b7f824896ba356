"""Anthropic's own client gets from the pair what it gets from `vllm serve`."""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool
from anthropic.types import ToolUseBlock

from tests.clients.answers import kinds, plain
from tests.clients.models import DEMO, RANDOM, asked
from tests.clients.weather import PROMPT, SCHEMA, Weather
from tests.conftest import SERVED_NAME, Duo
from tests.parity.answers import LOGPROB_TOLERANCE
from tests.parity.folding import same, settled
from tests.pictures import png

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
]

MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
# The client has no word for the temperature.
GREEDY: dict[str, Any] = {"model": SERVED_NAME, "extra_body": {"temperature": 0.0}}
ASKED: dict[str, Any] = {**GREEDY, "messages": MESSAGES}
# Without being strict, a call has the form of one, and arguments of any form.
TOOL: Any = {
    "name": "get_weather",
    "description": "Weather",
    "input_schema": SCHEMA,
    "strict": True,
}
IMAGE: Any = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(png(1)).decode(),
    },
}
WITH_IMAGE: list[Any] = [{"role": "user", "content": [{"type": "text", "text": PROMPT}, IMAGE]}]

Ask = Callable[[AsyncAnthropic], Awaitable[Any]]


@pytest.fixture
async def clients(duo: Duo) -> AsyncIterator[tuple[AsyncAnthropic, AsyncAnthropic]]:
    """Of the pair and of the monolith."""
    async with (
        AsyncAnthropic(base_url=duo.pair, api_key="none", max_retries=0) as pair,
        AsyncAnthropic(base_url=duo.monolith, api_key="none", max_retries=0) as monolith,
    ):
        yield pair, monolith


async def message(client: AsyncAnthropic) -> Any:
    return await client.messages.create(**ASKED, max_tokens=8, system="Be terse.")


async def stopped_message(client: AsyncAnthropic) -> Any:
    return await client.messages.create(**ASKED, max_tokens=16, stop_sequences=["e"])


async def streamed_message(client: AsyncAnthropic) -> Any:
    async with client.messages.stream(**ASKED, max_tokens=8) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
        assert await stream.get_final_text()
    return {"kinds": kinds(events), "final": final}


async def counted(client: AsyncAnthropic) -> Any:
    return [
        await client.messages.count_tokens(model=SERVED_NAME, messages=messages)
        for messages in (MESSAGES, WITH_IMAGE)
    ]


async def stream_of_a_tool(client: AsyncAnthropic) -> Any:
    async with client.messages.stream(
        **ASKED, max_tokens=120, tools=[TOOL], tool_choice={"type": "any"}
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    assert_called(final)
    return {"kinds": kinds(events), "final": final}


async def named_tool(client: AsyncAnthropic) -> Any:
    answer = await client.messages.create(
        **ASKED, max_tokens=120, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}
    )
    assert_called(answer)
    return answer


def assert_called(answer: anthropic.types.Message) -> None:
    calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
    assert calls
    assert all(call.name == "get_weather" for call in calls)
    assert all(Weather.model_validate(call.input) for call in calls)


async def image(client: AsyncAnthropic) -> Any:
    return await client.messages.create(**GREEDY, messages=WITH_IMAGE, max_tokens=8)


async def structure(client: AsyncAnthropic) -> Any:
    answer = await client.messages.parse(**ASKED, max_tokens=60, output_format=Weather)
    assert isinstance(answer.parsed_output, Weather)
    return answer


OF_ANY: list[Ask] = [message, stopped_message, streamed_message, counted, image]
OF_THE_DEMO: list[Ask] = [stream_of_a_tool, named_tool, structure]


@asked(OF_ANY, OF_THE_DEMO)
async def test_the_answer_is_the_monoliths(
    clients: tuple[AsyncAnthropic, AsyncAnthropic], ask: Ask
) -> None:
    ours, theirs = [settled(plain(await ask(client))) for client in clients]
    assert same(ours, theirs, LOGPROB_TOLERANCE), f"\npair {ours}\nmonolith {theirs}"


@DEMO
async def test_the_tool_runner(clients: tuple[AsyncAnthropic, AsyncAnthropic]) -> None:
    """It calls the function with what the model asked for, and sends the result back."""
    answers = []
    for client in clients:
        calls: list[tuple[str, bool]] = []

        @beta_async_tool(strict=True)
        async def get_weather(city: Literal["Paris", "Berlin"], hot: bool) -> str:
            """Tell the weather of a city."""
            calls.append((city, hot))  # noqa: B023
            return "Sunny."

        runner = client.beta.messages.tool_runner(
            **ASKED,
            max_tokens=120,
            tools=[get_weather],
            tool_choice={"type": "any"},
            max_iterations=2,
        )
        turns = [plain(turn) async for turn in runner]
        assert len(turns) == 2
        assert calls
        answers.append(settled([turns, calls]))
    assert answers[0] == answers[1]


@RANDOM
def test_the_client_that_blocks(duo: Duo) -> None:
    with Anthropic(base_url=duo.pair, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**ASKED, max_tokens=8)
        with client.messages.stream(**ASKED, max_tokens=8) as stream:
            text = stream.get_final_text()
        listed = [card.id for card in client.models.list()]
    assert text
    assert whole.content[0].type == "text"
    assert whole.content[0].text == text
    assert listed == [SERVED_NAME]


WRONG: dict[str, tuple[Ask, type[anthropic.APIStatusError]]] = {
    "a value": (
        lambda client: client.messages.create(**ASKED, max_tokens=5000),
        anthropic.BadRequestError,
    ),
    "a value of a stream": (
        lambda client: client.messages.create(**ASKED, max_tokens=5000, stream=True),
        anthropic.BadRequestError,
    ),
    "a model": (
        lambda client: client.messages.create(**ASKED | {"model": "another"}, max_tokens=8),
        anthropic.NotFoundError,
    ),
    "an endpoint": (lambda client: client.messages.batches.list(), anthropic.NotFoundError),
}


@RANDOM
@pytest.mark.parametrize(("ask", "kind"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_raised_as_with_the_monolith(
    clients: tuple[AsyncAnthropic, AsyncAnthropic],
    ask: Ask,
    kind: type[anthropic.APIStatusError],
) -> None:
    raised = []
    for client in clients:
        with pytest.raises(kind) as caught:
            await ask(client)
        raised.append(caught.value)
    ours, theirs = raised
    assert (type(ours), ours.status_code) == (type(theirs), theirs.status_code)
    assert ours.body == theirs.body
