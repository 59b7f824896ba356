"""Media in every form that vLLM takes: the pair's answer is the monolith's, or its refusal."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import checkpoint
from tests.models.families import COMMON_FLAGS, text
from tests.models.measuring import ask_all
from tests.models.media_server import MediaServer, media_server
from tests.models.raw_media import files, options, raw_media
from tests.models.supplied_media import supplied_media
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.answers import Answer, differences

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = (
    *("--served-model-name=served", "--max-model-len=4096", "--enable-mm-embeds"),
    *COMMON_FLAGS,
)
FRONT_FLAGS = ("--trust-request-mm-kwargs",)
MUST_BE_REFUSED = {"no picture", "no sound", "no film", "nothing at that address"}
MUST_BE_ANSWERED = {
    *("colour.png by HTTPS", "telephone.wav by HTTPS", "film.mp4 by HTTPS"),
    *("colour.png, moved", "colour.png, moved to HTTPS", "nothing but the uuid"),
    *("fewer pixels", "two frames", "supplied: picture", "supplied: film", "supplied: sound"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MediaServer]:
    with media_server(tmp_path, files()) as server:
        yield server


def chats(server: MediaServer) -> dict[str, dict[str, Any]]:
    parts = {name: [part] for name, part in raw_media(server)}
    parts |= {f"supplied: {name}": given for name, given in supplied_media()}
    read = {name: _chat(part, **members) for name, part, members in options()}
    return {name: _chat(*given) for name, given in parts.items()} | read


def _chat(*parts: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "model": "served",
        "messages": [{"role": "user", "content": [text("Here:"), *parts, text("So?")]}],
        "max_tokens": 6,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": 3,
        "return_token_ids": True,
        **members,
    }


def compared(ours: Answer, theirs: Answer) -> list[str]:
    if theirs.status == ours.status == 200:
        return differences(ours, theirs)
    # What the two say of a refusal may differ, the status may not.
    if theirs.status != ours.status:
        return [f"{ours.status} {ours.error}, not {theirs.status} {theirs.error}"]
    return []


def test_raw_media_are_answered_or_refused_alike(server: MediaServer, tmp_path: Path) -> None:
    model = checkpoint("qwen2_5_omni")
    trusting = {"SSL_CERT_FILE": str(server.certificate)}
    asked = chats(server)
    with Pair(model, logs=tmp_path, flags=FLAGS, render_flags=FRONT_FLAGS, env=trusting) as pair:
        ours = asyncio.run(ask_all(pair.render, asked))
    with Monolith(
        model, *FLAGS, *FRONT_FLAGS, log=tmp_path / "monolith.log", env=trusting
    ) as monolith:
        theirs = asyncio.run(ask_all(monolith, asked))

    found = []
    for name, answer in theirs.items():
        our = ours[name]
        assert answer is not None, name
        assert our is not None, name
        found += [f"{name}: {line}" for line in compared(our, answer)]
    assert not found, "\n".join(found)
    answered = {name for name, answer in theirs.items() if answer and answer.status == 200}
    assert answered >= MUST_BE_ANSWERED
    assert not answered & MUST_BE_REFUSED
