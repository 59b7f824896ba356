"""OpenAI's own client gets from the pair what it gets from `vllm serve`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseFunctionToolCall

from tests.clients.answers import kinds, plain
from tests.clients.models import DEMO, RANDOM, asked
from tests.clients.weather import IMAGE_URL, PROMPT, SCHEMA, Weather
from tests.conftest import SERVED_NAME, Duo
from tests.parity.answers import LOGPROB_TOLERANCE
from tests.parity.folding import same, settled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # The one that was trained: it comes to an end of the structures that it is asked for.
]

MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"model": SERVED_NAME, "temperature": 0.0}
CHAT: dict[str, Any] = {**GREEDY, "messages": MESSAGES}
RESPONSE: dict[str, Any] = {**GREEDY, "input": PROMPT}
TOOL: Any = openai.pydantic_function_tool(Weather, name="get_weather")
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
RESPONSE_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA}

Ask = Callable[[AsyncOpenAI], Awaitable[Any]]


@pytest.fixture
async def clients(duo: Duo) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """Of the pair and of the monolith."""
    async with (
        AsyncOpenAI(base_url=f"{duo.pair}/v1", api_key="none", max_retries=0) as pair,
        AsyncOpenAI(base_url=f"{duo.monolith}/v1", api_key="none", max_retries=0) as monolith,
    ):
        yield pair, monolith


async def chat(client: AsyncOpenAI) -> Any:
    return await client.chat.completions.create(
        **CHAT | {"temperature": 0.8},
        max_tokens=8,
        n=2,
        seed=7,
        logprobs=True,
        top_logprobs=2,
    )


async def streamed_chat(client: AsyncOpenAI) -> Any:
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            **CHAT, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    ]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    return {"text": text, "usage": chunks[-1].usage}


async def stream_of_a_structure(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(
        **CHAT, response_format=Weather, stream_options={"include_usage": True}
    ) as stream:
        events = [event async for event in stream]
        completion = await stream.get_final_completion()
    assert isinstance(completion.choices[0].message.parsed, Weather)
    return {"kinds": kinds(events), "final": completion}


async def structure(client: AsyncOpenAI) -> Any:
    completion = await client.chat.completions.parse(**CHAT, response_format=Weather)
    assert isinstance(completion.choices[0].message.parsed, Weather)
    return completion


async def stream_of_a_named_tool(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(**CHAT, tools=[TOOL], tool_choice=NAMED) as stream:
        events = [event async for event in stream]
        completion = await stream.get_final_completion()
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    return {"kinds": kinds(events), "final": completion}


async def required_tool_and_its_result(client: AsyncOpenAI) -> Any:
    first = await client.chat.completions.parse(**CHAT, tools=[TOOL], tool_choice="required")
    calls = first.choices[0].message.tool_calls or []
    assert calls
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in calls)
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in calls
    ]
    messages = [*MESSAGES, first.choices[0].message, *results]
    second = await client.chat.completions.create(
        **GREEDY, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=8
    )
    assert second.choices[0].message.content
    return [first, second]


async def image(client: AsyncOpenAI) -> Any:
    content: list[Any] = [
        {"type": "text", "text": PROMPT},
        {"type": "image_url", "image_url": {"url": IMAGE_URL}},
    ]
    messages: list[Any] = [{"role": "user", "content": content}]
    return await client.chat.completions.create(**GREEDY, messages=messages, max_tokens=8)


async def completion(client: AsyncOpenAI) -> Any:
    return await client.completions.create(
        **GREEDY, prompt=[PROMPT, "The capital"], max_tokens=8, logprobs=2, echo=True
    )


async def streamed_completion(client: AsyncOpenAI) -> Any:
    chunks = await client.completions.create(**GREEDY, prompt=PROMPT, max_tokens=8, stream=True)
    return "".join([chunk.choices[0].text async for chunk in chunks])


async def response(client: AsyncOpenAI) -> Any:
    answer = await client.responses.create(**RESPONSE, max_output_tokens=8)
    assert answer.output_text
    return answer


async def stream_of_a_structured_response(client: AsyncOpenAI) -> Any:
    async with client.responses.stream(**RESPONSE, text_format=Weather) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, Weather)
    return {"kinds": kinds(events), "final": final}


async def structured_response(client: AsyncOpenAI) -> Any:
    answer = await client.responses.parse(**RESPONSE, text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)
    return answer


async def response_that_calls_a_tool(client: AsyncOpenAI) -> Any:
    answer = await client.responses.create(
        **RESPONSE, tools=[RESPONSE_TOOL], tool_choice="required"
    )
    assert any(isinstance(item, ResponseFunctionToolCall) for item in answer.output)
    return answer


async def response_to_an_image(client: AsyncOpenAI) -> Any:
    content: list[Any] = [
        {"type": "input_text", "text": PROMPT},
        {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"},
    ]
    asked: list[Any] = [{"role": "user", "content": content}]
    return await client.responses.create(**GREEDY, input=asked, max_output_tokens=8)


async def models(client: AsyncOpenAI) -> Any:
    cards = [card.model_dump() async for card in client.models.list()]
    return [card | {"permission": None} for card in cards]


OF_ANY: list[Ask] = [
    *(chat, streamed_chat, image, completion, streamed_completion, models),
    response_to_an_image,
]
OF_THE_DEMO: list[Ask] = [
    *(structure, stream_of_a_structure, stream_of_a_named_tool, required_tool_and_its_result),
    *(response, stream_of_a_structured_response, structured_response),
    response_that_calls_a_tool,
]


@asked(OF_ANY, OF_THE_DEMO)
async def test_the_answer_is_the_monoliths(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], ask: Ask
) -> None:
    ours, theirs = [settled(plain(await ask(client))) for client in clients]
    assert same(ours, theirs, LOGPROB_TOLERANCE), f"\npair {ours}\nmonolith {theirs}"


@DEMO
def test_the_client_that_blocks(duo: Duo) -> None:
    with OpenAI(base_url=f"{duo.pair}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.parse(**CHAT, response_format=Weather)
        with client.chat.completions.stream(**CHAT, response_format=Weather) as stream:
            stream.until_done()
            streamed = stream.get_final_completion()
        answer = client.responses.parse(**RESPONSE, text_format=Weather)
    parsed = whole.choices[0].message.parsed
    assert isinstance(parsed, Weather)
    assert parsed == streamed.choices[0].message.parsed == answer.output_parsed


WRONG: dict[str, tuple[Ask, type[openai.APIStatusError], str | None]] = {
    "a value": (
        lambda client: client.chat.completions.create(**CHAT | {"temperature": -1.0}),
        openai.BadRequestError,
        "temperature",
    ),
    "a value of a stream": (
        lambda client: client.chat.completions.create(**CHAT, max_tokens=5000, stream=True),
        openai.BadRequestError,
        "max_tokens",
    ),
    "a value of a response": (
        lambda client: client.responses.create(**RESPONSE, max_output_tokens=5000),
        openai.BadRequestError,
        "max_output_tokens",
    ),
    "an image": (
        lambda client: client.chat.completions.create(
            **GREEDY,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64,AAAA"},
                        }
                    ],
                }
            ],
        ),
        openai.BadRequestError,
        "messages",
    ),
    "a model": (
        lambda client: client.chat.completions.create(**CHAT | {"model": "another"}),
        openai.NotFoundError,
        "model",
    ),
    "a model of a response": (
        lambda client: client.responses.create(**RESPONSE | {"model": "another"}),
        openai.NotFoundError,
        "model",
    ),
    "a task": (
        lambda client: client.embeddings.create(model=SERVED_NAME, input="a"),
        openai.NotFoundError,
        None,
    ),
}


@RANDOM
@pytest.mark.parametrize(("ask", "kind", "param"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_raised_as_with_the_monolith(
    clients: tuple[AsyncOpenAI, AsyncOpenAI],
    ask: Ask,
    kind: type[openai.APIStatusError],
    param: str | None,
) -> None:
    raised = []
    for client in clients:
        with pytest.raises(kind) as caught:
            await ask(client)
        raised.append(caught.value)
    ours, theirs = raised
    assert (type(ours), ours.status_code) == (type(theirs), theirs.status_code)
    assert ours.param == param


@RANDOM
async def test_a_structure_that_is_cut_off(clients: tuple[AsyncOpenAI, AsyncOpenAI]) -> None:
    for client in clients:
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(**CHAT, response_format=Weather, max_tokens=2)
