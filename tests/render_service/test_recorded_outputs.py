"""Tool and reasoning parsers, fed with what models write, in chunks of any sizes.

The pair gets the tokens from a replica, vLLM's own front end from an engine core; each answer has
to be the same, event by event.
"""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from fastapi import FastAPI
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import FINISH_REASON_STRINGS, EngineCoreRequest, FinishReason

from generate_service.vllm_request import decode_request
from shared_protocol.answer import TokenDelta
from shared_protocol.binary_codec import decode_binary
from shared_protocol.serving_info import ServingInfo
from tests.checkpoints import checkpoint
from tests.parity.adding_up import said, said_by_stream
from tests.parity.numbering import events_of, numbered
from tests.parity.tool_requests import (
    AUTO,
    CHAT,
    NAMED,
    NO_THINKING,
    NONE,
    ONE_CALL,
    PATHS,
    REQUIRED,
    tool_request,
)
from tests.parser_plugin import write_parser_plugin
from tests.render_service.fake_generate import FakeGenerate, answer
from tests.render_service.scripted_pair import scripted_pair
from tests.render_service.scripted_vllm import ScriptedCore, scripted_vllm
from tests.render_service.tool_outputs import CUT_OFF, FAMILIES

pytestmark = [
    pytest.mark.anyio,
    # vLLM's own, of its field.
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),
]

MAX_MODEL_LEN = 1024
LARGEST_STEP = 9
FLAGS = (
    *("--served-model-name=served", "--dtype=float32", f"--max-model-len={MAX_MODEL_LEN}"),
    "--enable-auto-tool-choice",
)
TURN_END = "<|im_end|>"

Steps: TypeAlias = list[list[int]]


def ways_to_cut(token_ids: list[int], draw: random.Random) -> dict[str, Steps]:
    """Token by token, as most engines do; by chance, as with speculative decoding; and as one."""
    return {
        "tokens": [[token] for token in token_ids],
        "chance": list(_cut(token_ids, draw)),
        "one": [token_ids],
    }


def _cut(token_ids: list[int], draw: random.Random) -> Iterator[list[int]]:
    start = 0
    while start < len(token_ids):
        end = start + draw.randint(1, LARGEST_STEP)
        yield token_ids[start:end]
        start = end


def script(core: ScriptedCore, replica: FakeGenerate, steps: Steps, reason: FinishReason) -> None:
    """Have both answer every request with `steps`."""
    core.chunks, core.finish_reason = steps, reason
    replica.behaviour = answer(
        *(TokenDelta(token_ids=step) for step in steps[:-1]),
        TokenDelta(token_ids=steps[-1], finish_reason=FINISH_REASON_STRINGS[reason]),
    )


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any  # a list of events, if it was streamed


async def ask(app: FastAPI, path: str, request: dict[str, Any]) -> Answer:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://front-end") as client:
        response = await client.post(path, json={"model": "served", **request})
    if response.headers["content-type"].startswith("text/event-stream"):
        return Answer(response.status_code, events_of(response.text))
    return Answer(response.status_code, response.json())


@dataclass(frozen=True)
class FrontEnds:
    """The pair and vLLM's own front end, with what answers their requests."""

    pair: FastAPI
    replica: FakeGenerate
    vllm: FastAPI
    core: ScriptedCore

    def script(self, steps: Steps, reason: FinishReason) -> None:
        """Have every request answered by `steps`."""
        self.core.chunks, self.core.finish_reason = steps, reason
        self.replica.behaviour = answer(
            *(TokenDelta(token_ids=step) for step in steps[:-1]),
            TokenDelta(token_ids=steps[-1], finish_reason=FINISH_REASON_STRINGS[reason]),
        )

    def encode(self, text: str) -> list[int]:
        tokenizer = self.vllm.state.engine_client.renderer.tokenizer
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    async def ask(self, path: str, request: dict[str, Any]) -> Answer:
        """Ask both, and return what both answer."""
        ours, theirs = await ask(self.pair, path, request), await ask(self.vllm, path, request)
        assert ours.status == theirs.status
        assert numbered(ours.body) == numbered(theirs.body)
        return ours


@asynccontextmanager
async def front_ends(*flags: str) -> AsyncIterator[FrontEnds]:
    flags = (f"--model={checkpoint('qwen3')}", *FLAGS, *flags)
    async with (
        scripted_vllm(flags) as (vllm, core),
        scripted_pair(flags, max_model_len=MAX_MODEL_LEN) as (pair, replica),
    ):
        yield FrontEnds(pair, replica, vllm, core)


