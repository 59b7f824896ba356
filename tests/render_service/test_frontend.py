"""vLLM's flags for its front end, and what passes by it to a replica, on the render service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from vllm import version as vllm_version

from shared_protocol.answer import TokenDelta
from shared_protocol.binary_codec import decode_binary
from shared_protocol.request import GenerateRequest
from tests.checkpoints import checkpoint
from tests.pair import RenderService
from tests.pictures import png
from tests.render_service.fake_generate import INFO, FakeGenerate, answer

pytestmark = pytest.mark.slow

KEY = {"Authorization": "Bearer second"}
ORIGIN = "https://app.example"
FINGERPRINT = "vllm-0.32.0-tp2-0123abcd"
KV_PARAMS = {"do_remote_prefill": True, "remote": [1, None]}


class Frontend:
    """The render service with many flags set, in front of a replica that answers two tokens."""

    def __init__(self, replica: FakeGenerate, client: httpx.Client, media: Path) -> None:
        self.replica = replica
        self.media = media
        self._client = client

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._client.request(method, path, **options)

    def chat(self, *, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        body = {"model": "first", "messages": [{"role": "user", "content": "fox"}], **changes}
        return self.ask(
            "POST", "/v1/chat/completions", json=body, headers={**KEY, **(headers or {})}
        )

    def received(self) -> GenerateRequest:
        """The last request that the replica has received."""
        return decode_binary(self.replica.requests[-1].body)


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    folder = tmp_path_factory.mktemp("frontend")
    model = checkpoint("qwen2_vl", vocab_headroom=True)
    media = folder / "media"
    media.mkdir()
    for path in (media / "in.png", folder / "out.png"):
        path.write_bytes(png(4))
    template = folder / "template.jinja"
    template.write_text(
        "{% for message in messages %}{% if shout %}! {% endif %}{{ message.content }}{% endfor %}"
    )
    flags = (
        *("--served-model-name", "first", "other"),
        "--root-path=/prefix",
        f'--allowed-origins=["{ORIGIN}"]',
        '--allowed-methods=["POST"]',
        '--allowed-headers=["x-mine"]',
        "--allow-credentials",
        *("--api-key", "first", "second"),
        "--middleware=tests.parity.stamp.Stamp",
        "--middleware=tests.parity.stamp.stamp",
        "--enable-request-id-headers",
        "--disable-fastapi-docs",
        f"--chat-template={template}",
        '--default-chat-template-kwargs={"shout": true}',
        "--response-role=model",
        f"--allowed-local-media-path={media}",
        *("--allowed-media-domains", "pictures.example"),
        "--enable-scale-out",
    )
    with FakeGenerate() as replica:
        replica.behaviour = answer(TokenDelta(token_ids=[7]), TokenDelta(finish_reason="length"))
        replica.info = msgspec.structs.replace(
            INFO,
            architecture="Qwen2VLForConditionalGeneration",
            vocab_size=_text_config(model)["vocab_size"],
            enable_prompt_embeds=False,
            vllm_version=vllm_version.__version__,
            data_parallel_ranks=2,
            kv_connector=True,
            fingerprints={"full": FINGERPRINT, "hash": "another"},
        )
        log = folder / "render.log"
        with (
            RenderService(model, [replica.url], *flags, log=log) as server,
            httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as client,
        ):
            yield Frontend(replica, client, media)


def _text_config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = msgspec.json.decode((model / "config.json").read_bytes())
    return config["text_config"] if "vocab_size" not in config else config


@pytest.mark.parametrize("prefix", ["", "/prefix"])
@pytest.mark.parametrize(
    ("key", "status"), [(None, 401), ("first", 200), ("second", 200), ("third", 401)]
)
def test_keys(frontend: Frontend, prefix: str, key: str | None, status: int) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    assert frontend.ask("GET", f"{prefix}/v1/models", headers=headers).status_code == status
    body = {"model": "first", "messages": []}
    rendered = frontend.ask(
        "POST", f"{prefix}/v1/chat/completions/render", json=body, headers=headers
    )
    assert (rendered.status_code == 401) == (status == 401)


def test_models(frontend: Frontend) -> None:
    cards = frontend.ask("GET", "/v1/models", headers=KEY).json()["data"]
    assert [card["id"] for card in cards] == ["first", "other"]
    assert [frontend.chat(model=name).status_code for name in ("first", "other", "third")] == [
        *(200, 200, 404)
    ]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_no_docs(frontend: Frontend, path: str) -> None:
    assert frontend.ask("GET", path).status_code == 404


@pytest.mark.parametrize(
    ("origin", "method", "header", "allowed"),
    [
        (ORIGIN, "POST", "x-mine", True),
        ("https://another.example", "POST", "x-mine", False),
        (ORIGIN, "DELETE", "x-mine", False),
        (ORIGIN, "POST", "x-other", False),
    ],
)
def test_preflight(
    frontend: Frontend, origin: str, method: str, header: str, allowed: bool
) -> None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": header,
    }
    response = frontend.ask("OPTIONS", "/v1/chat/completions", headers=headers)
    assert response.status_code == (200 if allowed else 400)


@pytest.mark.parametrize(("origin", "named"), [(ORIGIN, ORIGIN), ("https://another.example", None)])
def test_answers_to_another_origin(frontend: Frontend, origin: str, named: str | None) -> None:
    headers = frontend.chat(headers={"Origin": origin}).headers
    assert headers.get("access-control-allow-origin") == named
    assert headers.get("access-control-allow-credentials") == "true"


def test_headers_of_middleware(frontend: Frontend) -> None:
    response = frontend.chat(headers={"X-Request-Id": "mine"})
    assert response.headers["x-stamp"] == "class"
    assert response.headers["x-stamped"] == "function"
    assert response.headers["x-request-id"] == "mine"
    assert response.json()["id"] == "chatcmpl-mine"
    assert frontend.received().request_id == "chatcmpl-mine"
    assert frontend.chat().headers["x-request-id"]


def test_the_template(frontend: Frontend) -> None:
    def tokens(**body: Any) -> Any:
        headers = {"Authorization": "Bearer first"}
        answer = frontend.ask("POST", "/tokenize", json={"model": "first"} | body, headers=headers)
        return answer.json()["tokens"]

    assert tokens(messages=[{"role": "user", "content": "fox"}]) == tokens(prompt="! fox")
    assert frontend.chat().json()["choices"][0]["message"]["role"] == "model"


def test_pictures_from_where_they_may_come(frontend: Frontend) -> None:
    def status(url: str) -> int:
        part = {"type": "image_url", "image_url": {"url": url}}
        message = {"role": "user", "content": [part]}
        # The template has to place the picture itself.
        template = "<|vision_start|><|image_pad|><|vision_end|>"
        return frontend.chat(messages=[message], chat_template=template).status_code

    assert status((frontend.media.parent / "out.png").as_uri()) == 400
    assert status(f"file://{frontend.media}/../out.png") == 400
    assert status("http://127.0.0.1:9/a.png") == 400


def test_the_fingerprint_is_the_replicas(frontend: Frontend) -> None:
    assert frontend.chat().json()["system_fingerprint"] == FINGERPRINT
    body = {"model": "first", "prompt": "fox"}
    answered = frontend.ask("POST", "/v1/completions", json=body, headers=KEY).json()
    assert answered["system_fingerprint"] == FINGERPRINT


def test_headers_for_the_engine(frontend: Frontend) -> None:
    traced = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=b"}
    headers = {
        **traced,
        "X-data-parallel-rank": "1",
        "X-Session-ID": "session",
        "X-Vllm-Priority": "4",
    }
    assert frontend.chat(headers=headers, cache_salt="salt").status_code == 200
    sent = frontend.received()
    assert sent.trace_headers == traced
    assert sent.data_parallel_rank == 1
    assert sent.session_id == "session"
    assert sent.priority == 4
    assert sent.cache_salt == "salt"


@pytest.mark.parametrize("rank", ["2", "-1", "9" * 30])
def test_ranks_that_are_none(frontend: Frontend, rank: str) -> None:
    before = len(frontend.replica.requests)
    refused = frontend.chat(headers={"X-data-parallel-rank": rank})
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message == f"data_parallel_rank {int(rank)} is out of range [0, 2)."
    assert len(frontend.replica.requests) == before


def test_a_replica_is_told_of_a_refused_request(frontend: Frontend) -> None:
    before = len(frontend.replica.requests)
    refused = frontend.chat(request_id="mine", kv_transfer_params=KV_PARAMS, max_tokens=5000)
    assert refused.status_code == 400
    assert len(frontend.replica.requests) == before + 1
    sent = frontend.received()
    assert sent.abort_immediately
    assert sent.request_id == "mine"
    assert sent.kv_transfer_params == KV_PARAMS


def test_a_replica_is_not_told_where_nothing_is_held(frontend: Frontend) -> None:
    before = len(frontend.replica.requests)
    assert frontend.chat(kv_transfer_params={"a": 1}, max_tokens=5000).status_code == 400
    assert len(frontend.replica.requests) == before
