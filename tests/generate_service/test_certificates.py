"""TLS on the generate service, with the client of the render service's own making."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from generate_service.certificates import certificates_error
from generate_service.service import make_server
from generate_service.settings import GenerateSettings
from render_service.settings import RenderSettings
from render_service.tier_credentials import tls_context
from render_service.transport import GenerateTransport, NotReady
from shared_protocol.json_codec import JSON_CONTENT_TYPE
from tests.certificates import Authority, Certified
from tests.generate_service.fake_engine import FakeEngine, three_tokens
from tests.generate_service.fake_service import REQUEST, until
from tests.processes import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def served_with(certified: Certified, **more: Any) -> GenerateSettings:
    return GenerateSettings(
        host="127.0.0.1",
        port=free_port(),
        tls_cert_file=str(certified.certificate),
        tls_key_file=str(certified.key),
        **more,
    )


async def asked(settings: GenerateSettings, context: ssl.SSLContext) -> list[int]:
    """The tokens that a render service with `context` gets."""
    engine = FakeEngine(three_tokens)

    async def start() -> FakeEngine:
        return engine

    server, _ = make_server(start, settings, log_level="critical")
    task = asyncio.create_task(server.serve())
    url = f"https://127.0.0.1:{settings.port}"
    try:
        await until(lambda: server.started)
        async with GenerateTransport(ssl_context=context) as transport:
            await transport.probe(url)
            body = json.dumps(REQUEST).encode()
            async with transport.stream(url, [body], content_type=JSON_CONTENT_TYPE) as deltas:
                return [token async for delta in deltas for token in delta.token_ids]
    finally:
        server.should_exit = True
        await task


async def test_a_client_that_knows_the_authority(authority: Authority) -> None:
    settings = served_with(authority.certify("generate"))
    context = tls_context(
        RenderSettings(generate_url=("https://x",), generate_ca_file=str(authority.certificate))
    )
    assert len(await asked(settings, context)) == 3


async def test_a_stranger_is_not_trusted(authority: Authority) -> None:
    settings = served_with(authority.certify("generate"))
    with pytest.raises(NotReady):
        await asked(settings, ssl.create_default_context())


async def test_only_certified_clients(authority: Authority) -> None:
    settings = served_with(
        authority.certify("generate"), tls_client_ca_file=str(authority.certificate)
    )
    known = ssl.create_default_context(cafile=str(authority.certificate))
    with pytest.raises(NotReady):
        await asked(settings, known)
    own = authority.certify("render")
    known.load_cert_chain(own.certificate, own.key)
    assert len(await asked(settings, known)) == 3


def test_what_makes_no_sense(authority: Authority, tmp_path: Path) -> None:
    certified = authority.certify("generate")
    assert certificates_error(GenerateSettings()) is None
    assert certificates_error(served_with(certified)) is None
    alone = GenerateSettings(tls_key_file=str(certified.key))
    assert "--tls-key-file is of use" in str(certificates_error(alone))
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    wrong = GenerateSettings(tls_cert_file=str(broken))
    assert "cannot be used" in str(certificates_error(wrong))
