"""What passes through to the engine and back beside tokens, on an engine that uses all of it."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import PROCESSOR_CACHE, Monolith
from tests.pair import Pair
from tests.parity.folding import settled
from tests.pictures import data_url, png
from tests.trace_collector import Span, TraceCollector

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FLAGS = (f"--served-model-name={SERVED_NAME}",)
RENDER_FLAGS = (
    "--enable-per-request-metrics",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
)
KV_PARAMS = {"note": [1, 2.5, None, "é"], "remote": {"host": "h", "blocks": [2**40]}}
EC_PARAMS = {"producer": "p"}
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "the quick brown fox", "max_tokens": 4},
    "/v1/responses": {"input": "the quick brown fox", "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}


@dataclass(frozen=True)
class Side:
    """The pair, or the monolith.

    Attributes:
        record: what its KV connector was told, a line an event.
        encoder_cache: the folder of its EC connector.
    """

    url: str
    record: Path
    encoder_cache: Path

    def ask(self, path: str, *, headers: dict[str, str] | None = None, **changes: Any) -> Any:
        body = {"model": SERVED_NAME, "temperature": 0.0, **PATHS[path], **changes}
        return httpx.post(
            self.url + path, json=body, headers=headers, timeout=120.0, trust_env=False
        )

    def events(self, request_id: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.record.read_text().splitlines())
        return [line for line in lines if request_id in line["request_id"]]


@dataclass(frozen=True)
class Sides:
    pair: Side
    monolith: Side
    collector: TraceCollector

    def both(self) -> tuple[Side, Side]:
        return self.pair, self.monolith


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("features")
    model = checkpoint("qwen2_vl", vocab_headroom=True)
    with ExitStack() as stack:
        collector = stack.enter_context(TraceCollector())
        engine_flags = {name: _engine_flags(folder / name) for name in ("pair", "monolith")}
        traced = f"--otlp-traces-endpoint={collector.endpoint}"
        pair = stack.enter_context(
            Pair(
                model,
                logs=folder,
                flags=FLAGS,
                generate_flags=[*engine_flags["pair"], traced],
                render_flags=RENDER_FLAGS,
                generate_env=collector.environment,
            )
        )
        monolith = stack.enter_context(
            Monolith(
                model,
                *(*FLAGS, *engine_flags["monolith"], traced, *RENDER_FLAGS, PROCESSOR_CACHE),
                env=collector.environment,
                log=folder / "monolith.log",
            )
        )
        made = [
            Side(server.url, folder / name / "kv.jsonl", folder / name / "ec")
            for name, server in (("pair", pair), ("monolith", monolith))
        ]
        yield Sides(made[0], made[1], collector)


def _engine_flags(folder: Path) -> list[str]:
    (folder / "ec").mkdir(parents=True)
    kv = {
        "kv_connector": "RecordingConnector",
        "kv_connector_module_path": "tests.parity.vllm_recording_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"record": str(folder / "kv.jsonl")},
    }
    ec = {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"shared_storage_path": str(folder / "ec")},
    }
    return [
        f"--kv-transfer-config={json.dumps(kv)}",
        f"--ec-transfer-config={json.dumps(ec)}",
        "--scheduling-policy=priority",
        "--max-num-seqs=1",
        "--block-size=32",
    ]


@pytest.mark.parametrize("path", PATHS)
def test_kv_transfer_params_go_there_and_back(sides: Sides, path: str) -> None:
    headers = {"X-Request-Id": f"kv{path.replace('/', '-')}"}
    answers = [
        side.ask(path, headers=headers, kv_transfer_params=KV_PARAMS) for side in sides.both()
    ]
    pair, monolith = [answer.json()["kv_transfer_params"] for answer in answers]
    assert monolith["given"] == KV_PARAMS
    assert pair == monolith


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_kv_transfer_params_of_a_stream(sides: Sides, path: str) -> None:
    pair, monolith = [
        [
            event["kv_transfer_params"]
            for event in events_of(side.ask(path, kv_transfer_params=KV_PARAMS, stream=True).text)
            if event.get("kv_transfer_params")
        ]
        for side in sides.both()
    ]
    assert pair == monolith


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_engine_is_told_what_the_monoliths_is(sides: Sides) -> None:
    headers = {"X-Request-Id": "told-all", "X-Session-ID": "session-1"}
    for side in sides.both():
        side.ask(
            "/v1/chat/completions",
            headers=headers,
            kv_transfer_params=KV_PARAMS,
            ec_transfer_params=EC_PARAMS,
            priority=3,
            cache_salt="salt",
        )
    pair, monolith = [side.events("told-all") for side in sides.both()]
    assert [event["event"] for event in monolith] == ["asked", "finished"]
    assert monolith[0]["session_id"] == "session-1"
    assert pair == monolith


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/chat/completions", {"max_tokens": 5000}),
        ("/v1/completions", {"logit_bias": {"100000": 1.0}}),
        ("/v1/responses", {"max_output_tokens": 5000}),
    ],
)
def test_a_refused_request_frees_what_is_held_for_it(
    sides: Sides, path: str, wrong: dict[str, Any]
) -> None:
    params = {**KV_PARAMS, "do_remote_prefill": True}
    request_id = f"refused{path.replace('/', '-')}"
    for side in sides.both():
        answer = side.ask(path, request_id=request_id, kv_transfer_params=params, **wrong)
        assert answer.status_code == 400
    pair, monolith = [_written_events(side, request_id) for side in sides.both()]
    assert [event["event"] for event in monolith] == ["finished"]
    assert monolith[0]["kv_transfer_params"] == params
    assert pair == monolith


def _written_events(side: Side, request_id: str) -> list[dict[str, Any]]:
    """The engine's process writes them, perhaps after the answer."""
    deadline = time.monotonic() + 5.0
    while not side.events(request_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    return side.events(request_id)


def test_ec_transfer_params_name_what_the_encoder_made(sides: Sides) -> None:
    image = {"type": "image_url", "image_url": {"url": data_url(png(5))}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "what is it"}]}]
    pair, monolith = [
        side.ask("/v1/chat/completions", messages=messages, ec_transfer_params=EC_PARAMS).json()
        for side in sides.both()
    ]
    assert pair["choices"] == monolith["choices"]
    # The engines know the image by different names: the pair's is a hash of what was processed.
    (ours,), (theirs,) = (answer["ec_transfer_params"].items() for answer in (pair, monolith))
    assert settled(ours[1]) == settled(theirs[1])
    for side, (name, _) in zip(sides.both(), (ours, theirs), strict=True):
        assert (side.encoder_cache / name).is_dir()


