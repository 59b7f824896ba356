"""Who may have tokens generated."""

import asyncio
from pathlib import Path

import httpx
import pytest

from generate_service.app import create_app
from generate_service.engine_holder import EngineHolder
from generate_service.running_requests import RunningRequests
from generate_service.settings import GenerateSettings
from generate_service.tier_auth import tier_keys_error
from shared_protocol import keys
from shared_protocol.serving_info import INFO_PATH
from tests.generate_service.fake_engine import FakeEngine, three_tokens

pytestmark = pytest.mark.anyio

GENERATE = "/inference/v1/generate"
REQUEST = {"request_id": "r", "token_ids": [1, 2], "sampling_params": {}}


async def start() -> FakeEngine:
    return FakeEngine(three_tokens)


async def statuses(settings: GenerateSettings, *given: str | None) -> dict[str, list[int]]:
    """The statuses of each path, asked with each of the credentials."""
    holder = EngineHolder(start, on_failure=lambda: None, max_restarts=0, retry_after_s=1)
    app = create_app(holder, RunningRequests(most=8, retry_after_s=1), settings, version="0")
    found: dict[str, list[int]] = {}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://generate") as client,
    ):
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0)
        for credential in given:
            headers = (
                {} if credential is None else {b"Authorization": b"Bearer " + credential.encode()}
            )
            for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", INFO_PATH):
                answer = await client.get(path, headers=headers)
                found.setdefault(path, []).append(answer.status_code)
            answer = await client.post(GENERATE, json=REQUEST, headers=headers)
            found.setdefault(GENERATE, []).append(answer.status_code)
    return found


OPEN = ("/health", "/ready", "/version", "/metrics")


async def test_with_a_credential() -> None:
    found = await statuses(GenerateSettings(generate_api_key="secret"), None, "other", "secret")
    for path, got in found.items():
        assert got == ([200] * 3 if path in OPEN else [401, 401, 200]), path


async def test_without_one_everybody_may_ask() -> None:
    found = await statuses(GenerateSettings(), None)
    assert set(map(tuple, found.values())) == {(200,)}


async def test_credentials_of_a_file_rotate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LOOK_INTERVAL_S", 0.0)
    file = tmp_path / "credentials"
    file.write_text("old\nnew\n")
    settings = GenerateSettings(generate_api_key_file=str(file))
    assert (await statuses(settings, "old", "new"))[GENERATE] == [200, 200]
    file.write_text("new\n")
    assert (await statuses(settings, "old", "new"))[GENERATE] == [401, 200]


async def test_a_credential_of_other_characters_than_asciis(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("schlüssel\n", encoding="utf-8")
    settings = GenerateSettings(generate_api_key_file=str(file))
    assert (await statuses(settings, "schlüssel", "schlussel"))[GENERATE] == [200, 401]


def test_one_credential_has_one_setting(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("secret\n")
    both = GenerateSettings(generate_api_key="secret", generate_api_key_file=str(file))
    assert "two words for one credential" in str(tier_keys_error(both))
    assert tier_keys_error(GenerateSettings(generate_api_key="secret")) is None
    assert tier_keys_error(GenerateSettings(generate_api_key_file=str(file))) is None


def test_the_credential_is_not_shown() -> None:
    assert "secret" not in repr(GenerateSettings(generate_api_key="secret"))
