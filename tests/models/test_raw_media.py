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
from tests.models.supplied_media import misfits, supplied_pictures, supplied_sounds
from tests.monolith import PROCESSOR_CACHE, Monolith
from tests.pair import Pair
from tests.parity.answers import Answer, differences

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = (
    *("--served-model-name=served", "--max-model-len=4096", "--enable-mm-embeds"),
    *COMMON_FLAGS,
)
FRONT_FLAGS = ("--trust-request-mm-kwargs",)
RENDER_FLAGS = (*FRONT_FLAGS, "--allow-private-media-addresses=127.0.0.1")
MUST_BE_REFUSED = {"no picture", "no sound", "no film", "nothing at that address"}
MUST_BE_ANSWERED = {
    *("colour.png by HTTPS", "sound.wav by HTTPS", "film.mp4 by HTTPS"),
    *("colour.png, moved", "colour.png, moved to HTTPS", "nothing but the uuid"),
    *("fewer pixels", "two frames"),
}
DEADLY = ("picture", "film", "sound", "sound beside a picture")


# What a client got wrong, and vLLM takes for a fault of its own.
REFUSED_HERE = {"no tensor"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MediaServer]:
    with media_server(tmp_path, files()) as server:
        yield server


def chats(server: MediaServer) -> dict[str, dict[str, Any]]:
    parts = {name: [part] for name, part in raw_media(server)}
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
    # vLLM has fields for them, and dies of them with this model.
    supplied = [*supplied_pictures(), *supplied_sounds()]
    deadly = {name: _chat(*parts) for name, parts in supplied if name in DEADLY}
    with Pair(model, logs=tmp_path, flags=FLAGS, render_flags=RENDER_FLAGS, env=trusting) as pair:
        refused = asyncio.run(ask_all(pair.render, deadly))
        ours = asyncio.run(ask_all(pair.render, asked))
    with Monolith(
        model,
        *(*FLAGS, *FRONT_FLAGS, PROCESSOR_CACHE),
        log=tmp_path / "monolith.log",
        env=trusting,
    ) as monolith:
        theirs = asyncio.run(ask_all(monolith, asked))
    answered = check_alike(ours, theirs)
    assert answered >= MUST_BE_ANSWERED
    assert not answered & MUST_BE_REFUSED
    assert statuses(refused) == dict.fromkeys(DEADLY, 400)


def test_pictures_that_a_client_has_encoded(tmp_path: Path) -> None:
    model = checkpoint("qwen2_vl")
    asked = {name: _chat(*parts) for name, parts in supplied_pictures()}
    deadly = {name: _chat(*parts) for name, parts in misfits()}
    with Pair(model, logs=tmp_path, flags=FLAGS) as pair:
        refused = asyncio.run(ask_all(pair.render, deadly))
        ours = asyncio.run(ask_all(pair.render, asked))
    with Monolith(model, *FLAGS, PROCESSOR_CACHE, log=tmp_path / "monolith.log") as monolith:
        theirs = asyncio.run(ask_all(monolith, asked))
    assert statuses(refused) == dict.fromkeys(deadly, 400)
    assert check_alike(ours, theirs) >= {"picture", "two pictures", "film"}
    one, another = (theirs[name] for name in ("picture", "another picture"))
    assert one is not None
    assert another is not None
    assert one.logprobs != another.logprobs


def statuses(answers: dict[str, Answer | None]) -> dict[str, int | None]:
    return {name: None if answer is None else answer.status for name, answer in answers.items()}


def check_alike(ours: dict[str, Answer | None], theirs: dict[str, Answer | None]) -> set[str]:
    """Return the names of the requests that were answered, which all have to be alike."""
    found = []
    for name, answer in theirs.items():
        our = ours[name]
        assert answer is not None, name
        assert our is not None, name
        if name in REFUSED_HERE:
            assert (our.status, answer.status) == (400, 500), name
            continue
        found += [f"{name}: {line}" for line in compared(our, answer)]
    assert not found, "\n".join(found)
    return {name for name, answer in theirs.items() if answer and answer.status == 200}
