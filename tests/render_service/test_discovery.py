"""Replicas behind a name: found, used, and forgotten as its addresses change."""

import socket
from collections.abc import Callable

import pytest

from render_service import discovery
from render_service.discovery import is_address, urls_behind
from render_service.replicas import ReplicaPool
from render_service.transport import GenerateTransport
from tests.render_service.fake_generate import FakeGenerate, eventually

pytestmark = pytest.mark.anyio


def test_what_is_an_address() -> None:
    assert is_address("http://127.0.0.1:8100")
    assert is_address("http://[::1]:8100")
    assert not is_address("http://generate:8100")


@pytest.mark.parametrize(
    ("addresses", "url", "expected"),
    [
        ({socket.AF_INET: ["10.0.0.2"]}, "http://generate:81", {"http://generate:81"}),
        (
            {socket.AF_INET: ["10.0.0.2", "10.0.0.3"], socket.AF_INET6: ["fd00::2", "fd00::3"]},
            "http://user:pass@generate:81/base",
            {"http://user:pass@10.0.0.2:81/base", "http://user:pass@10.0.0.3:81/base"},
        ),
        (
            {socket.AF_INET6: ["fd00::2", "fd00::3"]},
            "http://generate:81",
            {"http://[fd00::2]:81", "http://[fd00::3]:81"},
        ),
        ({socket.AF_INET: ["10.0.0.2", "10.0.0.3"]}, "https://generate", {"https://generate"}),
        ({}, "http://generate:81", {"http://generate:81"}),
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
        return set(addresses.get(family, []))

    monkeypatch.setattr(discovery, "_addresses", resolve)
    assert await urls_behind(url) == expected


async def test_this_host_is_one_replica() -> None:
    assert await urls_behind("http://localhost:81") == {"http://localhost:81"}


async def test_the_pool_follows_a_name(
    start_replica: Callable[[], FakeGenerate], transport: GenerateTransport
) -> None:
    replicas = [start_replica(), start_replica()]
    urls = frozenset(replica.url for replica in replicas)
    behind: dict[str, frozenset[str]] = {"http://localhost:1": urls}

    async def discover(url: str) -> frozenset[str]:
        return behind[url]

    async with ReplicaPool(
        ["http://localhost:1"],
        transport,
        probe_interval_s=0.1,
        discover=discover,
        discovery_interval_s=0.05,
    ) as pool:
        await eventually(lambda: names(pool) == urls)
        await eventually(lambda: all(row["ready"] for row in pool.status()["replicas"]))
        behind["http://localhost:1"] = frozenset({replicas[1].url})
        await eventually(lambda: names(pool) == {replicas[1].url})
        assert pool.has_ready_replica()


def names(pool: ReplicaPool) -> set[str]:
    return {row["url"].rstrip("/") for row in pool.status()["replicas"]}