def test_an_image_comes_through_the_encoder_cache(sides: Sides) -> None:
    """Only its shape is in the request: the engine has an EC connector to take it from."""
    text = {"type": "text", "text": "what is it"}
    image = {"type": "image_url", "image_url": {"url": data_url(png(6))}}
    answers = []
    for side in sides.both():
        messages = [{"role": "user", "content": [image, text]}]
        seen = side.ask("/v1/chat/completions", messages=messages).json()
        ((mm_hash, entry),) = seen["ec_transfer_params"].items()
        part = {"type": "image_embeds", "image_embeds": entry["metadata"], "uuid": mm_hash}
        messages = [{"role": "user", "content": [part, text]}]
        answers.append(side.ask("/v1/chat/completions", messages=messages))
        assert answers[-1].status_code == 200, answers[-1].text
        assert answers[-1].json()["choices"] == seen["choices"]
    pair, monolith = [settled(answer.json()["choices"]) for answer in answers]
    assert pair == monolith


@pytest.mark.parametrize("path", PATHS)
def test_a_trace_reaches_the_engines_span(sides: Sides, path: str) -> None:
    spans = []
    for number, side in enumerate(sides.both()):
        trace_id = f"{abs(hash((path, number))):032x}"
        headers = {
            "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01",
            "tracestate": "vendor=value",
            "X-Request-Id": "traced",
        }
        assert side.ask(path, headers=headers).status_code == 200
        spans.append(sides.collector.wait_for(_named("llm_request", trace_id)))
    pair, monolith = spans
    assert pair.parent_id == monolith.parent_id == "00f067aa0ba902b7"
    assert pair.trace_state == monolith.trace_state == "vendor=value"
    assert pair.attributes.keys() == monolith.attributes.keys()
    assert _unmeasured(pair) == _unmeasured(monolith)


