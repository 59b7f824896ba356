"""What is declared of vLLM's API against vLLM, and of its parameters against the two services."""

from typing import Any

import msgspec
import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vllm.pooling_params import LateInteractionParams, PoolingParams
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from generate_service.vllm_request import decode_pooling_params, decode_sampling_params
from render_service.api_endpoints import BY_TANDEM, BY_VLLM, NOT_OFFERED
from render_service.api_fields import POOLING_PARAMS, REQUESTS, SAMPLING_PARAMS, Fields, Place
from render_service.not_offered import not_offered_router
from render_service.vllm_request import encode_params, encode_sampling_params
from shared_protocol.json_codec import decode_json, encode_json
from shared_protocol.request import GenerateRequest
from tests.render_service import vllm_server

OFFERED = BY_VLLM.keys() | BY_TANDEM.keys()


@pytest.fixture(scope="module")
def server() -> FastAPI:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in vllm_server.SWITCHES.items():
            environment.setenv(name, value)
        return vllm_server.build_server()


def listed(fields: Fields) -> list[str]:
    return [name for group in fields.values() for name in group.split()]


def listed_as(place: Place, fields: Fields) -> set[str]:
    return set(listed({effect: fields[effect] for effect in fields if effect.place is place}))


def test_every_endpoint_of_vllm_has_one_decision(server: FastAPI) -> None:
    decided = [*BY_VLLM, *BY_TANDEM, *NOT_OFFERED]
    assert set(decided) == vllm_server.endpoints(server) | vllm_server.declared_endpoints()
    assert len(decided) == len(set(decided))


def test_every_body_of_an_offered_endpoint_is_described(server: FastAPI) -> None:
    described = {
        endpoint: set(listed(request.fields))
        for request in REQUESTS.values()
        for endpoint in endpoints_of(request.endpoints)
    }
    taken = vllm_server.fields_by_endpoint(server)
    # Its class needs the package `cohere`.
    taken["POST /cohere/v2/chat"] = vllm_server.declared_fields(
        "cohere/protocol.py", "CohereChatV2Request"
    )
    assert described == {endpoint: taken[endpoint] for endpoint in taken.keys() & OFFERED}


def endpoints_of(text: str) -> list[str]:
    words = text.split()
    return [" ".join(pair) for pair in zip(words[::2], words[1::2], strict=True)]


@pytest.mark.parametrize("name", REQUESTS)
def test_no_field_has_two_decisions(name: str) -> None:
    names = listed(REQUESTS[name].fields)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(SamplingParams, SAMPLING_PARAMS), (PoolingParams, POOLING_PARAMS)],
    ids=["sampling", "pooling"],
)
def test_every_parameter_has_one_decision(kind: type[msgspec.Struct], fields: Fields) -> None:
    assert sorted(listed(fields)) == sorted(kind.__struct_fields__)


@pytest.mark.parametrize("endpoint", sorted(NOT_OFFERED.keys() - {"WEBSOCKET /v1/realtime"}))
def test_vllm_does_not_answer_what_is_not_offered(server: FastAPI, endpoint: str) -> None:
    method, path = endpoint.split()
    routes = server.router.routes
    try:
        server.router.routes = [*not_offered_router().routes, *routes]
        answer = TestClient(server).request(method, path, json={})
    finally:
        server.router.routes = routes
    assert answer.status_code == 501
    assert NOT_OFFERED[endpoint] in answer.json()["error"]["message"]


NOT_DEFAULT: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "temperature": 0.25,
    "watermarking": False,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.125,
    "seed": -7,
    "stop": ["end"],
    "stop_token_ids": [5, 6],
    "ignore_eos": True,
    "max_tokens": 9,
    "min_tokens": 2,
    "logprobs": 3,
    "prompt_logprobs": 0,
    "prompt_logprob_token_ids": np.array([[1, 2], [3, -1]]),
    "prompt_logprob_start": 1,
    "logprob_token_ids": [8, 9],
    "flat_logprobs": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "output_kind": RequestOutputKind.FINAL_ONLY,
    "stream_interval": 4,
    "skip_clone": True,
    "output_text_buffer_length": 2,
    "structured_outputs": StructuredOutputsParams(regex="a+", disable_any_whitespace=True),
    "logit_bias": {3: -1.5},
    "allowed_token_ids": [3, 4],
    "extra_args": {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"b": 2}, "own": ["c"]},
    "bad_words": ["bad"],
    "skip_reading_prefix_cache": True,
    "thinking_token_budget": 5,
    "repetition_detection": RepetitionDetectionParams(3, 1, 2),
    "routed_experts_prompt_start": 6,
    "trace_decode_token_ids": [1, 2],
}
CARRIED = sorted(listed_as(Place.ENGINE, SAMPLING_PARAMS))


def sampling_params(names: list[str]) -> SamplingParams:
    params = SamplingParams()
    for name in names:
        setattr(params, name, NOT_DEFAULT[name])
    return params


def test_what_is_carried_and_nothing_else_is_written() -> None:
    assert NOT_DEFAULT.keys() == {
        name for name in SamplingParams.__struct_fields__ if not name.startswith("_")
    }
    params = sampling_params(list(NOT_DEFAULT))
    params._eos_token_id = 1
    params._all_stop_token_ids = {1}
    params._bad_words_token_ids = [[1]]
    params._watermarking_skipped = True
    fields, apart = encode_sampling_params(params)
    assert sorted(fields) == CARRIED
    assert fields["extra_args"] == {"own": ["c"]}
    assert apart == {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"b": 2}}


@pytest.mark.parametrize("name", CARRIED)
def test_a_sampling_parameter_reaches_the_engine(name: str) -> None:
    fields, apart = encode_sampling_params(sampling_params([name]))
    sent = GenerateRequest(request_id="r", token_ids=[1], sampling_params=fields, **apart)
    received = decode_json(encode_json(sent))
    decoded = decode_sampling_params(received, default_max_tokens=None)
    np.testing.assert_equal(getattr(decoded, name), NOT_DEFAULT[name])


def test_a_resolved_backend_is_not_carried() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    assert params.structured_outputs is not None
    params.structured_outputs._backend = "xgrammar"
    params.structured_outputs._backend_was_auto = True
    fields, _ = encode_sampling_params(params)
    assert not [name for name in fields["structured_outputs"] if name.startswith("_")]


def test_pooling_parameters_reach_the_engine() -> None:
    params = PoolingParams(
        use_activation=False,
        dimensions=32,
        step_tag_id=3,
        returned_token_ids=[1, 2],
        task="token_classify",
        requires_token_ids=True,
        skip_reading_prefix_cache=True,
        late_interaction_params=LateInteractionParams("score_doc", "key"),
        extra_kwargs={"compressed_token_type_ids": 4},
    )
    sent = GenerateRequest(request_id="r", token_ids=[1], **encode_params(params))
    received = decode_json(encode_json(sent)).pooling_params
    assert received is not None
    assert received.keys() == listed_as(Place.ENGINE, POOLING_PARAMS)
    assert decode_pooling_params(received) == params
