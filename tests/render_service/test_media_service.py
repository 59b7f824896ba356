"""Hostile media at a render service as it is started: what it answers, and what it keeps."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import torch
from safetensors.torch import save as saved_safetensors
from vllm import version as vllm_version

from shared_protocol.answer import TokenDelta
from shared_protocol.binary_codec import decode_binary
from tests.checkpoints import checkpoint
from tests.embeddings import embeds_part
from tests.hostile.test_bad_requests import BAD
from tests.pair import RenderService
from tests.pictures import data_url, png
from tests.render_service.fake_generate import INFO, FakeGenerate, answer
from tests.render_service.test_media_content import BOMBS, PLAYLISTS
from tests.render_service.test_tensor_file import WRONG
from tests.render_service.wayward_server import WaywardServer, wayward_server

pytestmark = pytest.mark.slow

FLAGS = (
    *("--served-model-name=served", "--enable-prompt-embeds", "--enable-mm-embeds"),
    *("--allow-private-media-addresses=127.0.0.1", "--media-fetch-timeout-s=1"),
    *("--max-media-bytes=2000000", "--max-image-pixels=1000000", "--max-media-redirects=2"),
)
HIDDEN_SIZE = 64


class Service:
    """
    Attributes:
        process: the render service's.
    """

    def __init__(
        self, replica: FakeGenerate, client: httpx.Client, process: psutil.Process
    ) -> None:
        self.replica = replica
        self.process = process
        self._client = client

    def chat(self, *parts: Any) -> httpx.Response:
        body = {"model": "served", "messages": [{"role": "user", "content": list(parts)}]}
        return self._client.post("/v1/chat/completions", json=body)

    def error(self, *parts: Any) -> dict[str, Any]:
        response = self.chat(*parts)
        error: dict[str, Any] = response.json()["error"]
        assert error["code"] == response.status_code
        assert 400 <= response.status_code < 500, error
        assert set(error) == {"message", "type", "param", "code"}
        for leak in ("/tmp", "0x", "Traceback", "site-packages", ".py", "127.0.0."):
            assert leak not in error["message"].replace("0x7f000001", "")
        return error


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    model = checkpoint("qwen2_vl")
    config: Any = msgspec.json.decode((model / "config.json").read_bytes())
    with FakeGenerate() as replica:
        replica.behaviour = answer(TokenDelta(token_ids=[7]), TokenDelta(finish_reason="length"))
        replica.info = msgspec.structs.replace(
            INFO,
            architecture="Qwen2VLForConditionalGeneration",
            vocab_size=config.get("text_config", config)["vocab_size"],
            vllm_version=vllm_version.__version__,
        )
        log = tmp_path_factory.mktemp("media") / "render.log"
        with (
            RenderService(model, [replica.url], *FLAGS, log=log) as server,
            httpx.Client(base_url=server.url, timeout=60.0, trust_env=False) as client,
        ):
            port = httpx.URL(server.url).port
            (process,) = [
                psutil.Process(found.pid)
                for found in psutil.net_connections()
                if found.laddr and found.laddr.port == port and found.status == "LISTEN"
            ]
            yield Service(replica, client, process)


@pytest.fixture
def server() -> Iterator[WaywardServer]:
    with wayward_server({"/a.png": png(1), "/a.svg": BOMBS["SVG"]}) as server:
        yield server


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video(data: bytes) -> dict[str, Any]:
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    return {"type": "video_url", "video_url": {"url": url}}


def embeds(data: bytes) -> dict[str, Any]:
    return {"type": "prompt_embeds", "data": base64.b64encode(data).decode()}


def test_an_allowed_picture_is_answered(service: Service, server: WaywardServer) -> None:
    for url in (server.url("/a.png"), server.url("/to?url=/a.png"), data_url(png(1))):
        response = service.chat(image(url))
        assert response.status_code == 200, response.text


ALREADY_REFUSED = {
    name: case
    for name, case in BAD.items()
    if name.startswith(("image", "infinite embeddings", "embeddings"))
}


@pytest.mark.parametrize("name", ALREADY_REFUSED)
def test_refusals_are_where_they_were(service: Service, name: str) -> None:
    body, status, param = ALREADY_REFUSED[name]
    error = service.error(*body["messages"][0]["content"])
    assert (error["code"], error["param"]) == (status, param)
    assert "/" not in error["message"]


def test_other_addresses(service: Service, server: WaywardServer) -> None:
    for url in (
        *("http://127.0.0.2:1/a.png", "http://[::1]/a.png", "http://10.0.0.1/", "http://0/"),
        *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/"),
        server.url("/to?url=http://169.254.169.254/latest/meta-data/"),
    ):
        error = service.error(image(url))
        assert error["param"] == "image_url", error
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/drip", 422), ("/silent", 422), ("/round", 422), ("/endless", 422), ("/bomb", 422)),
        *(("/announced", 422), ("/short", 422), ("/noise", 422), ("/gone", 422), ("/a.svg", 400)),
    ],
)
def test_wayward_servers(service: Service, server: WaywardServer, path: str, status: int) -> None:
    error = service.error(image(server.url(path)))
    assert error["code"] == status
    assert error["param"] == ("messages" if path == "/a.svg" else "image_url")


def test_hostile_files(service: Service) -> None:
    before = service.process.memory_info().rss
    for data in BOMBS.values():
        service.error(image(f"data:image/png;base64,{base64.b64encode(data).decode()}"))
    for data in PLAYLISTS.values():
        assert service.error(video(data))["param"] == "video_url"
    assert "pixels" in service.error(image(data_url(png(1, 1001, 1000))))["message"]
    assert "bytes" in service.error(video(bytes(2_000_001)))["message"]
    assert not [found for found in service.process.net_connections("udp") if found.laddr]
    assert service.process.memory_info().rss - before < 100 * 2**20
    assert service.chat(image(data_url(png(1)))).status_code == 200


@pytest.mark.filterwarnings("ignore")
def test_hostile_embeddings(service: Service) -> None:
    for name, (make, _) in WRONG.items():
        if "larger than allowed" not in name:
            error = service.error(embeds(make()))
            assert error["param"] == ("prompt_embeds" if make() else "messages[0].content[0].data")


def test_embeddings_in_every_form(service: Service) -> None:
    rows = torch.randn(3, HIDDEN_SIZE, generator=torch.Generator().manual_seed(2))
    plain = torch.zeros(3, HIDDEN_SIZE)
    forms: list[Any] = [
        *(embeds_part(rows.to(kind)) for kind in (torch.float32, torch.float64)),
        embeds_part(torch.stack([rows, plain], dim=-1)[..., 0]),
        embeds_part(torch.nn.Parameter(rows)),
        embeds(saved_safetensors({"rows": rows})),
    ]
    for part in forms:
        assert service.chat(part, {"type": "text", "text": "fox"}).status_code == 200
        sent = decode_binary(service.replica.requests[-1].body)
        assert sent.prompt_embeds is not None
        (tensor,) = sent.prompt_embeds.tensors
        assert bytes(tensor.data) == rows.numpy().tobytes()
    for kind in (torch.float16, torch.bfloat16):
        assert service.chat(embeds_part(rows.to(kind))).status_code == 200
    wide = io.BytesIO()
    torch.save(torch.zeros(3, HIDDEN_SIZE + 1), wide)
    assert "hidden_size" in service.error(embeds(wide.getvalue()))["message"]