QUICK = (
    "hermes, qwen3",
    "qwen3_coder, qwen3",
    "llama3_json",
    "mistral",
    "deepseek_v3, deepseek_r1",
)
"""The others are too many for every run."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES],
)
async def test_the_pair_answers_as_vllm_does(name: str) -> None:
    family = FAMILIES[name]
    draw = random.Random(name)
    differing: dict[str, set[str]] = {}
    async with front_ends(*family.flags) as both:
        for shown, text in family.outputs.items():
            cut_off = shown in CUT_OFF
            reason = FinishReason.LENGTH if cut_off else FinishReason.STOP
            token_ids = both.encode(text if cut_off else text + TURN_END)
            both.script([token_ids], reason)
            requests = {path: tool_request(path, max_tokens=len(token_ids)) for path in PATHS}
            plain = {path: await both.ask(path, body) for path, body in requests.items()}
            for cut, steps in ways_to_cut(token_ids, draw).items():
                both.script(steps, reason)
                for path in PATHS if cut == "chance" else PATHS[:1]:
                    streamed = await both.ask(path, requests[path] | {"stream": True})
                    if plain[path].status == 200 and (
                        said(path, plain[path].body) != said_by_stream(path, streamed.body)
                    ):
                        differing.setdefault(shown, set()).add(cut)
    assert differing == {
        shown: set(cuts.split()) for shown, cuts in family.differs_streamed.items()
    }


async def test_stop_strings_and_choices() -> None:
    text = FAMILIES["hermes, qwen3"].outputs["thought, text and two calls"]
    async with front_ends(*FAMILIES["hermes, qwen3"].flags) as both:
        token_ids = both.encode(text + TURN_END)
        for stop in ("weather", "Well", '"days"', "</tool_call>"):
            request = tool_request(CHAT, max_tokens=len(token_ids), stop=stop)
            for steps in ways_to_cut(token_ids, random.Random(stop)).values():
                both.script(steps, FinishReason.STOP)
                plain = await both.ask(CHAT, request)
                assert plain.body["choices"][0]["stop_reason"] == stop
                await both.ask(CHAT, request | {"stream": True})
        request = tool_request(CHAT, max_tokens=len(token_ids), n=3, temperature=0.5)
        plain = await both.ask(CHAT, request)
        assert [len(choice["message"]["tool_calls"]) for choice in plain.body["choices"]] == [2] * 3


async def test_parsers_of_a_plugin(tmp_path: Path) -> None:
    plugin = write_parser_plugin(tmp_path / "plugin_of_test.py", name="of_a_plugin")
    flags = (
        *(f"--model={checkpoint('qwen3')}", *FLAGS, "--tool-call-parser=of_a_plugin"),
        *("--reasoning-parser=of_a_plugin", f"--reasoning-parser-plugin={plugin}"),
        f"--tool-parser-plugin={plugin}",
    )
    text = FAMILIES["hermes, deepseek_r1"].outputs["thought and call"]
    async with scripted_pair(flags, max_model_len=MAX_MODEL_LEN) as (pair, replica):
        tokenizer = pair.state.engine_client.renderer.tokenizer
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        replica.behaviour = answer(TokenDelta(token_ids=token_ids, finish_reason="stop"))
        plain = await ask(pair, PATHS[0], tool_request(PATHS[0], max_tokens=100))
    assert said(PATHS[0], plain.body)["calls"] == [("get_weather", '{"city": "Berlin", "days": 2}')]
    assert said(PATHS[0], plain.body)["reasoning"]
    think = [[tokenizer.convert_tokens_to_ids(mark)] for mark in ("<think>", "</think>")]
    assert isinstance(replica.info, ServingInfo)
    assert replica.info.reasoning_token_ids == [*think, think[1]]


def told(core: EngineCoreRequest) -> dict[str, Any]:
    """What vLLM's front end tells an engine core that bears on thinking and on calls."""
    assert core.sampling_params is not None
    return _told(core.sampling_params) | {
        "prompt": core.prompt_token_ids,
        "reasoning_ended": core.reasoning_ended,
        "reasoning_parser_kwargs": core.reasoning_parser_kwargs,
    }


def told_by_wire(body: bytes) -> dict[str, Any]:
    """What a generate service makes of the same."""
    wire = decode_binary(body)
    request = decode_request(wire, default_max_tokens=None)
    assert isinstance(request.params, SamplingParams)
    return _told(request.params) | {
        "prompt": wire.token_ids,
        "reasoning_ended": request.reasoning_ended,
        "reasoning_parser_kwargs": request.reasoning_parser_kwargs,
    }


def _told(params: SamplingParams) -> dict[str, Any]:
    grammar = params.structured_outputs
    return {
        "grammar": None if grammar is None else (grammar.json, grammar.structural_tag),
        "budget": params.thinking_token_budget,
        "max_tokens": params.max_tokens,
    }


@pytest.mark.parametrize("parser", ["hermes", "pythonic"])
async def test_an_engine_is_told_what_vllm_tells_it(parser: str) -> None:
    flags = (f"--tool-call-parser={parser}", "--reasoning-parser=qwen3")
    grammars = set()
    async with front_ends(*flags) as both:
        both.script([[both.encode(TURN_END)[0]]], FinishReason.STOP)
        for path in PATHS:
            for choice in (NONE, AUTO, REQUIRED, NAMED, ONE_CALL):
                for more in ({}, NO_THINKING[path]):
                    request = tool_request(path, max_tokens=20, **choice[path], **more)
                    await both.ask(path, request)
                    ours = told_by_wire(both.replica.requests[-1].body)
                    assert ours == told(both.core.requests[-1])
                    grammars.add(str(ours["grammar"]))
        for more in (
            {"thinking_token_budget": 7},
            {"include_reasoning": False},
            {"reasoning_effort": "high"},
            {"chat_template_kwargs": {"enable_thinking": True, "mine": {"deep": [1, None]}}},
        ):
            await both.ask(CHAT, tool_request(CHAT, max_tokens=20, **REQUIRED[CHAT], **more))
            ours = told_by_wire(both.replica.requests[-1].body)
            assert ours == told(both.core.requests[-1])
    assert len(grammars) > 2
