"""Media through our connector and through vLLM's own: read, or refused, alike."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.connections import HTTPConnection
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.multimodal.media import MediaConnector
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

from render_service.media_addresses import address_rule
from render_service.media_rules import media_rules
from render_service.settings import RenderSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_connector import GuardedConnector
from render_service.vllm_media_fetch import MediaSessions
from tests.models.media import mp4
from tests.models.media_server import MediaServer, media_server
from tests.models.raw_media import files, raw_media

pytestmark = pytest.mark.anyio

RULES = replace(
    media_rules(RenderSettings(generate_url=("http://generate:1",))),
    addresses=address_rule(("127.0.0.1",)),
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MediaServer]:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with media_server(tmp_path, files()) as server:
        yield server


async def outcome(connector: MediaConnector, kind: str, url: str) -> Any:
    """The media, or the status of what vLLM answers instead."""
    try:
        media = await getattr(connector, f"fetch_{kind}_async")(url)
    except Exception as error:
        return create_error_response(error).error.code
    return np.asarray(media[0]) if kind in ("audio", "video") else np.asarray(media.media)


def urls(server: MediaServer) -> Iterator[tuple[str, str, str]]:
    for name, part in raw_media(server):
        kind = part["type"].removesuffix("_url")
        if url := (part.get(part["type"]) or {}).get("url"):
            yield name, kind, url
    yield "nobody there", "image", "http://127.0.0.1:9/a.png"
    yield "no such name", "image", "http://nowhere.invalid/a.png"
    yield "a certificate for a picture", "image", f"{server.http}/nothing"
    yield "no base64", "image", "data:image/png;base64,%%%"
    yield "another scheme", "image", "ftp://127.0.0.1/a.png"
    yield "no URL", "image", "picture.png"


async def test_read_or_refused_as_by_vllm(server: MediaServer) -> None:
    sessions = MediaSessions(RULES.addresses)
    guarded = GuardedConnector(images=DecodedImages(2**27), rules=RULES, sessions=sessions)
    own = MediaConnector(connection=HTTPConnection())
    read, refused = set(), {}
    for name, kind, url in urls(server):
        theirs, ours = [await outcome(each, kind, url) for each in (own, guarded)]
        assert type(ours) is type(theirs), (name, ours, theirs)
        assert np.array_equal(ours, theirs), (name, ours, theirs)
        assert np.array_equal(await outcome(guarded, kind, url), theirs), f"{name} once more"
        if isinstance(ours, int):
            refused[name] = ours
        else:
            read.add(name)
    await sessions.close()
    await (await own.connection.get_async_client()).close()
    assert len(read) > 30
    assert {"colour.png, moved", "film.mp4 by HTTP", "odd-rate.flac by HTTP"} <= read
    assert refused["nothing at that address"] == refused["colour.png in circles"] == 422
    assert refused["colour.png of a stranger"] == 422
    assert refused["film.mp4 of a broken server"] == 500


def loaders() -> list[str]:
    registered = VIDEO_LOADER_REGISTRY.name2class
    return [name for name in registered if not VIDEO_LOADER_REGISTRY.backend_requires_gpu(name)]


@pytest.mark.parametrize("loader", loaders())
async def test_films_through_every_loader_of_vllm(loader: str) -> None:
    """A guarded loader takes the frames, and says of them, what its original does."""
    film = base64.b64encode(mp4(6, 24, 64, 64)).decode()
    options = {"video": {"video_backend": loader}}
    guarded = GuardedConnector(
        options,
        rules=RULES,
        sessions=MediaSessions(RULES.addresses),
        images=DecodedImages(0),
    )
    url = f"data:video/mp4;base64,{film}"
    ours, theirs = guarded.fetch_video(url), MediaConnector(options).fetch_video(url)
    assert np.array_equal(ours.media[0], theirs.media[0])
    assert ours.media[1] == theirs.media[1]
    assert ours.original_bytes == theirs.original_bytes
