"""By what the two services know each other: a credential, and certificates."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from render_service.settings import RenderSettings
from render_service.tier_credentials import credentials_error, sent_credential, tls_context
from render_service.transport import GenerateTransport, NotReady
from shared_protocol import keys
from shared_protocol.answer import FRAMES_CONTENT_TYPE
from shared_protocol.frames import encode_frame
from shared_protocol.serving_info import INFO_PATH
from tests.certificates import Authority
from tests.processes import free_port
from tests.render_service.fake_generate import FIRST, INFO, LAST, NO_AUTHORITIES, FakeGenerate
from tests.served import served

pytestmark = pytest.mark.anyio

URL = ("http://generate:8100",)


def settings(**changes: str) -> RenderSettings:
    return RenderSettings(generate_url=URL, **changes)  # type: ignore[arg-type]


async def sent_by(given: RenderSettings, replica: FakeGenerate) -> str | None:
    credential = sent_credential(given)
    async with GenerateTransport(ssl_context=NO_AUTHORITIES, credential=credential) as transport:
        await transport.probe(replica.url)
        async with transport.stream(replica.url, [b"a request"]) as deltas:
            assert [delta async for delta in deltas] == [FIRST, LAST]
    return replica.requests[-1].headers.get("authorization")


async def test_the_credential_is_sent(replica: FakeGenerate) -> None:
    assert await sent_by(settings(), replica) is None
    assert await sent_by(settings(generate_api_key="secret"), replica) == "Bearer secret"


async def test_the_credential_of_a_file_changes(
    replica: FakeGenerate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LOOK_INTERVAL_S", 0.0)
    file = tmp_path / "credential"
    file.write_text("old\n")
    given = settings(generate_api_key_file=str(file))
    assert await sent_by(given, replica) == "Bearer old"
    file.write_text("newer\nold\n")
    assert await sent_by(given, replica) == "Bearer newer"


async def test_a_credential_of_other_characters_than_asciis(
    replica: FakeGenerate, tmp_path: Path
) -> None:
    file = tmp_path / "credential"
    file.write_text("schlüssel\n", encoding="utf-8")
    given = settings(generate_api_key_file=str(file))
    assert await sent_by(given, replica) == "Bearer schlüssel"


def test_the_credential_is_not_shown() -> None:
    assert "secret" not in repr(settings(generate_api_key="secret"))


async def generate(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    is_probe = scope["path"] == INFO_PATH
    body = msgspec.json.encode(INFO) if is_probe else encode_frame(FIRST) + encode_frame(LAST)
    content_type = "application/json" if is_probe else FRAMES_CONTENT_TYPE
    headers = [(b"content-type", content_type.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def tls_replica(authority: Authority) -> AsyncIterator[str]:
    """Wants a certificate of the authority's."""
    server_files = authority.certify("server")
    port = free_port()
    config = uvicorn.Config(
        generate,
        port=port,
        lifespan="off",
        log_level="critical",
        ssl_certfile=str(server_files.certificate),
        ssl_keyfile=str(server_files.key),
        ssl_ca_certs=str(authority.certificate),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )
    async with served(config):
        yield f"https://127.0.0.1:{port}"


async def test_both_sides_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.certify("client")
    ca = {"generate_ca_file": str(authority.certificate)}
    shown = {"generate_cert_file": str(client.certificate), "generate_key_file": str(client.key)}
    async with tls_replica(authority) as url:
        async with GenerateTransport(ssl_context=tls_context(settings(**ca, **shown))) as known:
            await known.probe(url)
            async with known.stream(url, [b"x" * 500_000]) as deltas:
                assert [delta async for delta in deltas] == [FIRST, LAST]
        for given in (ca, shown):
            async with GenerateTransport(ssl_context=tls_context(settings(**given))) as stranger:
                with pytest.raises(NotReady, match="no answer"):
                    await stranger.probe(url)


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no certificate")
    assert credentials_error(settings()) is None
    for changes, message in (
        ({"generate_api_key": "a", "generate_api_key_file": str(file)}, "two words for one"),
        ({"generate_key_file": str(file)}, "is of use with --generate-cert-file only"),
        ({"generate_ca_file": str(file)}, "cannot be used"),
        ({"generate_cert_file": str(file)}, "cannot be used"),
    ):
        error = credentials_error(settings(**changes))
        assert error is not None
        assert message in error
