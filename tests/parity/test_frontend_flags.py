"""vLLM's flags for its HTTP front end: set on the render service, they do what they do there."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.folding import folded, settled
from tests.pictures import png

pytestmark = [pytest.mark.engine, pytest.mark.slow]

KEY = {"Authorization": "Bearer second"}
ORIGIN = "https://app.example"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}{% if shout %}!{% endif %}: "
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}\n{% endfor %}"
)
FLAGS = ("--served-model-name", "first", "other")
FRONTEND_FLAGS = (
    "--root-path=/prefix",
    f'--allowed-origins=["{ORIGIN}"]',
    '--allowed-methods=["POST", "GET"]',
    '--allowed-headers=["x-mine", "authorization"]',
    "--allow-credentials",
    *("--api-key", "first", "second"),
    "--middleware=tests.parity.stamp.Stamp",
    "--middleware=tests.parity.stamp.stamp",
    "--enable-request-id-headers",
    "--disable-fastapi-docs",
    "--chat-template-content-format=openai",
    '--default-chat-template-kwargs={"shout": true}',
    "--response-role=model",
    "--return-tokens-as-token-ids",
    "--enable-force-include-usage",
    "--enable-server-load-tracking",
    "--enable-tokenizer-info-endpoint",
    *("--allowed-media-domains", "127.0.0.1"),
)


@dataclass(frozen=True)
class Sides:
    """
    Attributes:
        allowed, forbidden: pictures inside and outside of the folder of local media.
        web: the port of a server whose every path is a picture.
    """

    pair: str
    monolith: str
    allowed: Path
    forbidden: Path
    web: int

    def both(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, httpx.Response]:
        with httpx.Client(timeout=120.0, trust_env=False) as client:
            ours = client.request(method, self.pair + path, **options)
            return ours, client.request(method, self.monolith + path, **options)


class _Picture(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(png(3))

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Picture) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, web: int) -> Iterator[Sides]:
    logs = tmp_path_factory.mktemp("frontend")
    model = checkpoint("qwen2_vl", vocab_headroom=True)
    media = logs / "media"
    media.mkdir()
    for path in (allowed := media / "in.png", forbidden := logs / "out.png"):
        path.write_bytes(png(4))
    template = logs / "template.jinja"
    template.write_text(TEMPLATE)
    flags = (
        *FRONTEND_FLAGS,
        f"--chat-template={template}",
        f"--allowed-local-media-path={media}",
    )
    with ExitStack() as stack:
        render_flags = (*flags, "--allow-private-media-addresses=127.0.0.1")
        pair = stack.enter_context(Pair(model, logs=logs, flags=FLAGS, render_flags=render_flags))
        monolith = stack.enter_context(Monolith(model, *FLAGS, *flags, log=logs / "monolith.log"))
        yield Sides(pair.url, monolith.url, allowed, forbidden, web)


def chat(model: str = "first", image: str | None = None, **changes: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "the quick brown fox"}]
    if image is not None:
        parts.append({"type": "image_url", "image_url": {"url": image}})
    messages = [{"role": "user", "content": parts}]
    return {"model": model, "messages": messages, "temperature": 0.0, "max_tokens": 4, **changes}


def of_flags(response: httpx.Response) -> dict[str, str]:
    """The headers that flags are about."""
    return {
        name: value
        for name, value in response.headers.items()
        if name.startswith(("access-control", "x-stamp", "vary"))
    }


@pytest.mark.parametrize("prefix", ["", "/prefix"])
@pytest.mark.parametrize(
    "path", ["/v1/models", "/tokenizer_info", "/load", "/docs", "/openapi.json"]
)
@pytest.mark.parametrize("key", [None, "first", "second", "third"])
def test_what_is_there_and_for_whom(sides: Sides, prefix: str, path: str, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    ours, theirs = sides.both("GET", prefix + path, headers=headers)
    assert ours.status_code == theirs.status_code
    assert of_flags(ours) == of_flags(theirs)
    if path != "/v1/models":
        assert ours.text == theirs.text
    elif theirs.status_code == 200:
        names = [[card["id"] for card in answer.json()["data"]] for answer in (ours, theirs)]
        assert names[0] == names[1] == ["first", "other"]


@pytest.mark.parametrize("origin", [ORIGIN, "https://another.example"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("header", ["x-mine", "x-other"])
def test_preflight(sides: Sides, origin: str, method: str, header: str) -> None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": header,
    }
    ours, theirs = sides.both("OPTIONS", "/v1/chat/completions", headers=headers)
    assert (ours.status_code, ours.text) == (theirs.status_code, theirs.text)
    assert of_flags(ours) == of_flags(theirs)


@pytest.mark.parametrize("model", ["first", "other", "third"])
@pytest.mark.parametrize("origin", [ORIGIN, "https://another.example"])
def test_chats(sides: Sides, model: str, origin: str) -> None:
    headers = {**KEY, "Origin": origin, "X-Request-Id": "mine"}
    body = chat(model, logprobs=True, top_logprobs=1)
    ours, theirs = sides.both("POST", "/v1/chat/completions", json=body, headers=headers)
    assert ours.status_code == theirs.status_code == (404 if model == "third" else 200)
    assert of_flags(ours) == of_flags(theirs)
    assert of_flags(ours)["x-stamp"] == "class"
    assert of_flags(ours)["x-stamped"] == "function"
    assert ours.headers["x-request-id"] == theirs.headers["x-request-id"] == "mine"
    pair, monolith = settled(ours.json()), settled(theirs.json())
    if model != "third":
        assert pair["choices"][0]["message"] == monolith["choices"][0]["message"]
        assert pair["choices"][0]["message"]["role"] == "model"
        tokens = [
            [entry["token"] for entry in body["choices"][0]["logprobs"]["content"]]
            for body in (pair, monolith)
        ]
        assert tokens[0] == tokens[1]
        assert tokens[0][0].startswith("token_id:")
        assert pair["usage"] == monolith["usage"]
    else:
        assert pair == monolith


def test_a_stream_tells_usage_unasked(sides: Sides) -> None:
    answers = sides.both("POST", "/v1/chat/completions", json=chat(stream=True), headers=KEY)
    ours, theirs = [folded(answer.text) for answer in answers]
    assert ours == theirs
    assert ours["usage"]["completion_tokens"] == 4


def test_the_template_of_the_flag(sides: Sides) -> None:
    body = {"model": "first", "messages": chat()["messages"], "return_token_strs": True}
    ours, theirs = [
        answer.json() for answer in sides.both("POST", "/tokenize", json=body, headers=KEY)
    ]
    assert ours == theirs
    assert "!" in "".join(ours["token_strs"])


def test_pictures_from_where_they_may_come(sides: Sides) -> None:
    places = {
        sides.allowed.as_uri(): 200,
        sides.forbidden.as_uri(): 400,
        f"http://127.0.0.1:{sides.web}/a.png": 200,
        f"http://localhost:{sides.web}/a.png": 400,
    }
    for place, status in places.items():
        body = json.dumps(chat(image=place))
        headers = {**KEY, "Content-Type": "application/json"}
        ours, theirs = sides.both("POST", "/v1/chat/completions", content=body, headers=headers)
        assert (place, ours.status_code) == (place, theirs.status_code) == (place, status)
        if status == 200:
            assert settled(ours.json())["choices"] == settled(theirs.json())["choices"]
        else:
            assert ours.json()["error"]["message"] == theirs.json()["error"]["message"]