def _named(name: str, trace_id: str) -> Any:
    return lambda span: (span.name, span.trace_id) == (name, trace_id)


def _unmeasured(span: Span) -> dict[str, Any]:
    kept = {name: value for name, value in span.attributes.items() if "latency" not in name}
    return {name: settled(value) for name, value in kept.items()}


def test_a_salt_separates_cached_prompts(sides: Sides) -> None:
    def cached(side: Side, salt: str | None) -> int:
        answer = side.ask("/v1/completions", prompt="one two three four " * 20, cache_salt=salt)
        tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens

    seen = [[cached(side, salt) for salt in ("a", "a", "b", None, "a")] for side in sides.both()]
    first, again, other, unsalted, still = seen[1]
    assert first == other == unsalted == 0
    assert again == still > 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize("in_header", [False, True])
def test_the_more_urgent_request_is_answered_first(sides: Sides, in_header: bool) -> None:
    orders = [_order(side, in_header) for side in sides.both()]
    assert orders == [["urgent", "patient"]] * 2


def _order(side: Side, in_header: bool) -> list[str]:
    """Send two requests to an engine that runs one at a time, and is taken; return who is first."""
    finished: list[str] = []

    def send(client: httpx.Client, name: str, priority: int, max_tokens: int) -> None:
        headers = {"X-Vllm-Priority": str(priority)} if in_header else None
        body = {"model": SERVED_NAME, "prompt": "fox", "max_tokens": max_tokens, "ignore_eos": True}
        if not in_header:
            body["priority"] = priority
        answer = client.post(f"{side.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        finished.append(name)

    # Long enough for both to be in the queue before it is their turn, and then to end apart.
    sent = [*(("first", 0, 900) for _ in range(8)), ("patient", 9, 200), ("urgent", 1, 200)]
    # One client: to make its TLS context takes longer than to make a hundred tokens.
    with httpx.Client(timeout=120.0, trust_env=False) as client:
        threads = [threading.Thread(target=send, args=(client, *args)) for args in sent]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
    # The long ones have been run before, but their text may take longer to be put together.
    return [name for name in finished if name != "first"]


@pytest.mark.parametrize("path", PATHS)
def test_the_fingerprint_is_the_engines(sides: Sides, path: str) -> None:
    pair, monolith = [side.ask(path).json().get("system_fingerprint") for side in sides.both()]
    assert pair == monolith


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_metrics_of_a_request(sides: Sides, path: str) -> None:
    pair, monolith = [side.ask(path).json()["metrics"] for side in sides.both()]
    assert monolith["time_to_first_token_ms"] > 0
    assert pair.keys() == monolith.keys()
    for name, value in monolith.items():
        assert (pair[name] is None) == (value is None)
        assert value is None or pair[name] >= 0


@pytest.mark.parametrize("given", [None, "mine"])
def test_request_ids(sides: Sides, given: str | None) -> None:
    headers = None if given is None else {"X-Request-Id": given}
    for side in sides.both():
        answer = side.ask("/v1/chat/completions", headers=headers)
        named = answer.headers["X-Request-Id"]
        assert given is None or named == given
        assert given is None or answer.json()["id"] == f"chatcmpl-{given}"
