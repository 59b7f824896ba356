"""Where media may be fetched from, and what a server can do to who fetches."""

import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from vllm.exceptions import (
    VLLMError,
    VLLMServerError,
    VLLMUnprocessableEntityError,
    VLLMValidationError,
)

from render_service.media_addresses import AddressRule, address_rule
from render_service.media_rules import MediaRules, media_rules
from render_service.settings import RenderSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_connector import GuardedConnector
from render_service.vllm_media_fetch import MediaSessions
from tests.pictures import png
from tests.render_service.wayward_server import WaywardServer, wayward_server

pytestmark = pytest.mark.anyio

RULES = media_rules(RenderSettings(generate_url=("http://generate:1",)))
LOOPBACK = address_rule(("127.0.0.0/8",))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Between attempts vLLM waits for seconds.
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[WaywardServer]:
    with wayward_server({"/a.png": png(1)}) as server:
        yield server


class Names(AbstractResolver):
    """Answers a name with the next of its lists of addresses, the last one for ever."""

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self._names = names

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        answers = self._names[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=0,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        pass


Connect = Callable[..., GuardedConnector]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    opened = []

    def connector(
        allowed: AddressRule = LOOPBACK,
        *,
        names: dict[str, list[list[str]]] | None = None,
        domains: list[str] | None = None,
        **changes: Any,
    ) -> GuardedConnector:
        resolver = None if names is None else lambda: Names(names)
        rules: MediaRules = replace(RULES, addresses=allowed, **changes)
        opened.append(MediaSessions(allowed, resolver))
        return GuardedConnector(
            rules=rules,
            sessions=opened[-1],
            images=DecodedImages(0),
            allowed_media_domains=domains,
        )

    yield connector
    for sessions in opened:
        await sessions.close()


async def refusal(
    connector: GuardedConnector, url: str, kind: type[VLLMError] = VLLMValidationError
) -> str:
    with pytest.raises(VLLMError) as refused:
        await connector.fetch_image_async(url)
    assert type(refused.value) is kind
    if kind is not VLLMServerError:
        assert refused.value.parameter == "image_url"
    message = str(refused.value.args[0])
    assert "/" not in message
    assert "127." not in message
    return message


async def test_what_is_allowed_is_fetched(connect: Connect, server: WaywardServer) -> None:
    image = await connect().fetch_image_async(server.url("/a.png"))
    assert image.size == (64, 64)
    moved = server.url("/to?url=" + server.url("/a.png"))
    assert (await connect().fetch_image_async(moved)).size == (64, 64)


async def test_without_an_event_loop_of_its_own(connect: Connect, server: WaywardServer) -> None:
    assert connect().fetch_image(server.url("/a.png")).size == (64, 64)
    with pytest.raises(VLLMValidationError, match="private"):
        connect(address_rule(())).fetch_image(server.url("/a.png"))
    assert len(server.asked) == 1


SPELLINGS = (
    *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1"),
    *("127.000.000.001", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::127.0.0.1]"),
    *("[::ffff:7f00:1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "127。0。0。1", "①②⑦.0.0.1"),
    *("LOCALHOST", "localhost.", "user@127.0.0.1", "8.8.8.8@127.0.0.1", "127%2E0%2E0%2E1"),
)


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_a_private_address_is_asked(
    connect: Connect, server: WaywardServer, host: str
) -> None:
    with pytest.raises((VLLMError, ValueError)):
        await connect(address_rule(())).fetch_image_async(server.url("/a.png", host))
    assert not server.asked


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "169.254.169.254", "100.100.100.200", "[fd00:ec2::254]", "192.168.1.1"]
)
async def test_metadata_and_private_networks_are_not_asked(connect: Connect, address: str) -> None:
    begun = time.monotonic()
    assert "private" in await refusal(connect(), f"http://{address}/latest/meta-data")
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    "addresses", [["10.9.9.9"], ["127.0.0.1", "::1"], ["::ffff:127.0.0.1"], ["::1", "10.0.0.1"]]
)
async def test_names_of_private_addresses(
    connect: Connect, server: WaywardServer, addresses: list[str]
) -> None:
    connector = connect(address_rule(()), names={"media.example": [addresses]})
    assert "private" in await refusal(connector, server.url("/a.png", "media.example"))
    assert not server.asked


async def test_a_name_that_changes_its_mind(connect: Connect, server: WaywardServer) -> None:
    """The second answer is what would be connected to, whatever the first one was."""
    allowed = AddressRule(address_rule(("127.0.0.1/32",)).allowed)
    names = {"a.example": [["127.0.0.1"]], "b.example": [["127.0.0.1"], ["127.0.0.2"]]}
    connector = connect(allowed, names=names)
    other = server.url("/a.png", "b.example")
    assert (await connector.fetch_image_async(other)).size == (64, 64)
    await connector.connection._sessions.close()
    assert "private" in await refusal(connector, other)
    assert "private" in await refusal(
        connector, server.url(f"/to?url={server.url('/a.png', 'b.example')}", "a.example")
    )
    assert [path for _, path in server.asked] == ["/a.png", f"/to?url={other}"]


