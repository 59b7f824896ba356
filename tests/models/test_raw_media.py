"""Media in every form that vLLM takes: the pair's answer is the monolith's, or its refusal."""

import asyncio
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.checkpoints import checkpoint
from tests.models.families import COMMON_FLAGS, text
from tests.models.measuring import ask_all
from tests.models.raw_media import files, raw_media
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.answers import differences

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = ("--served-model-name=served", "--max-model-len=4096", *COMMON_FLAGS)
MUST_BE_REFUSED = {"no picture", "no sound", "no film", "nothing at that address"}


@pytest.fixture
def media_server(tmp_path: Path) -> Iterator[str]:
    for name, data in files().items():
        (tmp_path / name).write_bytes(data)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_raw_media_are_answered_or_refused_alike(media_server: str, tmp_path: Path) -> None:
    model = checkpoint("qwen2_5_omni")
    chats = {
        name: {
            "model": "served",
            "messages": [{"role": "user", "content": [text("Here:"), part, text("So?")]}],
            "max_tokens": 6,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": 3,
            "return_token_ids": True,
        }
        for name, part in raw_media(media_server)
    }
    with Pair(model, logs=tmp_path, flags=FLAGS) as pair:
        ours = asyncio.run(ask_all(pair.render, chats))
    with Monolith(model, *FLAGS, log=tmp_path / "monolith.log") as monolith:
        theirs = asyncio.run(ask_all(monolith, chats))

    found = []
    for name, answer in theirs.items():
        our = ours[name]
        assert answer is not None, name
        assert our is not None, name
        if answer.status == our.status == 200:
            found += [f"{name}: {line}" for line in differences(our, answer)]
        # What the two say of a refusal may differ, the status may not.
        elif answer.status != our.status:
            found.append(f"{name}: {our.status} {our.error}, not {answer.status} {answer.error}")
    assert not found, "\n".join(found)
    refused = {name for name, answer in theirs.items() if answer and answer.status != 200}
    assert refused >= MUST_BE_REFUSED
