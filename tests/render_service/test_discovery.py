"""Replicas behind a name: found, used, and forgotten as its addresses change."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from render_service import discovery
from render_service.discovery import stands_for_itself, urls_behind
from render_service.replicas import ReplicaPool
from render_service.transport import GenerateTransport
from tests.render_service.fake_generate import FakeGenerate, eventually

pytestmark = pytest.mark.anyio


def test_what_stands_for_itself() -> None:
    assert stands_for_itself("http://127.0.0.1:8100")
    assert stands_for_itself("http://[::1]:8100")
    assert stands_for_itself("https://generate:8100")
    assert not stands_for_itself("http://generate:8100")


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("addresses", "url", "expected"),
    [
        ({V4: ["10.0.0.2"]}, "http://generate:81", {"http://10.0.0.2:81"}),
        (
            {V4: ["10.0.0.2", "10.0.0.3"], V6: ["fd00::2", "fd00::3"]},
            "http://user:pass@generate:81/base",
            {"http://user:pass@10.0.0.2:81/base", "http://user:pass@10.0.0.3:81/base"},
        ),
        ({V6: ["fd00::2"]}, "http://generate:81", {"http://[fd00::2]:81"}),
    ],
)
async def test_urls_behind_a_name(
    monkeypatch: pytest.MonkeyPatch,
    addresses: dict[socket.AddressFamily, list[str]],
    url: str,
    expected: set[str],
) -> None:
    async def resolve(host: str, family: socket.AddressFamily) -> set[str]:
        assert host == "generate"
        if family not in addresses:
            raise socket.gaierror
        return set(addresses[family])

    monkeypatch.setattr(discovery, "_addresses", resolve)
    assert await urls_behind(url) == expected


async def test_this_host_is_one_replica() -> None:
    assert await urls_behind("http://localhost:81") == {"http://127.0.0.1:81"}


async def test_a_name_that_is_not_resolved() -> None:
    with pytest.raises(OSError, match=r"."):
        await urls_behind("http://no-such-host.invalid:81")


NAME = "http://generate:1"


async def test_the_pool_follows_a_name(
    start_replica: Callable[[], FakeGenerate], transport: GenerateTransport
) -> None:
    first, second = (start_replica().url for _ in range(2))
    behind: list[str] = [first]

    async def discover(url: str) -> frozenset[str]:
        assert url == NAME
        if not behind:
            raise OSError("the name server is away")
        if behind == ["broken"]:
            raise UnicodeError("a fault")
        return frozenset(behind)

    async with ReplicaPool(
        [NAME], transport, probe_interval_s=0.1, discover=discover, discovery_interval_s=0.05
    ) as pool:
        await eventually(lambda: ready(pool) == {first})
        for found in ([first, second], [], ["broken"], [second], [second, first], [first]):
            behind[:] = found
            known = {first, second} if found in ([], ["broken"]) else set(found)
            await eventually(lambda known=known: ready(pool) == known)  # type: ignore[misc]
            # What stays in rotation stays there all the time.
            for _ in range(20):
                assert pool.has_ready_replica()
                await asyncio.sleep(0.01)


def ready(pool: ReplicaPool) -> set[str]:
    return {row["url"].rstrip("/") for row in pool.status()["replicas"] if row["ready"]}