@pytest.mark.parametrize(
    "place",
    [
        *("http://10.0.0.1/a.png", "http://169.254.169.254/latest", "//[::1]/a.png"),
        *("http://127.0.0.2:9/a.png", "http://2130706434:9/a.png"),
    ],
)
async def test_redirects_to_private_addresses(
    connect: Connect, server: WaywardServer, place: str
) -> None:
    connector = connect(address_rule(("127.0.0.1/32",)))
    with pytest.raises((VLLMValidationError, VLLMUnprocessableEntityError)):
        await connector.fetch_image_async(server.url(f"/to?url={place}"))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:image/png;base64,AAAA", "gopher://a"]
)
async def test_redirects_to_other_schemes(
    connect: Connect, server: WaywardServer, place: str
) -> None:
    url = server.url(f"/to?url={place}")
    await refusal(connect(), url, VLLMUnprocessableEntityError)


async def test_allowed_domains_hold_at_every_hop(connect: Connect, server: WaywardServer) -> None:
    names = {name: [["127.0.0.1"]] for name in ("a.example", "b.example")}
    connector = connect(names=names, domains=["a.example"])
    assert (await connector.fetch_image_async(server.url("/a.png", "a.example"))).size == (64, 64)
    with pytest.raises(ValueError, match="allowed domains"):
        await connector.fetch_image_async(server.url("/a.png", "b.example"))
    away = server.url(f"/to?url={server.url('/a.png', 'b.example')}", "a.example")
    assert "domain" in await refusal(connector, away)
    assert all(host.startswith("a.example") for host, _ in server.asked)


async def test_redirects_are_counted(connect: Connect, server: WaywardServer) -> None:
    connector = connect(max_redirects=3)
    message = await refusal(connector, server.url("/round"), VLLMUnprocessableEntityError)
    assert "too often" in message
    assert len(server.asked) == 4


@pytest.mark.parametrize("path", ["/drip", "/silent"])
async def test_slow_servers(connect: Connect, server: WaywardServer, path: str) -> None:
    begun = time.monotonic()
    connector = connect(fetch_timeout_s=0.5)
    message = await refusal(connector, server.url(path), VLLMUnprocessableEntityError)
    assert "in time" in message
    assert time.monotonic() - begun < 1.5


@pytest.mark.parametrize("path", ["/endless", "/announced", "/bomb"])
async def test_more_than_is_allowed(connect: Connect, server: WaywardServer, path: str) -> None:
    connector = connect(max_bytes=2**21)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = await refusal(connector, server.url(path), VLLMUnprocessableEntityError)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert str(2**21) in message
    # The bomb itself is made in this process, from 128 MiB.
    assert grown_kib < (170 if path == "/bomb" else 40) * 2**10, grown_kib


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/short", VLLMUnprocessableEntityError),
        ("/noise", VLLMUnprocessableEntityError),
        ("/gone", VLLMUnprocessableEntityError),
        ("/broken", VLLMServerError),
    ],
)
async def test_servers_that_fail(
    connect: Connect, server: WaywardServer, path: str, kind: type[VLLMError]
) -> None:
    await refusal(connect(), server.url(path), kind)


async def test_a_proxy_is_asked_for_public_names_only(
    connect: Connect, server: WaywardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy's own address is the operator's choice, and the proxy resolves names."""
    monkeypatch.setenv("http_proxy", server.url(""))
    monkeypatch.setenv("no_proxy", "direct.example")
    connector = connect(address_rule(()), names={"direct.example": [["127.0.0.1"]]})
    await refusal(connector, "http://nowhere.invalid/gone", VLLMUnprocessableEntityError)
    assert [host for host, _ in server.asked] == ["nowhere.invalid"]
    for host in ("localhost", "127.0.0.1", "10.0.0.1", "0x7f000001", "direct.example"):
        assert "private" in await refusal(connector, f"http://{host}/a.png")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/a", "gopher://127.0.0.1/a", "a.png", "http:"),
        *("http://", "http://[", "http://a:99999999/", "data:", "data:,a", "data:image/png,a"),
        *("data:image/png;base64", "unix:///var/run", "http+unix://a/b", "javascript:1", "\0"),
        "http://a.example/" + "a" * 20_000,
    ],
)
async def test_urls_that_lead_nowhere(connect: Connect, url: str) -> None:
    with pytest.raises((ValueError, VLLMValidationError, VLLMUnprocessableEntityError)) as refused:
        await connect().fetch_image_async(url)
    assert len(str(refused.value)) < 300
