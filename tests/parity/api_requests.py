"""A seeded stream of requests over the whole API: every endpoint, every option, wrong ones too."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.conftest import SERVED_NAME
from tests.parity.chats import drawn_image, drawn_text

Body = dict[str, Any]


@dataclass(frozen=True)
class ApiRequest:
    path: str
    body: Body


def api_requests(seed: int, count: int) -> Iterator[ApiRequest]:
    """Yield `count` requests; chats and completions are most of them."""
    draw = random.Random(seed)
    makers: list[Callable[[random.Random], ApiRequest]] = [_chat, _chat, _chat, _completion]
    for index in range(count):
        maker = _other if index % 8 == 7 else draw.choice(makers)
        yield maker(draw)


def _chat(draw: random.Random) -> ApiRequest:
    content: Any = drawn_text(draw)
    if draw.random() < 0.2:
        content = [{"type": "text", "text": content}, drawn_image(draw)]
    body: Body = {
        "messages": [{"role": "user", "content": content}],
        **_common(draw),
        **_sometimes(draw, 0.3, {"logprobs": True, "top_logprobs": draw.randint(0, 5)}),
        **_sometimes(draw, 0.1, {"return_token_ids": True}),
        **_sometimes(draw, 0.1, _format(draw)),
        **_sometimes(draw, 0.05, {"documents": [{"title": "a", "text": "b"}]}),
        **_sometimes(draw, 0.05, {"chat_template_kwargs": {"unused": 1}}),
    }
    if draw.random() < 0.1:
        body["messages"].append({"role": "assistant", "content": "the quick"})
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    if draw.random() < 0.1:
        body["echo"] = True
    return ApiRequest("/v1/chat/completions", body)


def _completion(draw: random.Random) -> ApiRequest:
    prompts: list[Any] = [
        drawn_text(draw),
        [drawn_text(draw), drawn_text(draw)],
        [draw.randint(5, 100) for _ in range(draw.randint(1, 20))],
    ]
    body: Body = {
        "prompt": draw.choice(prompts),
        **_common(draw),
        **_sometimes(draw, 0.3, {"logprobs": draw.randint(0, 5)}),
        **_sometimes(draw, 0.15, {"echo": True}),
        **_sometimes(draw, 0.1, {"suffix": None}),
        **_sometimes(draw, 0.1, {"return_token_ids": True}),
        **_sometimes(draw, 0.1, {"add_special_tokens": False}),
    }
    return ApiRequest("/v1/completions", body)


def _other(draw: random.Random) -> ApiRequest:
    text = drawn_text(draw)
    messages = [{"role": "user", "content": text}]
    paths: dict[str, Body] = {
        "/v1/responses": {"input": text, "max_output_tokens": draw.randint(1, 20)},
        "/v1/messages": {"messages": messages, "max_tokens": draw.randint(1, 20)},
        "/v1/messages/count_tokens": {"messages": messages},
        "/tokenize": {"prompt": text, "return_token_strs": draw.random() < 0.5},
        "/detokenize": {"tokens": [draw.randint(5, 200) for _ in range(8)]},
        "/v1/embeddings": {"input": text},
        "/v1/audio/transcriptions": {},
    }
    path = draw.choice(list(paths))
    body = {"model": SERVED_NAME, **paths[path]}
    if path in ("/v1/responses", "/v1/messages"):
        body["temperature"] = 0.0
    return ApiRequest(path, body)


def _common(draw: random.Random) -> Body:
    """Options that chats and completions share; about one request in eight is wrong."""
    body: Body = {
        "model": SERVED_NAME,
        "max_tokens": draw.choice([1, 2, 5, 16, 24]),
        **_sampling(draw),
        **_sometimes(draw, 0.25, {"n": draw.randint(2, 4)}),
        **_sometimes(draw, 0.1, {"prompt_logprobs": draw.randint(0, 3)}),
        **_sometimes(draw, 0.25, {"stop": draw.choice([["e"], ["the", " a"], "o", ["\n"]])}),
        **_sometimes(draw, 0.1, {"include_stop_str_in_output": True}),
        **_sometimes(draw, 0.1, {"stop_token_ids": [draw.randint(5, 200) for _ in range(40)]}),
        **_sometimes(draw, 0.15, {"min_tokens": 1}),
        **_sometimes(draw, 0.2, {"ignore_eos": True}),
        **_sometimes(draw, 0.15, {"skip_special_tokens": False}),
        **_sometimes(draw, 0.1, {"spaces_between_special_tokens": False}),
        **_sometimes(draw, 0.05, {"cache_salt": "salt"}),
        **_sometimes(draw, 0.05, {"truncate_prompt_tokens": draw.choice([3, 8, -1])}),
        **_sometimes(draw, 0.05, {"return_tokens_as_token_ids": True}),
        **_sometimes(draw, 0.05, {"request_id": f"mine-{draw.randint(0, 10**6)}"}),
        **_sometimes(draw, 0.08, draw.choice(WRONG)),
    }
    if body.get("n", 1) > 1 and body["temperature"] == 0.0:
        body |= {"temperature": 0.8, "seed": draw.randint(0, 1000)}
    return body


def _sampling(draw: random.Random) -> Body:
    if draw.random() < 0.5:
        return {"temperature": 0.0, **_biases(draw)}
    return {
        "temperature": draw.choice([0.3, 0.8, 1.5]),
        "seed": draw.randint(0, 1000),
        **_sometimes(draw, 0.3, {"top_p": draw.choice([0.1, 0.7, 1.0])}),
        **_sometimes(draw, 0.3, {"top_k": draw.choice([-1, 1, 5, 50])}),
        **_sometimes(draw, 0.2, {"min_p": draw.choice([0.0, 0.05, 0.3])}),
        **_biases(draw),
    }


def _biases(draw: random.Random) -> Body:
    return {
        **_sometimes(draw, 0.15, {"presence_penalty": draw.choice([-1.0, 0.5, 2.0])}),
        **_sometimes(draw, 0.15, {"frequency_penalty": draw.choice([-0.5, 1.0])}),
        **_sometimes(draw, 0.15, {"repetition_penalty": draw.choice([0.8, 1.3])}),
        **_sometimes(draw, 0.1, {"logit_bias": {"10": 4.0, "11": -100.0}}),
        **_sometimes(draw, 0.08, {"bad_words": ["the", "a b"]}),
        **_sometimes(draw, 0.08, {"allowed_token_ids": list(range(5, 60))}),
    }


def _format(draw: random.Random) -> Body:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    return draw.choice(
        [
            {"structured_outputs": {"regex": "[ab]{2,4}"}},
            {"structured_outputs": {"choice": ["yes", "no"]}},
            {"structured_outputs": {"json": schema}},
            {"response_format": {"type": "json_object"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": schema},
                }
            },
        ]
    )


WRONG: list[Body] = [
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"top_k": -5},
    {"max_tokens": 0},
    {"max_tokens": 5000},
    {"n": 0},
    {"logit_bias": {"100000": 1.0}},
    {"allowed_token_ids": [100000]},
    {"prompt_logprobs": -3},
    {"min_tokens": 100},
    {"stop": [""]},
    {"seed": "x"},
    {"model": "another"},
    {"structured_outputs": {"regex": "("}},
    {"repetition_penalty": 0.0},
    {"truncate_prompt_tokens": 5000},
]


def _sometimes(draw: random.Random, chance: float, members: Body) -> Body:
    return members if draw.random() < chance else {}
